"""Chips of which no slice can be planned are told in the list, and what would make it possible."""

from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.errors import BadRequest
from shardwise.hardware import chip_ids, load_chip, slices_of

LACKING = {"tpu8t"}
"""Google publishes its rate in fp4 alone."""


def planned(chip, **more):
    words = {"batch": "64seq", "seq": 512, "software": "any", **more}
    small = slices_of(load_chip(chip))[:3][-1]
    return sw.plan_train("qwen3-0.6b", str(small), **words)


def test_the_list_names_them_and_what_they_lack():
    text = " ".join(str(sw.hw_list()).split())
    assert "not planned: tpu8t, whose peak_flops.bf16 (dense peak) no source read gives" in text
    assert "with --set chip.peak_flops.bf16=NUMBER they are" in text
    rows = sw.hw_list().result["chips"]
    assert {row["chip"] for row in rows if row["unplanned"]} == LACKING


def test_a_plan_on_one_says_so_and_what_to_give():
    with pytest.raises(BadRequest, match=r"no peak for dtype 'bf16'.*sets=chip.peak_flops.bf16="):
        planned("tpu8t")
    assert "no slice is planned: no source read gives peak_flops.bf16" in str(sw.hw_show("tpu8t"))
    whole = load_chip("tpu8t", set_=["chip.peak_flops.bf16=3e15"])
    assert whole.unplanned == ()


def test_a_number_that_every_plan_needs_is_asked_for():
    chip = replace(load_chip("v2"), device_link_oneway=None)
    assert chip.unplanned == ("device_link_oneway",)
    with pytest.raises(BadRequest, match="no slice of it is planned without; give it with --set"):
        chip.require("device_link_oneway")


NEWER = ["v2", "v3", "v4i", "trn1", "trn2", "trn3", "tpu8i", "vr200", "mi455x", "h20-3e", "gb10"]


@pytest.mark.slow
@pytest.mark.parametrize("chip", NEWER)
def test_chips_plan(chip):
    assert planned(chip).best.plan.model == "qwen3-0.6b"


def test_every_other_chip_has_the_numbers_that_a_plan_needs():
    assert {chip for chip in chip_ids() if load_chip(chip).unplanned} == LACKING
