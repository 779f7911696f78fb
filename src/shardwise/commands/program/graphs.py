"""CUDA graphs in a profile: what they hide from a capture, and what their absence costs."""

from collections.abc import Mapping, Sequence
from statistics import median

from shardwise.profiler.hlo.work import HloOp
from shardwise.profiler.timeline import HloTimeline
from shardwise.profiler.trace import MeasuredProgram
from shardwise.profiler.trace.match import shared_out
from shardwise.units import format_seconds, many


def with_graphs(
    measured: MeasuredProgram, timeline: HloTimeline | None
) -> tuple[MeasuredProgram, list[str]]:
    """The program with the seconds of graphs that are one event each on their ops, and what is to
    be said of that: in proportion to the ops as priced, else to the bytes that they move."""
    if not measured.graphs:
        return measured, []
    priced = {row.op.op.id: row.per_step for row in timeline.rows} if timeline else None

    def weight(item: HloOp) -> float:
        if priced is not None:
            return priced.get(item.op.id, 0.0)
        return float(item.op.hbm_bytes) * float(item.op.count)

    inside = sum(bool(m.graph) for m in measured.ops)
    note = (
        f"{many(len(measured.graphs), 'CUDA graph')} of {many(inside, 'op')} "
        f"({format_seconds(sum(measured.graphs.values()))} per step) are one event each in the "
        "capture, without their kernels: time is shared among ops by "
        f"{'their compiled seconds' if priced is not None else 'the bytes that they move'}. "
        "Capture with XLA_FLAGS=--xla_gpu_enable_command_buffer= to time each kernel"
    )
    return shared_out(measured, weight), [note]


def graph_labels(measured: MeasuredProgram) -> Mapping[str, str]:
    """Of each op of a graph that is one event, what the graph is called in a table of ops."""
    names = [m.graph for m in measured.ops if m.graph]
    label = {name: f"{name} (a CUDA graph of {many(names.count(name), 'op')})" for name in names}
    return {m.op.name: label[m.graph] for m in measured.ops if m.graph}


def captured_without(seconds: Sequence[float], without: Sequence[float]) -> list[str]:
    """What is said where steps were timed with CUDA graphs, and captured `without` them."""
    if not seconds or not without:
        return []
    graphs, plain = median(seconds), median(without)
    more = f"{abs(plain / graphs - 1):.0%} {'longer' if plain >= graphs else 'shorter'}"
    said = (
        "CUDA graphs were off for the capture (xla_gpu_enable_command_buffer), because it would "
        f"not show their kernels: a step takes {format_seconds(plain)}, {more} than the "
        f"{format_seconds(graphs)} with graphs; seconds of ops are those without graphs"
    )
    return [said]
