"""Chips of which no slice can be planned are told in the list, and what would make it possible."""

import pytest
from tests.tiers import spread

import shardwise as sw
from shardwise.errors import BadRequest
from shardwise.hardware import chip_ids, load_chip, slices_of

LACKING = {"v2", "v3", "v4i", "trn1", "trn2"}


def planned(chip, **more):
    peaks = load_chip(chip).peak_flops
    dtype = next(d for d in ("bf16", "f16", "f32", *peaks) if d in peaks)
    words = {"batch": "8seq", "seq": 512, "dtype": dtype, "software": "any", **more}
    return sw.plan_train("qwen3-0.6b", str(slices_of(load_chip(chip))[0]), **words)


def test_the_list_names_them_and_what_they_lack():
    text = " ".join(str(sw.hw_list()).split())
    assert "not planned: v2, v3, trn1, trn2, whose device_link_oneway" in text
    assert "not planned: v4i, whose hbm_usable_bytes" in text
    rows = sw.hw_list().result["chips"]
    assert {row["chip"] for row in rows if row["unplanned"]} == LACKING


@pytest.mark.parametrize("chip", spread(sorted(LACKING), quick=[2], slow=4))
def test_a_plan_on_one_says_so_and_what_to_give(chip):
    (name,) = load_chip(chip).unplanned
    with pytest.raises(BadRequest, match="no slice of it is planned without; give it with sets="):
        planned(chip)
    assert "no slice is planned: no source read gives" in str(sw.hw_show(chip))
    number = {"hbm_usable_bytes": "30GB", "device_link_oneway": "1e11"}[name]
    assert planned(chip, sets={f"chip.{name}": number}).best.plan.model == "qwen3-0.6b"


def test_every_other_chip_has_the_numbers_that_a_plan_needs():
    assert {chip for chip in chip_ids() if load_chip(chip).unplanned} == LACKING
