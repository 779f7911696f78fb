"""The 80 % range of a prediction: features multiply, what nobody has run widens, and says so."""

import math
from dataclasses import replace

import pytest

from shardwise.errors import BadRequest
from shardwise.roofline.residuals import Effect, Feature, RangeTable, read_residuals

KNOWN = Effect(wider=0.8, later=1.0, runs=90, groups=9)
LATE = Effect(wider=1.2, later=1.25, runs=40, groups=1)
TABLE = RangeTable(
    features={
        "chip": Feature(about="on this chip ({})", unseen=1.8, values={"h100": KNOWN}),
        "mlp": Feature(about="with a {} MLP", unseen=1.4, values={"dense": KNOWN, "routed": LATE}),
    },
    low=-0.1,
    high=0.2,
    runs=130,
    groups=10,
)


def test_features_multiply():
    found = TABLE.range_of({"chip": "h100", "mlp": "routed"})
    assert found.low == pytest.approx(-0.1 * 0.8 * 1.2 / 1.25)
    assert found.high == pytest.approx(0.2 * 0.8 * 1.2 * 1.25)
    assert found.why == ()
    assert found.interval(2.0) == pytest.approx((2 * math.exp(found.low), 2 * math.exp(found.high)))


def test_what_nobody_has_run_is_wider_and_says_so():
    found = TABLE.range_of({"chip": "mine", "mlp": "dense"})
    assert found.high == pytest.approx(0.2 * 1.8 * 0.8)
    assert found.why == ("no published run on this chip (mine) is known",)
    found = TABLE.range_of({"chip": "mine", "mlp": "routed"})
    assert found.why == (
        "no published run on this chip (mine) is known",
        "the 40 runs with a routed MLP are of one publisher",
    )


def test_the_prediction_is_always_inside():
    early = replace(TABLE, low=0.05)
    assert early.range_of({"chip": "h100", "mlp": "dense"}).low == 0.0


def test_a_file_that_is_none(tmp_path):
    path = tmp_path / "residuals.toml"
    path.write_text("features = 3\n")
    with pytest.raises(BadRequest, match="no table of residuals"):
        read_residuals(path)


def test_the_packaged_table_has_a_range_for_everything():
    table = read_residuals()
    strange = table.range_of(dict.fromkeys(table.features, "nobody's"))
    usual = {
        name: max(one.values, key=lambda value: one.values[value].runs)
        for name, one in table.features.items()
    }
    common = table.range_of(usual)
    assert strange.low < common.low < 0 < common.high < strange.high
    assert "no published run" in strange.why[0]
    assert common.why == ()
