"""The 80 % range around a predicted step time, from how far published runs were missed.

`data/train_residuals.toml` holds `q10` and `q90` of log(measured / predicted) per group
"generation/stack", with a fallback per generation class ("gpu", "tpu") and one over all rows; a
prediction takes the most specific group that is there. `evidence/training/residuals.py` makes it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from shardwise.boundary import read_toml
from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Torus

DATA = Path(__file__).parent / "data" / "train_residuals.toml"
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
