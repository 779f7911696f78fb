"""CUDA graphs in a capture: which op of the program each of their kernels is.

XLA puts ops that follow one another into a command buffer: in the text a `call` of a computation
named `command_buffer...`, on the device one CUDA graph. A capture names the call alone, and has
either an event for each kernel of the graph, or one event for all of it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardwise.profiler.hlo.text import Module
from shardwise.profiler.hlo.work import HloOp, HloWork
from shardwise.profiler.trace.events import TraceOp
from shardwise.work import grouped

COMMANDS = "command_buffer"
"""What XLA's pass `command-buffer-scheduling` names such computations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandBuffer:
    """A call that runs as a CUDA graph: its ops in order, and its runs per step."""

    name: str
    ops: tuple[HloOp, ...]
    runs: float


def command_buffers(work: HloWork, module: Module) -> dict[str, CommandBuffer]:
    """The calls of a program that run as CUDA graphs, by name."""
    inside = grouped(work.ops, lambda item: item.computation)
    found: dict[str, CommandBuffer] = {}
    for computation in module.computations.values():
        for i in computation.instructions:
            called = next((name for name in i.called if name.startswith(COMMANDS)), "")
            if i.opcode == "call" and (ops := inside.get(called)):
                runs = float(ops[0].op.count)
                found[i.name] = CommandBuffer(name=i.name, ops=tuple(ops), runs=runs)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEvent:
    """An event within a CUDA graph: of one op, or, with `op` empty, of a kernel that is no op's
    by its name and place; `whole` is one event for all of the graph."""

    graph: str
    op: str
    event: TraceOp
    whole: bool = False


def graph_events(
    ops: Sequence[TraceOp], buffers: Mapping[str, CommandBuffer]
) -> Iterator[GraphEvent]:
    """The events of the graphs among those of a capture, each with the op that it is."""
    of_graphs = [op for op in ops if op.name in buffers]
    for (_, _, name), mine in grouped(of_graphs, lambda op: (op.device, op.run, op.name)).items():
        buffer = buffers[name]
        if len(mine) <= buffer.runs and len(buffer.ops) > 1:
            yield from (GraphEvent(graph=name, op="", event=op, whole=True) for op in mine)
            continue
        mine = sorted(mine, key=lambda op: op.start)
        told = told_apart([op.kernel for op in mine], [item.name for item in buffer.ops])
        yield from (
            GraphEvent(graph=name, op=op, event=event) for event, op in zip(mine, told, strict=True)
        )


def told_apart(kernels: Sequence[str], ops: Sequence[str]) -> list[str]:
    """The op of each kernel, both in the order that they run; "" where that is not known.

    XLA names the kernels that it makes by their ops (`loop_add_fusion_3`), and equal ops may share
    one; kernels of libraries have names of their own. As many kernels as ops, or a multiple of
    that, are one each. Else those named by an op are its own, and between two of them the others
    belong to the ops between, where there is one such op or as many as kernels.

    >>> told_apart(["add_1", "nvjet_tst_128x256"], ["add.1", "dot.2"])
    ['add.1', 'dot.2']
    """
    if len(kernels) % len(ops) == 0 and _agree(kernels, ops):
        return [ops[i % len(ops)] for i in range(len(kernels))]
    by_kernel = {_plain(op): at for at, op in enumerate(ops)}
    found = [by_kernel.get(_plain(kernel)) for kernel in kernels]
    anchors = [(-1, -1), *((i, at) for i, at in enumerate(found) if at is not None)]
    anchors.append((len(kernels), len(ops)))
    for (i, at), (j, to) in pairwise(anchors):
        between, free = range(i + 1, j), range(at + 1, to)
        if between and len(free) in (1, len(between)):
            for k, n in enumerate(between):
                found[n] = free[min(k, len(free) - 1)]
    return ["" if at is None else ops[at] for at in found]


def _agree(kernels: Sequence[str], ops: Sequence[str]) -> bool:
    """Whether no kernel that is named by an op would be another one's, equal ones aside."""
    plain = [_plain(op) for op in ops]
    known = set(plain)
    named = [(_plain(k), plain[i % len(ops)]) for i, k in enumerate(kernels) if _plain(k) in known]
    return all(kernel == op or _stem(kernel) == _stem(op) for kernel, op in named)


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _stem(name: str) -> str:
    """Equal ops differ in the number at the end alone."""
    return re.sub(r"_\d+$", "", name)
