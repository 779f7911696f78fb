"""The table of what predictions cannot tell: it is what the committed evidence says."""

import json
import math
import sys
from pathlib import Path

import pytest

from shardwise.errors import BadRequest
from shardwise.evidence.training.runs import read_runs
from shardwise.evidence.training.table import PUBLISHED, read_table
from shardwise.evidence.training.unseen import read_unseen
from shardwise.roofline.resolution import ALL, LEAST, read_resolution

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from fit.resolution import (
    SeenPlan,
    compiled_looks,
    margins,
    published_looks,
    told_apart,
)

DOCS = Path(__file__).parents[3] / "docs" / "lab"


def look(plan: int, predicted: float, measured: float, peak: float = 1.0, **changes) -> SeenPlan:
    """A run of one job that takes a second or so, and holds `peak` of what was measured."""
    facts = {"kind": "s/v", "group": "g", "job": "j", "public": True, "memory": (peak, 1.0)}
    return SeenPlan(plan=plan, seconds=(predicted, measured), **(facts | changes))


def test_the_table_is_that_of_the_committed_runs():
    runs, _ = read_runs(read_table(PUBLISHED).rows, PUBLISHED.parent)
    looks = published_looks(runs, read_unseen())
    for name in ("compiled.json", "compiled_drawn.json"):
        looks += compiled_looks(json.loads((DOCS / name).read_text())["rows"])
    table = read_resolution()
    for found, kept in ((margins(looks), table.margins), (told_apart(looks), table.apart)):
        assert set(found) == set(kept)
        for name, figure in found.items():
            assert figure.value == pytest.approx(kept[name].value, abs=1e-4)
            assert (figure.count, figure.groups) == (kept[name].count, kept[name].groups)


def test_a_margin_is_what_19_of_20_runs_would_have_left_free():
    looks = [look(i, 1, 1, 1 - i / 100) for i in range(41)]
    assert margins(looks)["s/v"].value == pytest.approx(0.38)
    over = [look(i, 1, 1, 1.2) for i in range(41)]
    assert margins(over)[ALL].value == 0.0


def test_pairs_of_one_job_say_what_predictions_tell_apart():
    looks = [look(0, 1.0, 1.0), look(1, 1.0, 1.1), look(2, 2.0, 1.0), look(1, 1.0, 3.0)]
    looks.append(look(5, 1.0, 9.0, job="another"))
    found = told_apart(looks)[ALL]
    assert found.count == 2 + 0  # plan 2 is predicted too far from the others; 1 is no other than 1
    assert math.isclose(found.value, math.sqrt(1.1 * 3.0) - 1)


def test_a_class_of_few_runs_takes_what_all_say():
    few = [look(i, 1, 1, 0.9) for i in range(LEAST - 1)]
    assert set(margins(few)) == {ALL}
    table = read_resolution()
    assert table.margin("nothing", "nobody") == table.margins[ALL]
    assert table.told_apart("megatron", "nvidia") == table.apart["megatron/nvidia"]


def test_a_class_of_few_runs_takes_what_its_vendor_says_where_that_is_enough():
    several = [look(i, 1, 1, 0.9, kind=f"{i % 2}/v", public=False) for i in range(LEAST)]
    assert set(margins([*several, look(99, 1, 1, 0.5)])) == {ALL, "v"}
    table = read_resolution()
    assert table.margin("nothing", "google") == table.margins["google"]
    assert table.margins["google"].value < table.margins[ALL].value


def test_a_file_that_holds_no_table_is_told(tmp_path):
    path = tmp_path / "table.toml"
    path.write_text("source = 'here'\n")
    with pytest.raises(BadRequest, match="no table of what predictions can tell"):
        read_resolution(path)
