"""`shardwise plan show`: price a plan from a file, as written or edited by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs
from shardwise.apps.cli.options import hardware_options
from shardwise.apps.cli.output import document, emit, json_option, table
from shardwise.apps.cli.plan_serve import render_serve
from shardwise.apps.cli.plan_train import render_plan
from shardwise.apps.cli.timeline import timeline_options, write_timeline
from shardwise.book.rules.audit import audit_result
from shardwise.errors import BadRequest
from shardwise.plans import TrainPlan, load_plan
from shardwise.plans.files import flat_plan
from shardwise.plans.named import plan_path, with_neighbour
from shardwise.units import sig
from shardwise.workflows.inputs import Hardware
from shardwise.workflows.plan_file import Priced, check_fits, price_plan

plan_file = click.Path(dir_okay=False, path_type=Path)


def plan_overrides(sets: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """--set texts split into plan fields and chip fields ("chip." in front)."""
    fields: dict[str, str] = {}
    chip: list[str] = []
    for text in sets:
        path, equals, value = text.partition("=")
        if not equals:
            raise BadRequest(f"--set '{text}' is not PATH=VALUE; write it like --set remat=block")
        if path.startswith("chip."):
            chip.append(text)
        else:
            fields[path] = value
    return fields, chip


def priced_file(path: Path, options: dict[str, Any]) -> Priced:
    """The plan in a file, with --set, --hw and --constants, priced."""
    fields, chip = plan_overrides(options["sets"])
    path = plan_path(str(path))
    plan = with_neighbour(load_plan(path, fields), path)
    if options["constants"]:
        plan = replace(plan, constants=options["constants"])
    hardware = Hardware(
        constants=plan.constants,
        files=options["hw_files"],
        overrides=chip,
    )
    priced = price_plan(plan, hardware)
    if isinstance(plan, TrainPlan):
        audited = audit_result(plan, priced.answer.cfg, priced.answer.piece)
        priced = replace(priced, result={**priced.result, "audit": audited})
    return priced


@click.command()
@click.argument("path", type=plan_file)
@timeline_options
@hardware_options(constants=None, price=False)
@json_option
def show(path: Path, as_json: bool, **options: Any) -> None:
    """Price the plan in a file and hold it against the book's rules.

    --set remat=block changes a field first. audit:NAME is a plan of a published run
    (`shardwise book list`).
    """
    check_outputs()
    priced = priced_file(path, options)
    check_fits(priced)
    write_timeline(priced.answer, options)
    changed, _ = plan_overrides(options["sets"])
    changed |= {"constants": ""} if options["constants"] else {}
    doc = document(
        inputs={"path": str(path), "set": list(options["sets"])},
        resolved={
            k: {"value": v, "origin": "flag" if {k, k.partition(".")[0]} & set(changed) else "file"}
            for k, v in flat_plan(priced.plan).items()
        },
        result=priced.result,
        warnings=priced.warnings,
    )
    emit(doc, as_json, lambda: _render(priced))


def _render(priced: Priced) -> None:
    if isinstance(priced.plan, TrainPlan):
        render_plan(priced.answer, priced.result)
        _render_audit(priced.result["audit"])
    else:
        render_serve(priced.answer, priced.result)


def _render_audit(audited: dict[str, Any]) -> None:
    """The book's rules for each strategy: what the plan has, what it needs, and why."""
    if not audited["verdicts"]:
        return
    click.echo()
    table(
        ["book rule", "degree", "has", "needs", "in", "compute-bound"],
        [
            [
                v["strategy"],
                f"{v['degree']:,}",
                sig(v["have"]),
                f"{'>=' if v['at_least'] else '<='} {sig(v['need'])}",
                v["unit"],
                "yes" if v["ok"] else "no",
            ]
            for v in audited["verdicts"]
        ],
    )
    for v in audited["verdicts"]:
        click.echo(f"  {v['text']} ({v['source']})")
