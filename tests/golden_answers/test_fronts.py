"""Every front of every golden answer of `plan serve` is one: the answer is on it, no point is
beaten by another in both time and cost, and none is over a target."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import golden

DOC = golden.read(Path(__file__).parent / "answers.json.gz")
ANSWERS = [
    row for row in DOC["rows"] if row["words"][:2] == ["plan", "serve"] and not row["said"]["code"]
]


def cost(point):
    """Dollars per million tokens, or chips for the rate where there is no price."""
    usd = point["usd_per_million_tokens"]
    return point["chips"] / point["requests_per_second"] if usd is None else usd


@pytest.mark.parametrize("row", ANSWERS, ids=lambda row: " ".join(row["words"][3:8:2]))
def test_a_front_has_no_dominated_point_and_none_over_target(row):
    result = json.loads(json.dumps(row["said"]["result"]))
    points, targets = result["front"], result["targets"]
    assert points[-1]["chips"] == result["chips"]
    assert cost(points[-1]) == pytest.approx(min(map(cost, points)))
    for one in points:
        for other in points:
            faster = other["tpot_seconds"] < one["tpot_seconds"]
            assert not (faster and cost(other) < cost(one))
    for name in ("ttft", "tpot"):
        if targets[name] is not None and result["holds"]:
            assert max(p[f"{name}_seconds"] for p in points) <= targets[name]


def test_there_are_many():
    assert len(ANSWERS) >= 30
    assert sum(len(row["said"]["result"]["front"]) > 2 for row in ANSWERS) >= 10
