"""The collectives of a step as lines of (kind, axes, V in bytes, times per step): of a plan's Work,
and of the text of a compiled program.

`rules.py` explains where the two lists differ, by general rules.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from shardwise.plans import ServePlan, TrainPlan
from shardwise.profiler.hlo import CompiledCollective, on_mesh, read_collectives, read_module
from shardwise.profiler.hlo.parts import Form, parts
from shardwise.sharding.mesh import Mesh
from shardwise.work import Collective, CollectiveKind, Work

Key = tuple[CollectiveKind, tuple[str, ...]]
_REPEATED = re.compile(r"\.remat\d*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One array of a collective: V in bytes, `count` times per step.

    `name` is the planner's op or the operation of JAX; `dtype` that of the array, `elements` its
    elements on one device (0 where it is planned); `form` says how a compiler writes it; `sent`
    are the bytes that one device puts in; `again`: it is another line once more, by the compiler's
    rematerialisation, or a planned one is as large as one that two passes may share.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    bytes: float
    count: float
    name: str
    dtype: str
    elements: float = 0.0
    form: Form = "itself"
    sent: float = 0.0
    again: bool = False

    @property
    def key(self) -> Key:
        return self.kind, self.axes

    @property
    def written(self) -> CollectiveKind:
        """The kind that a program has, which may stand for another."""
        return self.kind if self.form == "itself" else "all_reduce"

    @property
    def total(self) -> float:
        """Bytes per step."""
        return self.bytes * self.count


def by_axes(lines: Sequence[Line]) -> dict[Key, tuple[float, float]]:
    """(kind, axes) -> how many arrays and V in bytes, per step."""
    found: dict[Key, tuple[float, float]] = {}
    for line in lines:
        count, size = found.get(line.key, (0.0, 0.0))
        found[line.key] = (count + line.count, size + line.total)
    return found


def written(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Each line under the kind that a program has for it."""
    return tuple(replace(line, kind=line.written) for line in lines)


# Planned ------------------------------------------------------------------------------------------


def _as_is(wire: Collective) -> tuple[Collective]:
    return (wire,)


def lines_of(
    work: Work,
    plan: TrainPlan | ServePlan,
    sent: Callable[[Collective], Iterable[Collective]] = _as_is,
) -> tuple[Line, ...]:
    """The collectives of a Work whose quantities are numbers, over axes that have devices; each as
    a compiler is known to send it (`roofline.price.sent_as`), if one is."""
    found = []
    for op in work.ops:
        if op.collective is None or not float(op.count) or not float(op.collective.bytes):
            continue
        for wire in sent(op.collective):
            axes = tuple(axis for axis in plan.mesh if axis in wire.axes and plan.degree(axis) > 1)
            if axes:
                line = Line(
                    kind=op.collective.kind,
                    axes=axes,
                    bytes=float(wire.bytes),
                    count=float(op.count),
                    name=op.id,
                    dtype=_dtype(op.component, op.id, plan),
                    form="itself" if wire.kind == op.collective.kind else "sum and slice",
                )
                found.append(line)
    return tuple(found)


def _dtype(component: str, op_id: str, plan: TrainPlan | ServePlan) -> str:
    """What the planner counts a collective in."""
    if isinstance(plan, ServePlan):
        return plan.dtypes.activations
    if component == "gradients":
        return plan.dtypes.grad
    if component == "parameters" and op_id.startswith("optimizer"):
        return plan.dtypes.param
    return activation_dtype(plan)


def activation_dtype(plan: TrainPlan | ServePlan) -> str:
    """The dtype of activations and gathered parameters."""
    if isinstance(plan, ServePlan):
        return plan.dtypes.activations
    return "bf16" if plan.dtypes.compute in ("fp8", "int8") else plan.dtypes.compute


# Compiled -----------------------------------------------------------------------------------------


def read_lines(text: str, plan: TrainPlan | ServePlan) -> tuple[Line, ...]:
    """The collectives of a compiled step over the plan's axes, every array a line of its own."""
    axes = {axis: n for axis, n in plan.mesh.items() if axis != "stage"}
    module, mesh = read_module(text), Mesh.of(axes)
    found: list[Line] = []
    seen: set[str] = set()
    for collective in read_collectives(module):
        placed, at = on_mesh(collective, mesh)
        if not placed.axes:
            continue
        share = _groups_of(collective, placed.axes, mesh) if not at.whole else 1.0
        base = _REPEATED.sub("", collective.name)
        again = base in seen and base != collective.name
        seen.add(base)
        for part in parts(module, collective):
            line = Line(
                kind=part.kind,
                axes=placed.axes,
                bytes=part.bytes * share,
                count=float(collective.count),
                name=collective.op_name,
                dtype=part.array.dtype,
                elements=float(prod(part.array.dims)),
                form=part.form,
                sent=part.sent,
                again=again,
            )
            found.append(line)
    return tuple(found)


def _groups_of(collective: CompiledCollective, axes: tuple[str, ...], mesh: Mesh) -> float:
    """How many groups an exchange within a part of its axes has for one of all of them, which is
    what a plan counts; what is gathered or summed is there in each of them."""
    if collective.kind != "all_to_all":
        return 1.0
    return prod(mesh[axis] for axis in axes) / len(collective.groups[0])


def chains(lines: Sequence[Line]) -> list[list[Line]]:
    """The permutes beside matmuls, those of one einsum and one size of piece together."""
    found: dict[tuple[str, float], list[Line]] = {}
    for line in lines:
        if line.name.endswith("dot_general"):
            found.setdefault((line.name, line.bytes), []).append(line)
    return list(found.values())


def chain_bytes(chain: Sequence[Line], n: int) -> float:
    """V of what a chain of permutes stands for: of as few arrays of n pieces as make so many hops,
    n + 1 each where the matmul goes both ways round and unrolled, or n - 1; 0 if none do."""
    runs = min(x.count for x in chain)
    hops = sum(x.count for x in chain) / runs
    for arrays in range(1, int(hops) + 1):
        two_way = (hops - arrays * (n - 1)) / 2
        if two_way in range(arrays + 1):
            return arrays * n * runs * chain[0].bytes
    return 0.0
