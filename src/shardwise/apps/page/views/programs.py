"""A compiled program: timeline, ops against the roofline, memory over time, graph of its ops."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import ViewState, slider, text
from shardwise.apps.page.figures import FigureAxis, FigureData, Mark, TableData
from shardwise.apps.page.view import Drawn, PageView
from shardwise.commands.base.answer import Answer
from shardwise.commands.program.compile_result import CollectiveBeside
from shardwise.commands.program.report import ReportAnswer

COLUMNS = ("op", "stream", "bound_by", "spent_seconds", "runs", "flops", "hbm_bytes", "of_roofline")
COLUMNS += ("scope", "source")
UNITS = {"spent_seconds": "s", "flops": "FLOP", "hbm_bytes": "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramState(ViewState):
    """The controls of the view."""

    folder: str = text("Report folder", "", about="Empty: the sample that comes with shardwise.")
    phase: str = text("Program", "", about="Such as train or decode; empty: the first.")
    top: int = slider("Ops shown", (10, 20, 40, 60, 100, 200), 40)


def _calls(state: ProgramState) -> list[VerbCall]:
    keywords = {"phase": state.phase or None, "top": state.top}
    given = (state.folder,) if state.folder else ()
    return [VerbCall(verb="report", given=given, keywords=keywords)]


def _draw(state: ProgramState, answers: Sequence[Answer]) -> Drawn:
    found = answers[0]
    assert isinstance(found, ReportAnswer)
    return Drawn(
        figures=[_timeline(found), _roofline(found), _memory(found), _graph(found)],
        tables=[_figures(found), _collectives(found), _ops(found)],
        lines=[
            f"{found.phase} on {found.slice}: the program fits."
            if found.fits
            else f"{found.phase} on {found.slice}: the program does not fit.",
            f"Programs of this report: {', '.join(found.phases)}.",
        ],
        formula="seconds of an op = max(cycles / clock, bytes / W); attained = FLOPs / seconds",
        source="the report's folder: compile.json, ops.csv, trace.json.gz",
    )


def _timeline(found: ReportAnswer) -> FigureData:
    streams = list(dict.fromkeys(span.stream for span in found.spans))
    streams.sort(key=lambda name: (name != "compute", name))
    marks = []
    for row, stream in enumerate(streams):
        own = [span for span in found.spans if span.stream == stream]
        starts = [span.start for span in own]
        marks.append(
            Mark(
                kind="rect",
                label=stream,
                x=starts,
                y=[row] * len(own),
                x2=[span.start + span.seconds for span in own],
                y2=[row + 0.8] * len(own),
                text=[span.op for span in own],
            )
        )
    return FigureData(
        id="timeline",
        title=f"Dearest ops of a step; rows: {', '.join(streams)}",
        x=FigureAxis(label="time", unit="s"),
        y=FigureAxis(bare=True),
        marks=marks,
    )


def _roofline(found: ReportAnswer) -> FigureData:
    known = [op for op in found.ops if op.flops and op.flops_per_byte]
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


def _graph(found: ReportAnswer) -> FigureData:
    """Ops from left to right as scheduled, three rows per stream; arrows to what waits."""
    streams = list(dict.fromkeys(op.stream for op in found.ops))
    places = {op.id: (op.place.x, op.place.y) for op in found.ops}
    ends = [(places[one.source], places[one.target]) for one in found.waits]
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
        own = [op for op in found.ops if op.stream == stream]
        x, y = ([places[op.id][k] for op in own] for k in (0, 1))
        words = [f"{op.op}: {op.scope}" for op in own]
        marks.append(Mark(kind="dot", label=stream, x=x, y=y, text=words))
    return FigureData(
        id="graph",
        title="What waits for what, in the order of the schedule",
        x=FigureAxis(bare=True),
        y=FigureAxis(bare=True),
        marks=marks,
    )


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
    rows.append(["ops not drawn", found.left_seconds, "s"])
    title = "Predicted and compiled, per device"
    return TableData(title=title, header=("", "value", "unit"), rows=rows)


def _collectives(found: ReportAnswer) -> TableData:
    rows = [[f"{one.kind} over {'+'.join(one.axes)}", *_moved(one)] for one in found.collectives]
    header = ("", "predicted", "compiled", "runs predicted", "runs compiled")
    units = {"predicted": "bytes", "compiled": "bytes"}
    return TableData(title="Collectives", header=header, rows=rows, units=units)


def _moved(one: CollectiveBeside) -> list[float | None]:
    planned, made = one.predicted, one.compiled
    return [planned and planned.bytes, made.bytes, planned and planned.count, made.count]


def _ops(found: ReportAnswer) -> TableData:
    rows = [[getattr(op, name) for name in COLUMNS] for op in found.ops]
    return TableData(title="Dearest ops, as scheduled", header=COLUMNS, rows=rows, units=UNITS)


VIEW = PageView(
    name="programs",
    title="Compiled program",
    about="A report folder of `shardwise compile --out`: what runs when, and what bounds it.",
    state=ProgramState,
    calls=_calls,
    draw=_draw,
)
