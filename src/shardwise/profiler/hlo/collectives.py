"""The collectives of a compiled module: kind, groups, V in bytes, how often, and where they end.

V follows `work.Collective`. From one device's output O in a group of N: all-gather O, all-reduce O,
reduce-scatter N O, all-to-all N O, permute O; a tuple counts as the sum of its parts. An
asynchronous collective is the start; its done is named. Loops multiply by their trip count.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.errors import ShardwiseError
from shardwise.profiler.hlo.groups import Groups, MeshAxes, mesh_axes, read_groups, read_pairs
from shardwise.profiler.hlo.shapes import Array, Shape, arrays
from shardwise.profiler.hlo.text import Computation, Instruction, Module, read_module
from shardwise.sharding.mesh import Mesh
from shardwise.units import DTYPE_BYTES
from shardwise.work import Collective, CollectiveKind

KINDS: dict[str, CollectiveKind] = {
    "all-gather": "all_gather",
    "all-reduce": "all_reduce",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "ragged_all_to_all",
    "collective-permute": "permute",
}
FLOATS = ("bf16", "f16", "f32", "f64")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCollective:
    """One collective of a compiled program.

    `groups` are groups of partition ids, or a permute's (source, target) pairs. `bytes` is V as
    compiled; `dtypes` those of its arrays. `count` is how often it runs per call, and `counted`
    is False where a loop's trip count is not in the text (each such loop counts once). `done` is
    the instruction that ends it, itself if it is synchronous. `op_name` is the JAX operation.
    """

    name: str
    kind: CollectiveKind
    groups: Groups
    bytes: float
    dtypes: tuple[str, ...]
    count: int
    counted: bool
    computation: str
    done: str
    op_name: str

    @property
    def asynchronous(self) -> bool:
        """Whether other work may run between its start and its done."""
        return self.done != self.name


def read_collectives(text: str | Module) -> tuple[CompiledCollective, ...]:
    """All collectives that one call runs, in the order of the text, loops' bodies in place.

    Raises ShardwiseError for a collective without a rule: none is silently free.
    """
    module = read_module(text) if isinstance(text, str) else text
    return tuple(_walk(module, module.entry, 1, True))


def on_mesh(collective: CompiledCollective, mesh: Mesh) -> tuple[Collective, MeshAxes]:
    """The collective over the mesh's axes, and whether its groups are whole axes."""
    axes = mesh_axes(collective.groups, mesh)
    if collective.kind == "permute":  # a permute's pairs are no group
        axes = MeshAxes(axes.axes, True)
    return Collective(kind=collective.kind, axes=axes.axes, bytes=collective.bytes), axes


def at_dtype(collective: CompiledCollective, dtype: str) -> CompiledCollective:
    """The same collective at the program's dtype, if the compiler sends wider floats.

    XLA on CPUs adds up bf16 and f16 in f32, the collective included; a TPU sends them as they are.
    """
    wide = {d for d in collective.dtypes if d in FLOATS}
    if dtype not in FLOATS or len(wide) != 1 or len(set(collective.dtypes)) != 1:
        return collective
    factor = DTYPE_BYTES[dtype] / _width(wide.pop())
    if factor >= 1:
        return collective
    return replace(collective, bytes=collective.bytes * factor, dtypes=(dtype,))


def _width(dtype: str) -> float:
    return {"bf16": 2.0, "f16": 2.0, "f32": 4.0, "f64": 8.0}[dtype]


def _walk(module: Module, name: str, count: int, counted: bool) -> Iterator[CompiledCollective]:
    computation = module.computations[name]
    for instruction in computation.instructions:
        base = instruction.opcode.removesuffix("-start")
        if base in KINDS:
            yield _collective(module, computation, instruction, count, counted)
        elif base == "collective-broadcast":
            raise ShardwiseError(f"'{instruction.name}' is a {base}, which has no rule here")
        elif instruction.opcode == "async-start":
            for inner in _called(module, instruction, count, counted):
                yield replace(inner, done=_done(computation, instruction))
        elif instruction.opcode == "while":
            trips = _trips(module, instruction)
            body = instruction.attribute("body").lstrip("%")
            yield from _walk(module, body, count * (trips or 1), counted and trips is not None)
        elif instruction.opcode not in ("async-update", "async-done"):
            yield from _called(module, instruction, count, counted)


def _called(
    module: Module, instruction: Instruction, count: int, counted: bool
) -> Iterator[CompiledCollective]:
    for called in instruction.called:
        if called in module.computations:
            yield from _walk(module, called, count, counted)


def _collective(
    module: Module, computation: Computation, instruction: Instruction, count: int, counted: bool
) -> CompiledCollective:
    kind = KINDS[instruction.opcode.removesuffix("-start")]
    parts = list(arrays(_result(instruction)))
    if kind == "permute":
        groups: Groups = read_pairs(instruction.attribute("source_target_pairs"))
        members = 1
    else:
        groups = read_groups(instruction.attribute("replica_groups"), module.devices)
        members = len(groups[0])
    scattered = kind in ("reduce_scatter", "all_to_all", "ragged_all_to_all")
    op_name = re.search(r'op_name="((?:[^"\\]|\\.)*)"', instruction.attributes)
    return CompiledCollective(
        name=instruction.name,
        kind=kind,
        groups=groups,
        bytes=sum(part.bytes for part in parts) * (members if scattered else 1),
        dtypes=tuple(dict.fromkeys(part.dtype for part in parts)),
        count=count,
        counted=counted,
        computation=computation.name,
        done=_done(computation, instruction),
        op_name=op_name[1] if op_name else "",
    )


def _result(instruction: Instruction) -> Shape:
    """The output of a collective; a start's shape is (input, output, ...), all-reduce's is not."""
    shape = instruction.shape
    if instruction.opcode in ("all-reduce-start", *KINDS) or isinstance(shape, Array):
        return shape
    return shape[1]


def _done(computation: Computation, start: Instruction) -> str:
    """The instruction that ends an asynchronous one, through updates; itself if it has no done."""
    if not start.opcode.endswith("-start"):
        return start.name
    names = {start.name}
    for instruction in computation.instructions:
        if names & set(instruction.operands):
            if instruction.opcode.endswith("-done"):
                return instruction.name
            if instruction.opcode.endswith("-update"):
                names.add(instruction.name)
    return start.name


def _trips(module: Module, loop: Instruction) -> int | None:
    """A loop's trip count: XLA's own note, or the constant its condition compares with (`< n`)."""
    if known := re.search(r'"known_trip_count":\{"n":"?(\d+)', loop.attributes):
        return int(known[1])
    condition = module.computations.get(loop.attribute("condition").lstrip("%"))
    if condition is None:
        return None
    compares = [i for i in condition.instructions if i.opcode == "compare" and i.root]
    if len(compares) != 1 or "direction=LT" not in compares[0].attributes:
        return None
    return _constant(condition, compares[0].operands[-1])


def _constant(computation: Computation, name: str) -> int | None:
    found = computation.find(name)
    if found is None or found.opcode != "constant":
        return None
    return int(found.operands[0]) if found.operands[0].isdecimal() else None
