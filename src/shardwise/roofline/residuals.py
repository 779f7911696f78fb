"""The 80 % range around a predicted step time, from how far published runs were missed.

`data/train_residuals.toml` holds `q10` and `q90` of log(measured / predicted) per class of runs:
generation and stack, stack, vendor, all. Each run was predicted by constants that had not seen its
group. A prediction takes the most specific class that is there; classes of few runs are not.
`scripts/fit_efficiency.py` makes it, `evidence/training/residuals.py` says how.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from shardwise.boundary import read_toml
from shardwise.errors import BadRequest
from shardwise.hardware import Chip

DATA = Path(__file__).parent / "data" / "train_residuals.toml"
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """The range that holds 80 % of log(measured / predicted) of a class: of `n` runs of `groups`
    groups, each left out of the fit with its group."""

    q10: float
    q90: float
    n: int
    groups: int

    def interval(self, seconds: float) -> tuple[float, float]:
        """The 80 % range around a prediction."""
        return seconds * math.exp(self.q10), seconds * math.exp(self.q90)


def classes_of(chip: Chip, stack: str) -> tuple[str, ...]:
    """The classes of a run, most specific first.

    >>> from shardwise.hardware import load_chip
    >>> classes_of(load_chip("h200"), "xla")
    ('hopper/xla', 'xla', 'nvidia', 'all')
    """
    own = (f"{chip.generation}/{stack}",) if chip.generation else ()
    return *own, stack, chip.vendor, ALL


def class_of(table: Mapping[str, Residual], classes: Iterable[str]) -> str | None:
    """The most specific class that the table has; None for an empty table."""
    return next((name for name in classes if name in table), None)


@lru_cache(maxsize=8)
def read_residuals(path: Path = DATA) -> Mapping[str, Residual]:
    """The table in a file. Raises BadRequest for a file that holds none."""
    held = read_toml(path, "the table of residuals")
    try:
        return {name: Residual(**one) for name, one in held["classes"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"{path}: no table of residuals ({error})") from None
