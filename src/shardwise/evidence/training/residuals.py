"""How far predictions miss: quantiles of measured over predicted time, by chip generation and
software.

`scripts/fit_efficiency.py` writes them to `roofline/data/train_residuals.toml`, where a prediction
finds its 80 % range (`roofline/residuals.py`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from shardwise.boundary import write_text
from shardwise.roofline.residuals import ALL, Residual, read_residuals

MIN_ROWS = 8
"""Rows below which a group's tenth and ninetieth percentile say nothing of their own."""


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
