"""`shardwise plan serve`: the smallest slice that serves within the targets, and what it costs."""

from math import ceil, inf
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs, file_option, plot_option
from shardwise.apps.cli.options import given, hardware_of, hardware_options, on_command_line
from shardwise.apps.cli.output import (
    csv_option,
    document,
    emit,
    json_option,
    print_page,
    table,
    write_csv,
)
from shardwise.apps.cli.serve_lengths import MOST_LENGTH, count_of
from shardwise.models.describe import context_warning, unpriced
from shardwise.planner.serve.answer import ServeAnswer, ServePlanning, mesh_text
from shardwise.plans import save_plan
from shardwise.plans.serve import CHECKPOINT, ServeDtypes
from shardwise.roofline.engines import load_engine
from shardwise.units import (
    format_seconds,
    format_usd,
    many,
    parse_count,
    parse_seconds,
    sig,
)
from shardwise.verbs.serve_page import serve_page
from shardwise.workflows.inputs import parse_pins, parse_share
from shardwise.workflows.predict_serve import (
    default_compute,
    full_warning,
    plan_serving,
    serving_result,
)

_SHOWN_FRONT = 14
_MOST_BATCH, _MOST_CHUNK = 1_000_000, 100_000_000
_FRONT_COLUMNS = (
    "slice",
    "mesh",
    "kv_sharding",
    "batch",
    "tpot_lower_seconds",
    "tpot_expected_seconds",
    "tpot_upper_seconds",
    "ttft_lower_seconds",
    "ttft_expected_seconds",
    "ttft_upper_seconds",
    "tokens_per_second_per_chip",
    "usd_per_million_input_tokens",
    "usd_per_million_output_tokens",
    "meets_targets",
)


@click.command()
@click.option("--model", required=True, help="Zoo name, config.json, or a folder with one.")
@click.option("--on", "target", required=True, help="A bare chip (v5e) or a slice (v5e:4x4).")
@click.option("--input", "input_text", help="Tokens of the prompt, such as 8192.")
@click.option("--output", "output_text", help="Tokens of the answer, such as 512.")
@click.option("--tpot", help="Longest expected time per output token, such as 15ms.")
@click.option("--ttft", help="Longest expected time to the first token, such as 1s.")
@click.option(
    "--batch",
    help="Sequences decoded at once (240 or 240seq); else as many as give most tokens/s per chip "
    "within the targets. Not with cost.",
)
@click.option("--weights", default=CHECKPOINT, show_default=True, help="Dtype of the weights.")
@click.option("--kv", default="bf16", show_default=True, help="Dtype of the KV cache.")
@click.option("--activations", default="bf16", show_default=True, help="Dtype between matmuls.")
@click.option("--compute", help="Dtype of the matmuls; bf16 where the chip has it.")
@click.option(
    "--engine",
    help="The serving software, for what it was measured to add: vllm, sglang, trtllm, others, or "
    "ideal, which adds nothing. [default: ideal; others with cost]",
)
@click.option("--prefill-chunk", default="8192", show_default=True, help="Most tokens at once.")
@click.option(
    "--pin",
    "pins",
    multiple=True,
    metavar="AXIS=DEGREE",
    help="Fix a mesh degree; may be repeated.",
)
@click.option(
    "--objective",
    type=click.Choice(["smallest", "cost"]),
    default="smallest",
    show_default=True,
    help="The most tokens/s per chip on the smallest slice, or the cheapest fleet under a load.",
)
@click.option("--rate", help="Cost: requests per second that come; else as many as they can take.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Cost: requests of a file, for --rate, --input and --output.",
)
@click.option("--e2e", help="Cost: longest time from arrival to the last token, such as 30s.")
@click.option("--percentile", help="Cost: requests within the targets, such as 90%. [default: 90%]")
@click.option(
    "--confirm/--no-confirm", default=None, help="Cost: simulate the best plans. [default: yes]"
)
@click.option("--mfu", help="Prefill at this share of peak by 2*params*tokens, such as 40%.")
@click.option("--params", help="Replace the parameter count in --mfu's arithmetic, such as 70e9.")
@click.option(
    "--top",
    default=3,
    show_default=True,
    type=click.IntRange(0, 50),
    help="Runner-up meshes to show.",
)
@file_option("-o", "plan_path", help="Plan file.")
@plot_option("The front, with cost also a decode step's parts, as a PNG or SVG.")
@hardware_options()
@csv_option
@json_option
def serve(**options: Any) -> None:
    """Find the smallest slice that holds the model and meets the targets, and the mesh and batch
    with most tokens/s per chip on it; with --objective cost the cheapest servers under a load (--on
    takes several chips: v5e,h100)."""
    cost = options["objective"] == "cost"
    # Objectives that an ideal engine keeps by a hair are missed by any that runs.
    options["engine"] = options["engine"] or ("others" if cost else "ideal")
    check_outputs()
    if cost:
        from shardwise.apps.cli.plan_serve_cost import serve_cost

        serve_cost(options)
        return
    for name in ("rate", "trace", "e2e", "percentile", "confirm"):
        if options[name] is not None:
            raise click.UsageError(f"--{name} belongs to --objective cost; give that too")
    if options["params"] and not options["mfu"]:
        raise click.UsageError("--params changes only the arithmetic of --mfu; give --mfu too")
    hardware = hardware_of(options)
    target = hardware.target(options["target"])
    chip = getattr(target, "slice", None)
    chip = target if chip is None else chip.chip
    planning = plan_serving(
        options["model"],
        options["target"],
        input=count_of(options, "input_text", "--input", MOST_LENGTH),
        output=count_of(options, "output_text", "--output", MOST_LENGTH),
        tpot=parse_seconds(options["tpot"], "--tpot") if options["tpot"] else inf,
        ttft=parse_seconds(options["ttft"], "--ttft") if options["ttft"] else inf,
        batch=_batch(options),
        dtypes=ServeDtypes(
            weights=options["weights"],
            kv=options["kv"],
            activations=options["activations"],
            compute=options["compute"] or default_compute(chip),  # type: ignore[arg-type]
        ),
        prefill_chunk=count_of(options, "prefill_chunk", "--prefill-chunk", _MOST_CHUNK),
        pins=parse_pins(options["pins"]),
        mfu=parse_share(options["mfu"], "--mfu") if options["mfu"] else None,
        params=parse_count(options["params"], "--params") if options["params"] else None,
        top=options["top"],
        engine=options["engine"],
        hardware=hardware,
    )
    if options["plan_path"]:
        save_plan(planning.best.plan, options["plan_path"])
    result = serving_result(planning)
    if options["csv_path"]:
        write_csv(options["csv_path"], _FRONT_COLUMNS, [_csv_row(p) for p in result["front"]])
    if options["plot_path"]:
        from shardwise.apps.cli.serve_chart import plot_servers

        plot_servers(result, planning.best.cfg.name, options["plot_path"])
    doc = document(
        inputs=given(options),
        resolved=_resolved(options, planning.best),
        result=result,
        warnings=[*_notes(target), *_price_warning(planning), *_cautions(planning.best, result)]
        + (_apart(planning.best, options["plan_path"]) if options["plan_path"] else []),
        provenance={
            "efficiency": planning.best.piece.chip.efficiency.source,
            "engine": dict(load_engine(options["engine"]).sources),
            "definitions": DEFINITIONS,
        },
    )
    emit(doc, options["as_json"], lambda: render(planning, result, options["plan_path"]))


DEFINITIONS = {
    "tpot_seconds": "one decode step of the batch, with the prompt and half of the answer cached",
    "ttft_seconds": "prefill of one prompt on an idle server plus one decode step; no queueing",
    "tokens_per_second_per_chip": "answer tokens over all chips of the slice, at expected TPOT, "
    "prompts being prefilled on other servers",
    "tokens_per_second_per_chip_with_prefill": "answer tokens over the chips of the decoding "
    "server and of the servers of the same kind that prefill for it",
    "usd_per_million_tokens": "chip-seconds of prefill per input token, of decode per output token",
}


def _batch(options: dict[str, Any]) -> int:
    """The sequences that were asked for; 0 where none were."""
    text = options["batch"]
    if text is None:
        return 0
    return count_of({"batch": text.removesuffix("seq") or text}, "batch", "--batch", _MOST_BATCH)


def _notes(target: Any) -> list[str]:
    return list(getattr(target, "notes", ())) if hasattr(target, "slice") else []


def _price_warning(planning: ServePlanning) -> list[str]:
    chip = planning.best.piece.chip
    if chip.price is not None:
        return []
    remedy = f"give one with --price {chip.id}=USD per chip-hour"
    return [f"no public price for {chip.id} in the catalogue: tokens only, no dollars ({remedy})"]


def _apart(best: ServeAnswer, path: Path) -> list[str]:
    """That the file holds the decoding server alone, and how to simulate it with the others."""
    ratio = best.prefill_servers_per_decode_server
    decode, prefill = (1, ceil(ratio)) if ratio >= 1 else (int(1 / max(ratio, 1e-3)), 1)
    pools = f"--set replicas={decode} --set prefill_replicas={prefill}"
    said = (
        "TPOT is that of a server that decodes alone, and the file holds no prefill servers; one "
        "that prefills too answers slower: simulate it with: "
    )
    return [f"{said}shardwise simulate {path} --rate RATE {pools}"]


def _cautions(best: ServeAnswer, result: dict[str, Any]) -> list[str]:
    """What a reader of the answer should know before trusting it."""
    longest = best.plan.input_length + best.plan.output_length
    return [*context_warning(best.cfg, longest), *full_warning(result), *unpriced(best.cfg)]


def _resolved(options: dict[str, Any], best: ServeAnswer) -> dict[str, Any]:
    """Every choice with its value and where it came from."""
    plan = best.plan
    flags = {"input_length", "output_length"}
    flags |= {"batch"} if options["batch"] else set()
    flags |= {"slice"} if str(best.piece) == options["target"] else set()
    resolved = {
        name: {"value": getattr(plan, name), "origin": "flag" if name in flags else "computed"}
        for name in ("slice", "batch", "kv_sharding", "input_length", "output_length")
    }
    for name in ("weights", "kv", "activations", "compute", "prefill_chunk", "engine"):
        value = getattr(plan if name in ("prefill_chunk", "engine") else plan.dtypes, name)
        origin = "flag" if on_command_line(name) else "default"
        resolved[name] = {"value": value, "origin": origin}
    pinned = {p.partition("=")[0] for p in options["pins"]}
    for axis, degree in plan.mesh.items():
        origin = "flag" if axis in pinned else "computed"
        resolved[f"mesh.{axis}"] = {"value": degree, "origin": origin}
    return resolved


def _csv_row(p: dict[str, Any]) -> list[Any]:
    return [
        p["slice"],
        mesh_text(p["mesh"]),
        p["kv_sharding"],
        p["batch"],
        *(p["tpot_seconds"][k] for k in ("lower", "expected", "upper")),
        *(p["ttft_seconds"][k] for k in ("lower", "expected", "upper")),
        p["tokens_per_second_per_chip"],
        p["usd_per_million_tokens"]["input"],
        p["usd_per_million_tokens"]["output"],
        p["meets_targets"],
    ]


def render(planning: ServePlanning, result: dict[str, Any], plan_path: Path | None) -> None:
    """The answer for a person: the server, why this one, the front, and what else there was."""
    print_page(serve_page(planning.best, result))
    click.echo("\nWhy")
    for reason in result["why"]:
        click.echo(f"  - {reason}")
    _render_front(result)
    _render_runners_up(result)
    if result["too_small"]:
        click.echo("\nToo small")
        for t in result["too_small"]:
            click.echo(f"  - {t['slice']}: {t['why']}")
    click.echo(f"\n{many(planning.candidates, 'server')} (mesh x batch) priced")
    if plan_path:
        click.echo(
            f"Plan written to {plan_path}; price it again with: shardwise plan show {plan_path}"
        )


def _render_front(result: dict[str, Any]) -> None:
    rows = result["front"]
    step = max(1, -(-len(rows) // _SHOWN_FRONT))
    shown = sorted({*range(0, len(rows), step), len(rows) - 1})
    click.echo()
    table(
        ["slice", "mesh", "batch", "TPOT", "TTFT", "tokens/s/chip", "$/M out", "in target"],
        [
            [
                p["slice"],
                mesh_text(p["mesh"]),
                f"{p['batch']:,}",
                format_seconds(p["tpot_seconds"]["expected"]),
                format_seconds(p["ttft_seconds"]["expected"]),
                sig(p["tokens_per_second_per_chip"]),
                _usd(p["usd_per_million_tokens"]["output"]),
                "yes" if p["meets_targets"] else "no",
            ]
            for p in (rows[i] for i in shown)
        ],
        "Pareto front: no other point has a faster step and more tokens/s per chip",
        left=2,
    )
    click.echo(f"  expected times; {len(shown)} of {len(rows)} points (--json or --csv has all)")


def _usd(value: float | None) -> str:
    return "unknown" if value is None else format_usd(value)


def _render_runners_up(result: dict[str, Any]) -> None:
    if not result["runners_up"]:
        return
    click.echo()
    table(
        ["runner-up", "batch", "TPOT", "TTFT", "tokens/s/chip", "HBM per chip", "bound by"],
        [
            [
                mesh_text(r["mesh"]),
                f"{r['batch']:,}",
                format_seconds(r["tpot_seconds"]["expected"]),
                format_seconds(r["ttft_seconds"]["expected"]),
                sig(r["tokens_per_second_per_chip"]),
                f"{sig(r['peak_bytes_per_chip'] / 2**30)} GiB",
                r["bound_by"]["decode"],
            ]
            for r in result["runners_up"]
        ],
    )
