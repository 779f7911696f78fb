"""Work: the one currency. Counting makes it, pricing spends it, comparing groups it.

A `Work` is what ONE device (the busiest) has to do in one step: ops in program order, each with
its FLOPs by dtype, its HBM bytes, the dims of the matmul it runs, the collective it takes part in,
how often it repeats and what it waits for. Every quantity may be a float or a NumPy array; arrays
broadcast, so that one Work can describe thousands of candidate plans at once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal, TypeVar

import numpy as np

Quantity = float | np.ndarray
"""A number, or an array of numbers over candidate plans."""
D = TypeVar("D")
K = TypeVar("K")
T = TypeVar("T")

CollectiveKind = Literal[
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "ragged_all_to_all", "permute"
]
OpClass = Literal[
    "matmul", "attention", "elementwise", "scan", "gather", "copy", "collective", "unknown"
]


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """`batch` products [m, k] x [k, n] on one device; the dims let pricing see tile padding, and
    `weight_bytes` of a number of [k, n] whether it is made wide on its way."""

    m: Quantity
    k: Quantity
    n: Quantity
    batch: Quantity = 1.0
    weight_bytes: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Whose block each device of a group gets in a permute that turns one layout into another.

    Per dim of the array, the axes that cut it `before` and `after`, major to minor: a device holds
    the block that its places along the first name, and needs the one that the second name. `axes`
    are those of the collective, in its order; along one that cuts nothing the blocks are copies.
    """

    axes: tuple[str, ...]
    before: tuple[tuple[str, ...], ...]
    after: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """Which device sends its block to which in a permute that was read: (source, target) numbers in
    the group of `axes`, the last axis fastest. One that is no target keeps what it has."""

    axes: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective over the devices that differ only along `axes`.

    `bytes` is V, the logical array of one group: the gathered array of an all-gather, the input of
    a reduce-scatter, the buffer of an all-reduce, the total over the group of an all-to-all, the
    payload per device of a permute. Bytes on the wire are derived by the pricer.
    `fan_out` is the number of destinations a token of a ragged all-to-all can reach. `exchange`
    says whose block each device of a permute gets; without it that of the device before it, in a
    ring. `merged` is how many such collectives travel as one message, whose latency they share.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    bytes: Quantity
    fan_out: Quantity | None = None
    exchange: Exchange | Sends | None = None
    merged: Quantity = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What two Works are compared by; names and fusions may differ, sums per key may not. The two
    halves of a backward pass, `backward` and `weight`, are one: a compiler does not tell which."""

    phase: str
    component: str
    op_class: OpClass
    collective: str = ""
    axes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation of one device.

    `hbm_bytes` is what the op moves as the stack runs it. `on_chip_bytes` of them may stay on the
    chip where another implementation fuses the op with its neighbours: what is made and used within
    the step. The others, `hbm_least`, are arguments and results of the step, which lie in HBM
    between steps: weights, cache, optimizer state; they cross it whatever the implementation.
    `head_dims` are the widths of a head's queries and of its values, of an attention kernel, or of
    the heads that a product's weights are laid out by. `tiled`: attention as a loop over tiles of
    scores, without a kernel.

    `count` is how often it runs per step. `stream` is where it runs: "compute", "copy" (on-chip
    memory to HBM and back), "host" (the copy engine to host memory), or "net:<axes>". `body` names
    the loop that the op belongs to: the ops of one body run round by round, in order on each
    stream. `after` holds the ids of ops of the same body that must finish first; an id at or after
    this op means that op's previous round.
    """

    id: str
    name: str
    phase: str
    component: str
    op_class: OpClass
    flops: Mapping[str, Quantity] = field(default_factory=dict)
    hbm_bytes: Quantity = 0.0
    on_chip_bytes: Quantity = 0.0
    host_bytes: Quantity = 0.0
    matmul: Matmul | None = None
    head_dims: tuple[int, ...] = ()
    tiled: bool = False
    collective: Collective | None = None
    count: Quantity = 1.0
    stream: str = "compute"
    body: str = ""
    after: tuple[str, ...] = ()

    @property
    def hbm_least(self) -> Quantity:
        """HBM bytes of one run that no implementation avoids."""
        return self.hbm_bytes - self.on_chip_bytes

    @property
    def key(self) -> Key:
        kind, axes = ("", ())
        if self.collective is not None:
            kind, axes = self.collective.kind, self.collective.axes
        return Key(
            phase="backward" if self.phase == "weight" else self.phase,
            component=self.component,
            op_class=self.op_class,
            collective=kind,
            axes=axes,
        )


def make_op(
    op_id: str,
    component: str,
    op_class: OpClass,
    *,
    phase: str = "",
    hbm_bytes: Quantity = 0.0,
    hbm_least: Quantity = 0.0,
    **fields,
) -> Op:
    """An op whose name is its id. `hbm_least` of its HBM bytes are of the step's arguments and
    results; the others are activations, which may stay on the chip."""
    return Op(
        id=op_id,
        name=op_id,
        phase=phase,
        component=component,
        op_class=op_class,
        hbm_bytes=hbm_bytes,
        on_chip_bytes=hbm_bytes - hbm_least,
        **fields,
    )


def exchange(
    op_id: str,
    kind: CollectiveKind,
    component: str,
    axes: tuple[str, ...],
    size: Quantity,
    *,
    fan_out: Quantity | None = None,
    merged: Quantity = 1.0,
    **fields,
) -> Op:
    """A collective of `size` = V bytes over `axes`, on the network of the first of them."""
    wire = Collective(kind=kind, axes=axes, bytes=size, fan_out=fan_out, merged=merged)
    return make_op(
        op_id,
        component,
        "collective",
        collective=wire,
        stream=stream_of(axes),
        **fields,
    )


def stream_of(axes: tuple[str, ...]) -> str:
    """The network stream of a collective: one per leading mesh axis."""
    return f"net:{axes[0]}"


@dataclass(frozen=True, slots=True)
class Work:
    """Ops in program order. `a + b` runs a then b, `w * n` runs w n times."""

    ops: tuple[Op, ...] = ()

    def __add__(self, other: "Work") -> "Work":
        return Work(self.ops + other.ops)

    def __mul__(self, times: Quantity) -> "Work":
        return Work(tuple(replace(op, count=op.count * times) for op in self.ops))

    __rmul__ = __mul__

    def where(self, keep: Callable[[Op], bool]) -> "Work":
        """The ops for which `keep(op)` holds."""
        return Work(tuple(op for op in self.ops if keep(op)))

    def flops(self, dtype: str | None = None) -> Quantity:
        """FLOPs per step on one device, of one dtype or of all."""
        return total(
            f * op.count
            for op in self.ops
            for name, f in op.flops.items()
            if dtype is None or name == dtype
        )

    def hbm_bytes(self) -> Quantity:
        """HBM bytes moved per step on one device."""
        return total(op.hbm_bytes * op.count for op in self.ops)

    def collective_bytes(self, kind: str | None = None) -> Quantity:
        """Logical bytes V of all collectives per step, of one kind or of all."""
        return total(
            op.collective.bytes * op.count
            for op in self.ops
            if op.collective is not None and kind in (None, op.collective.kind)
        )

    def over(self, degrees: Mapping[str, int]) -> "Work":
        """The work on a mesh of these degrees: collectives without the axes of one device, the
        others in alphabetical order, and none that has no axis left or moves nothing."""
        ops = (_over(op, degrees) for op in self.ops)
        return Work(tuple(op for op in ops if op is not None))

    def by_key(self) -> dict[Key, dict[str, Quantity]]:
        """Sums of flops, hbm_bytes and collective bytes per key, and how often it runs: what two
        Works are compared by."""
        return {
            key: {
                "flops": Work(tuple(ops)).flops(),
                "hbm_bytes": Work(tuple(ops)).hbm_bytes(),
                "collective_bytes": Work(tuple(ops)).collective_bytes(),
                "runs": total(op.count for op in ops),
            }
            for key, ops in grouped(self.ops, lambda op: op.key).items()
        }

    def unknown(self) -> tuple[Op, ...]:
        """Ops without a counting rule: reported, never priced as zero."""
        return tuple(op for op in self.ops if op.op_class == "unknown")


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """Bytes alive on one device, by kind, at each named point of a step, in order."""

    points: tuple[tuple[str, Mapping[str, Quantity]], ...]

    def total_at(self, index: int) -> Quantity:
        """Bytes alive at one point."""
        return total(self.points[index][1].values())

    def peak(self) -> Quantity:
        """The largest total over the step, in bytes."""
        return reduce(np.maximum, map(self.total_at, range(len(self.points))))

    def peak_point(self) -> tuple[str, Mapping[str, Quantity]]:
        """Name and contents of the fullest point; for scalar timelines."""
        return max(self.points, key=lambda point: float(total(point[1].values())))


def tally(amounts: Iterable[tuple[K, float]]) -> dict[K, float]:
    """The amounts of each key added up, keys in the order in which they come.

    >>> tally([("a", 1), ("b", 2), ("a", 3)])
    {'a': 4, 'b': 2}
    """
    found: dict[K, float] = {}
    for key, amount in amounts:
        found[key] = found.get(key, 0) + amount
    return found


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of each key, in their order, keys in the order in which they come.

    >>> grouped([3, 1, 4, 1, 5], lambda n: n % 2)
    {1: [3, 1, 1, 5], 0: [4]}
    """
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _over(op: Op, degrees: Mapping[str, int]) -> Op | None:
    if op.collective is None:
        return op
    axes = tuple(sorted(axis for axis in op.collective.axes if degrees.get(axis, 1) > 1))
    if not axes or not np.any(op.collective.bytes) or not np.any(op.count):
        return None
    return replace(op, collective=replace(op.collective, axes=axes))


def changed(one: D, **values: Any) -> D:
    """`dataclasses.replace` of an op or a part of it, in a twentieth of the time: no field is set
    on its own. Steps are counted by changing a few values of each op again and again."""
    made = object.__new__(type(one))
    known = made.__dict__
    known.update(one.__dict__)
    assert values.keys() <= known.keys(), "a change of a field that there is not"
    known.update(values)
    return made


def present(value: Quantity) -> bool:
    """Whether any number is not 0: `np.any`, which takes several times as long where there are few
    numbers."""
    return bool(value if isinstance(value, float) else np.count_nonzero(value))


def total(values: Iterable[Quantity]) -> Quantity:
    """The sum; 0 of nothing."""
    some = iter(values)
    added = next(some, 0.0)
    for value in some:
        added = added + value
    return added


def largest(values: Iterable[Quantity]) -> Quantity:
    """The largest; 0 of nothing."""
    most: Quantity = 0.0
    for value in values:
        if isinstance(value, float) and isinstance(most, float):
            most = value if value > most or value != value else most
        else:
            most = np.maximum(most, value)
    return most
