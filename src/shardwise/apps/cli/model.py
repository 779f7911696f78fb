"""`shardwise model list|show|diff`: parameters, FLOPs, cache and design decisions of models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs
from shardwise.apps.cli.output import csv_option, document, emit, json_option, table, write_csv
from shardwise.boundary import whole
from shardwise.errors import BadRequest
from shardwise.models import (
    ModelConfig,
    kv_bytes_per_token,
    load_model,
    params_active,
    params_total,
    zoo_names,
)
from shardwise.models.describe import design_decisions, model_facts, model_warnings
from shardwise.models.remat import remat_row
from shardwise.units import (
    dtype_bytes,
    format_bytes,
    format_count,
    format_flops,
    format_gib,
    parse_count,
    sig,
)

seq_option = click.option("--seq", default="8192", show_default=True, help="Tokens of a sequence.")
dtype_option = click.option("--dtype", default="bf16", show_default=True, help="Of the KV cache.")


@click.group()
def model() -> None:
    """Parameters, FLOPs, KV cache and design decisions of a model."""


@model.command("list")
@csv_option
@json_option
def list_models(csv_path: Path | None, as_json: bool) -> None:
    """Every model of the zoo."""
    check_outputs()
    facts = [_listed(load_model(name)) for name in zoo_names()]
    doc = document(inputs={}, result={"models": facts})
    header = ["name", "architecture", "source", "layers", "params", "active", "KV bytes per token"]
    if csv_path:
        write_csv(csv_path, header, [list(f.values()) for f in facts])
    rows = [
        [
            f["name"],
            f["architecture"],
            f["source"],
            f"{f['layers']}",
            format_count(f["params_total"]),
            format_count(f["params_active"]),
            f"{f['kv_bytes_per_token']:,.0f}",
        ]
        for f in facts
    ]
    emit(doc, as_json, lambda: table(header, rows, f"{len(rows)} models; KV cache in bf16", 3))


@model.command()
@click.argument("name")
@seq_option
@dtype_option
@json_option
def show(name: str, seq: str, dtype: str, as_json: bool) -> None:
    """One model, by zoo name, by its config.json, or by a directory with one."""
    cfg, context = load_model(name), _context(seq)
    dtype_bytes(dtype)
    facts = model_facts(cfg, context, dtype)
    doc = document(
        inputs={"name": name, "seq": context, "dtype": dtype},
        resolved={k: {"value": v, "origin": cfg.defaults_source} for k, v in cfg.defaulted},
        result=facts,
        warnings=model_warnings(cfg),
        provenance=cfg.provenance,
    )
    emit(doc, as_json, lambda: _render(cfg, facts))


@model.command()
@click.argument("names", nargs=-1, required=True)
@seq_option
@dtype_option
@csv_option
@json_option
def diff(
    names: tuple[str, ...], seq: str, dtype: str, csv_path: Path | None, as_json: bool
) -> None:
    """The design decisions of two or more models side by side; * marks what differs."""
    check_outputs()
    if len(names) < 2:
        only = "".join(names)
        raise BadRequest(
            f"model diff has only '{only}' to compare; name two models or more, "
            f"such as `shardwise model diff {only} llama-3-70b`"
        )
    context = _context(seq)
    dtype_bytes(dtype)
    cfgs = [load_model(name) for name in names]
    columns = [design_decisions(cfg, context, dtype) for cfg in cfgs]
    rows = {key: [column[key] for column in columns] for key in columns[0]}
    differing = [key for key, values in rows.items() if any(v != values[0] for v in values)]
    doc = document(
        inputs={"names": names, "seq": context, "dtype": dtype},
        result={"models": list(names), "decisions": rows, "differing": differing},
        warnings=[line for cfg in cfgs for line in model_warnings(cfg)],
    )
    header = ["", "decision", *names]
    if csv_path:
        write_csv(csv_path, header[1:], [[key, *map(_raw, v)] for key, v in rows.items()])
    shown = [
        ["*" if key in differing else "", key, *(_shown(key, v) for v in values)]
        for key, values in rows.items()
    ]
    title = f"Sequences of {context:,} tokens, KV cache in {dtype}"
    emit(doc, as_json, lambda: table(header, shown, title, left=2))


def _context(text: str) -> int:
    return whole(
        parse_count(text, "--seq"), "--seq", least=1, most=2**40, form="a whole number of tokens"
    )


def _listed(cfg: ModelConfig) -> dict[str, Any]:
    return {
        "name": cfg.name,
        "architecture": cfg.architecture,
        "source": cfg.provenance["hf_id"],
        "layers": cfg.layers,
        "params_total": params_total(cfg),
        "params_active": params_active(cfg),
        "kv_bytes_per_token": kv_bytes_per_token(cfg, "bf16"),
    }


def _render(cfg: ModelConfig, facts: Mapping[str, Any]) -> None:
    source = cfg.provenance.get("hf_id", "your config.json")
    click.echo(
        f"{cfg.name} ({cfg.architecture}, {source}): {format_count(facts['params_total'])} "
        f"parameters, {format_count(facts['params_active'])} active per token"
    )
    click.echo()
    _render_layers(facts)
    click.echo()
    design = facts["design"]
    names = [key for key, value in design.items() if value is not None and key not in ELSEWHERE]
    table(["decision", "value"], [[key, _shown(key, design[key])] for key in names], left=2)
    click.echo()
    _render_components(facts)
    click.echo()
    _render_bytes(facts)


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


def _render_layers(facts: Mapping[str, Any]) -> None:
    keys = ("layers", "heads", "kv_heads", "head_dim", "d_ff", "experts", "experts_per_token")
    table(
        ["mixer", "MLP", "norms", "layers", "N", "K", "H", "F", "E", "k"],
        [
            [row["mixer"], row["mlp"], ", ".join(row["norms"]), *(_cell(row[key]) for key in keys)]
            for row in facts["layer_groups"]
        ],
        "Layers, by kind",
        left=3,
    )


def _render_components(facts: Mapping[str, Any]) -> None:
    params, flops = facts["params_by_component"], facts["flops_per_token_by_component"]
    total = facts["params_total"]
    rows = []
    for name in dict.fromkeys([*params, *flops]):
        count, cost = params.get(name, 0), flops.get(name)
        rows.append(
            [
                name,
                f"{count:,}" if count else "",
                f"{count / total:.1%}" if count else "",
                format_flops(cost["forward"]) if cost else "",
                format_flops(cost["training"]) if cost else "",
            ]
        )
    whole = (facts["forward_flops_per_token"], facts["training_flops_per_token"])
    rows.append(["total", f"{total:,}", "", *map(format_flops, whole)])
    table(
        ["component", "params", "of all", "forward per token", "training per token"],
        rows,
        f"Parameters, and FLOPs per token at {facts['context']:,} tokens (causal)",
    )
    crossover = facts["attention_crossover"]
    reached = "at no context" if crossover is None else f"at {crossover:,} tokens (causal)"
    click.echo(
        f"  6 N of the active parameters: {format_flops(facts['training_flops_per_token_6n'])}; "
        f"attention costs as much as the layers' matmuls {reached}"
    )


def _render_bytes(facts: Mapping[str, Any]) -> None:
    kv, kept = facts["kv_dtype"], facts["activation_dtype"]
    stored = ", ".join(dict.fromkeys(facts["weight_dtypes"].values()))
    rows = [
        [f"Weights as published ({stored})", format_gib(facts["weight_bytes"])],
        [f"KV cache per token ({kv})", f"{facts['kv_bytes_per_token']:,.0f} B"],
        [
            f"KV cache of {facts['context']:,} tokens ({kv})",
            format_gib(facts["kv_bytes_per_sequence"]),
        ],
    ]
    for name, dtype in (("index", "fp8"), ("state", "f32")):
        size = facts[f"{name}_bytes_per_sequence"]
        label = {"index": "Indexer keys", "state": "Recurrent state"}[name]
        rows += [[f"{label} per sequence ({dtype})", format_bytes(size)]] if size else []
    for policy, size in facts["activation_bytes_per_token"].items():
        where = ", in host memory" if remat_row(policy).offloads else ""
        rows.append([f"Activations per token ({kept}), remat {policy}{where}", format_bytes(size)])
    table(["memory", "bytes"], rows)


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
