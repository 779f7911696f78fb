"""The compiled ops among the events of a capture, with the seconds that each took for itself.

A capture has planes (a device, or the host), each with lines (a stream, a thread) of events. CPUs
and GPUs name the instruction in `hlo_op`; TPUs have a line "XLA Ops" whose events are named by the
instruction, and a line "XLA Modules" with one event per run. An event may hold others (a loop holds
its body), so that an op's own seconds are those in which no event inside it runs.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from statistics import median
from typing import Any

from shardwise.boundary.numbers import whole
from shardwise.errors import BadRequest, shown
from shardwise.work import grouped, tally

OPS, MODULES = "XLA Ops", "XLA Modules"
_SUFFIX = re.compile(r"\d+|remat\d*|clone")
HOLDERS = frozenset({"while", "call", "conditional"})
"""Instructions that only run others; on CPUs these may run on another thread than their holder."""
STATS = ("hlo_op", "hlo_module", "run_id", "device_ordinal", "hlo_category", "tf_op", "source")
"""What is read of an event beside its name and time."""
MOST_EVENTS = 500_000
"""Of compiled ops, that are read of a capture; three steps of a large program have some ten
thousand a device."""
LATEST = 1e12
LONGEST = 1e8
"""Seconds: of an event's start from any origin, and of an event. Three years are no step."""
MOST_DEVICES = 2**20
EVEN = 0.9
"""Of a module's ops, those that come in every execution; a branch may be taken in some alone."""
REMEDY = "give a capture of jax.profiler, its folder, or a trace in Chrome's JSON, whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One event of a capture: seconds from any origin, and those of its stats named in STATS."""

    name: str
    start: float
    seconds: float
    stats: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLine:
    """The events of one thread or stream."""

    plane: str
    name: str
    events: tuple[TraceEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOp:
    """One run of one instruction. `run` tells executions of a module on a device apart; `seconds`
    are from start to end, `own` those without what runs inside. `kernel` is what the event itself
    is called, on GPUs the kernel; `category`, `op_name` and `source` are what TPU captures say of
    it."""

    name: str
    module: str
    device: int
    run: str
    line: str
    start: float
    seconds: float
    own: float
    category: str = ""
    op_name: str = ""
    source: str = ""
    kernel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """All ops of a capture."""

    path: str
    ops: tuple[TraceOp, ...]

    @property
    def modules(self) -> dict[str, float]:
        """Own seconds of each module over all devices and runs, most first."""
        found = tally((op.module, op.own) for op in self.ops)
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def of(self, module: str) -> "Capture":
        """The ops of one module alone."""
        return replace(self, ops=tuple(op for op in self.ops if op.module == module))

    @property
    def devices(self) -> int:
        """Devices that ran anything."""
        return len({op.device for op in self.ops})

    @property
    def spans(self) -> dict[tuple[int, str], float]:
        """(device, run) -> seconds from the start of its first op to the end of its last."""
        ends: dict[tuple[int, str], tuple[float, float]] = {}
        for op in self.ops:
            first, last = ends.get((op.device, op.run), (op.start, op.start))
            ends[op.device, op.run] = min(first, op.start), max(last, op.start + op.seconds)
        return {key: last - first for key, (first, last) in ends.items()}

    @property
    def step_seconds(self) -> float:
        """Median over runs and devices of `spans`."""
        return median(self.spans.values())


def trace_of(path: str, lines: Sequence[TraceLine]) -> Capture:
    """The ops of a capture. Raises BadRequest where it has none: a capture of something else."""
    ops: list[TraceOp] = []
    for line in lines:
        _check_times(path, line)
    try:
        for plane, found in grouped(lines, lambda line: line.plane).items():
            ops += _plane_ops(plane, found)
    except BadRequest as error:
        raise BadRequest(f"trace '{path}': {error}; {REMEDY}") from None
    if not ops:
        events = sum(len(line.events) for line in lines)
        raise BadRequest(
            f"trace '{path}' has {events} events and none of a compiled op (no 'hlo_op', no line "
            f"'{OPS}'); capture with jax.profiler.trace while the program runs"
        )
    return Capture(path=path, ops=tuple(sorted(ops, key=lambda op: op.start)))


def _check_times(path: str, line: TraceLine) -> None:
    """Times are what a clock gives: finite, not negative, and no ages."""
    for event in line.events:
        if not (0 <= event.start <= LATEST and 0 <= event.seconds <= LONGEST):
            raise BadRequest(
                f"trace '{path}': event {shown(event.name)} of line {shown(line.name)} starts at "
                f"{event.start:g} s and takes {event.seconds:g} s; a start must be from 0 to "
                f"{LATEST:g} s and an event at most {LONGEST:g} s long; {REMEDY}"
            )


def _plane_ops(plane: str, lines: Sequence[TraceLine]) -> list[TraceOp]:
    named = [line for line in lines if any("hlo_op" in e.stats for e in line.events)]
    # GPUs show the kernels on their streams and once more, derived, as "XLA Ops".
    streams = [line for line in named if line.name != OPS]
    wanted = streams or [line for line in lines if line.name == OPS]
    runs = sorted(
        (e for line in lines if line.name == MODULES for e in line.events), key=lambda e: e.start
    )
    found = [op for line in wanted for op in _line_ops(plane, line, runs)]
    return _without_holders(_told_apart(found))


def _told_apart(ops: list[TraceOp]) -> list[TraceOp]:
    """Ops with their executions told apart where the capture does not, as those of GPUs: one begins
    where the first op of its module comes again, if nearly all ops come so often or a multiple; a
    kernel that comes several times in each begins one of as many times."""
    found: list[TraceOp] = []
    for (_, _, run), mine in grouped(ops, lambda op: (op.device, op.module, op.run)).items():
        mine = sorted(mine, key=lambda op: op.start)
        keys = [(op.name, op.kernel) for op in mine]  # all of a CUDA graph have one op's name
        first = (
            [] if run else [op.start for op, key in zip(mine, keys, strict=True) if key == keys[0]]
        )
        runs = _runs(len(first), Counter(keys).values())
        starts = first[:: len(first) // runs] if runs else []
        found += [
            replace(op, run=str(bisect_right(starts, op.start))) if runs else op for op in mine
        ]
    return found


def _runs(first: int, counts: Collection[int]) -> int:
    """Executions of a module whose first op comes so often, and its ops as often as `counts`; 0
    where there are none to tell apart."""
    for runs in (n for n in range(first, 1, -1) if first % n == 0):
        if sum(n % runs == 0 for n in counts) >= EVEN * len(counts):
            return runs
    return 0


def _line_ops(plane: str, line: TraceLine, runs: Sequence[TraceEvent]) -> list[TraceOp]:
    given = re.search(r":(?:TPU|GPU):(\d+)", plane)
    here = _device(given[1] if given else 0, line.events[0]) if line.events else 0
    ends = list(accumulate((r.start + r.seconds for r in runs), max))
    events = [e for e in line.events if line.name == OPS or "hlo_op" in e.stats]
    # A line has few names of ops, modules and runs, each in thousands of its events.
    op_of, module_of, begun = cache(instruction_name), cache(_module), cache("{:.9f}".format)
    found = []
    for event, own in zip(events, _own_seconds(events), strict=True):
        stats = event.stats
        # The first run that has not ended when the event starts; it may not have begun either.
        at = bisect_left(ends, event.start)
        within = runs[at] if at < len(runs) and runs[at].start <= event.start else None
        module = str(stats.get("hlo_module", within.name if within else ""))
        run = stats.get("run_id", begun(within.start) if within else "")
        op = TraceOp(
            name=op_of(str(stats.get("hlo_op", event.name))),
            module=module_of(module),
            device=_device(stats["device_ordinal"], event) if "device_ordinal" in stats else here,
            run=str(run),
            line=line.name,
            start=event.start,
            seconds=event.seconds,
            own=own,
            category=str(stats.get("hlo_category", "")),
            op_name=str(stats.get("tf_op", "")).rstrip(":"),
            source=str(stats.get("source", "")),
            kernel=event.name,
        )
        found.append(op)
    return found


def _device(found: Any, event: TraceEvent) -> int:
    return whole(found, f"the device of event {shown(event.name)}", most=MOST_DEVICES)


def _module(name: str) -> str:
    """`jit_f(5)` is `jit_f`: the number is of the program's text."""
    return re.sub(r"\(\d+\)$", "", name)


def instruction_name(text: str) -> str:
    """`%fusion.1 = bf16[8]{0} fusion(...)` is `fusion.1`."""
    return text.partition(" = ")[0].strip().lstrip("%")


def opcode_of(name: str) -> str:
    """The word before the number: `all-gather-start` of `all-gather-start.12`."""
    while (parts := name.rpartition("."))[1] and _SUFFIX.fullmatch(parts[2]):
        name = parts[0]
    return name


def _own_seconds(events: Sequence[TraceEvent]) -> list[float]:
    """Of each event of one line, its seconds without those of the events directly inside it."""
    order = sorted(range(len(events)), key=lambda i: (events[i].start, -events[i].seconds))
    own = [e.seconds for e in events]
    around: list[int] = []
    for i in order:
        end = events[i].start + events[i].seconds
        while around and events[around[-1]].start + events[around[-1]].seconds < end:
            around.pop()
        if around:
            own[around[-1]] -= events[i].seconds
        around.append(i)
    return [max(seconds, 0.0) for seconds in own]


def _without_holders(ops: list[TraceOp]) -> list[TraceOp]:
    """A loop's own seconds are nothing where its body is there too, on whatever line; kernels of a
    CUDA graph, which have the name of the call that holds them, are ops."""
    opcode, own_name = cache(opcode_of), cache(instruction_name)
    holders = Counter((op.device, op.run) for op in ops if opcode(op.name) not in HOLDERS)
    return [
        replace(op, own=0.0)
        if op.own
        and opcode(op.name) in HOLDERS
        and holders[op.device, op.run]
        and own_name(op.kernel) == op.name
        else op
        for op in ops
    ]


def lines_of(rows: Iterable[Mapping[str, Any]]) -> tuple[TraceLine, ...]:
    """Lines from plain values: {"plane", "line", "events": [[name, start, seconds, stats]]}."""
    return tuple(
        TraceLine(
            plane=row["plane"],
            name=row["line"],
            events=tuple(
                TraceEvent(name=n, start=start, seconds=seconds, stats=stats)
                for n, start, seconds, stats in row["events"]
            ),
        )
        for row in rows
    )
