"""The training planner: days and dollars of a run, the plan, where its step goes, and time per
strategy against the batch as in ch. 5."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import PASTE, ViewState, choice, entry, known, powers, slider
from shardwise.apps.page.figures import (
    MEMORY,
    TIME,
    FigureAxis,
    FigureData,
    KeyFigure,
    Mark,
    TableData,
    axis_of,
    facts,
    lines,
    stacked,
)
from shardwise.apps.page.view import DecisionRows, Drawn, PageView, refused
from shardwise.apps.page.views.chips import (
    ALL_CHIPS,
    TORI,
    chip_choice,
    overlay,
    prices,
    slice_name,
)
from shardwise.apps.page.views.decision import (
    BESIDE,
    BESIDE_ABOUT,
    TRAIN_HEADER,
    called,
    change_figure,
    changes,
    chips_figure,
    chips_table,
    days_figure,
    named,
    strongest_line,
    train_rows,
)
from shardwise.book.figures import Series
from shardwise.boundary.records import values
from shardwise.commands.base.answer import Answer
from shardwise.commands.plan_train.chips_beside import ChipsBeside
from shardwise.commands.plan_train.train import TrainPlanned
from shardwise.commands.tables.book_figure import FigureAnswer
from shardwise.errors import BadRequest
from shardwise.models import load_model, zoo_names
from shardwise.plans.files import plan_yaml
from shardwise.results.run import WholeRun
from shardwise.units import format_count, format_gib, format_seconds, format_usd, many, sig

FIGURE = "fig.5.math_comms"
SPLIT = "fig.5.interactive"
LEAST_SPLIT = 8
"""Chips from which the figures of ch. 5 have the splits that they draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainViewState(ViewState):
    """The controls of the view."""

    model: str = known("Model", zoo_names(), "llama-3-70b", about=PASTE)
    on: str = chip_choice("Chip", ALL_CHIPS, "v5p")
    chips: int = slider("Chips", powers(0, 14), 512, unit="chips")
    batch: int = slider("Batch", powers(13, 26), 1 << 22, unit="tokens", counts="seq")
    seq: int = slider("Sequence", powers(9, 20), 4096, unit="tokens")
    tokens: str = entry("Tokens of the run", "15T", about="Such as 15T; empty: one step.")
    beside: str = entry("Chips beside it", BESIDE, about=BESIDE_ABOUT)
    price: str = entry("USD per chip and hour", "", group="Price and plan")
    remat: str = choice(
        "Recompute", ("any", "none", "matmul_outputs", "block"), "any", group="Price and plan"
    )
    tensor: int = slider(
        "Tensor split drawn", powers(0, 8), 8, unit="chips", group="Price and plan"
    )
    chip: str = entry(
        "Chip with other numbers", "", group="Price and plan", about="Such as hbm_bandwidth=9e11."
    )


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
    load_model(state.model)
    slice_name(state.on, state.chips)
    if state.on not in TORI or state.chips < LEAST_SPLIT:
        return []
    torus = _torus(state)
    split = {**torus, "tensor": min(state.tensor, state.chips)}
    drawn = [
        VerbCall(verb="book_figure", given=(FIGURE,), keywords={"sets": torus}),
        VerbCall(verb="book_figure", given=(SPLIT,), keywords={"sets": split}),
    ]
    return drawn if all(map(_answers, drawn)) else []


def _answers(call: VerbCall) -> bool:
    """Whether the book's rules say anything: on few chips the lines of ch. 5 may not cross."""
    try:
        return bool(call.answer())
    except BadRequest:
        return False


def _search(state: TrainViewState, quick: bool = False) -> list[VerbCall]:
    more = {"coarse": True} if quick else {"sensitivity": True}
    keywords = {
        "batch": f"{state.batch}",
        "seq": state.seq,
        "remat": _any(state.remat),
        "tokens": state.tokens or None,
        "prices": prices("price", state.on, state.price),
        "sets": overlay("chip", state.chip),
        **more,
    }
    given = (state.model, slice_name(state.on, state.chips))
    planned = VerbCall(verb="plan_train", given=given, keywords=keywords)
    return [planned, *([] if quick else _beside(state, named(state.on, state.beside)))]


def _beside(state: TrainViewState, chips: str) -> list[VerbCall]:
    """The same run on each of the chips, as they are listed."""
    keywords = {
        "on": chips,
        "chips": state.chips,
        "batches": f"{state.batch}",
        "lengths": f"{state.seq}",
        "remat": _any(state.remat),
        "tokens": state.tokens or None,
        "prices": prices("price", state.on, state.price),
    }
    calls = [VerbCall(verb="plan_sweep", given=(state.model,), keywords=keywords)]
    return calls if chips and state.tokens else []


def sheet(state: TrainViewState, growth: float) -> DecisionRows:
    """The rows of the decision sheet for a run of so many times the tokens."""
    chips = named(state.on, state.beside)
    if not state.tokens:
        remedy = "write such as 15T, of which a sheet has days and dollars"
        raise refused("tokens", state.tokens, "a decision sheet is of a run", remedy)
    if not chips:
        remedy = "write such as h100 b200"
        raise refused("beside", state.beside, "a decision sheet sets chips side by side", remedy)
    calls = _beside(state, chips)
    found = calls[0].answer()
    if not isinstance(found, ChipsBeside):
        raise refused("beside", state.beside, "it names other chips", "write such as h100 b200")
    return DecisionRows(
        header=TRAIN_HEADER,
        rows=list(train_rows(found, growth)),
        commands=[call.shell() for call in calls],
        notes=[*found.verdicts, *_other_sizes(found, state.chips)],
    )


def _other_sizes(found: ChipsBeside, chips: int) -> list[str]:
    """A note on slices that have not the chips that were asked for."""
    sizes = [f"{one.slice} has {one.chips:,} chips" for one in found.chips if one.chips != chips]
    return [f"Of {chips:,} chips the nearest listed slices are taken: {', '.join(sizes)}."] * any(
        sizes
    )


def plan_file(state: TrainViewState) -> str:
    """The plan of the answer, as a file has it."""
    found = _search(state)[0].answer()
    assert isinstance(found, TrainPlanned)
    return plan_yaml(found.best.plan, Path.cwd())


def _any(word: str) -> str | None:
    return None if word == "any" else word


def _draw(state: TrainViewState, answers: Sequence[Answer]) -> Drawn:
    book = len(_calls(state))
    figures = [_curves(one, state.batch) for one in answers[:book]]
    bound = _hidden_from(answers[0], state.chips) if book else []
    if len(answers) == book:
        return Drawn(figures=figures, lines=bound, **SOURCE)
    found = answers[book]
    assert isinstance(found, TrainPlanned)
    others = answers[book + 1] if len(answers) > book + 1 else None
    beside = others if isinstance(others, ChipsBeside) else None
    drawn = [
        days_figure(found.slice, found.run, beside),
        beside and chips_figure(beside),
        where(found),
        memory(found),
        _others(found),
        change_figure(found.sensitivity or ()),
    ]
    return Drawn(
        says=sentence(state.model, state.on, found),
        key=key_figures(found),
        figures=[*filter(None, drawn), *figures],
        tables=[
            *([_run(found.run)] if found.run else []),
            *([chips_table(beside)] if beside else []),
            *changes(found.sensitivity),
            _plan(found),
            _least(found.resource_seconds),
            TableData(title="Why", header=("reason",), rows=[[one] for one in found.why]),
        ],
        lines=[
            *plan_lines(found),
            *bound,
            *_tensor_bound(found),
            *strongest_line(found.sensitivity),
        ],
        **SOURCE,
    )


def sentence(model: str, chip: str, found: TrainPlanned) -> str:
    """The answer to quote."""
    step, run = found.step_seconds, found.run
    model = called(model)
    chips = many(found.chips_used + found.chips_idle, "chip")
    where = f"on {f'{found.chips_used:,} of ' if found.chips_idle else ''}{chips} of {chip}"
    if run is None:
        return f"A step of {model} takes about {format_seconds(step.expected)} {where}."
    range_ = ""
    if run.days_80:
        range_ = f" (8 of 10 runs: {sig(run.days_80.low)} to {sig(run.days_80.high)})"
    usd = f" and costs {format_usd(run.usd)}" if run.usd is not None else ", at no known price"
    return (
        f"Training {model} on {format_count(run.tokens)} tokens takes about {sig(run.days)} days"
        f"{range_} {where}{usd}."
    )


def _run(run: WholeRun) -> TableData:
    said: dict[str, Any] = {"tokens": run.tokens, "days": run.days}
    if run.days_80:
        said |= {"days, 1 run in 10 takes less": run.days_80.low}
        said |= {"days, 1 run in 10 takes more": run.days_80.high}
    said |= {"chip hours": run.chip_hours, "USD": run.usd, "price": run.price or "none is known"}
    return facts("The run", said, {"days": "days"})


def _least(found: Mapping[str, float]) -> TableData:
    """What the lower bound of the step is the largest of."""
    called = {"HBM": "HBM, what no program avoids"}
    seconds = {called.get(k, k.replace("net:", "network of ")): one for k, one in found.items()}
    title = "Behind the lower step: each resource at its peak"
    return facts(title, seconds, dict.fromkeys(seconds, "s"))


SOURCE: Any = {
    "formula": "T_math = 4BDF / (N C); T_FSDP = 4DF / (Y W M_X), T_tensor = 4BD / (X W M_Y); "
    "X_opt = sqrt(B N M_X / (F M_Y))",
    "source": "ch. 5.1; the plan: count, then price (docs/architecture.md)",
}


def _curves(found: Answer, batch: int) -> FigureData:
    assert isinstance(found, FigureAnswer)
    series = [replace(one, label=_strategy(one.label)) for one in found.series]
    marks = lines(series, dashed=("math",))
    crossed = [
        Mark(kind="rule", label=f"math hides {one.label} from {format_count(at)} tokens", x=[at])
        for one in series[1:2]
        if (at := _crossing(series[0], one))
    ]
    return FigureData(
        id=found.id,
        title=found.title,
        x=axis_of(found.x),
        y=axis_of(found.y),
        marks=[*marks, *crossed, Mark(kind="rule", label=f"your batch, {batch:,}", x=[batch])],
    )


def _hidden_from(found: Answer, chips: int) -> list[str]:
    """The batch below which the figure's first strategy waits for its network."""
    assert isinstance(found, FigureAnswer)
    math, other = found.series[:2]
    if (at := _crossing(math, other)) is None:
        return []
    below = f"{format_count(at)} tokens a step ({sig(at / chips)} a chip)"
    rule = "By the book, which hides all that it can,"
    return [f"{rule} {_strategy(other.label)} is bound by communication below {below}."]


def _tensor_bound(found: TrainPlanned) -> list[str]:
    """Over how many chips tensor parallelism waits for its network, by the book's rule."""
    return [
        "By the book, tensor parallelism is bound by communication over more than "
        f"{sig(row.value)} chips."
        for row in found.book.rules or ()
        if row.name == "tensor_degree"
    ]


def _strategy(label: str) -> str:
    """A line of the book's figures in words: its Y-way FSDP and X-way tensor parallelism."""
    named = {"X_opt, max": "mix at X_opt, both axes at once"}
    named |= {"X_opt, sum": "mix at X_opt, one axis after the other"}
    words = re.sub(r"^(\d+)-way DP$", r"FSDP over \1", label)
    return named.get(label) or re.sub(r"^(\d+) ?x ?(\d+)$", r"FSDP \1 x tensor \2", words)


def _crossing(math: Series, other: Series) -> float | None:
    """The batch from which math takes longer; lines are straight in logarithms between points."""
    gaps = [log(a / b) for a, b in zip(math.y, other.y, strict=False)]
    for i in range(1, len(gaps)):
        if gaps[i - 1] < 0 <= gaps[i]:
            share = -gaps[i - 1] / (gaps[i] - gaps[i - 1])
            return exp(log(math.x[i - 1]) + share * log(math.x[i] / math.x[i - 1]))
    return None


def key_figures(found: TrainPlanned) -> list[KeyFigure]:
    """The numbers of the answer to read first: the run's, where there is one, then a step's."""
    used, idle = found.chips_used, found.chips_idle
    chips = KeyFigure(
        label="chips", value=used, note=f"{found.slice}{f', {idle:,} more idle' if idle else ''}"
    )
    rate = f"{format_count(found.tokens_per_second)} tokens/s"
    peak = f"of the {found.mfu_dtype} peak"
    share = f"of {sig(found.usable_bytes_per_chip / 2**30)} GiB usable, the fullest chip"
    return [
        chips,
        *_run_figures(found.run),
        KeyFigure(label="a step", value=found.step_seconds.expected, unit="s", note=rate),
        KeyFigure(label="MFU", value=found.mfu, unit="share", note=peak),
        KeyFigure(label="memory", value=found.peak_bytes_per_chip, unit="bytes", note=share),
    ]


def _run_figures(run: WholeRun | None) -> list[KeyFigure]:
    """Days with the range of 8 of 10 runs, and dollars with their price."""
    if run is None:
        return []
    range_ = run.days_80
    between = f"8 of 10 runs: {sig(range_.low)} to {sig(range_.high)}" if range_ else ""
    usd = run.usd_per_chip_hour
    price = f"at {format_usd(usd)} per chip-hour" if usd else "no price is known"
    return [
        KeyFigure(label="days", value=run.days, note=between),
        KeyFigure(label="cost", value=run.usd, unit="USD", note=price),
    ]


def memory(found: TrainPlanned) -> FigureData:
    """What the fullest chip holds, beside what can be used."""
    usable = found.usable_bytes_per_chip
    limit = Mark(kind="rule", label=f"usable, {format_gib(usable)}", x=[usable])
    title = "Memory of the fullest chip"
    return stacked("memory", title, MEMORY, "peak", found.memory_by_kind, [limit])


def where(found: TrainPlanned) -> FigureData:
    """The parts of a step, one after the other."""
    title = f"Where the step's {format_seconds(found.step_seconds.expected)} go"
    return stacked("where", title, TIME, "step", found.where_it_goes)


def _others(found: TrainPlanned) -> FigureData:
    plans = {_mesh(found.mesh): found.step_seconds.expected}
    for one in found.close:
        label = ", ".join([_mesh(one.mesh), *one.differs])
        plans.setdefault(label, one.step_seconds.expected)
    return FigureData(
        id="others",
        title="This plan, and others that were close",
        x=FigureAxis(label="expected step", unit="s"),
        y=FigureAxis(names=tuple(plans)),
        marks=[Mark(kind="bar", label="seconds", x=list(plans.values()), y=list(plans))],
    )


def _mesh(mesh: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {degree}" for axis, degree in mesh.items()) or "one chip"


def _plan(found: TrainPlanned) -> TableData:
    said: dict[str, object] = {
        "mesh": _mesh(found.mesh),
        "slice": found.slice,
        "runs in": found.runs_in or "no known program",
        "microbatches": found.microbatches,
        "recompute": found.remat,
        "pipeline schedule": found.pipeline_schedule,
        "optimizer sharding (ZeRO stage)": found.zero,
        f"MFU of the {found.mfu_dtype} peak": f"{found.mfu:.1%}",
        "tokens per second": found.tokens_per_second,
        "memory of the fullest chip": format_gib(found.peak_bytes_per_chip),
        "usable memory of a chip": format_gib(found.usable_bytes_per_chip),
    }
    bounds = {f"step, {name}": value for name, value in values(found.step_seconds).items()}
    return facts("The plan", said | bounds, dict.fromkeys(bounds, "s"))


def plan_lines(found: TrainPlanned) -> list[str]:
    """The best plan and what runs it, then what binds it."""
    runs = f"runs in {found.runs_in}" if found.runs_in else "no known program runs it"
    count = f"{found.microbatches} microbatch{'es' if found.microbatches > 1 else ''}"
    best = f"The plan: {_mesh(found.mesh)}, {count}, {runs}."
    return [best, *(f"{why[:1].upper()}{why[1:]}." for why in found.why[:1])]


VIEW = PageView(
    name="training",
    title="Training planner",
    about="How long and how dear a run is, on which plan, and what bounds it.",
    group="Plan",
    state=TrainViewState,
    calls=_calls,
    slow=_search,
    quick=partial(_search, quick=True),
    draw=_draw,
    crossed=("model", "on"),
    sheet=sheet,
    plan=plan_file,
)
