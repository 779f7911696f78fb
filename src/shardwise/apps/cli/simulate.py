"""`shardwise simulate`: a serving plan under a trace or a made load, request by request."""

from math import inf
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs, file_option, plot_option
from shardwise.apps.cli.numbers import SEED, Number, Whole
from shardwise.apps.cli.options import given, hardware_options
from shardwise.apps.cli.output import (
    csv_option,
    document,
    emit,
    json_option,
    table,
    write_csv,
)
from shardwise.apps.cli.progress import progress_line
from shardwise.boundary import whole
from shardwise.errors import BadRequest, ThresholdMissed
from shardwise.planner.serve.answer import mesh_text
from shardwise.planner.simulate.metrics import (
    DEFINITIONS,
    REQUEST_COLUMNS,
    Objectives,
    request_rows,
)
from shardwise.planner.simulate.traces import MOST_REQUESTS
from shardwise.plans import ServePlan, load_plan
from shardwise.plans.files import flat_plan
from shardwise.units import format_seconds, format_usd, many, parse_count, parse_seconds, sig
from shardwise.workflows.inputs import Hardware, parse_share, plan_changes
from shardwise.workflows.simulate import Load, Simulated, simulate_plan

RATE = Number(least=1e-9, most=1e6)
"""Requests a second, and how many times as fast."""
_file = click.Path(dir_okay=False, path_type=Path)
_TRACES = (
    "Azure, Vidur (arrived_at in seconds), Mooncake or LLMServingSim (timestamp in milliseconds), "
    "ServeGen, or own JSONL: arrival in seconds, prompt and output in tokens."
)


@click.command()
@click.argument("path", metavar="PLAN", type=_file)
@click.option("--trace", type=_file, help=_TRACES)
@click.option("--requests", help="The first so many of a trace, or how many to make (1000).")
@click.option("--rate", type=RATE, help="Requests per second: make them, or speed a trace up.")
@click.option("--speed", type=RATE, help="Replay a trace so many times as fast.")
@click.option(
    "--tile",
    default=1,
    type=Whole(least=1, most=MOST_REQUESTS),
    help="Repeat the load so many times.",
)
@click.option(
    "--cv",
    type=Number(least=0, most=100),
    help="Burstiness of made requests; 1 (default) is Poisson.",
)
@click.option("--input", "input_text", help="Prompt tokens of made requests; else the plan's.")
@click.option("--output", "output_text", help="Answer tokens of made requests; else the plan's.")
@click.option("--lengths", metavar="FILE:CATEGORY", help="Draw lengths from ServeGen's quantiles.")
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Of everything that is drawn."
)
@click.option("--ttft", help="Objective: longest time to the first token, such as 2s.")
@click.option("--tpot", help="Objective: longest time per output token, such as 50ms.")
@click.option("--e2el", help="Objective: longest time to the last token, such as 30s.")
@click.option(
    "--check", metavar="SHARE", help="Exit with 4 where fewer meet the objectives, such as 99%."
)
@plot_option("Latencies and queues as a PNG or SVG.")
@file_option(
    "--perfetto",
    "steps_path",
    endings=(".json", ".json.gz"),
    help="Every step as a trace file for ui.perfetto.dev.",
)
@click.option("--perfetto-until", help="The trace file ends after so much time, such as 60s.")
@hardware_options(constants=None)
@csv_option
@json_option
def simulate(path: Path, **options: Any) -> None:
    """Run a load through the replicas of a serving plan with the scheduler that would run them.

    --set scheduling.policy=interleaved changes a field of the plan first; --csv has a row for each
    request.
    """
    check_outputs()
    objectives, least, until = _objectives(options), _least(options), _until(options)
    fields, chip = plan_changes(options["sets"])
    plan = load_plan(path, fields)
    found = simulate_plan(
        plan,
        _load(options),
        hardware=Hardware(
            constants=options["constants"] or plan.constants,
            files=options["hw_files"],
            overrides=chip,
            prices=options["prices"],
        ),
        objectives=objectives,
        keep_steps=options["steps_path"] is not None,
        progress=progress_line("simulating", "requests"),
    )
    _write(found, options, until)
    doc = document(
        inputs={"path": str(path), **given(options)},
        resolved={
            k: {"value": v, "origin": "flag" if k in fields else "file"}
            for k, v in flat_plan(plan).items()
        },
        result=found.result,
        warnings=found.warnings,
        provenance={"definitions": DEFINITIONS},
    )
    emit(doc, options["as_json"], lambda: _render(found, objectives))
    _check(found, least)


def _objectives(options: dict[str, Any]) -> Objectives:
    wanted = {
        name: parse_seconds(options[name], f"--{name}")
        for name in ("ttft", "tpot", "e2el")
        if options[name]
    }
    if options["check"] and not wanted:
        raise BadRequest("--check needs objectives; give --ttft, --tpot or --e2el")
    return Objectives(**wanted)


def _load(options: dict[str, Any]) -> Load:
    lengths = None
    if options["lengths"]:
        file, colon, category = options["lengths"].rpartition(":")
        if not colon:
            raise BadRequest(f"--lengths '{options['lengths']}' is not FILE:CATEGORY")
        lengths = (Path(file), category)
    return Load(
        trace=options["trace"],
        requests=_count(options["requests"], "--requests") or 0,
        tile=options["tile"],
        rate=options["rate"],
        speed=options["speed"],
        cv=options["cv"],
        input=_count(options["input_text"], "--input"),
        output=_count(options["output_text"], "--output"),
        lengths=lengths,
        seed=options["seed"],
    )


def _count(text: str | None, flag: str) -> int | None:
    if text is None:
        return None
    return whole(parse_count(text, flag), flag, least=1, most=2**31)


def _least(options: dict[str, Any]) -> float | None:
    """The share of --check."""
    return None if options["check"] is None else parse_share(options["check"], "--check")


def _until(options: dict[str, Any]) -> float:
    """The end of the trace file in seconds."""
    if options["perfetto_until"] is None:
        return inf
    if options["steps_path"] is None:
        raise BadRequest("--perfetto-until is the end of a trace file; name it with --perfetto")
    return parse_seconds(options["perfetto_until"], "--perfetto-until")


def _write(found: Simulated, options: dict[str, Any], until: float) -> None:
    """The files that were asked for."""
    if options["csv_path"]:
        write_csv(options["csv_path"], REQUEST_COLUMNS, request_rows(found.outcome))
    if options["plot_path"]:
        from shardwise.apps.cli.simulate_chart import plot_simulation

        plot_simulation(found, options["plot_path"])
    if options["steps_path"]:
        from shardwise.planner.price.trace import write_events
        from shardwise.planner.simulate.step_trace import step_events

        write_events(step_events(found.outcome, until), options["steps_path"], "--perfetto")


def _check(found: Simulated, least: float | None) -> None:
    if least is not None and (share := found.result["good_share"]) < least:
        raise ThresholdMissed(
            f"{share:.1%} of the requests met the objectives, below --check {least:.1%}"
        )


def _render(found: Simulated, objectives: Objectives) -> None:
    """The answer for a person: the fleet, latencies, load, cache and cost."""
    plan, result = found.plan, found.result
    click.echo(
        f"{plan.model} on {_fleet_text(plan)}, {mesh_text(plan.mesh)} each, engine "
        f"{plan.engine}: {plan.scheduling.policy}, batch {plan.batch:,}, "
        f"{plan.prefill_chunk:,} tokens a step, "
        f"{result['cache']['pages']:,} pages of {result['cache']['page_size']}\n"
    )
    rows = [
        [name.upper(), *(_ms(result[f"{kind}_{name}_ms"]) for kind in _KINDS)]
        for name in ("ttft", "tpot", "itl", "e2el")
    ]
    table(["simulated", *_KINDS], rows)
    click.echo()
    table(["", "simulated"], _figures(result, objectives))
    click.echo()
    table(
        ["replica", "requests", "busy", "waiting", "running", "most waiting", "cache at most"],
        [
            [
                f"{r['index']}" + (" (prefill)" if r["role"] == "prefill" else ""),
                f"{r['requests']:,}",
                f"{r['utilisation']:.0%}",
                sig(r["mean_waiting"]),
                sig(r["mean_running"]),
                f"{r['max_waiting']:,}",
                f"{r['peak_cache_use']:.0%}",
            ]
            for r in result["replicas"]
        ],
    )
    click.echo("\nDefinitions, as of vllm bench where it has them")
    for name, text in DEFINITIONS.items():
        click.echo(f"  {name}: {text}")


_KINDS = ("mean", "median", "p90", "p95", "p99")


def _fleet_text(plan: ServePlan) -> str:
    text = f"{plan.replicas} x {plan.slice}"
    if not plan.prefill_replicas:
        return text
    other = "" if plan.prefill is None else f" x {plan.prefill.slice}"
    return f"{text} + {plan.prefill_replicas}{other} to prefill"


def _ms(value: float | None) -> str:
    return "-" if value is None else format_seconds(value / 1e3)


def _figures(result: dict[str, Any], objectives: Objectives) -> list[list[str]]:
    rows = [
        ["completed", f"{result['completed']:,} in {format_seconds(result['duration'])}"],
        ["request_throughput", f"{sig(result['request_throughput'])}/s"],
        ["output_throughput", f"{sig(result['output_throughput'])} tokens/s"],
        ["total_token_throughput", f"{sig(result['total_token_throughput'])} tokens/s"],
    ]
    if objectives.given:
        share = f"{result['good_share']:.1%} of the requests"
        rows.append(["request_goodput", f"{sig(result['request_goodput'])}/s, {share}"])
    rows += [
        ["utilisation", f"{result['utilisation']:.1%}"],
        ["hit_rate", f"{result['hit_rate']:.1%}"],
        ["preemptions", f"{result['preemptions']:,}, {result['recomputed_tokens']:,} tokens lost"],
        ["steps", f"{result['steps']:,}"],
        ["chips", f"{many(result['chips'], 'chip')}, {sig(result['chip_hours'])} chip-hours"],
    ]
    usd = result["usd_per_million_tokens"]
    if result["usd"] is not None:
        parts = ", ".join(f"{format_usd(v)} {k}" for k, v in usd.items() if v is not None)
        rows.append(["usd_per_million_tokens", parts])
    return rows
