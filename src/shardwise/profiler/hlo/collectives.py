"""The collectives of a compiled module: kind, groups, V in bytes, how often, and where they end.

V follows `work.Collective`. From one device's output O in a group of N: all-gather O, all-reduce O,
reduce-scatter N O, all-to-all N O, permute O; a tuple counts as the sum of its parts. An
asynchronous collective is the start; its done is named. Loops multiply by their trip count.

On TPUs a collective may be carried on by a chain of fusions, each of which holds it again: it
counts once, where it starts. An all-reduce whose result a fusion cuts to one shard is a
reduce-scatter.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from shardwise.errors import ShardwiseError
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.groups import Groups, MeshAxes, mesh_axes, read_groups, read_pairs
from shardwise.profiler.hlo.loops import rounds, trip_counts
from shardwise.profiler.hlo.shapes import Array, Shape, arrays
from shardwise.profiler.hlo.text import Computation, Instruction, Module
from shardwise.profiler.hlo.transfers import read_transfer
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
_CARRIED = "async_collective_fusion_config"
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
    return tuple(_walk(module, trip_counts(module), module.entry, 1, True))


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
    factor = DTYPE_BYTES[dtype] / DTYPE_BYTES[wide.pop()]
    if factor >= 1:
        return collective
    return replace(collective, bytes=collective.bytes * factor, dtypes=(dtype,))


_Trips = Mapping[tuple[str, str], int | None]


def _walk(
    module: Module, trips: _Trips, name: str, count: int, counted: bool
) -> Iterator[CompiledCollective]:
    computation, runs = module.computations[name], {"count": count, "counted": counted}
    for instruction in computation.instructions:
        base = instruction.opcode.removesuffix("-start")
        if base in KINDS:
            yield replace(collective_of(module, computation, instruction), **runs)
        elif base == "send":
            if found := sent_collective(module, computation, instruction):
                yield replace(found, **runs)
        elif base == "collective-broadcast":
            raise ShardwiseError(f"'{instruction.name}' is a {base}, which has no rule here")
        elif instruction.opcode in ("fusion", "async-start"):
            for inner in fused_collectives(module, computation, instruction):
                yield replace(inner, **runs)
        elif instruction.opcode == "while":
            times = trips[computation.name, instruction.name]
            body = instruction.attribute("body").lstrip("%")
            more = counted and times is not None
            each = rounds(module, instruction, count, times)
            yield from _walk(module, trips, body, int(each), more)
        elif instruction.opcode not in ("async-update", "async-done"):
            for called in instruction.called:
                if called in module.computations:
                    yield from _walk(module, trips, called, count, counted)


def fused_collectives(
    module: Module, computation: Computation, outer: Instruction
) -> tuple[CompiledCollective, ...]:
    """The collectives that a fusion or an `async-start` runs or starts, under its name."""
    if outer.opcode == "fusion" and chain_part(module, outer) in ("middle", "done"):
        return ()
    done = done_of(module, computation, outer)
    found = []
    for inside in (c for name in outer.called for c in module.reached(name)):
        for instruction in inside.instructions:
            if instruction.opcode.removesuffix("-start") in KINDS:
                inner = collective_of(module, inside, instruction)
                found.append(
                    replace(inner, name=outer.name, computation=computation.name, done=done)
                )
    return tuple(found)


def chain_part(module: Module, fusion: Instruction) -> Literal["", "start", "middle", "done"]:
    """Which part of a chain of fusions that carry a collective on a fusion is; "" if of none."""
    inside = module.computation(fusion.called[0])
    if "part" not in inside.memo:
        inside.memo["part"] = _part(inside.instructions)
    return inside.memo["part"]


def _part(inside: Iterable[Instruction]) -> Literal["", "start", "middle", "done"]:
    targets = {i.target for i in inside if i.opcode == "custom-call"}
    if "AsyncCollectiveStart" in targets:
        return "start"
    if "AsyncCollectiveDone" in targets:
        return "done"
    carried = any(_CARRIED in i.attribute("backend_config") for i in inside if _channel(i))
    return "middle" if carried else ""


def collective_of(
    module: Module, computation: Computation, instruction: Instruction
) -> CompiledCollective:
    """One collective instruction, to run once."""
    kind = KINDS[instruction.opcode.removesuffix("-start")]
    result = _result(instruction)
    if kind == "all_reduce" and (shard := _shard(computation, instruction)):
        kind, result = "reduce_scatter", shard
    parts = list(arrays(result))
    if kind == "permute":
        groups: Groups = read_pairs(instruction.attribute("source_target_pairs"))
        members = 1
    else:
        groups = read_groups(instruction.attribute("replica_groups"), module.devices)
        members = len(groups[0])
    scattered = kind in ("reduce_scatter", "all_to_all", "ragged_all_to_all")
    return CompiledCollective(
        name=instruction.name,
        kind=kind,
        groups=groups,
        bytes=sum(part.bytes for part in parts) * (members if scattered else 1),
        dtypes=tuple(dict.fromkeys(part.dtype for part in parts)),
        count=1,
        counted=True,
        computation=computation.name,
        done=done_of(module, computation, instruction),
        op_name=instruction.op_name,
    )


def sent_collective(
    module: Module, computation: Computation, send: Instruction
) -> CompiledCollective | None:
    """The collective that a send to another slice or device starts; None for one to the host."""
    found = read_transfer(module, computation, send)
    if found is None:
        return None
    return CompiledCollective(
        name=send.name,
        computation=computation.name,
        op_name=send.op_name,
        count=1,
        counted=True,
        **found._asdict(),
    )


def _shard(computation: Computation, reduce: Instruction) -> Array | None:
    """What a fusion named for it keeps of an all-reduce: the shard that its root cuts out."""
    root = computation.root
    if not computation.name.startswith("all-reduce-scatter") or root.opcode != "dynamic-slice":
        return None
    return computation.array_of(root.name) if root.operands[0] == reduce.name else None


def _result(instruction: Instruction) -> Shape:
    """The output of a collective; a start's shape is (input, output, ...), all-reduce's is not."""
    shape = instruction.shape
    if instruction.opcode in ("all-reduce-start", *KINDS) or isinstance(shape, Array):
        return shape
    return shape[1]


def done_of(module: Module, computation: Computation, start: Instruction) -> str:
    """The instruction that ends an asynchronous one, through updates; itself if it has no done."""
    if start.opcode == "fusion":
        return _chain_done(module, computation, start)
    if not start.opcode.endswith("-start"):
        return start.name
    names, dones = [start.name], []
    for name in names:  # grows by the updates
        for reader in computation.readers(name):
            if reader.opcode.endswith("-done"):
                dones.append(reader)
            elif reader.opcode.endswith("-update"):
                names.append(reader.name)
    return min(dones, key=lambda i: i.line).name if dones else start.name


def _chain_done(module: Module, computation: Computation, start: Instruction) -> str:
    """The first done after the start of a chain that carries the same channel."""
    if chain_part(module, start) != "start":
        return start.name
    dones = _dones(module, computation)
    channels = _channels(module, start)
    after = [i for channel in channels for i in dones.get(channel, ()) if i.line > start.line]
    return min(after, key=lambda i: i.line).name if after else start.name


def _dones(module: Module, computation: Computation) -> Mapping[str, list[Instruction]]:
    """Channel -> the fusions of a computation that end what it carries."""
    if "dones" not in computation.memo:
        found: dict[str, list[Instruction]] = {}
        for i in computation.instructions:
            if i.opcode == "fusion" and chain_part(module, i) == "done":
                for channel in _channels(module, i):
                    found.setdefault(channel, []).append(i)
        computation.memo["dones"] = found
    return computation.memo["dones"]


def _channels(module: Module, fusion: Instruction) -> frozenset[str]:
    inside = module.computation(fusion.called[0])
    if "channels" not in inside.memo:
        inside.memo["channels"] = frozenset(_channel(i) for i in inside.instructions) - {""}
    return inside.memo["channels"]


def _channel(instruction: Instruction) -> str:
    collective = instruction.opcode.removesuffix("-start") in KINDS
    return instruction.attribute("channel_id") if collective else ""
