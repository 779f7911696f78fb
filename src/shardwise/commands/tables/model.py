"""`model list`, `model show` and `model diff`: parameters, FLOPs, cache and design decisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from shardwise.boundary import Command, spelt, whole
from shardwise.boundary.options import option, place
from shardwise.boundary.records import Record, hidden, values
from shardwise.commands.base.answer import Answer, Page, Resolved, Row, TextTable
from shardwise.commands.base.inputs import FAMILY, Words, words
from shardwise.commands.base.layout import Fact, Facts, percent, wrapped
from shardwise.commands.base.request import Progress, verb
from shardwise.errors import BadRequest
from shardwise.models import (
    ModelConfig,
    kv_bytes_per_token,
    load_model,
    params_active,
    params_total,
    state_bytes,
    zoo_names,
)
from shardwise.models.describe import Decision, design_decisions, model_warnings
from shardwise.models.facts import LayerGroup, ModelCounts, model_counts
from shardwise.models.remat import remat_row
from shardwise.models.zoo import with_families, with_family
from shardwise.units import (
    dtype_bytes,
    format_bytes,
    format_count,
    format_flops,
    format_gib,
    parse_count,
    sig,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListRequest(Command):
    """Every model of the zoo."""

    COMMAND: ClassVar[str] = "model list"

    def answer(self, progress: Progress | None = None) -> "ModelList":
        """Count them all."""
        return ModelList(models=[_listed(load_model(name)) for name in zoo_names()])


@dataclass(frozen=True, kw_only=True)
class ListedModel(Record):
    """A model of the zoo."""

    name: str
    """Its name in commands."""
    architecture: str
    """The class that its config.json names."""
    source: str
    """Its name at Hugging Face."""
    layers: int
    """Layers."""
    params_total: int
    """All parameters."""
    params_active: int
    """Parameters that a token uses."""
    kv_bytes_per_token: float
    """Bytes of KV cache in bf16 that a further token takes."""
    state_bytes_per_sequence: float
    """Bytes of state of a sequence, whatever its length; 0 of a model that has none."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelList(Answer):
    """The zoo."""

    models: Sequence[ListedModel]
    """Every model."""

    def table(self) -> list[Row]:
        """One row per model."""
        return [dict(zip(_LISTED, values(model).values(), strict=True)) for model in self.models]

    def page(self) -> Page:
        """One line per model."""
        rows = [
            [
                m.name,
                m.architecture,
                m.source,
                f"{m.layers}",
                format_count(m.params_total),
                format_count(m.params_active),
                f"{m.kv_bytes_per_token:,.0f}",
                format_bytes(m.state_bytes_per_sequence) if m.state_bytes_per_sequence else "-",
            ]
            for m in self.models
        ]
        yield TextTable(
            _LISTED, rows, f"{len(rows)} models; KV cache in bf16, state per sequence", left=3
        )


_LISTED = (
    "name",
    "architecture",
    "source",
    "layers",
    "params",
    "active",
    "KV bytes per token",
    "state",
)


def _listed(cfg: ModelConfig) -> ListedModel:
    return ListedModel(
        name=cfg.name,
        architecture=cfg.architecture,
        source=cfg.provenance["hf_id"],
        layers=cfg.layers,
        params_total=params_total(cfg),
        params_active=params_active(cfg),
        kv_bytes_per_token=kv_bytes_per_token(cfg, "bf16"),
        state_bytes_per_sequence=state_bytes(cfg),
    )


model_list = verb("model_list", ModelListRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRequest(Command):
    """Sequences of `seq` tokens with a KV cache in `kv`; `as_` is the class or model type for a
    config.json of an unknown class."""

    seq: int | str = option("Tokens of a sequence.", default="8192", show_default=True)
    kv: str = option("Of the KV cache.", default="bf16", show_default=True)
    as_: str | None = option(FAMILY, before="seq")

    def context(self) -> int:
        """The tokens. Raises BadRequest for words that are no length or no dtype."""
        dtype_bytes(self.kv)
        tokens = parse_count(self.seq, "--seq")
        return whole(tokens, "--seq", least=1, most=2**40, form="a whole number of tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest(ContextRequest):
    """One model, by zoo name, by its config.json, or by a directory with one: parameters, FLOPs and
    cache at sequences of `seq` tokens, the KV cache in `kv`."""

    COMMAND: ClassVar[str] = "model show"

    name: str | Path = field(kw_only=False, metadata=place(offers="models"))

    def answer(self, progress: Progress | None = None) -> "ModelFacts":
        """Count it."""
        cfg, context = load_model(with_family(self.name, self.as_)), self.context()
        return ModelFacts.of(
            model_counts(cfg, context, self.kv),
            cfg=cfg,
            resolved={k: Resolved(value=v, origin=cfg.defaults_source) for k, v in cfg.defaulted},
            warnings=model_warnings(cfg),
            provenance=cfg.provenance,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelFacts(Answer, ModelCounts):
    """One model, counted."""

    cfg: ModelConfig = hidden()

    def table(self) -> list[Row]:
        """Parameters by component."""
        params = self.params_by_component
        return [{"component": name, "params": count} for name, count in params.items()]

    def page(self) -> Page:
        """Size, layers, and what a token costs."""
        source = self.cfg.provenance.get("hf_id", "your config.json")
        yield wrapped(f"{self.name} ({self.architecture}, {source})", hanging=2)
        yield Facts(_model_facts(self))
        yield ""
        yield _layers(self.layer_groups)

    def sections(self) -> Mapping[str, Page]:
        """Decisions, parameters and FLOPs by component, and bytes."""
        return {"detail": _model_detail(self)}


model_show = verb("model_show", ModelRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDiffRequest(ContextRequest):
    """The design decisions of two or more models side by side, at sequences of `seq` tokens, the KV
    cache in `kv`."""

    COMMAND: ClassVar[str] = "model diff"

    names: Words = field(kw_only=False, metadata=place(kind="several", offers="models"))

    def answer(self, progress: Progress | None = None) -> "ModelsCompared":
        """Count them."""
        names = words(self.names)
        if len(names) < 2:
            only = "".join(names)
            raise BadRequest(
                f"model diff needs two models or more, and '{only}' is one; "
                f"such as `{spelt('model diff', [only, 'llama-3-70b'], {})}`"
            )
        context = self.context()
        cfgs = [load_model(name) for name in with_families(names, self.as_)]
        columns = [design_decisions(cfg, context, self.kv) for cfg in cfgs]
        rows = {key: [column[key] for column in columns] for key in columns[0]}
        differing = [key for key, values in rows.items() if any(v != values[0] for v in values)]
        return ModelsCompared(
            models=names,
            decisions=rows,
            differing=differing,
            title=f"Sequences of {context:,} tokens, KV cache in {self.kv}",
            warnings=[line for cfg in cfgs for line in model_warnings(cfg)],
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelsCompared(Answer):
    """Models, compared."""

    models: Sequence[str]
    """The models, as given."""
    decisions: Mapping[str, Sequence[Decision]]
    """Decisions by name, a value for each model; several distinct values of its layers in order."""
    differing: Sequence[str]
    """Decisions in which the models differ."""

    title: str = hidden()

    def table(self) -> list[Row]:
        """One row per decision."""
        return [
            {"decision": key, **dict(zip(self.models, map(_raw, each), strict=True))}
            for key, each in self.decisions.items()
        ]

    def page(self) -> Page:
        """One line per decision that differs."""
        same = [key for key in self.decisions if key not in self.differing]
        yield self._table(self.differing)
        if same:
            yield wrapped(f"the same for all: {', '.join(same)}", 2, 4)

    def sections(self) -> Mapping[str, Page]:
        """One line per decision, * marks what differs."""
        return {"detail": iter([self._table(list(self.decisions))])}

    def _table(self, keys: Sequence[str]) -> TextTable:
        shown = [
            [
                "*" if key in self.differing else "",
                key,
                *(_shown(key, v) for v in self.decisions[key]),
            ]
            for key in keys
        ]
        return TextTable(["", "decision", *self.models], shown, self.title, left=2)


model_diff = verb("model_diff", ModelDiffRequest)


def _model_facts(facts: ModelCounts) -> list[Fact]:
    design, context = facts.design, facts.context
    stored = ", ".join(dict.fromkeys(facts.weight_dtypes.values()))
    kept = facts.activation_bytes_per_token
    largest = sorted(facts.params_by_component.items(), key=lambda pair: -pair[1])[:_LARGEST]
    parts = ", ".join(f"{name} {percent(n / facts.params_total)}" for name, n in largest)
    active = format_count(facts.params_active)
    return [
        Fact("parameters", f"{format_count(facts.params_total)}, {active} active per token"),
        Fact("of them", parts),
        Fact("weights", f"{format_gib(facts.weight_bytes)} as published ({stored})"),
        Fact(
            "shape",
            f"{facts.layers} layers, D={_cell(design['d_model D'])}, "
            f"vocabulary {_cell(design['vocabulary V'])}, "
            f"context of {_cell(design['max context'])} tokens",
        ),
        Fact(
            "a token",
            f"{format_flops(facts.forward_flops_per_token)} forward, "
            f"{format_flops(facts.training_flops_per_token)} in training, at {context:,} tokens",
        ),
        Fact("KV cache", _kv_text(facts)),
        *([Fact("a sequence", str(facts.sequence_cache))] if facts.sequence_cache else []),
        Fact(
            "to train",
            "kept per token: "
            + ", ".join(f"{format_bytes(size)} with remat {name}" for name, size in kept.items()),
        ),
    ]


def _kv_text(facts: ModelCounts) -> str:
    if not facts.kv_bytes_per_token:
        return "none: no layer keeps keys and values"
    return (
        f"{facts.kv_bytes_per_token:,.0f} B a token ({facts.kv_dtype}), "
        f"{format_gib(facts.kv_bytes_per_sequence)} for {facts.context:,} tokens"
    )


_LARGEST = 4
"""Components of a model that its page names."""


def _model_detail(facts: ModelCounts) -> Page:
    design = facts.design
    names = [key for key, value in design.items() if value is not None and key not in ELSEWHERE]
    yield TextTable(
        ["decision", "value"], [[key, _shown(key, design[key])] for key in names], left=2
    )
    yield ""
    yield from _components(facts)
    yield ""
    yield _bytes(facts)


ELSEWHERE = (
    "architecture",
    "attention",
    "MLP",
    "norms",
    "params, text model",
    "params, active",
    "KV bytes per token",
    "KV bytes per sequence",
    "training FLOPs per token",
)
"""Decisions that `show` prints in its other tables."""


def _layers(groups: Sequence[LayerGroup]) -> TextTable:
    keys = ("layers", "heads", "kv_heads", "head_dim", "d_ff", "experts", "experts_per_token")
    return TextTable(
        ["mixer", "MLP", "norms", "layers", "N", "K", "H", "F", "E", "k"],
        [
            [one.mixer, one.mlp, ", ".join(one.norms), *(_cell(getattr(one, key)) for key in keys)]
            for one in groups
        ],
        "Layers, by kind",
        left=3,
        spare=("norms",),
    )


def _components(facts: ModelCounts) -> Page:
    params, flops = facts.params_by_component, facts.flops_per_token_by_component
    total = facts.params_total
    rows = []
    for name in dict.fromkeys([*params, *flops]):
        count, cost = params.get(name, 0), flops.get(name)
        rows.append(
            [
                name,
                f"{count:,}" if count else "",
                f"{count / total:.1%}" if count else "",
                format_flops(cost.forward) if cost else "",
                format_flops(cost.training) if cost else "",
            ]
        )
    whole = (facts.forward_flops_per_token, facts.training_flops_per_token)
    rows.append(["total", f"{total:,}", "", *map(format_flops, whole)])
    yield TextTable(
        ["component", "params", "of all", "forward per token", "training per token"],
        rows,
        f"Parameters, and FLOPs per token at {facts.context:,} tokens (causal)",
    )
    crossover = facts.attention_crossover
    reached = "at no context" if crossover is None else f"at {crossover:,} tokens (causal)"
    yield (
        f"  6 N of the active parameters: {format_flops(facts.training_flops_per_token_6n)}; "
        f"attention costs as much as the layers' matmuls {reached}"
    )


def _bytes(facts: ModelCounts) -> TextTable:
    kv, kept = facts.kv_dtype, facts.activation_dtype
    stored = ", ".join(dict.fromkeys(facts.weight_dtypes.values()))
    rows = [
        [f"Weights as published ({stored})", format_gib(facts.weight_bytes)],
        [f"KV cache per token ({kv})", f"{facts.kv_bytes_per_token:,.0f} B"],
        [
            f"KV cache of {facts.context:,} tokens ({kv})",
            format_gib(facts.kv_bytes_per_sequence),
        ],
    ]
    for label, size in (
        ("Indexer keys per sequence (fp8 with scales)", facts.index_bytes_per_sequence),
        ("State per sequence (recurrences in f32)", facts.state_bytes_per_sequence),
    ):
        rows += [[label, format_bytes(size)]] if size else []
    for policy, size in facts.activation_bytes_per_token.items():
        where = ", in host memory" if remat_row(policy).offloads else ""
        rows.append([f"Activations per token ({kept}), remat {policy}{where}", format_bytes(size)])
    return TextTable(["memory", "bytes"], rows)


def _shown(key: str, value: Any) -> str:
    """A decision for a person: counts with suffixes, bytes and FLOPs with units."""
    if isinstance(value, tuple):
        return " / ".join(_shown(key, v) for v in value)
    if key.startswith("params"):
        return format_count(value)
    if key == "KV bytes per sequence":
        return format_gib(value)
    if key.endswith("FLOPs per token"):
        return format_flops(value)
    return _cell(value)


def _raw(value: Any) -> Any:
    """A decision for a file: distinct values joined, everything else as it is."""
    return " / ".join(map(str, value)) if isinstance(value, tuple) else value


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if value.is_integer() else sig(value)
        case str():
            return value
        case _:
            parts: Sequence[Any] = value
            return " / ".join(_cell(v) for v in parts)
