"""Measured seconds on the ops of a compiled program, by the names of its instructions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from shardwise.errors import BadRequest, shown
from shardwise.profiler.hlo.text import Module
from shardwise.profiler.hlo.work import HloOp, HloWork
from shardwise.profiler.trace.events import HOLDERS, Capture, opcode_of
from shardwise.profiler.trace.graphs import command_buffers, graph_events
from shardwise.work import tally


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOp:
    """An op with its own seconds and its events per step and device; both 0 where no event names
    it. Of an op of a `graph` that is one event, `seconds` are its share of that (`shared_out`)."""

    op: HloOp
    seconds: float
    events: float
    graph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProgram:
    """A compiled program as it ran: means over `devices` and the `runs` of each.

    `step_seconds` is the median from the first op to the last; ops of several threads or streams
    may run at once, so that their sum may be more. `unmatched` are own seconds per step of events
    whose name is no instruction of the program, and `silent` the ops that no event names: what ran
    as a part of another, or was not captured. `graphs` are the seconds per step of CUDA graphs that
    are one event each.
    """

    module: str
    devices: int
    runs: float
    step_seconds: float
    ops: tuple[MeasuredOp, ...]
    unmatched: Mapping[str, float]
    silent: tuple[str, ...]
    graphs: Mapping[str, float] = field(default_factory=dict)

    @property
    def matched_seconds(self) -> float:
        """Own seconds per step and device of all matched ops."""
        return sum(op.seconds for op in self.ops)

    @property
    def unmatched_seconds(self) -> float:
        """Own seconds per step and device that belong to no op."""
        return sum(self.unmatched.values())


def measure(trace: Capture, work: HloWork, module: Module) -> MeasuredProgram:
    """Put the seconds of a capture on the ops of `work`, which was read from `module`.

    A done counts to its start. The seconds of a name that the work has several times (a computation
    called twice) are shared out by their runs. Raises BadRequest where no event names an op of the
    program: the capture is of another one.
    """
    found = trace.of(_module_name(trace, module))
    executions = len(found.spans)
    starts, buffers = _starts(module), command_buffers(work, module)
    of_graphs = list(graph_events(found.ops, buffers))
    graphs = tally((g.graph, g.event.seconds / executions) for g in of_graphs if g.whole)
    within = {item.name: name for name in graphs for item in buffers[name].ops}
    named = [(starts.get(op.name, op.name), op) for op in found.ops if op.name not in buffers]
    named += [(g.op or f"{g.event.kernel} of {g.graph}", g.event) for g in of_graphs if not g.whole]
    seconds = tally((name, op.own / executions) for name, op in named)
    events = tally((name, 1 / executions) for name, _ in named)
    counts = tally((item.name, float(item.op.count)) for item in work.ops)
    if not counts.keys() & seconds.keys() and not graphs:
        raise BadRequest(
            f"trace '{trace.path}' is of another program: none of its ops is one of "
            f"{shown(module.name)}; its modules are {', '.join(map(shown, [*trace.modules][:9]))}"
        )
    ops = []
    for item in work.ops:
        share = float(item.op.count) / counts[item.name] if counts[item.name] else 0.0
        spent, runs = seconds.get(item.name, 0.0), events.get(item.name, 0.0)
        graph = within.get(item.name, "")
        ops.append(MeasuredOp(op=item, seconds=spent * share, events=runs * share, graph=graph))
    strange = {
        name: spent
        for name, spent in seconds.items()
        if name not in counts and (spent or opcode_of(name) not in HOLDERS)
    }
    return MeasuredProgram(
        module=module.name,
        devices=found.devices,
        runs=executions / found.devices,
        step_seconds=median(found.spans.values()),
        ops=tuple(ops),
        unmatched=dict(sorted(strange.items(), key=lambda pair: -pair[1])),
        silent=tuple(n for n in dict.fromkeys(counts) if n not in seconds and n not in within),
        graphs=graphs,
    )


def shared_out(found: MeasuredProgram, weight: Callable[[HloOp], float]) -> MeasuredProgram:
    """With the seconds of graphs that are one event each shared out over their ops by weight."""
    every = tally((m.graph, weight(m.op)) for m in found.ops if m.graph)

    def shared(m: MeasuredOp) -> MeasuredOp:
        if not every.get(m.graph):
            return m
        return replace(m, seconds=found.graphs[m.graph] * weight(m.op) / every[m.graph])

    return replace(found, ops=tuple(map(shared, found.ops)))


def _module_name(trace: Capture, module: Module) -> str:
    """The program's module in the capture: by its name, else the one of most seconds."""
    names = trace.modules
    return module.name if module.name in names else next(iter(names))


def _starts(module: Module) -> dict[str, str]:
    """A done -> the instruction that began it, through the updates between."""
    begun: dict[str, str] = {}
    for computation in module.computations.values():
        for i in computation.instructions:
            if i.opcode.endswith(("-done", "-update")) and i.operands:
                begun[i.name] = begun.get(i.operands[0], i.operands[0])
    return begun
