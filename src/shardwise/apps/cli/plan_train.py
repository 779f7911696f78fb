"""`shardwise plan train`: the fastest training plan that fits, and why."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs, file_option
from shardwise.apps.cli.options import given, hardware_of, hardware_options
from shardwise.apps.cli.output import (
    csv_option,
    document,
    emit,
    json_option,
    table,
    write_csv,
)
from shardwise.apps.cli.plan_train_against import against_option, render_against
from shardwise.apps.cli.plan_train_options import search_of, search_options
from shardwise.apps.cli.plan_train_run import render_run, run_asked, run_options
from shardwise.apps.cli.progress import progress_line
from shardwise.apps.cli.timeline import timeline_options, write_timeline
from shardwise.book.thresholds import book_result
from shardwise.evidence.against import against_result, published_plan, set_against
from shardwise.hardware import Spelling
from shardwise.models.describe import unpriced
from shardwise.models.parameters import first_matmuls
from shardwise.planner.search.request import SEARCHED
from shardwise.planner.training import TrainPlanning
from shardwise.plans import TrainPlan, save_plan
from shardwise.plans.train import mesh_text
from shardwise.units import (
    format_count,
    format_gib,
    format_rate,
    format_seconds,
    parse_count,
    sig,
)
from shardwise.workflows.inputs import (
    whole,
)
from shardwise.workflows.predict import (
    batch_hints,
    caveats,
    plan_training,
    planning_result,
    run_result,
    slower_text,
    unused_choices,
)


@click.command()
@click.option("--model", required=True, help="Zoo name, config.json, or a folder with one.")
@click.option("--on", "target", required=True, help="Slice such as v5p:16x16x16, or a bare chip.")
@click.option("--batch", required=True, help="Tokens (4Mi) or sequences (1024seq) per step.")
@click.option("--seq", required=True, help="Tokens per sequence.")
@search_options
@click.option(
    "--top",
    default=3,
    show_default=True,
    type=click.IntRange(0, 50),
    help="Next best meshes to show.",
)
@run_options
@timeline_options
@against_option
@file_option("-o", "--output", help="Plan file.")
@hardware_options()
@csv_option
@json_option
def train(**options: Any) -> None:
    """Choose mesh, microbatches, schedule, storage and remat so that a step fits and is best.

    Which plans are looked at: docs/legality.md. The best are priced again by an event timeline of
    their own pipeline stages.
    """
    check_outputs()
    hardware = hardware_of(options)
    length = whole(parse_count(options["seq"], "--seq"), "--seq")
    run = run_asked(options)
    published = published_plan(options["against"]) if options["against"] else None
    planning = plan_training(
        options["model"],
        options["target"],
        batch=options["batch"],
        seq=length,
        top=options["top"],
        **search_of(options),
        hardware=hardware,
        progress=progress_line("searching"),
    )
    found = hardware.target(options["target"])
    notes = list(found.notes) if isinstance(found, Spelling) else []
    if not isinstance(found, Spelling):
        notes.append(f"{planning.best.piece} is the smallest slice of {found.id} that fits")
    unused = unused_choices(planning, options["schedule"], options["context_method"])
    extra = [*unused, *batch_hints(planning), *caveats(planning.best)]
    if options["output"]:
        save_plan(planning.best.plan, options["output"])
    write_timeline(planning.best, options)
    result = planning_result(planning)
    result["book"] = book_result(planning.best, hardware)
    against = None
    if published is not None:
        against = set_against(planning, published, options["against"], hardware)
        result["against"] = against_result(against)
    if run:
        result["run"] = run_result(planning.best, **run)
    doc = document(
        inputs=given(options),
        resolved=_resolved(options, planning),
        result=result,
        warnings=[*notes, *unpriced(planning.request.cfg), *extra, *planning.rank_changes],
        provenance={"efficiency": planning.best.piece.chip.efficiency.source},
    )
    if options["csv_path"]:
        _write_csv(options["csv_path"], result)

    def show() -> None:
        render(planning, result, options["output"])
        if against is not None:
            render_against(against, result)

    emit(doc, options["as_json"], show)


def _resolved(options: dict[str, Any], planning: TrainPlanning) -> dict[str, Any]:
    """Every choice with its value and where it came from."""
    plan = planning.best.plan
    pinned = {p.partition("=")[0] for p in options["pins"]}
    flags = {"slice", "global_batch_sequences", "sequence_length"}
    fixed = {**options, "pipeline_schedule": options["schedule"]}
    flags |= {name for name in SEARCHED if fixed.get(name) is not None}
    resolved: dict[str, Any] = {
        name: {"value": getattr(plan, name), "origin": "flag" if name in flags else "computed"}
        for name in (
            "slice",
            "global_batch_sequences",
            "sequence_length",
            "microbatches",
            "layers_per_stage",
            *SEARCHED,
            "virtual_stages",
            "optimizer",
            "stack",
        )
    }
    for axis, degree in plan.mesh.items():
        origin = "flag" if axis in pinned else "computed"
        resolved[f"mesh.{axis}"] = {"value": degree, "origin": origin}
    return resolved


def _write_csv(path: Path, result: dict[str, Any]) -> None:
    rows = [result, *result["runners_up"]]
    header = ["mesh", "microbatches", "remat", "lower_s", "expected_s", "upper_s", "mfu", "bytes"]
    write_csv(
        path,
        header,
        [
            [
                mesh_text(r["mesh"]),
                r["microbatches"],
                r["remat"],
                *r["step_seconds"].values(),
                r["mfu"],
                r["peak_bytes_per_chip"],
            ]
            for r in rows
        ],
    )


def render(planning: TrainPlanning, result: dict[str, Any], output: Path | None) -> None:
    """The answer for a person: the plan, its time and memory, why, and what else there was."""
    render_plan(planning.best, result)
    click.echo("\nWhy")
    for reason in result["why"]:
        click.echo(f"  - {reason}")
    _render_runners_up(result)
    for line in result["book"]["lines"]:
        click.echo(f"\nBook rule: {line}")
    if "run" in result:
        render_run(result["run"])
    s = result["search"]
    click.echo(
        f"\nSearched {s['enumerated']:,} plans, {s['legal']:,} legal, {s['candidates']:,} priced "
        f"in full (floors rule out the others), in {format_seconds(s['seconds'])}"
    )
    if output:
        click.echo(f"Plan written to {output}; price it again with: shardwise plan show {output}")
        click.echo(f"Compile it, no accelerator needed, with: shardwise compile {output}")
        click.echo(f"Train it with: shardwise train {output} --data TEXT --steps N")


def render_plan(answer, result: dict[str, Any]) -> None:
    """One priced plan: headline, placement, times, memory, top ops."""
    plan, cfg = answer.plan, answer.cfg
    click.echo(
        f"{cfg.name} on {result['slice']}: {plan.global_batch_sequences:,} sequences x "
        f"{plan.sequence_length:,} tokens = {format_count(plan.tokens)} tokens per step"
    )
    click.echo(f"  {result['slice_means']}\n")
    click.echo(f"Plan: {mesh_text(result['mesh'])}")
    for line in result["placement"]:
        click.echo(f"  {line}")
    click.echo(
        f"  microbatches {plan.microbatches}, remat {plan.remat}{_choices_text(plan)}; "
        f"{result['chips_used']:,} chips used, {result['chips_idle']:,} idle"
    )
    for name in (*first_matmuls(cfg), "activations"):
        click.echo(f"  {name}: {result['layouts'][name]}")
    step = result["step_seconds"]
    click.echo()
    table(
        ["predicted step", "lower", "expected", "upper"],
        [
            ["seconds per step", *(format_seconds(v) for v in step.values())],
            ["tokens/s", *(format_count(plan.tokens / v) for v in step.values())],
        ],
    )
    if plan.constants == "book":
        click.echo("  book constants: nothing is derated, so `expected` is what peak rates allow")
    found = result["expected_80"]
    if found:
        click.echo(
            f"  80 % range of the expected step: {format_seconds(found['low'])} to "
            f"{format_seconds(found['high'])} (from how {found['runs']} published runs of "
            f"{found['group']} missed; docs/fit.md)"
        )
    click.echo(
        f"  expected MFU {result['mfu']:.1%} (6*N*D counting: {result['mfu_6nd']:.1%}) of dense "
        f"{format_rate(answer.piece.chip.peak(plan.dtypes.compute), 'FLOP/s')} per chip, "
        f"all {answer.piece.chips:,} chips; bound by {result['bound_by']}"
    )
    if result["tokens_per_joule_upper"]:
        click.echo(
            f"  at most {sig(result['tokens_per_joule_upper'])} tokens per joule of the chips at "
            f"their rated power (hosts, networks and cooling draw more)"
        )
    click.echo()
    kinds = [[k, format_gib(v)] for k, v in result["memory_by_kind"].items() if v]
    peak, usable = result["peak_bytes_per_chip"], result["usable_bytes_per_chip"]
    table(
        [f"HBM per chip at the peak ({result['memory_peak_at']})", "predicted"],
        [*kinds, ["total", format_gib(peak)], ["usable", format_gib(usable)]],
    )
    _render_stages(result["memory_by_stage"])
    click.echo()
    expected = step["expected"]
    table(
        ["op (derated seconds per step)", "stream", "seconds", "of step"],
        [
            [f"{t['name']} ({t['phase']})", t["stream"], format_seconds(t["seconds"]),
             f"{t['seconds'] / expected:.0%}"]
            for t in result["top_ops"]
        ],
        left=2,
    )  # fmt: skip


def _render_stages(stages: list[dict[str, Any]]) -> None:
    """The peaks of a pipeline's stages in one line."""
    if len(stages) < 2:
        return
    peaks = [stage["peak_bytes_per_chip"] for stage in stages]
    fullest = max(stages, key=lambda stage: stage["peak_bytes_per_chip"])
    click.echo(
        f"  peaks of the {len(stages)} stages: {format_gib(min(peaks))} to "
        f"{format_gib(max(peaks))}, stage {fullest['stage']} with {fullest['layers']} layers the "
        f"fullest ({fullest['at']})"
    )


def _choices_text(plan: TrainPlan) -> str:
    """The choices that make a difference on the plan's mesh."""
    said = []
    replicas = plan.degree("replica") * plan.degree("data")
    if replicas > 1:
        said.append(f"ZeRO-{plan.zero} over {replicas} replicas")
    if plan.degree("stage") > 1:
        chunks = f" with {plan.virtual_stages} chunks" if plan.virtual_stages > 1 else ""
        said.append(f"schedule {plan.pipeline_schedule}{chunks}")
    if plan.degree("context") > 1:
        said.append(f"context by {plan.context_method}")
    if plan.degree("context") * plan.degree("expert") > 1:
        said.append(f"parameters stored over {'+'.join(plan.storage_axes)}")
    if not plan.reshard_after_forward:
        said.append("gathered parameters kept")
    return "".join(f", {text}" for text in said)


def _render_runners_up(result: dict[str, Any]) -> None:
    if not result["runners_up"]:
        return
    click.echo()
    table(
        ["runner-up", "micro", "remat", "expected", "slower", "MFU", "HBM per chip", "bound by"],
        [
            [
                mesh_text(r["mesh"]),
                str(r["microbatches"]),
                r["remat"],
                format_seconds(r["step_seconds"]["expected"]),
                slower_text(r["times_slower"]),
                f"{r['mfu']:.1%}",
                f"{sig(r['peak_bytes_per_chip'] / 2**30)} GiB",
                r["bound_by"],
            ]
            for r in result["runners_up"]
        ],
    )
