"""The training planner: time per strategy against the batch as in ch. 5, and the best plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import ViewState, choice, powers, slider
from shardwise.apps.page.figures import FigureAxis, FigureData, Mark, TableData, facts, lines
from shardwise.apps.page.view import Drawn, PageView
from shardwise.apps.page.views.chips import CHIPS, TORI, slice_name
from shardwise.boundary.records import values
from shardwise.commands.base.answer import Answer
from shardwise.commands.plan_train.train import TrainPlanned
from shardwise.commands.tables.book_figure import FigureAnswer
from shardwise.models import load_model

MODELS = (
    "llama-3-8b", "llama-3-70b", "llama-3.1-405b", "gemma-2-27b", "qwen3-32b", "mistral-large-2407",
    "deepseek-v3", "gpt-oss-120b", "mixtral-8x7b",
)  # fmt: skip
FIGURE = "fig.5.math_comms"
SPLIT = "fig.5.interactive"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainViewState(ViewState):
    """The controls of the view."""

    model: str = choice("Model", MODELS, "llama-3-70b")
    on: str = choice("Chip", (*TORI, *(name for name in CHIPS if name not in TORI)), "v5p")
    chips: int = slider("Chips", powers(3, 12), 512, unit="chips")
    batch: int = slider("Batch", powers(16, 25), 1 << 22, unit="tokens")
    seq: int = slider("Sequence", powers(10, 17), 4096, unit="tokens")
    tensor: int = slider("Tensor split drawn", powers(0, 8), 8, unit="chips")
    remat: str = choice("Recompute", ("any", "none", "matmul_outputs", "block"), "any")


def _torus(state: TrainViewState) -> dict[str, str | int]:
    """The sizes of the figures of ch. 5; of a mixture of experts F is that of one expert."""
    cfg = load_model(state.model)
    mlp = cfg.groups[-1].mlp
    return {
        "chips": state.chips,
        "d_model": cfg.d_model,
        "d_ff": mlp.d_ff if mlp else 0,
        "chip": state.on,
    }


def _calls(state: TrainViewState) -> list[VerbCall]:
    slice_name(state.on, state.chips)
    if state.on not in TORI:
        return []
    torus = _torus(state)
    split = {**torus, "tensor": min(state.tensor, state.chips)}
    return [
        VerbCall(verb="book_figure", given=(FIGURE,), keywords={"sets": torus}),
        VerbCall(verb="book_figure", given=(SPLIT,), keywords={"sets": split}),
    ]


def _search(state: TrainViewState) -> list[VerbCall]:
    keywords = {"batch": f"{state.batch}", "seq": state.seq, "remat": _any(state.remat)}
    given = (state.model, slice_name(state.on, state.chips))
    return [
        VerbCall(
            verb="plan_train",
            given=given,
            keywords=keywords,
        )
    ]


def _any(word: str) -> str | None:
    return None if word == "any" else word


def _draw(state: TrainViewState, answers: Sequence[Answer]) -> Drawn:
    book = len(_calls(state))
    figures = [_curves(one, state.batch) for one in answers[:book]]
    if len(answers) == book:
        return Drawn(figures=figures, lines=["The search for the best plan follows."], **SOURCE)
    found = answers[book]
    assert isinstance(found, TrainPlanned)
    resources = found.resource_seconds
    return Drawn(
        figures=[*figures, _memory(found), _where(found), _others(found)],
        tables=[
            _plan(found),
            facts("Seconds by resource", resources, dict.fromkeys(resources, "s")),
            TableData(title="Why", header=("reason",), rows=[[one] for one in found.why]),
        ],
        lines=_said(found),
        **SOURCE,
    )


SOURCE: Any = {
    "formula": "T_math = 4BDF / (N C); T_FSDP = 4DF / (Y W M_X), T_tensor = 4BD / (X W M_Y)",
    "source": "ch. 5.1; the plan: count, then price (docs/architecture.md)",
}


def _curves(found: Answer, batch: int) -> FigureData:
    assert isinstance(found, FigureAnswer)
    x, y = found.x, found.y
    marks = lines(found.series, dashed=("math",))
    return FigureData(
        id=found.id,
        title=found.title,
        x=FigureAxis(label=x.label, unit=x.unit, log=x.log),
        y=FigureAxis(label=y.label, unit=y.unit, log=y.log),
        marks=[*marks, Mark(kind="rule", label=f"batch {batch:,}", x=[batch])],
    )


def _memory(found: TrainPlanned) -> FigureData:
    usable = found.usable_bytes_per_chip
    marks = [
        Mark(kind="bar", label=kind, x=[size], y=["peak"])
        for kind, size in found.memory_by_kind.items()
    ]
    return FigureData(
        id="memory",
        title="Memory of the fullest chip",
        x=FigureAxis(label="memory", unit="bytes"),
        y=FigureAxis(names=("peak",)),
        marks=[*marks, Mark(kind="rule", label="usable", x=[usable])],
    )


def _where(found: TrainPlanned) -> FigureData:
    parts = found.where_it_goes
    return FigureData(
        id="where",
        title="Where the step's time goes",
        x=FigureAxis(label="time", unit="s"),
        y=FigureAxis(names=tuple(parts)),
        marks=[Mark(kind="bar", label="seconds", x=list(parts.values()), y=list(parts))],
    )


def _others(found: TrainPlanned) -> FigureData:
    plans = {_mesh(found.mesh): found.step_seconds.expected}
    for one in found.close:
        label = ", ".join([_mesh(one.mesh), *one.differs])
        plans.setdefault(label, one.step_seconds.expected)
    return FigureData(
        id="others",
        title="The best plan and what else was close",
        x=FigureAxis(label="expected step", unit="s"),
        y=FigureAxis(names=tuple(plans)),
        marks=[Mark(kind="bar", label="seconds", x=list(plans.values()), y=list(plans))],
    )


def _mesh(mesh: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {degree}" for axis, degree in mesh.items()) or "one chip"


def _plan(found: TrainPlanned) -> TableData:
    names = ("slice", "runs_in", "microbatches", "remat", "pipeline_schedule", "zero", "mfu")
    names += ("tokens_per_second", "peak_bytes_per_chip", "usable_bytes_per_chip")
    bounds = values(found.step_seconds)
    units = {"tokens_per_second": "tokens/s", "peak_bytes_per_chip": "bytes"}
    units |= {"usable_bytes_per_chip": "bytes"} | dict.fromkeys(bounds, "s")
    said = {"mesh": _mesh(found.mesh)} | {name: getattr(found, name) for name in names}
    return facts("The best plan", said | bounds, units)


def _said(found: TrainPlanned) -> list[str]:
    """The best plan and what runs it, then what binds it."""
    runs = f"runs in {found.runs_in}" if found.runs_in else "no known program runs it"
    best = f"Best: {_mesh(found.mesh)}, {found.microbatches} microbatches, {runs}."
    return [best, *found.why[:1]]


VIEW = PageView(
    name="training",
    title="Training planner",
    about="Time per strategy against the batch, and the plan that a search finds.",
    state=TrainViewState,
    calls=_calls,
    slow=_search,
    draw=_draw,
)
