"""How far predictions miss: quantiles of measured over predicted time, by chip generation and
software, and the 80 % range that they put around a prediction.

`data/train_residuals.toml` holds `q10` and `q90` of log(measured / predicted) per group
"generation/stack", with a fallback per generation class ("gpu", "tpu") and one over all rows. The
command that fits constants writes it (`write_residuals`); a prediction takes the most specific
group that has at least `MIN_ROWS` rows.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from shardwise.boundary import read_toml, write_text
from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Torus

DATA = Path(__file__).parent / "data" / "train_residuals.toml"
MIN_ROWS = 8
"""Rows below which a group's tenth and ninetieth percentile say nothing of their own."""
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """10 % and 90 % quantiles of log(measured / predicted) over `n` runs."""

    q10: float
    q90: float
    n: int

    def interval(self, seconds: float) -> tuple[float, float]:
        """The 80 % range around a prediction."""
        return seconds * math.exp(self.q10), seconds * math.exp(self.q90)


def groups_of(chip: Chip, stack: str) -> tuple[str, ...]:
    """The groups of a run, most specific first."""
    kind = "tpu" if isinstance(chip.network, Torus) else "gpu"
    own = (f"{chip.generation}/{stack}", chip.generation) if chip.generation else ()
    return *own, kind, ALL


def residuals(samples: Iterable[tuple[tuple[str, ...], float]]) -> dict[str, Residual]:
    """Quantiles per group of (groups, log(measured / predicted)); small groups are left out."""
    by_group: dict[str, list[float]] = defaultdict(list)
    for groups, log_ratio in samples:
        for group in groups:
            by_group[group].append(log_ratio)
    return {
        group: Residual(
            q10=float(np.quantile(logs, 0.1)), q90=float(np.quantile(logs, 0.9)), n=len(logs)
        )
        for group, logs in by_group.items()
        if len(logs) >= MIN_ROWS or group == ALL
    }


def residual_of(table: Mapping[str, Residual], groups: Iterable[str]) -> Residual | None:
    """The residual of the most specific group that the table has; None for an empty table."""
    return next((table[group] for group in groups if group in table), None)


@lru_cache(maxsize=8)
def read_residuals(path: Path = DATA) -> Mapping[str, Residual]:
    """The table in a file. Raises BadRequest for a file that holds none."""
    held = read_toml(path, "the table of residuals")
    try:
        return {name: Residual(**group) for name, group in held["groups"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"{path}: no table of residuals ({error})") from None


def write_residuals(path: Path, table: Mapping[str, Residual], source: str) -> None:
    """Write a table; `source` says of which runs and constants it is."""
    lines = [
        "# Quantiles of log(measured / predicted) seconds per training step, by chip generation",
        "# and software; `shardwise validate` reads them for the 80 % ranges.",
        f'source = "{source}"',
    ]
    for name in sorted(table):
        r = table[name]
        lines += ["", f'[groups."{name}"]', f"q10 = {r.q10:.4f}", f"q90 = {r.q90:.4f}"]
        lines.append(f"n = {r.n}")
    write_text(path, "\n".join(lines) + "\n")
    read_residuals.cache_clear()
