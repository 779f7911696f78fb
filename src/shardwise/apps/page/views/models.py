"""The transformer accountant: parameters, FLOPs and cache of two models side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import PASTE, ViewState, choice, known, powers, slider
from shardwise.apps.page.figures import FigureAxis, FigureData, Mark, TableData
from shardwise.apps.page.view import Drawn, PageView
from shardwise.apps.page.views.decision import called
from shardwise.commands.base.answer import Answer
from shardwise.commands.tables.model import ModelFacts
from shardwise.models import zoo_names
from shardwise.units import format_count, format_flops, sig

COUNTED = {
    "params_total": "params",
    "params_active": "params",
    "layers": "",
    "context": "tokens",
    "forward_flops_per_token": "FLOP",
    "training_flops_per_token": "FLOP",
    "attention_crossover": "tokens",
    "kv_bytes_per_token": "bytes",
    "kv_bytes_per_sequence": "bytes",
    "weight_bytes": "bytes",
}
"""Fields that are counted, and their units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsState(ViewState):
    """The controls of the view."""

    model: str = known("Model", zoo_names(), "llama-3-70b", about=PASTE)
    beside: str = known("Beside", zoo_names(), "deepseek-v3")
    seq: int = slider("Sequence", powers(10, 17), 8192, unit="tokens")
    kv: str = choice("KV cache", ("bf16", "fp8", "int8"), "bf16")


def _calls(state: ModelsState) -> list[VerbCall]:
    keywords = {"seq": state.seq, "kv": state.kv}
    names = dict.fromkeys((state.model, state.beside))
    return [VerbCall(verb="model_show", given=(name,), keywords=keywords) for name in names]


def _draw(state: ModelsState, answers: Sequence[Answer]) -> Drawn:
    found: dict[str, ModelFacts] = {}
    for one in answers:
        assert isinstance(one, ModelFacts)
        name = called(one.name)
        found[f"{name}, beside" if name in found else name] = one
    params = {name: one.params_by_component for name, one in found.items()}
    flops = {
        name: {part: both.forward for part, both in one.flops_per_token_by_component.items()}
        for name, one in found.items()
    }
    design = dict.fromkeys(row for one in found.values() for row in one.design)
    decided = [[row, *(_cell(one.design.get(row)) for one in found.values())] for row in design]
    counted = [
        [row, *(_cell(getattr(one, row)) for one in found.values()), unit]
        for row, unit in COUNTED.items()
    ]
    return Drawn(
        says="; ".join(_sentence(name, one) for name, one in found.items()) + ".",
        figures=[
            _bars("params", "Parameters by component", "parameters", params),
            _bars("flops", "Forward FLOPs per token", "FLOP", flops),
        ],
        tables=[
            TableData(title="Design", header=("", *found), rows=decided),
            TableData(title="Counts", header=("", *found, "unit"), rows=counted),
        ],
        formula="training FLOPs per token = 6 params + attention; KV bytes = 2 K H L bytes",
        source="ch. 4; each model's config.json",
    )


def _sentence(name: str, one: ModelFacts) -> str:
    """A model in numbers, to quote."""
    params, active = format_count(one.params_total), format_count(one.params_active)
    experts = f" ({active} of them for a token)" if active != params else ""
    return (
        f"{name} has {params} parameters{experts}, computes "
        f"{format_flops(one.forward_flops_per_token)} a token and caches "
        f"{sig(one.kv_bytes_per_token / 2**10)} KiB for it"
    )


def _cell(value: Any) -> Any:
    """A decision as the page shows it: that of layers of several kinds is one for each."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return "; ".join(f"{one:,}" if isinstance(one, int) else _said(one) for one in value)
    return value if isinstance(value, int | float) else _said(value)


def _said(value: Any) -> str:
    return "" if value is None else sig(value) if isinstance(value, float) else str(value)


def _bars(id: str, title: str, unit: str, found: Mapping[str, Mapping[str, float]]) -> FigureData:
    parts = dict.fromkeys(part for one in found.values() for part in one)
    marks = []
    for part in parts:
        named = [name for name, one in found.items() if part in one]
        x = [found[name][part] for name in named]
        marks.append(Mark(kind="bar", label=part, x=x, y=named))
    return FigureData(
        id=id,
        title=title,
        x=FigureAxis(label=unit),
        y=FigureAxis(names=tuple(found)),
        marks=marks,
    )


VIEW = PageView(
    name="models",
    title="Models",
    about="What a transformer holds, computes and caches, beside another.",
    group="Explain",
    state=ModelsState,
    calls=_calls,
    draw=_draw,
    crossed=("model", "beside"),
)
