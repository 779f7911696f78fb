"""`shardwise plan serve --objective cost`: the cheapest servers under a load, and why these."""

from math import inf
from pathlib import Path
from typing import Any

import click
import numpy as np

from shardwise.apps.cli.options import given, hardware_of, on_command_line, refuse
from shardwise.apps.cli.output import document, emit, table, write_csv
from shardwise.apps.cli.progress import progress_line
from shardwise.apps.cli.serve_lengths import MOST_LENGTH, count_of
from shardwise.errors import NoFeasiblePlan
from shardwise.models.describe import context_warning, unpriced
from shardwise.planner.serve.answer import mesh_text
from shardwise.planner.serve.fleet import Fleet, ranked
from shardwise.planner.serve.limits import Verdict, breakdown, limits, verdicts
from shardwise.planner.simulate.metrics import Objectives
from shardwise.plans import save_plan
from shardwise.plans.serve import CHECKPOINT
from shardwise.roofline.engines import engine_warning, load_engine
from shardwise.scheduling import Request
from shardwise.units import format_seconds, format_usd, many, parse_count, parse_seconds, sig
from shardwise.workflows.confirm_fleet import (
    Confirmation,
    confirm,
    confirmation_lines,
    confirmation_result,
    too_long,
    traced,
)
from shardwise.workflows.inputs import parse_pins, parse_share
from shardwise.workflows.predict_fleet import (
    FleetPlanning,
    fleet_front,
    fleet_request,
    fleet_result,
    plan_fleet,
)

_OTHERS = ("batch", "mfu", "params")
_FIXED = ("weights", "kv", "compute")
_CONFIRMED = 3
"""Plans of the front that are simulated."""

_CURVE = (0.25, 0.5, 1.0, 1.5, 2.0)
DEFINITIONS = {
    "ttft_seconds": "from arrival to the first token, queueing included, at the percentile",
    "tpot_seconds": "(E2E - TTFT) / (output tokens - 1), at the percentile over requests",
    "e2e_seconds": "TTFT and TPOT both at the percentile, so an upper end",
    "running": "sequences that decode on one replica at the mean",
    "usd_per_million_tokens": "all chips of the fleet over all tokens; input and output split by "
    "what prompts lengthen a step, or by the chips of each pool",
    "breakdown": "seconds of a decode step: memory traffic of matmuls (weights and activations), "
    "of the KV cache and of others, FLOPs, network, each alone at peak rates; engine: what its "
    "kernels, sequences and latency add to the chip's own times",
    "limits": "share by which a tenth more of a resource makes tokens cheaper on the same mesh",
}

_FRONT_COLUMNS = (
    *("slice", "mesh", "layout", "replicas"),
    *("prefill_slice", "prefill_mesh", "prefill_replicas", "weights", "kv", "running"),
    *("ttft_seconds", "tpot_seconds", "e2e_seconds", "chip_hours_per_million_tokens"),
    "usd_per_million_tokens",
)


def serve_cost(options: dict[str, Any]) -> None:
    """Plan on every chip of --on, and show the cheapest with its reasons."""
    refuse(("activations",), "takes no effect with --objective cost, where they are bf16")
    for name in _OTHERS:
        if options[name]:
            raise click.UsageError(f"--{name} takes no effect with --objective cost; leave it out")
    goal = Objectives(
        ttft=_seconds(options, "ttft"),
        tpot=_seconds(options, "tpot"),
        e2el=_seconds(options, "e2e"),
    )
    trace, load = _load(options)
    plannings, missed = _plannings(options, goal, load)
    best = min(plannings, key=_dearness)
    found, unsure = None, too_long(best.request)
    if options["confirm"] is not False and not unsure:
        found = confirm(
            best.request,
            _contenders(best),
            goal,
            trace=trace,
            progress=progress_line("simulated", "plans"),
        )
    if options["plan_path"]:
        save_plan(best.plan, options["plan_path"])
    result = _result(plannings, best, found)
    if options["csv_path"]:
        write_csv(options["csv_path"], _FRONT_COLUMNS, [_csv_row(p) for p in result["front"]])
    if options["plot_path"]:
        from shardwise.apps.cli.serve_chart import plot_fleets

        plot_fleets(result, best.request.cfg.name, options["plot_path"])
    doc = document(
        inputs=given(options),
        resolved=_resolved(options, best),
        result=result,
        warnings=[*missed, *filter(None, [unsure]), *_cautions(plannings, best)],
        provenance={
            "efficiency": best.best.piece.chip.efficiency.source,
            "engine": dict(load_engine(options["engine"]).sources),
            "definitions": DEFINITIONS,
        },
    )
    emit(doc, options["as_json"], lambda: _render(result, best, found, options["plan_path"]))


def _seconds(options: dict[str, Any], name: str) -> float:
    return parse_seconds(options[name], f"--{name}") if options[name] else inf


def _load(options: dict[str, Any]) -> tuple[list[Request], dict[str, Any]]:
    """The requests of the trace, if one is given, and the load that the search goes by."""
    if options["trace"] is None:
        return [], {
            "input": count_of(options, "input_text", "--input", MOST_LENGTH),
            "output": count_of(options, "output_text", "--output", MOST_LENGTH),
            "rate": parse_count(options["rate"], "--rate") if options["rate"] else 0.0,
        }
    for key, flag in (("input_text", "--input"), ("output_text", "--output"), ("rate", "--rate")):
        if options[key]:
            raise click.UsageError(f"{flag} takes no effect with --trace, which says it")
    trace, rate, prompt, answer = traced(options["trace"])
    return trace, {"input": prompt, "output": answer, "rate": rate}


def _plannings(
    options: dict[str, Any], goal: Objectives, load: dict[str, Any]
) -> tuple[list[FleetPlanning], list[str]]:
    """The cheapest on every chip; what the others miss. Raises where all do."""
    hardware = hardware_of(options)
    fixed = {name: options[name] for name in _FIXED if on_command_line(name)}
    found, missed = [], []
    chips = [name.strip() for name in options["target"].split(",")]
    for name in chips:
        request = fleet_request(
            options["model"],
            name,
            **load,
            percentile=parse_share(options["percentile"] or "90%", "--percentile"),
            weights=(fixed["weights"],) if "weights" in fixed else (),
            kv=(fixed["kv"],) if "kv" in fixed else (),
            compute=fixed.get("compute", ""),
            chunks=_chunks(options),
            pins=parse_pins(options["pins"]),
            engine=options["engine"],
            hardware=hardware,
        )
        show = progress_line(f"searched {name}", "dtypes")
        try:
            found.append(plan_fleet(request, goal, constants=hardware.constants, progress=show))
        except NoFeasiblePlan as miss:
            if len(chips) == 1:
                raise
            missed.append(f"{name}: {miss}")
    if not found:
        raise NoFeasiblePlan("; ".join(missed))
    return found, missed


def _chunks(options: dict[str, Any]) -> tuple[int, ...]:
    """The chunk that was given; none searches."""
    if not on_command_line("prefill_chunk"):
        return ()
    return (count_of(options, "prefill_chunk", "--prefill-chunk"),)


def _dearness(planning: FleetPlanning) -> tuple[bool, float]:
    """Dollars per million tokens; chips without a price come last, by chip-hours."""
    usd = planning.best.usd_per_million["all"]
    return usd is None, planning.best.chip_hours_per_million["all"] if usd is None else usd


def _contenders(planning: FleetPlanning) -> list[Fleet]:
    """The best plan, and the cheapest that differ in slice or layout."""
    kept = {(str(planning.best.piece), planning.best.layout): planning.best}
    for fleet in ranked(planning.looked, planning.goal):
        kept.setdefault((str(fleet.piece), fleet.layout), fleet)
    return sorted(list(kept.values())[:_CONFIRMED], key=lambda f: f.chip_seconds)


def _result(
    plannings: list[FleetPlanning], best: FleetPlanning, found: Confirmation | None
) -> dict[str, Any]:
    running = np.unique(np.maximum(np.round(best.best.running * np.array(_CURVE)), 1.0))
    parts = breakdown(best.request, best.best, running)
    here = int(np.argmin(np.abs(running - best.best.running)))
    return {
        **fleet_result(best),
        "chips_compared": [fleet_result(p) for p in sorted(plannings, key=_dearness)],
        "front": fleet_front(best),
        "breakdown_seconds": parts.at(here),
        "breakdown_curve": [parts.at(i) for i in range(len(running))],
        "limits": limits(best.request, best.best, best.goal),
        "verdicts": [v.as_dict() for v in verdicts(best.looked, best.goal, best.best)],
        "confirmation": None if found is None else confirmation_result(found),
    }


def _resolved(options: dict[str, Any], best: FleetPlanning) -> dict[str, Any]:
    """Every choice with its value and where it came from."""
    plan, shown = best.plan, {}
    for name in ("weights", "kv", "compute", "prefill_chunk", "engine", "slice", "batch"):
        value = getattr(plan.dtypes, name, None) or getattr(plan, name, None)
        origin = "flag" if on_command_line(name) else "computed"
        shown[name] = {"value": value, "origin": origin}
    return shown


def _cautions(plannings: list[FleetPlanning], best: FleetPlanning) -> list[str]:
    said = [
        f"no public price for {p.best.piece.chip.id} in the catalogue: chip-hours only"
        for p in plannings
        if p.best.piece.chip.price is None
    ]
    longest = best.request.input_length + best.request.output_length
    if best.best.dtypes.weights != CHECKPOINT or best.best.dtypes.kv != "bf16":
        said.append("fewer bits change a model's answers; fix them with --weights and --kv")
    said += engine_warning(best.request.engine.name)
    return [*said, *context_warning(best.request.cfg, longest), *unpriced(best.request.cfg)]


def _csv_row(p: dict[str, Any]) -> list[Any]:
    usd, hours = p["usd_per_million_tokens"], p["chip_hours_per_million_tokens"]
    apart = p["prefill_mesh"]
    row = {**p, "mesh": mesh_text(p["mesh"])}
    row["prefill_mesh"] = "" if apart is None else mesh_text(apart)
    row |= {"usd_per_million_tokens": usd["all"], "chip_hours_per_million_tokens": hours["all"]}
    return [row[name] for name in _FRONT_COLUMNS]


def _render(
    result: dict[str, Any],
    best: FleetPlanning,
    found: Confirmation | None,
    plan_path: Path | None,
) -> None:
    request = best.request
    load = f"{sig(result['requests_per_second'])} requests/s"
    click.echo(
        f"{request.cfg.name}, prompts of {request.input_length:,} and answers of "
        f"{request.output_length:,} tokens, {load} at random, "
        f"engine {request.engine.name}: the cheapest plan\n"
    )
    _render_fleet(result, best)
    if len(result["chips_compared"]) > 1:
        _render_points("per chip", result["chips_compared"])
    _render_breakdown(result)
    click.echo("\nWhat limits me: a tenth more makes tokens cheaper by")
    for name, gain in result["limits"].items():
        click.echo(f"  {name:13} {gain:.1%}")
    click.echo("\nWould it help?")
    for v in verdicts(best.looked, best.goal, best.best):
        click.echo(f"  - {_verdict_text(v)}")
    _render_points("front of time per token and cost", result["front"])
    if found is not None:
        click.echo("\nSimulated")
        for line in confirmation_lines(found):
            click.echo(f"  - {line}")
    click.echo(f"\n{many(result['columns'], 'server')} (mesh x number in flight x chunk) priced")
    if plan_path:
        click.echo(
            f"Plan written to {plan_path}; try it on a trace with: shardwise simulate {plan_path}"
        )


def _render_fleet(result: dict[str, Any], best: FleetPlanning) -> None:
    servers = many(result["replicas"], "replica")
    if result["prefill_replicas"]:
        servers += f" to decode and {result['prefill_replicas']} to prefill"
    weights = "as stored" if result["weights"] == CHECKPOINT else result["weights"]
    click.echo(f"  {servers} of {': '.join(_places(result))}")
    click.echo(
        f"  weights {weights}, KV {result['kv']} ({result['kv_sharding']}), steps of at most "
        f"{result['prefill_chunk']:,} tokens; {result['running']:,.0f} sequences in flight on each,"
        f" room for {result['batch']:,}"
    )
    times = ", ".join(
        f"{name.upper()} {format_seconds(result[f'{name}_seconds'])}"
        for name in ("ttft", "tpot", "e2e")
    )
    click.echo(f"  {result['percentile']:.0%} of requests within {times}")
    hours = result["chip_hours_per_million_tokens"]
    click.echo(
        f"  per million tokens: {sig(hours['input'])} chip-hours of input and "
        f"{sig(hours['output'])} of output{_dollars(result)}"
    )


def _dollars(result: dict[str, Any]) -> str:
    usd = result["usd_per_million_tokens"]
    if usd["all"] is None:
        return ", dollars unknown (no price)"
    return (
        f": {format_usd(usd['input'])} and {format_usd(usd['output'])} at "
        f"${result['usd_per_chip_hour']:.2f} per chip-hour"
    )


def _render_points(title: str, points: list[dict[str, Any]]) -> None:
    rows = [
        [
            *_places(p),
            f"{p['replicas']}+{p['prefill_replicas']}",
            p["weights"],
            p["kv"],
            format_seconds(p["ttft_seconds"]),
            format_seconds(p["tpot_seconds"]),
            sig(p["chip_hours_per_million_tokens"]["all"]),
            _usd(p["usd_per_million_tokens"]["all"]),
        ]
        for p in points
    ]
    click.echo()
    header = ["slice", "mesh", "servers", "weights", "KV", "TTFT", "TPOT", "chip-h/M", "$/M"]
    table(header, rows, title, left=5)


def _places(p: dict[str, Any]) -> tuple[str, str]:
    """Slice and mesh, with those of the prefill pool where they are others."""
    slices, meshes = [p["slice"]], [mesh_text(p["mesh"])]
    if p["prefill_replicas"] and (p["prefill_slice"], p["prefill_mesh"]) != (p["slice"], p["mesh"]):
        slices.append(p["prefill_slice"])
        meshes.append(mesh_text(p["prefill_mesh"]))
    return " + ".join(slices), " + ".join(meshes)


def _usd(value: float | None) -> str:
    return "unknown" if value is None else format_usd(value)


def _render_breakdown(result: dict[str, Any]) -> None:
    parts = ("matmuls", "kv", "flops", "network", "other", "engine", "expected")
    rows = [
        [f"{p['running']:,.0f}", *(format_seconds(p[name]) for name in parts)]
        for p in result["breakdown_curve"]
    ]
    click.echo()
    header = ["in flight", "matmuls", "KV", "FLOPs", "network", "other", "engine", "expected"]
    table(header, rows, "A decode step, each part alone at peak rates (book, 8.2)")
    click.echo("  matmuls, KV, other: memory traffic (matmuls: of weights and activations)")


def _verdict_text(v: Verdict) -> str:
    said = "helps" if v.helps else "does not help"
    factor = "" if v.factor is None else f" (tokens {sig(v.factor)}x cheaper)"
    if v.factor is not None and v.factor < 1:
        factor = f" (tokens {sig(1 / v.factor)}x dearer)"
    return f"{v.what} {said}{factor}: {v.why}"
