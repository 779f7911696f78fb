"""Where the time goes, of every golden plan: the parts add up to its step, or its decode step.

Of some searches of today `test_golden.py` says so, which makes them.
"""

import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import golden  # noqa: E402

DOC = golden.read(Path(__file__).with_name("answers.json.gz"))
PRICED = ("show", "serve show", "serve", "train", "train against")


def steps(said):
    """Of each priced plan in an answer its step, or its decode step, and the parts of it."""
    for result in (said.get("result", {}), said.get("result", {}).get("against", {})):
        if "where_it_goes" in result:
            names = ("step_seconds", "decode_step_seconds", "tpot_seconds")
            step = next(result[name] for name in names if name in result)
            seconds = step["expected"] if isinstance(step, dict) else step
            yield seconds, result["where_it_goes"]


def check(pairs):
    """That the parts of these answers add up, and how many there were."""
    count = 0
    for row, said in pairs:
        for seconds, parts in steps(said):
            count += 1
            assert math.isclose(math.fsum(parts.values()), seconds, rel_tol=1e-9), row["words"]
            assert min(parts.values()) >= 0, row["words"]
    return count


def test_parts_add_up_in_every_golden_answer():
    """As it is written down; that answers are those of today, `test_golden.py` says."""
    assert check((row, row["said"]) for row in DOC["rows"] if row["kind"] in PRICED) >= 400


@pytest.mark.slow
def test_parts_add_up_in_some_answers_of_today():
    rows = [row for row in DOC["rows"] if row["kind"] in ("show", "serve show")][::10]
    assert check((row, golden.answer(row, DOC["plans"])[0]) for row in rows) >= 25
