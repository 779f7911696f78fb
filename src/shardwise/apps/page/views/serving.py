"""The serving planner: latency, throughput and a step's parts as in ch. 8, and the best plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import ViewState, choice, powers, slider
from shardwise.apps.page.figures import FigureAxis, FigureData, Mark, facts, lines
from shardwise.apps.page.view import Drawn, PageView
from shardwise.apps.page.views.chips import CHIPS, TORI, slice_name
from shardwise.commands.base.answer import Answer
from shardwise.commands.plan_serve.serve import ServePlanned
from shardwise.commands.tables.book_figure import FigureAnswer
from shardwise.models import kv_bytes_per_token, load_model, params_total
from shardwise.units import many

MODELS = ("llama-3-70b", "llama-3-8b", "llama-2-13b", "qwen3-32b", "mistral-large-2407")
UNITS = {"requests_per_second": "1/s", "output_tokens_per_second": "tokens/s"}
UNITS |= {"tokens_per_second_per_chip": "tokens/s", "usd_per_hour": "USD"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingState(ViewState):
    """The controls of the view."""

    model: str = choice("Model", MODELS, "llama-3-70b")
    on: str = choice("Chip", (*TORI, *(name for name in CHIPS if name not in TORI)), "v5e")
    chips: int = slider("Chips", powers(2, 6), 16, unit="chips")
    context: int = slider("Context", powers(10, 16), 8192, unit="tokens")
    output: int = slider("Answer", powers(5, 11), 512, unit="tokens")
    weights: str = choice("Weights", ("int8", "bf16", "fp8"), "int8")
    kv: str = choice("KV cache", ("int8", "bf16", "fp8"), "int8")
    software: str = choice("Served by", ("jax", "vllm", "sglang"), "jax")


def _calls(state: ServingState) -> list[VerbCall]:
    cfg = load_model(state.model)
    server = {
        "chip": state.on,
        "chips": state.chips,
        "params": float(params_total(cfg)),
        "kv_bytes": float(kv_bytes_per_token(cfg, state.kv)),
    }
    pareto = {**server, "contexts": state.context}
    step = {**server, "context": state.context}
    return [_figure("fig.8.pareto", pareto), _figure("fig.8.breakdown", step)]


def _figure(figure_id: str, sets: Mapping[str, object]) -> VerbCall:
    return VerbCall(verb="book_figure", given=(figure_id,), keywords={"sets": sets})


def _search(state: ServingState) -> list[VerbCall]:
    given = (state.model, slice_name(state.on, state.chips))
    keywords = {"input": state.context, "output": state.output, "kv": state.kv}
    return [
        VerbCall(
            verb="plan_serve",
            given=given,
            keywords={**keywords, "weights": state.weights, "software": state.software},
        )
    ]


def _draw(state: ServingState, answers: Sequence[Answer]) -> Drawn:
    figures = [_curves(one) for one in answers[:2]]
    said: Any = {
        "formula": "t = KV bytes / W + max(weight bytes / W, 2 params B / C)",
        "source": "ch. 8, interactive figures; the plan: simulated (docs/serving.md)",
    }
    if len(answers) == 2:
        return Drawn(figures=figures, lines=["The search for a plan follows."], **said)
    found = answers[2]
    assert isinstance(found, ServePlanned)
    price = found.price.text if found.price else "no price is known"
    parts, memory, usd = found.where_it_goes, found.memory, found.usd_per_million_tokens
    held = {"weights": memory.weights, "activations": memory.activations, "cache": memory.cache}
    held |= {"engine": memory.engine} if memory.engine else {}
    names = ("slice", "batch", "prefill_chunk", "kv_sharding", "software", *UNITS)
    plan = {name: getattr(found, name) for name in names}
    plan |= {
        f"{n} seconds": getattr(found, f"{n}_seconds").expected for n in ("ttft", "tpot", "e2e")
    }
    plan |= {
        "USD per million input tokens": usd.input,
        "USD per million output tokens": usd.output,
    }
    units = UNITS | {f"{n} seconds": "s" for n in ("ttft", "tpot", "e2e")}
    return Drawn(
        figures=[
            *figures,
            *_fronts(found),
            _bars("where", "Where a decode step's time goes", "time", "s", parts),
            _bars("memory", "Memory of a chip", "memory", "bytes", held),
        ],
        tables=[facts("The best plan", plan, units)],
        lines=[f"{many(found.replicas, 'server')} on {found.slice}; {price}."],
        **said,
    )


def _fronts(found: ServePlanned) -> list[FigureData]:
    """Servers of which none is better in both: their dollars and requests against TPOT."""
    marks: dict[str, list[Mark]] = {"usd_per_million_tokens": [], "requests_per_second": []}
    for name, marked in marks.items():
        for label, own in (("other servers", found.front), ("best plan", found.instead[:1])):
            known = [one for one in own if getattr(one, name) is not None]
            x, y = ([getattr(one, which) for one in known] for which in ("tpot_seconds", name))
            words = [one.servers for one in known]
            marked.append(Mark(kind="dot", label=label, x=x, y=y, text=words))
    axes = {
        "usd_per_million_tokens": FigureAxis(label="cost", unit="USD/Mtokens", log=True),
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


def _curves(found: Answer) -> FigureData:
    assert isinstance(found, FigureAnswer)
    x, y = found.x, found.y
    return FigureData(
        id=found.id,
        title=found.title,
        x=FigureAxis(label=x.label, unit=x.unit, log=x.log),
        y=FigureAxis(label=y.label, unit=y.unit, log=y.log),
        marks=lines(found.series),
    )


def _bars(id: str, title: str, label: str, unit: str, parts: Mapping[str, float]) -> FigureData:
    return FigureData(
        id=id,
        title=title,
        x=FigureAxis(label=label, unit=unit),
        y=FigureAxis(names=tuple(parts)),
        marks=[Mark(kind="bar", label=unit, x=list(parts.values()), y=list(parts))],
    )


VIEW = PageView(
    name="serving",
    title="Serving planner",
    about="Latency against throughput, a decode step by part, and the plan that a search finds.",
    state=ServingState,
    calls=_calls,
    slow=_search,
    draw=_draw,
)
