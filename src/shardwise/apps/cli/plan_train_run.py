"""Options and output of a whole run: --tokens, what changes its arithmetic, and what it loses."""

from typing import Any

import click

from shardwise.planner.price.goodput import Overheads
from shardwise.units import format_count, format_seconds, format_usd, parse_seconds, sig
from shardwise.workflows.inputs import parse_share, parse_total

_OPTIONS = (
    ("--tokens", "Length of the run, such as 15T: adds days and dollars."),
    ("--mfu", "Replace the expected time by this share of peak (with --tokens)."),
    ("--params", "Replace the parameter count in --mfu's arithmetic, such as 70e9."),
    ("--straggler", "Slowest chip's step time over the typical one's, such as 1.05."),
    ("--chip-mtbf", "Time between failures of one chip with its host, such as 10y."),
    ("--checkpoint-time", "Time that training stops for a checkpoint, such as 30s."),
    ("--checkpoint-interval", "Training between checkpoints; the best one where not given."),
    ("--restart-time", "Time from a failure to the first new step, such as 10min."),
)
_LOSSES = ("straggler", "chip_mtbf", "checkpoint_time", "checkpoint_interval", "restart_time")


def run_options(command):
    """The options of a run, as `_OPTIONS` lists them; off unless given."""
    for name, about in reversed(_OPTIONS):
        command = click.option(name, help=about)(command)
    return command


def run_asked(options: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments of `run_result`, or None without --tokens. Raises for options without effect."""
    if options["params"] and not options["mfu"]:
        raise click.UsageError("--params changes only the arithmetic of --mfu; give --mfu too")
    for name in ("mfu", *_LOSSES):
        if options[name] and not options["tokens"]:
            flag = "--" + name.replace("_", "-")
            raise click.UsageError(f"{flag} changes only the days of a run; give --tokens too")
    if not options["tokens"]:
        return None
    return {
        "tokens": parse_total(options["tokens"], "--tokens"),
        "mfu": parse_share(options["mfu"], "--mfu") if options["mfu"] else None,
        "params": parse_total(options["params"], "--params") if options["params"] else None,
        "overheads": _overheads(options),
    }


def _overheads(options: dict[str, Any]) -> Overheads:
    names = {
        "chip_mtbf": "chip_mtbf",
        "checkpoint_time": "checkpoint",
        "checkpoint_interval": "interval",
        "restart_time": "restart",
    }
    given = {
        field: parse_seconds(options[name], "--" + name.replace("_", "-"))
        for name, field in names.items()
        if options[name]
    }
    if options["straggler"]:
        given["straggler"] = parse_total(options["straggler"], "--straggler")
    return Overheads(**given)


def render_run(run: dict[str, Any]) -> None:
    cost = "cost unknown: the catalogue has no price (give --price CHIP=USD)"
    if run["usd"] is not None:
        price = f"${run['usd_per_chip_hour']:.2f} per chip-hour"
        source = f"({run['price_as_of']}, {run['price_source']})"
        cost = f"{format_usd(run['usd'])}{_idle_text(run)} at {price} {source}"
    click.echo(
        f"\nRun of {format_count(run['tokens'])} tokens at {run['basis']}: "
        f"{sig(run['days'])} days, {format_count(run['chip_hours'])} chip-hours, {cost}"
    )
    if "goodput" in run:
        click.echo(_lost_text(run["goodput"]))


def _idle_text(run: dict[str, Any]) -> str:
    return f" ({format_usd(run['usd_idle'])} of it for idle chips)" if run["usd_idle"] else ""


def _lost_text(good: dict[str, float]) -> str:
    """Where the time that does not train goes."""
    parts = [f"{name} {good[name]:.1%}" for name in ("straggler", "checkpoint", "failures")]
    every = f", a checkpoint every {format_seconds(good['interval'])}" if good["checkpoint"] else ""
    return f"  trains {good['share']:.1%} of the time; lost to {', '.join(parts)}{every}"
