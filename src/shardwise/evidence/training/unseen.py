"""What the fit said of published runs before it had seen them.

Constants are fitted on published runs, so that their error on those is in-sample, and ranges are
made of them. The fit therefore also predicts every group of runs by constants and ranges without
that group, and leaves here what came out: `data/left_out_runs.csv`, one line per published run. A
run is found by its facts (`fingerprint`), not by its name; a run that is not here is itself unseen.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardwise.boundary import read_table
from shardwise.errors import BadRequest
from shardwise.evidence.training.table import RunRow

DATA = Path(__file__).parent / "data" / "left_out_runs.csv"
FOR_PEOPLE = frozenset({"id", "source", "grade", "fitted", "citation", "converted_from", "notes"})
"""Columns that say nothing of the run itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenPrediction:
    """A published run, predicted without its group; seconds per step.

    `fitted` is the prediction of the constants as they are, `constant_mfu` that of one MFU per
    compute dtype of the other groups. `low` and `high` are the 80 % range of a table without the
    group, `why` says what makes it wide.
    """

    fingerprint: str
    predicted: float
    fitted: float
    constant_mfu: float
    low: float
    high: float
    why: str


def fingerprint(row: RunRow) -> str:
    """Twelve digits that stand for what was run and measured, whatever it is called."""
    facts = row.model_dump(mode="json", exclude=set(FOR_PEOPLE), exclude_defaults=True)
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def read_unseen(path: Path = DATA) -> Mapping[str, UnseenPrediction]:
    """The table in a file by fingerprint. Raises BadRequest for a file that holds none."""
    rows = read_table(path, "the table of left-out runs").rows
    try:
        return {row["fingerprint"]: _prediction(row) for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"{path}: no table of left-out runs ({error})") from None


def _prediction(row: Mapping[str, str]) -> UnseenPrediction:
    return UnseenPrediction(
        fingerprint=row["fingerprint"],
        predicted=float(row["predicted"]),
        fitted=float(row["fitted"]),
        constant_mfu=float(row["constant_mfu"]),
        low=float(row["low"]),
        high=float(row["high"]),
        why=row["why"],
    )
