"""Seconds of a resolved program and of what XLA made, by the same rules, one op after the other: a
permute by the blocks that move.

XLA on CPUs leaves an all-reduce and a slice where TPUs and GPUs make a reduce-scatter of them; such
a pair is priced as that: to XLA's advantage, and as the chips of the prices would have it.
"""

from dataclasses import dataclass
from math import prod

from proof.parts import in_parts
from shardwise.hardware import Slice, place
from shardwise.profiler.hlo import (
    CompiledCollective,
    Instruction,
    Module,
    arrays,
    at_dtype,
    mesh_axes,
    read_collectives,
    read_matmuls,
    read_module,
)
from shardwise.roofline.strategies import seconds
from shardwise.sharding.count import collective_op, count, product_op
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.reshard import Cost
from shardwise.sharding.steps import Program
from shardwise.work import CollectiveKind, Matmul, Op, Sends

PRICED = "bf16"
"""Prices are for this dtype, whatever a case runs in: TPUs have no float32 peak."""


@dataclass(frozen=True, slots=True)
class XlaCollective:
    """A collective of XLA's over axes, or parts of axes: seconds as priced and as compiled."""

    kind: CollectiveKind
    axes: tuple[str, ...]
    bytes: float
    whole_axes: bool
    seconds: float
    as_compiled: float

    def __str__(self) -> str:
        return f"{self.kind} over {','.join(self.axes)} of {self.bytes:g} B"


def cost_on(piece: Slice, mesh: Mesh) -> Cost:
    """Seconds of an op on a slice that the mesh fills."""
    placement = place(piece, mesh)
    assert placement.legal, f"mesh {mesh} does not fill {piece}"
    return seconds(piece.chip, placement)


def program_seconds(program: Program, piece: Slice, *, products: bool) -> float:
    """All collectives of a program, and its local products if asked."""
    cost = cost_on(piece, program.mesh)
    ops = count(program).ops
    spent = sum(cost(op) for op in ops if op.collective is not None)
    return spent + products * sum(_price(op.matmul, cost) for op in ops if op.matmul is not None)


def xla_collectives(hlo: str, mesh: Mesh, piece: Slice) -> tuple[XlaCollective, ...]:
    """The collectives of a compiled program, priced."""
    module = read_module(hlo)
    found = [_chosen(module, c, mesh, piece) for c in read_collectives(module)]
    return tuple(c for c in found if c.axes)


def xla_products(hlo: str, mesh: Mesh, piece: Slice) -> tuple[float, ...]:
    """Seconds of each local product of a compiled program."""
    cost = cost_on(piece, mesh)
    return tuple(_price(matmul, cost) for matmul in read_matmuls(hlo))


def _chosen(
    module: Module, compiled: CompiledCollective, mesh: Mesh, piece: Slice
) -> XlaCollective:
    collective = at_dtype(compiled, PRICED)
    over = mesh_axes(collective.groups, mesh)
    whole = over.whole or collective.kind == "permute"
    if not whole:
        mesh = in_parts(mesh)
        over = mesh_axes(collective.groups, mesh)
    cost = cost_on(piece, mesh)
    if collective.kind == "permute":
        spent = cost(_permute(collective, mesh)) * collective.count
        return XlaCollective("permute", over.axes, collective.bytes, whole, spent, spent)
    kinds: list[CollectiveKind] = [collective.kind]
    if collective.kind == "all_reduce" and _sliced(module, collective):
        kinds.append("reduce_scatter")
    spent = [
        cost(collective_op(kind, over.axes, collective.bytes)) * collective.count for kind in kinds
    ]
    return XlaCollective(kinds[-1], over.axes, collective.bytes, whole, spent[-1], spent[0])


def _permute(collective: CompiledCollective, mesh: Mesh) -> Op:
    """A permute by its pairs, which are numbers on the whole mesh."""
    pairs = tuple((source, target) for source, target in collective.groups)
    sends = Sends(axes=tuple(mesh), pairs=pairs)
    return collective_op("permute", tuple(mesh), collective.bytes, exchange=sends)


def _sliced(module: Module, collective: CompiledCollective) -> bool:
    """Whether all that reads an all-reduce keeps one block of it per device of the group."""
    instructions = module.computations[collective.computation].instructions
    readers = [i for i in instructions if collective.done in i.operands]
    whole = next(i for i in instructions if i.name == collective.name)
    block = _elements(whole) / len(collective.groups[0])
    return bool(readers) and all(block in _slices(module, reader) for reader in readers)


def _slices(module: Module, reader: Instruction) -> set[int]:
    """How many elements the slices have that an instruction takes."""
    inside = [i for name in reader.called for c in module.reached(name) for i in c.instructions]
    return {_elements(i) for i in (reader, *inside) if i.opcode == "dynamic-slice"}


def _elements(instruction: Instruction) -> int:
    return sum(prod(array.dims) for array in arrays(instruction.shape))


def _price(matmul: Matmul, cost: Cost) -> float:
    """The cheaper way round: the compiler chooses which operand comes first, hence what pads."""
    b, m, k, n = matmul.batch, matmul.m, matmul.k, matmul.n
    ways = [
        product_op([{"b": b, "m": p, "k": k}, {"b": b, "k": k, "n": q}], out, PRICED)
        for p, q in ((m, n), (n, m))
        for out in [{"b": b, "m": p, "n": q}]
    ]
    return min(map(cost, ways))
