"""Machines to watch: the simulators of `book figure`, which the page plays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import ViewState, choice, powers, slider
from shardwise.apps.page.figures import FigureAxis, FigureData, KeyFigure, Mark, facts
from shardwise.apps.page.view import Drawn, PageView
from shardwise.apps.page.views.chips import TORI, chip_choice
from shardwise.book.simulators.batching import SERVED
from shardwise.book.simulators.collective import NETWORKS
from shardwise.boundary.records import plain
from shardwise.commands.base.answer import Answer
from shardwise.commands.base.layout import percent
from shardwise.commands.tables.book_figure import SimulationAnswer
from shardwise.scheduling.pipeline import PIPELINE_KINDS, schedule_row
from shardwise.units import format_binary, format_flops, format_seconds, many, sig

WIDE = 500
"""Last place over first from which a curve is drawn over equal ratios (ours)."""
PLAYED = ("title", "kinds", "rows", "bars", "places", "frames", "reduces", "x_label", "x_unit")
"""What the player needs of an animation."""
KINDS = {"all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}
KINDS |= {"all_reduce": "AllReduce", "all_to_all": "AllToAll"}
SPACED = tuple(name.replace("_", " ") for name in NETWORKS)
"""Networks as words."""
HEADED = {
    "seconds": "takes",
    "cycles": "takes",
    "rounds": "rounds",
    "busiest_link_bytes": "over the busiest link",
    "bubble": "idles (bubble)",
    "most_in_flight": "microbatches kept at once, at most",
    "utilisation": "of its peak",
    "compute_busy": "compute busy",
    "bytes_busy": "memory busy",
    "tokens_per_second": "throughput",
    "slots_in_use": "slots in use",
    "mean_ttft": "mean time to the first token",
    "mean_tpot": "then a token",
}
"""Readings that are shown large, in this order, and how they are called there."""
SHARES = ("bubble", "plain_bubble", "utilisation", "steady_utilisation", "compute_busy")
SHARES += ("bytes_busy", "slots_in_use")
PASSES = {"F": "F: forward", "B": "B: backward", "W": "W: gradients of the weights"}
"""What the letters of a pipeline say."""


def _calls(figure_id: str, state: ViewState) -> list[VerbCall]:
    sets = {one.name: getattr(state, one.name) for one in fields(state)} | _chunks(state)
    return [VerbCall(verb="book_figure", given=(figure_id,), keywords={"sets": sets})]


def _chunks(state: ViewState) -> dict[str, int]:
    """The chunks per rank that are drawn where the schedule does not take those of the state."""
    if not isinstance(state, PipelineState):
        return {}
    row = schedule_row(state.schedule)
    return {} if row.takes_chunks(state.stages, state.chunks) else {"chunks": row.chunks[0]}


def _other_chunks(state: ViewState) -> list[str]:
    """That others are drawn, and which ones the schedule takes."""
    return [
        f"Schedule {state.schedule} is drawn with {many(chunks, 'chunk')} per rank: "
        f"it takes {schedule_row(state.schedule).chunks_said or chunks}."
        for chunks in _chunks(state).values()
        if isinstance(state, PipelineState)
    ]


def _draw(says: Callable[..., str], state: ViewState, answers: Sequence[Answer]) -> Drawn:
    found = answers[0]
    assert isinstance(found, SimulationAnswer)
    units = {**dict.fromkeys(SHARES, "share"), **found.units}
    return Drawn(
        says=says(state, **found.readings),
        key=[
            KeyFigure(label=said, value=found.readings[name], unit=units.get(name, ""))
            for name, said in HEADED.items()
            if name in found.readings
        ],
        player=plain({name: getattr(found, name) for name in PLAYED})
        | {"names": PASSES, "title": _title(found)},
        figures=[_curves(found)] if found.curves else [],
        tables=[facts("What came out", found.readings, units)],
        lines=[*_other_chunks(state), *found.notes],
        formula="simulated; the closed forms stand under `shardwise book rule`",
        source=found.source,
    )


def _title(found: SimulationAnswer) -> str:
    """What is played, as the controls call it."""
    first, _, rest = found.title.partition(" ")
    return f"{KINDS.get(first, first)} {rest}".strip()


def _curves(found: SimulationAnswer) -> FigureData:
    x, y = found.curve_axes
    marks = [Mark(kind="line", label=c.label, x=c.x, y=c.y) for c in found.curves]
    across, up = _axis(x), _axis(y)
    places = sorted(place for one in found.curves for place in one.x)
    across = replace(across, log=places[0] > 0 and places[-1] / places[0] >= WIDE)
    title = f"{up.label} by {across.label}".capitalize()
    return FigureData(id="curves", title=title, x=across, y=up, marks=marks)


def _axis(text: str) -> FigureAxis:
    """`time [s]` as label and unit; bytes alone are their own unit."""
    label, _, unit = text.partition(" [")
    return FigureAxis(label=label, unit=unit.rstrip("]") or ("bytes" if label == "bytes" else ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class SystolicState(ViewState):
    """The controls of the systolic array."""

    side: int = slider("Side of the array", (2, 3, 4, 6, 8), 4)
    rows: int = slider("Rows streamed", (2, 4, 8, 12, 16), 8)
    inner: int = slider("Inner dim", (2, 3, 4, 6, 8), 4)
    columns: int = slider("Columns", (2, 3, 4, 6, 8), 4)
    seed: int = slider("Seed of the numbers", range(5), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmState(ViewState):
    """The controls of the HBM pipeline."""

    chip: str = chip_choice("Chip", TORI, "v5e")
    read: float = slider("Bytes read", [24e6 * k for k in (0.25, 0.5, 1, 2, 4)], 24e6, unit="bytes")
    flops: float = slider("FLOPs", [4.8e9 * k for k in (0.25, 0.5, 1, 2, 4)], 4.8e9)
    chunks: int = slider("Chunks", (1, 2, 4, 8, 16, 32), 8)
    buffers: int = slider("Buffers", (1, 2, 3, 4), 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveState(ViewState):
    """The controls of a collective."""

    kind: str = choice("Kind", tuple(KINDS), "all_gather", words=tuple(KINDS.values()))
    network: str = choice("Network", tuple(NETWORKS), "ring", words=SPACED)
    shape: str = choice(
        "Shape",
        ("4", "8", "16", "4x4", "8x8", "2x2x2", "4x2x2", "4x4x4"),
        "8",
        about="Several sides: a torus, or nodes x devices.",
    )
    bytes: float = slider("Bytes", [1e3, 1e4, 1e5, 1e6, 8e6, 64e6, 512e6], 8e6, unit="bytes")
    bandwidth: float = slider(
        "Bytes/s of a link", (1e10, 4.5e10, 9e10, 4.5e11), 4.5e10, unit="bytes/s"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState(ViewState):
    """The controls of a pipeline."""

    schedule: str = choice("Schedule", PIPELINE_KINDS, PIPELINE_KINDS[2])
    stages: int = slider("Stages", (2, 4, 6, 8), 4)
    microbatches: int = slider("Microbatches", (4, 8, 12, 16, 24, 32), 8)
    chunks: int = slider("Chunks per rank", (1, 2, 4), 2)
    transfer: float = slider("Transfer", (0.0, 0.1, 0.2, 0.5, 1.0), 0.0, unit="s")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingState(ViewState):
    """The controls of a server's slots."""

    policy: str = choice("Policy", SERVED, "chunked")
    slots: int = slider("Slots", powers(0, 4), 4)
    requests: int = slider("Requests", (4, 8, 12, 24, 48), 12)
    prompt: int = slider("Prompt", powers(6, 13), 512, unit="tokens")
    answer: int = slider("Answer", powers(2, 7), 16, unit="tokens")
    chunk: int = slider("Chunk", powers(6, 12), 512, unit="tokens")


def _systolic(state: SystolicState, *, cycles: float, utilisation: float, **_: float) -> str:
    array = f"{state.side} x {state.side}"
    return (
        f"An array of {array} takes {many(round(cycles), 'cycle')} to multiply "
        f"{state.rows} x {state.inner} by {state.inner} x {state.columns}, "
        f"{percent(utilisation)} of its peak."
    )


def _hbm(
    state: HbmState, *, seconds: float, compute_busy: float, bytes_busy: float, **_: float
) -> str:
    return (
        f"On {state.chip} {format_binary(state.read)} and {format_flops(state.flops)} in "
        f"{many(state.chunks, 'chunk')} take {format_seconds(seconds)}: compute is busy "
        f"{percent(compute_busy)} of the time, memory {percent(bytes_busy)}."
    )


def _collective(
    state: CollectiveState, *, seconds: float, rounds: float, busiest_link_bytes: float, **_: float
) -> str:
    return (
        f"{KINDS[state.kind]} of {format_binary(state.bytes)} over {state.shape} devices "
        f"({state.network.replace('_', ' ')}) takes {format_seconds(seconds)} in "
        f"{many(round(rounds), 'round')}; the busiest link carries "
        f"{format_binary(busiest_link_bytes)}."
    )


def _pipeline(state: PipelineState, *, bubble: float, most_in_flight: float, **_: float) -> str:
    return (
        f"Schedule {state.schedule} on {many(state.stages, 'stage')} idles "
        f"{percent(bubble)} of the time with {state.microbatches} microbatches, and keeps "
        f"at most {sig(most_in_flight)} of them at once."
    )


def _batching(
    state: BatchingState, *, seconds: float, tokens_per_second: float, mean_ttft: float, **_: float
) -> str:
    return (
        f"{many(state.requests, 'request')} in {many(state.slots, 'slot')} ({state.policy}) take "
        f"{format_seconds(seconds)}, {sig(tokens_per_second)} tokens a second; the "
        f"first token comes after {format_seconds(mean_ttft)} in the mean."
    )


def _view(
    name: str,
    title: str,
    about: str,
    state: type[ViewState],
    says: Callable[..., str],
    crossed: tuple[str, ...] = (),
) -> PageView[ViewState]:
    """A simulator; `says` makes a sentence to quote of its state and readings."""
    calls = partial(_calls, name)
    return PageView(
        name=name,
        title=title,
        about=about,
        group="Watch",
        state=state,
        calls=calls,
        draw=partial(_draw, says),
        crossed=crossed,
    )


VIEWS = (
    _view(
        "collective",
        "Collectives",
        "A collective hop by hop: who sends which block to whom, and over which links.",
        CollectiveState,
        _collective,
        ("kind", "network", "shape"),
    ),
    _view(
        "pipeline",
        "Pipeline schedules",
        "Forward and backward passes of every rank, and what idles.",
        PipelineState,
        _pipeline,
        ("schedule", "stages"),
    ),
    _view(
        "systolic",
        "Systolic array",
        "Weights load from above, rows enter skewed from the left, a cycle at a time.",
        SystolicState,
        _systolic,
    ),
    _view(
        "hbm",
        "HBM pipeline",
        "Chunks loaded into buffers while the chunk before them is computed with.",
        HbmState,
        _hbm,
    ),
    _view(
        "batching",
        "Continuous batching",
        "Requests in the slots of a server: the real scheduler, a step at a time.",
        BatchingState,
        _batching,
        ("policy", "slots"),
    ),
)
"""One view of each simulator."""
