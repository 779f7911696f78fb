"""A benchmark's requests simulated beside what was measured of them, for `simulate --replay`."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwise.commands.base.answer import Row, TextTable
from shardwise.commands.plan_serve.loaded import Simulated
from shardwise.errors import Remark
from shardwise.planner.simulate.metrics import REQUEST_COLUMNS, request_rows
from shardwise.planner.simulate.replays import Replay
from shardwise.results.simulated import ReplayedTime
from shardwise.units import format_seconds, many

TIMES = ("ttft", "tpot", "e2el")


def beside(found: Simulated, replay: Replay) -> Simulated:
    """The run with its times held against those of the benchmark."""
    rows = replay_rows(found, replay)
    times = [one for name in TIMES if (one := _held(name, rows)) is not None]
    said = [*found.warnings]
    if replay.failed:
        said.append(f"{many(replay.failed, 'request')} of the benchmark failed and are left out")
    if replay.drawn:
        said.append(
            Remark(
                "the file has no start times of requests: arrivals are random at its rate, so "
                "compare medians and not single requests; vLLM's --save-detailed has the times"
            )
        )
    return replace(found, result=replace(found.result, replayed=times), warnings=said)


def replay_rows(found: Simulated, replay: Replay) -> list[Row]:
    """A row for each request: simulated, measured, and simulated over measured less one."""
    made: list[Row] = []
    for values in request_rows(found.outcome):
        more: dict[str, float | None] = {}
        for name in TIMES:
            was = float(getattr(replay, name)[values[0]])
            now, known = values[REQUEST_COLUMNS.index(f"{name}_seconds")], not np.isnan(was)
            more[f"measured_{name}_seconds"] = was if known else None
            more[f"{name}_error"] = now / was - 1 if known and now is not None and was else None
        made.append({**dict(zip(REQUEST_COLUMNS, values, strict=True)), **more})
    return made


def _held(name: str, rows: Sequence[Row]) -> ReplayedTime | None:
    """One of the times over all requests; None where none has it."""
    told = [row for row in rows if row[f"{name}_error"] is not None]
    if not told:
        return None
    was = np.array([row[f"measured_{name}_seconds"] for row in told])
    now = np.array([row[f"{name}_seconds"] for row in told])
    error = np.array([row[f"{name}_error"] for row in told])
    return ReplayedTime(
        name=name,
        requests=len(told),
        measured_median_seconds=float(np.median(was)),
        simulated_median_seconds=float(np.median(now)),
        measured_p90_seconds=float(np.percentile(was, 90)),
        simulated_p90_seconds=float(np.percentile(now, 90)),
        median_error=float(np.median(np.abs(error))),
        p90_error=float(np.percentile(np.abs(error), 90)),
        too_high=float(np.mean(error > 0)),
    )


def replay_table(times: Sequence[ReplayedTime]) -> TextTable:
    """Measured beside simulated."""
    header = ["replayed", "measured", "simulated", "p90 meas.", "p90 sim.", "error", "p90 error"]
    header += ["too high"]
    rows = [
        [
            one.name.upper(),
            format_seconds(one.measured_median_seconds),
            format_seconds(one.simulated_median_seconds),
            format_seconds(one.measured_p90_seconds),
            format_seconds(one.simulated_p90_seconds),
            f"{one.median_error:.0%}",
            f"{one.p90_error:.0%}",
            f"{one.too_high:.0%}",
        ]
        for one in times
    ]
    title = "Each request beside what was measured; the error is its |simulated / measured - 1|"
    return TextTable(header, rows, title)
