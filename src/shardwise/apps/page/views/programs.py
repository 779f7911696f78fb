"""A compiled program: timeline, ops against the roofline, memory over time, graph of its ops."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import ViewState, choice, slider, text
from shardwise.apps.page.figures import FigureAxis, FigureData, KeyFigure, Mark, TableData
from shardwise.apps.page.given import path_of
from shardwise.apps.page.view import Drawn, PageView, refused
from shardwise.commands.base.answer import Answer
from shardwise.commands.program.compile_result import CollectiveBeside
from shardwise.commands.program.report import SAMPLE, ReportAnswer
from shardwise.commands.program.report_result import OpSpan, ReportOp, trace_path
from shardwise.units import format_seconds, many, sig

COLUMNS = {
    "op": "op",
    "stream": "stream",
    "bound_by": "bound by",
    "spent_seconds": "seconds of all runs",
    "runs": "runs",
    "flops": "FLOPs of a run",
    "hbm_bytes": "HBM bytes of a run",
    "of_roofline": "of roofline",
    "scope": "scope",
    "source": "source",
}
"""What is said of an op, and the head of its column."""
UNITS = {"seconds of all runs": "s", "FLOPs of a run": "FLOP", "HBM bytes of a run": "bytes"}
UNITS |= {"of roofline": "share"}

NONE = "none"
EVERY_OP = 10_000
"""Ops that are looked through where some are searched for, or a loop is opened: all there are."""
DRAWN = 40
"""Ops between which arrows are drawn at most: beyond it nobody can follow them (ours)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramState(ViewState):
    """The controls of the view."""

    folder: str = text(
        "Report folder",
        "",
        about="Of `compile --out`, chosen or dropped here; empty: the sample of shardwise.",
        gives="folder",
    )
    phase: str = text("Program", "", about="Such as train or decode; empty: the first.")
    find: str = text("Search", "", about="In ops, scopes and lines: attention, fusion, model.py.")
    loop: str = choice("Loop opened", (NONE, "1", "2", "3", "4"), NONE, about="One round of it.")
    begin: int = slider("Shown from", range(0, 100, 5), 0, unit="%")
    end: int = slider("Shown to", range(5, 105, 5), 100, unit="%")
    top: int = slider("Ops shown", (10, 20, 40, 60, 100, 200), 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPart:
    """What is shown of a program: its ops, their runs from `start` on for `seconds`."""

    title: str
    start: float
    seconds: float
    ops: Sequence[ReportOp]
    spans: Sequence[OpSpan]


def _calls(state: ProgramState) -> list[VerbCall]:
    every = state.find or state.loop != NONE
    keywords = {"phase": state.phase or None, "top": EVERY_OP if every else state.top}
    given = (path_of("folder", state.folder),) if state.folder else ()
    return [VerbCall(verb="report", given=given, keywords=keywords)]


def _draw(state: ProgramState, answers: Sequence[Answer]) -> Drawn:
    found = answers[0]
    assert isinstance(found, ReportAnswer)
    part = _part(state, found)
    of_ops = [_timeline(part), _roofline(found, part), _memory(found), _graph(found, part)]
    tables = [_figures(found), _loops(found), _collectives(found)]
    return Drawn(
        figures=[*_expected_and_measured(found), *of_ops] if part.ops else [],
        tables=[*tables, _ops(part)] if part.ops else tables,
        says=_sentence(found),
        key=_key(found),
        lines=[f"Programs of this report: {', '.join(found.phases)}.", _share(state, found, part)],
        formula="seconds of an op = max(cycles / clock, bytes / W); attained = FLOPs / seconds; "
        "of an op beside compute, seconds of all runs are those that compute waits for it",
        source="the report's folder: compile.json, ops.csv, trace.json.gz",
    )


def _sentence(found: ReportAnswer) -> str:
    """Whether the program fits and what its step takes, to quote."""
    fits = "fits" if found.fits else "does not fit"
    sides = {"compiled": found.step_seconds.compiled, "predicted": found.step_seconds.predicted}
    steps = [f"{format_seconds(one.expected)} {side}" for side, one in sides.items() if one]
    took = f"; its step takes {', '.join(steps)}" if steps else ""
    return f"The program '{found.phase}' on {found.slice} {fits}{took}."


def _key(found: ReportAnswer) -> list[KeyFigure]:
    """The numbers to read first: as compiled, and what was predicted of them."""
    step, held, flops = found.step_seconds, found.peak_bytes, found.flops
    expected = f"predicted {format_seconds(step.predicted.expected)}" if step.predicted else ""
    took = step.compiled and step.compiled.expected
    share = f"of {sig(found.usable_bytes / 2**30)} GiB usable"
    dear = sorted(found.ops, key=lambda op: -op.spent_seconds)[:1]
    rows = [
        KeyFigure(label="a step, compiled", value=took, unit="s", note=expected),
        KeyFigure(label="peak memory of a device", value=held.compiled, unit="bytes", note=share),
        KeyFigure(label="work of a device in a step", value=flops.compiled, unit="FLOP"),
        *(KeyFigure(label="longest op", value=o.spent_seconds, unit="s", note=o.op) for o in dear),
    ]
    if found.measured:
        seconds = found.measured.step_seconds.measured
        rows.insert(1, KeyFigure(label="a step, measured", value=seconds, unit="s"))
    return [row for row in rows if row.value is not None]


def _share(state: ProgramState, found: ReportAnswer, part: ProgramPart) -> str:
    if not part.ops and state.find:
        where = "" if state.loop == NONE else f" in {part.title}"
        return f"No op{where} has '{state.find}': search for a part of its name, scope or line."
    having = sum(_has(op, state.find) for op in found.ops)
    words = f" with '{state.find}'" if state.find else ""
    inside = "; those in a loop are drawn where it is opened" if state.loop == NONE else ""
    return f"{len(part.ops):,} of {many(having, 'op')}{words} shown, the dearest{inside}."


def _part(state: ProgramState, found: ReportAnswer) -> ProgramPart:
    """The ops and the time that are asked for: those that have the words, a round of a loop, some
    of that time."""
    title, start, spans = "a step", 0.0, list(found.spans)
    end = max((span.start + span.seconds for span in spans), default=0.0)
    if state.loop != NONE:
        loop = _loop(state, found)
        start, spans = loop.start, _inside(loop, found)
        end = max((span.start + span.seconds for span in spans), default=start)
        title = f"one round of {loop.op}"
    ops = [op for op in found.ops if _has(op, state.find)]
    if state.loop != NONE:
        own = {span.op for span in spans}
        ops = [op for op in ops if op.op in own]
    dear = sorted(ops, key=lambda op: -op.spent_seconds)[: state.top]
    kept = [op for op in ops if op in dear]
    if state.begin >= state.end:
        remedy = "choose a smaller one, or a larger end"
        raise refused("begin", state.begin, f"it lies before the end, {state.end}", remedy)
    whole = end - start
    first, last = start + whole * state.begin / 100, start + whole * state.end / 100
    named = {op.op for op in kept}
    shown = [
        span
        for span in spans
        if (span.op in named or span.stream == LOOPS)
        and span.start < last
        and span.start + span.seconds > first
    ]
    return ProgramPart(title=title, start=first, seconds=last - first, ops=kept, spans=shown)


def _has(op: ReportOp, words: str) -> bool:
    return any(words.lower() in text.lower() for text in (op.op, op.scope, op.source, op.class_))


LOOPS = "loops"
"""The stream of loops, whose spans are all of their rounds."""


def _loop(state: ProgramState, found: ReportAnswer) -> OpSpan:
    """The loop that is opened. Raises BadRequest where there are fewer."""
    loops = [span for span in found.spans if span.stream == LOOPS]
    if int(state.loop) > len(loops):
        rule = f"the program has {many(len(loops), 'loop')}"
        raise refused("loop", state.loop, rule, "choose a smaller number, or none")
    return loops[int(state.loop) - 1]


def _inside(loop: OpSpan, found: ReportAnswer) -> list[OpSpan]:
    """The runs of the first round of a loop, which is the one that a timeline has."""
    over = loop.start + loop.seconds
    return [
        span
        for span in found.spans
        if span.stream != LOOPS and loop.start <= span.start and span.start < over
    ]


def _loops(found: ReportAnswer) -> TableData:
    """Each loop: what it takes, and the op of its body that takes most."""
    rows = []
    for place, loop in enumerate((s for s in found.spans if s.stream == LOOPS), 1):
        own = {span.op for span in _inside(loop, found)}
        ops = [op for op in found.ops if op.op in own]
        dear = max(ops, key=lambda op: op.spent_seconds, default=None)
        least = dear and f"{dear.op}: {dear.scope}"
        rows.append([str(place), loop.op, loop.seconds, dear and dear.spent_seconds, least])
    header = ("loop", "name", "seconds", "dearest op", "which is")
    units = {"seconds": "s", "dearest op": "s"}
    return TableData(title="Loops, to open", header=header, rows=rows, units=units)


def trace(state: ProgramState) -> Path:
    """The timeline of the program as a file that Perfetto opens."""
    (call,) = _calls(state)
    found = call.answer()
    assert isinstance(found, ReportAnswer)
    return trace_path(Path(path_of("folder", state.folder) or SAMPLE), found.phase)


def _timeline(part: ProgramPart) -> FigureData:
    streams = list(dict.fromkeys(span.stream for span in part.spans))
    streams.sort(key=lambda name: (name != "compute", name))
    last = part.start + part.seconds
    marks = []
    for row, stream in enumerate(streams):
        own = [span for span in part.spans if span.stream == stream]
        marks.append(
            Mark(
                kind="rect",
                label=stream,
                x=[max(span.start, part.start) for span in own],
                y=[row] * len(own),
                x2=[min(span.start + span.seconds, last) for span in own],
                y2=[row + 0.8] * len(own),
                text=[span.op for span in own],
            )
        )
    return FigureData(
        id="timeline",
        title=f"Ops of {part.title}; rows: {', '.join(streams)}",
        x=FigureAxis(label="time", unit="s"),
        y=FigureAxis(bare=True),
        marks=marks,
        wide=True,
    )


def _roofline(found: ReportAnswer, part: ProgramPart) -> FigureData:
    known = [op for op in part.ops if op.flops and op.flops_per_byte]
    marks = []
    for bound in dict.fromkeys(op.bound_by for op in known):
        own = [op for op in known if op.bound_by == bound]
        x, y = [op.flops_per_byte for op in own], [op.attained_flops for op in own]
        words = [op.op for op in own]
        marks.append(Mark(kind="dot", label=f"bound by {bound}", x=x, y=y, text=words))
    if peak := found.device.bf16_flops:
        marks.append(Mark(kind="rule", label="peak, bf16", y=[peak]))
    return FigureData(
        id="roofline",
        title="Ops against the roofline",
        x=FigureAxis(label="arithmetic intensity", unit="FLOP/B", log=True),
        y=FigureAxis(label="attained", unit="FLOP/s", log=True),
        marks=marks,
    )


def _memory(found: ReportAnswer) -> FigureData:
    x, y = [one.seconds for one in found.memory], [one.bytes for one in found.memory]
    marks = [Mark(kind="line", label="HBM in use", x=x, y=y)]
    marks.append(Mark(kind="rule", label="usable", y=[found.usable_bytes]))
    return FigureData(
        id="memory",
        title="Memory over the step",
        x=FigureAxis(label="time", unit="s"),
        y=FigureAxis(label="HBM", unit="bytes"),
        marks=marks,
    )


def _arrows(found: ReportAnswer, drawn: Container[str]) -> Iterator[tuple[str, str]]:
    """Of what each drawn op waits for the drawn ones, by way of others too: those that none of the
    others waits for."""
    sources: dict[str, list[str]] = {}
    for one in found.waits:
        sources.setdefault(one.target, []).append(one.source)
    before: dict[str, set[str]] = {}
    last: dict[str, set[str]] = {}
    for op in found.ops:
        direct = sources.get(op.id, [])
        own = {a for name in direct for a in ([name] if name in drawn else last.get(name, ()))}
        earlier = {a for name in own for a in before.get(name, ())}
        last[op.id], before[op.id] = own - earlier, own | earlier
        if op.id in drawn:
            yield from ((source, op.id) for source in sorted(last[op.id]))


def _graph(found: ReportAnswer, part: ProgramPart) -> FigureData:
    """The dearest ops from left to right as scheduled, three rows per stream; arrows to what waits,
    by way of ops that are not drawn too."""
    dear = sorted(part.ops, key=lambda op: -op.spent_seconds)[:DRAWN]
    ops = [op for op in part.ops if op in dear]
    streams = list(dict.fromkeys(op.stream for op in ops))
    streams.sort(key=lambda name: (name != "compute", name))
    places = {op.id: (i, 4 * streams.index(op.stream) + i % 3) for i, op in enumerate(ops)}
    ends = [(places[a], places[b]) for a, b in _arrows(found, places)]
    marks = [
        Mark(
            kind="arrow",
            label="waits for",
            x=[a[0] for a, _ in ends],
            y=[a[1] for a, _ in ends],
            x2=[b[0] for _, b in ends],
            y2=[b[1] for _, b in ends],
        )
    ]
    for stream in streams:
        own = [op for op in ops if op.stream == stream]
        x, y = ([places[op.id][k] for op in own] for k in (0, 1))
        words = [f"{op.op}: {op.scope}" for op in own]
        marks.append(Mark(kind="dot", label=stream, x=x, y=y, text=words))
    return FigureData(
        id="graph",
        title=f"What waits for what: the {len(ops)} dearest, in the order of the schedule",
        x=FigureAxis(bare=True),
        y=FigureAxis(bare=True),
        marks=marks,
        wide=True,
    )


SIDES = ("predicted", "compiled", "measured")


def _expected_and_measured(found: ReportAnswer) -> list[FigureData]:
    """The classes of ops one after the other: as planned, as compiled and as measured, where the
    folder has a run."""
    if (run := found.measured) is None:
        return []
    known = [side for side in SIDES if any(getattr(row, side) for row in run.by_class)]
    marks = [
        Mark(kind="bar", label=row.where, x=[getattr(row, s) or 0.0 for s in known], y=known)
        for row in run.by_class
    ]
    return [
        FigureData(
            id="measured",
            title=f"Expected and measured on {run.devices} x {run.kind}, what overlaps twice",
            x=FigureAxis(label="time of ops in a step", unit="s"),
            y=FigureAxis(names=tuple(known)),
            marks=marks,
        )
    ]


def _figures(found: ReportAnswer) -> TableData:
    seconds, peak, flops = found.step_seconds, found.peak_bytes, found.flops
    rows = []
    for side, step, held, counted in (
        ("predicted", seconds.predicted, peak.predicted, flops.predicted),
        ("compiled", seconds.compiled, peak.compiled, flops.compiled),
    ):
        rows += [
            [f"step, {side}", step and step.expected, "s"],
            [f"peak memory, {side}", held, "bytes"],
            [f"FLOPs per step, {side}", counted, "FLOP"],
        ]
    title = "Predicted and compiled, per device"
    if found.measured:
        title = "Predicted, compiled and measured, per device"
        rows.append(["step, measured", found.measured.step_seconds.measured, "s"])
    rows.append(["ops not drawn", found.left_seconds, "s"])
    return TableData(title=title, header=("", "value", "unit"), rows=rows)


def _collectives(found: ReportAnswer) -> TableData:
    rows = [[f"{one.kind} over {'+'.join(one.axes)}", *_moved(one)] for one in found.collectives]
    header = ("", "predicted", "compiled", "runs predicted", "runs compiled")
    units = {"predicted": "bytes", "compiled": "bytes"}
    return TableData(title="Collectives", header=header, rows=rows, units=units)


def _moved(one: CollectiveBeside) -> list[float | None]:
    planned, made = one.predicted, one.compiled
    return [planned and planned.bytes, made.bytes, planned and planned.count, made.count]


def _ops(part: ProgramPart) -> TableData:
    dear = sorted(part.ops, key=lambda op: -op.spent_seconds)
    rows = [[getattr(op, name) for name in COLUMNS] for op in dear]
    header = tuple(COLUMNS.values())
    return TableData(title="Dearest ops", header=header, rows=rows, units=UNITS)


VIEW = PageView(
    name="programs",
    title="Compiled program",
    about="What runs when and why; after `profile --out`, expected beside measured.",
    group="Explain",
    state=ProgramState,
    calls=_calls,
    draw=_draw,
    trace=trace,
)
