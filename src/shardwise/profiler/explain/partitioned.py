"""Explaining a program that was partitioned and not compiled (`profiler/ahead/partition.py`).

Its time is what must be done whatever the compiler makes of it: products by their FLOPs and what
they read of arguments, and each collective by itself, one after the other. Elementwise functions,
copies and gathers count nothing, as nobody knows yet what they are fused into.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from shardwise.boundary.records import Record
from shardwise.profiler.explain import (
    rules_again,
    rules_apart,
    rules_cache,
    rules_compute,
    rules_kept,
    rules_larger,
    rules_masks,
    rules_memory,
    rules_network,
    rules_partial,
    rules_reshard,
    rules_twice,
    rules_wire,
)
from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.explain.finding import Finding, Rule
from shardwise.profiler.explain.lineage import elements
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.hlo.work import Block, HloOp, HloWork, Nested, Wait
from shardwise.profiler.timeline import OpRow
from shardwise.work import grouped


def _gathers_in_loops(e: Evidence) -> Iterator[Finding]:
    """Gathers of what a loop does not change; its sums may yet leave it, as compilers move them."""
    return (f for f in rules_again.in_every_round(e) if f.rule == "gathers in a loop")


RULES: tuple[Rule, ...] = (
    rules_memory.whole_parameters,
    rules_memory.replicated_optimizer,
    rules_network.gathered_weights,
    rules_network.axis_order,
    rules_network.callbacks,
    rules_partial.partial_sums,
    rules_reshard.gathered_to_cut,
    rules_reshard.uneven_cuts,
    rules_compute.wide_matmuls,
    rules_kept.drifting_states,
    rules_kept.remade_products,
    rules_cache.undonated_caches,
    rules_cache.undonated_state,
    rules_cache.gathered_caches,
    rules_cache.cut_by_tokens,
    rules_cache.replicated_caches,
    rules_twice.constraints_to_whole,
    rules_twice.duplicated_work,
    rules_twice.ping_pong,
    rules_twice.one_hot,
    _gathers_in_loops,
    rules_again.equal_sums,
    rules_apart.alike_chains,
    rules_apart.turned_weights,
    rules_larger.empty_rows,
    rules_larger.both_branches,
    rules_larger.drawn_everywhere,
    rules_masks.masked_scores,
    rules_wire.wide_exchanges,
    rules_wire.gathered_to_reduce,
    rules_wire.small_exchanges,
    rules_wire.resharded_at_the_edge,
    rules_wire.whole_results,
    rules_wire.tables_cut_by_rows,
)
"""What can be said without fusions, layouts and a schedule; gathers of one array may yet be one."""
UNKNOWN = (
    "needs the chip's compiler: fusion, elementwise time, layouts in memory, overlap with "
    "matmuls, memory, and kernels that depend on the device (here a CPU)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCollective(Record):
    """Collectives of one kind, over the same axes, of one line."""

    kind: str
    """all_gather, reduce_scatter, all_reduce, all_to_all, ragged_all_to_all or permute."""
    axes: tuple[str, ...]
    """The mesh axes that they are over."""
    where: str
    """file:line."""
    phases: tuple[str, ...]
    """The passes that they belong to."""
    runs: float
    """How many run in a step."""
    bytes: float
    """Bytes of a step: of the gathered array, the summed or scattered one, or what is exchanged."""
    seconds: float
    """Seconds per step, one after the other."""


def must_do(e: Evidence) -> HloWork:
    """The work with nothing counted but products and collectives. A product moves what it reads of
    arguments. As a chip's compiler does, sums that are added up are one sum, and one of which a
    device keeps its piece is scattered."""
    return replace(e.work, block=_must_do(e.work.block, e))


def _must_do(block: Block, e: Evidence) -> Block:
    def counted(item: HloOp | Wait | Nested) -> HloOp | Wait | Nested:
        if isinstance(item, Nested):
            return replace(item, block=_must_do(item.block, e))
        return _op(item, e) if isinstance(item, HloOp) else item

    return tuple(map(counted, block))


def _op(item: HloOp, e: Evidence) -> HloOp:
    (computation, found), wire = e.located(item), item.op.collective
    if wire is not None:
        if found is None or found.opcode != "all-reduce":
            return item
        if _joined(computation, found):
            return replace(
                item, op=replace(item.op, collective=None, op_class="elementwise", stream="compute")
            )
        if _scattered(computation, found, e.degree(wire.axes)):
            wire = replace(wire, kind="reduce_scatter")
        return replace(item, op=replace(item.op, collective=wire))
    if item.op.host_bytes:
        return item
    moved = sum(_stored(e, computation, found)) if found is not None and item.op.flops else 0.0
    op = replace(item.op, hbm_bytes=moved, on_chip_bytes=0.0)
    return replace(item, op=op, vector_flops=0.0, padding=0.0)


def _stored(e: Evidence, computation: Computation, found: Instruction) -> Iterator[float]:
    """Bytes of what an instruction reads of arguments."""
    for name in found.operands:
        if e.pieces_of(computation.name, name):
            yield float(computation.array_of(name).bytes)


def _scattered(c: Computation, found: Instruction, degree: int) -> bool:
    """Whether all that is read of a sum is the piece of each device."""
    readers, whole = c.readers(found.name), elements(found)
    pieces = (r.opcode == "dynamic-slice" and elements(r) * degree == whole for r in readers)
    return bool(readers) and all(pieces)


def _joined(c: Computation, found: Instruction) -> bool:
    """Whether a sum over devices is only added to an earlier one, so that one of both will do."""
    group, name = found.attribute("replica_groups"), found.name
    while len(readers := c.readers(name)) == 1 and readers[0].opcode == "add":
        name = readers[0].name
        others = [other for other in _summands(c, name) if other.name != found.name]
        if any(other.attribute("replica_groups") == group for other in others):
            first = min((found, *others), key=c.instructions.index)
            return first is not found
    return False


def _summands(c: Computation, name: str) -> Iterator[Instruction]:
    """The sums over devices that are all added up into a value and used for nothing else."""
    for operand in c.names[name].operands:
        given = c.names[operand]
        if len(c.readers(operand)) == 1:
            if given.opcode == "all-reduce":
                yield given
            elif given.opcode == "add":
                yield from _summands(c, operand)


def line_collectives(
    rows: Iterable[OpRow], where: Callable[[HloOp], str]
) -> tuple[LineCollective, ...]:
    """The collectives of a step by kind, axes and line, the dearest first."""
    wires = [(row, row.op.op.collective) for row in rows if row.op.op.collective is not None]
    same = grouped(wires, lambda pair: (pair[1].kind, pair[1].axes, where(pair[0].op)))
    found = [
        LineCollective(
            kind=kind,
            axes=axes,
            where=place,
            phases=tuple(dict.fromkeys(r.op.op.phase for r, _ in pairs if r.op.op.phase)),
            runs=sum(r.count for r, _ in pairs),
            bytes=sum(r.count * float(w.bytes) for r, w in pairs),
            seconds=sum(r.per_step for r, _ in pairs),
        )
        for (kind, axes, place), pairs in same.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.seconds))
