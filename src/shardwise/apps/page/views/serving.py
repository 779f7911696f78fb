"""The serving planner: the cheapest servers for a load within its targets, what they hold by
simulation, what else would do, and latency against throughput as in ch. 8."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from shardwise.apps.page.view import DecisionRows, Drawn, PageView
from shardwise.apps.page.views.chips import ALL_CHIPS, chip_choice, overlay, prices, slice_name
from shardwise.apps.page.views.decision import (
    BESIDE,
    SERVE_HEADER,
    change_figure,
    changes,
    named,
    serve_rows,
    strongest_line,
)
from shardwise.commands.base.answer import Answer
from shardwise.commands.base.layout import percent
from shardwise.commands.plan_serve.serve import ServePlanned
from shardwise.commands.tables.book_figure import FigureAnswer
from shardwise.models import kv_bytes_per_token, load_model, params_total, zoo_names
from shardwise.plans.files import plan_yaml
from shardwise.roofline.bounds import Bounds
from shardwise.units import format_seconds, format_usd, many, parse_count, sig

AS_PUBLISHED = "as the checkpoint"
WEIGHTS = (AS_PUBLISHED, "int8", "bf16", "fp8")
POOLS = ("by the same servers", "by two pools")
SHEET_ABOUT = "Such as h100 b200: beside the chip, in the decision sheet."
UNITS = {"requests_per_second": "1/s", "output_tokens_per_second": "tokens/s"}
COLUMNS = ("name", "servers", "chips", "requests_per_second", "usd_per_hour")
COLUMNS += ("usd_per_million_tokens",)
TIMES = ("ttft", "tpot", "e2e")
UNITS |= {"tokens_per_second_per_chip": "tokens/s", "usd_per_hour": "USD"}
PRICES = {"USD/h": "USD", "USD per million tokens in and out": "USD"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingState(ViewState):
    """The controls of the view."""

    model: str = known("Model", zoo_names(), "llama-3-70b", about=PASTE)
    on: str = chip_choice("Chip", ALL_CHIPS, "v5e")
    chips: int = slider("Chips of all servers", powers(0, 12), 16, unit="chips")
    input: int = slider("Prompt", powers(7, 17), 2048, unit="tokens")
    output: int = slider("Answer", powers(4, 15), 256, unit="tokens")
    ttft: str = entry("First token within", "2s", about="TTFT of 9 in 10 requests, such as 500ms.")
    tpot: str = entry("Then a token within", "", about="TPOT of 9 in 10, such as 40ms; or empty.")
    rate: str = entry("Requests per second", "", about="Empty: what these chips hold.")
    weights: str = choice("Weights", WEIGHTS, "int8", group="Precision")
    kv: str = choice("KV cache", ("int8", "bf16", "fp8"), "int8", group="Precision")
    software: str = choice("Served by", ("jax", "vllm", "sglang"), "jax", group="Servers")
    pools: str = choice("Prompts and answers", POOLS, POOLS[0], group="Servers")
    beside: str = entry("Chips of the sheet", BESIDE, group="Servers", about=SHEET_ABOUT)
    price: str = entry("USD per chip and hour", "", group="Servers")
    chip: str = entry(
        "Chip with other numbers", "", group="Servers", about="Such as hbm_bandwidth=9e11."
    )


def _calls(state: ServingState) -> list[VerbCall]:
    cfg = load_model(state.model)
    server = {
        "chip": state.on,
        "chips": state.chips,
        "params": float(params_total(cfg)),
        "kv_bytes": float(kv_bytes_per_token(cfg, state.kv)),
    }
    pareto = {**server, "contexts": state.input}
    step = {**server, "context": state.input}
    return [_figure("fig.8.pareto", pareto), _figure("fig.8.breakdown", step)]


def _figure(figure_id: str, sets: Mapping[str, object]) -> VerbCall:
    return VerbCall(verb="book_figure", given=(figure_id,), keywords={"sets": sets})


def _search(state: ServingState, quick: bool = False) -> list[VerbCall]:
    more = {"coarse": True} if quick else {"sensitivity": True}
    given = (state.model, slice_name(state.on, state.chips))
    return [VerbCall(verb="plan_serve", given=given, keywords={**_asked(state), **more})]


def _asked(state: ServingState) -> Mapping[str, object]:
    return {
        "input": state.input,
        "output": state.output,
        "ttft": state.ttft or None,
        "tpot": state.tpot or None,
        "rate": state.rate or None,
        "pools": "two" if state.pools == POOLS[1] else None,
        "weights": None if state.weights == AS_PUBLISHED else state.weights,
        "kv": state.kv,
        "software": state.software,
        "prices": prices("price", state.on, state.price),
        "sets": overlay("chip", state.chip),
    }


def sheet(state: ServingState, growth: float) -> DecisionRows:
    """The rows of the decision sheet for so many times the requests: those that are asked for, or
    that the answer holds."""
    (planned,) = _search(state)
    answer = planned.answer()
    assert isinstance(answer, ServePlanned)
    rate = float(f"{growth * answer.requests_per_second:.3g}")
    if state.rate:
        rate = growth * parse_count(state.rate, "control 'rate'")
    keywords = {**_asked(state), "rate": rate, "sets": None}
    chips = named(state.on, state.beside) or state.on
    call = VerbCall(verb="plan_serve", given=(state.model, chips), keywords=keywords)
    found = call.answer()
    assert isinstance(found, ServePlanned)
    return DecisionRows(
        header=SERVE_HEADER,
        rows=list(serve_rows(found.chips_compared, growth)),
        commands=[call.shell()],
        notes=[str(one) for one in found.warnings],
    )


def plan_file(state: ServingState) -> str:
    """The plan of the answer, as a file has it."""
    found = _search(state)[0].answer()
    assert isinstance(found, ServePlanned)
    return plan_yaml(found.best.plan, Path.cwd())


def _draw(state: ServingState, answers: Sequence[Answer]) -> Drawn:
    figures = [_curves(one, "Ideal decode, as the book draws it: ") for one in answers[:2]]
    said: Any = {
        "formula": "t = KV bytes / W + max(weight bytes / W, 2 params B / C)",
        "source": "ch. 8, interactive figures; the plan: simulated (docs/serving.md)",
    }
    if len(answers) == 2:
        return Drawn(figures=figures, **said)
    found = answers[2]
    assert isinstance(found, ServePlanned)
    memory = found.memory
    held = {"weights": memory.weights, "activations": memory.activations, "cache": memory.cache}
    held |= {"engine": memory.engine} if memory.engine else {}
    changed = change_figure(found.sensitivity or ())
    compared = (named(state.on, state.beside) or state.on).split(",")
    return Drawn(
        says=sentence(found),
        key=key_figures(found),
        figures=[
            *fronts(found),
            where(found),
            stacked("memory", "Memory of a chip", MEMORY, "chip", held),
            *([replace(changed, wide=True)] if changed else []),
            *figures,
        ],
        tables=[others(found), *changes(found.sensitivity), _plan(found)],
        lines=[
            longest_part(found),
            *strongest_line(found.sensitivity),
            (
                "What is served holds its targets in a simulation of the load; ideal decode below "
                "leaves out prompts, waiting and the software's own time."
            ),
            f"The decision sheet at the end compares {', '.join(compared)}.",
        ],
        **said,
    )


def sentence(found: ServePlanned) -> str:
    """The answer to quote, and which row of the others costs least."""
    usd, answer = found.usd_per_million_tokens.output, "answers" if found.chips == 1 else "answer"
    cost = (
        f" for {format_usd(found.usd_per_hour)} an hour, {format_usd(usd)} per million tokens out"
        if found.usd_per_hour is not None and usd is not None
        else "; no price is known"
    )
    said = (
        f"{many(found.chips, 'chip')} ({many(found.replicas, 'server')} of {found.slice}, "
        f"{found.software}) {answer} {sig(found.requests_per_second)} requests a second: the first "
        f"token of 9 in 10 within {format_seconds(found.ttft_seconds.expected)}, each further one "
        f"within {format_seconds(found.tpot_seconds.expected)}{cost}."
    )
    return f"{said} {cheapest(found)}".rstrip()


def key_figures(found: ServePlanned) -> list[KeyFigure]:
    """The numbers of the answer to read first."""
    first, then, usd = found.ttft_seconds, found.tpot_seconds, found.usd_per_million_tokens
    servers = f"{many(found.replicas, 'server')} of {found.slice}"
    out = f"{format_usd(usd.output)} per million tokens out" if usd.output is not None else ""
    rate = f"{sig(found.output_tokens_per_second)} tokens/s"
    held = found.requests_per_second
    return [
        KeyFigure(label="chips", value=found.chips, note=servers),
        KeyFigure(label="requests a second", value=held, note=rate),
        KeyFigure(label="first token", value=first.expected, unit="s", note=_of_servers(first)),
        KeyFigure(label="then a token", value=then.expected, unit="s", note=_of_servers(then)),
        KeyFigure(label="an hour", value=found.usd_per_hour, unit="USD", note=out),
    ]


def _of_servers(seconds: Bounds) -> str:
    """What a time of 9 in 10 requests is on 8 of 10 measured servers."""
    if seconds.lower == seconds.upper:  # no measured server is like it
        return "9 in 10, at most"
    low, high = format_seconds(seconds.lower), format_seconds(seconds.upper)
    return f"9 in 10, at most; 8 of 10 servers: {low} to {high}"


def where(found: ServePlanned) -> FigureData:
    """The parts of a decode step, one after the other."""
    title = "Where a decode step's time goes"
    return stacked("where", title, TIME, "step", found.where_it_goes)


def longest_part(found: ServePlanned) -> str:
    """What most of a decode step is."""
    parts = found.where_it_goes
    name, seconds = max(parts.items(), key=lambda both: both[1])
    whole = sum(parts.values())
    return (
        f"The longest part of a decode step is {name}: {format_seconds(seconds)} of "
        f"{format_seconds(whole)}, {percent(seconds / whole)}."
    )


def cheapest(found: ServePlanned) -> str:
    """Which row of those that serve as much costs least an hour."""
    this, *rest = found.instead
    priced = [(one.usd_per_hour, one) for one in rest if one.usd_per_hour is not None]
    enough = [both for both in priced if both[1].requests_per_second >= this.requests_per_second]
    if this.usd_per_hour is None or not enough:
        return ""
    usd, one = min(enough, key=lambda both: both[0])
    if usd >= this.usd_per_hour:
        return "Nothing in the table below serves as much for less."
    return (
        f"By the estimates below {one.name} is cheapest for as many requests: "
        f"{many(one.chips, 'chip')}, {format_usd(usd)} an hour; "
        f"this is {format_usd(this.usd_per_hour)}."
    )


def _plan(found: ServePlanned) -> TableData:
    usd = found.usd_per_million_tokens
    plan: dict[str, object] = {
        "chips of a server": found.slice,
        "sequences at once": found.batch,
        "prompt tokens of a step": found.prefill_chunk,
        "KV cache cut by": found.kv_sharding,
        "software": found.software,
    }
    plan |= {name: getattr(found, name) for name in UNITS}
    times = {f"{n.upper()}, 9 in 10": getattr(found, f"{n}_seconds").expected for n in TIMES}
    plan |= {**times, "USD per million input tokens": usd.input}
    plan |= {"USD per million output tokens": usd.output}
    plan |= {"price": found.price.text if found.price else "none is known"}
    return facts("The plan", plan, UNITS | dict.fromkeys(times, "s"))


def others(found: ServePlanned) -> TableData:
    """The answer and what else would serve, other chips too."""
    rows = [[getattr(one, column) for column in COLUMNS] for one in found.instead]
    header = ("", "servers", "chips", "requests/s", *PRICES)
    title = "This answer, and alternatives (estimates)"
    return TableData(title=title, header=header, rows=rows, units=PRICES)


def fronts(found: ServePlanned) -> list[FigureData]:
    """Servers of which none is better in both: their dollars and requests against TPOT."""
    marks: dict[str, list[Mark]] = {"usd_per_million_tokens": [], "requests_per_second": []}
    for name, marked in marks.items():
        for label, own in (("other servers", found.front), ("best plan", found.instead[:1])):
            known = [one for one in own if getattr(one, name) is not None]
            x, y = ([getattr(one, which) for one in known] for which in ("tpot_seconds", name))
            words = [one.servers for one in known]
            marked.append(Mark(kind="dot", label=label, x=x, y=y, text=words))
    axes = {
        "usd_per_million_tokens": FigureAxis(
            label="cost, in and out", unit="USD/Mtokens", log=True
        ),
        "requests_per_second": FigureAxis(label="requests", unit="1/s", log=True),
    }
    return [
        FigureData(
            id=f"front-{name.partition('_')[0]}",
            title=f"Servers that would do: {axes[name].label} against TPOT",
            x=FigureAxis(label="TPOT", unit="s", log=True),
            y=axes[name],
            marks=marked,
        )
        for name, marked in marks.items()
        if any(mark.x for mark in marked)
    ]


def _curves(found: Answer, before: str) -> FigureData:
    assert isinstance(found, FigureAnswer)
    return FigureData(
        id=found.id,
        title=f"{before}{found.title}",
        x=axis_of(found.x),
        y=axis_of(found.y),
        marks=lines(found.series),
    )


VIEW = PageView(
    name="serving",
    title="Serving planner",
    about="The cheapest servers for a load within its targets, and what they hold.",
    group="Plan",
    state=ServingState,
    calls=_calls,
    slow=_search,
    quick=partial(_search, quick=True),
    draw=_draw,
    crossed=("model", "on"),
    sheet=sheet,
    plan=plan_file,
)
