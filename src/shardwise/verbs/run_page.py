"""How the days and dollars of a whole training run print."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.units import format_count, format_seconds, format_usd, sig
from shardwise.verbs.answer import Page
from shardwise.verbs.layout import Fact, wrapped
from shardwise.workflows.predict import AT_EXPECTED


def run_facts(run: Mapping[str, Any], result: Mapping[str, Any]) -> list[Fact]:
    """Days and dollars of a whole run in one labelled line."""
    cost = "cost unknown: no price in the catalogue (give --price CHIP=USD)"
    if run["usd"] is not None:
        price = f"${run['usd_per_chip_hour']:.2f} per chip-hour"
        cost = f"{format_usd(run['usd'])}{_idle_text(run)} at {price} ({run['price_as_of']})"
    given = "" if run["basis"].startswith(AT_EXPECTED) else f" at {run['basis']}"
    said = f"{sig(run['days'])} days{_days_range(run, result)}{given}"
    text = f"{said}, {format_count(run['chip_hours'])} chip-hours, {cost}"
    return [Fact(f"{format_count(run['tokens'])} tokens", text)]


def _days_range(run: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The days' range where they come from the expected step time, which has one."""
    found, expected = result["expected_80"], result["step_seconds"]["expected"]
    if found is None or not run["basis"].startswith(AT_EXPECTED):
        return ""
    low, high = (run["days"] * found[end] / expected for end in ("low", "high"))
    return f" ({sig(low)} to {sig(high)})"


def run_detail(run: Mapping[str, Any]) -> Page:
    """What the run's days and dollars are made of."""
    yield ""
    source = f"; price: {run['price_source']}" if run["usd"] is not None else ""
    yield wrapped(
        f"the run of {format_count(run['tokens'])} tokens: at {run['basis']}{source}", 0, 2
    )
    if "goodput" in run:
        yield wrapped(_lost_text(run["goodput"]), 2, 4)


def _idle_text(run: Mapping[str, Any]) -> str:
    return f" ({format_usd(run['usd_idle'])} of it for idle chips)" if run["usd_idle"] else ""


def _lost_text(good: Mapping[str, float]) -> str:
    """Where the time that does not train goes."""
    parts = [f"{name} {good[name]:.1%}" for name in ("straggler", "checkpoint", "failures")]
    every = f", a checkpoint every {format_seconds(good['interval'])}" if good["checkpoint"] else ""
    return f"trains {good['share']:.1%} of the time; lost to {', '.join(parts)}{every}"


def late_run(result: Mapping[str, Any]) -> Sequence[str]:
    """A line where a run misses its deadline."""
    run = result.get("run", {})
    if run.get("keeps_deadline", True):
        return []
    late = f"late: {sig(run['days'])} days, where --days allows {sig(run['deadline_days'])}"
    return [f"{late}; give more chips, or a bare chip (--on v5p) for as many as it takes"]
