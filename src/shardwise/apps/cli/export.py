"""`shardwise export`: a plan file in the words of another framework or launcher, and back."""

from pathlib import Path

import click

from shardwise.apps.cli.files import check_outputs, file_option
from shardwise.apps.cli.output import document, emit, json_option
from shardwise.boundary import read_text, write_text
from shardwise.errors import BadRequest
from shardwise.planner.export import EXPORTERS
from shardwise.planner.export.serving import SERVE_EXPORTERS
from shardwise.plans import save_plan
from shardwise.plans.files import flat_plan, plan_dict
from shardwise.workflows.export import export_file, parse_file

TARGETS = "|".join((*EXPORTERS, *SERVE_EXPORTERS))
EXPORT_BYTES = 256 * 1024
path_type = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("path", type=path_type)
@click.option("--to", "target", metavar=TARGETS, help="Write the plan for this target.")
@click.option("--from", "origin", metavar=TARGETS, help="Read an export back into a plan file.")
@file_option("-o", "--output", metavar="FILE", help="Write here, not to stdout.")
@json_option
def export(
    path: Path, target: str | None, origin: str | None, output: Path | None, as_json: bool
) -> None:
    """Write the plan in PATH for a framework (--to), or read such a file back (--from)."""
    check_outputs()
    if (target is None) == (origin is None):
        raise BadRequest(f"give either --to or --from, one of {TARGETS}")
    if origin is not None:
        _read_back(path, origin, output, as_json)
        return
    made = export_file(path, str(target))
    if output is not None:
        write_text(output, made.text, option="-o")
    doc = document(
        inputs={"path": str(path), "to": target},
        resolved={k: {"value": v, "origin": "file"} for k, v in flat_plan(made.plan).items()},
        result={
            "target": target,
            "text": made.text,
            "not_expressed": made.not_expressed,
            "output": output and str(output),
        },
        warnings=[f"{target} will not do this: {line}" for line in made.not_expressed],
    )
    emit(doc, as_json, lambda: click.echo(f"wrote {output}\n" if output else made.text, nl=False))


def _read_back(path: Path, origin: str, output: Path | None, as_json: bool) -> None:
    text = read_text(path, "the export", most=EXPORT_BYTES)
    plan = parse_file(text, origin)
    if output is not None:
        save_plan(plan, output)
    doc = document(
        inputs={"path": str(path), "from": origin},
        result={"plan": flat_plan(plan), "output": output and str(output)},
    )

    def render() -> None:
        import yaml

        shown = f"wrote {output}\n" if output else yaml.safe_dump(plan_dict(plan), sort_keys=False)
        click.echo(shown, nl=False)

    emit(doc, as_json, render)
