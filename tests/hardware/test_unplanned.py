"""Chips of which no slice can be planned are told in the list, and what would make it possible."""

import math
from dataclasses import replace

import pytest
from tests.every import over_every

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
    assert "cannot be planned: tpu8t; no source gives peak_flops.bf16 (dense peak)" in text
    assert "give it with --set chip.peak_flops.bf16=NUMBER" in text
    rows = sw.hw_list().result["chips"]
    assert {row["chip"] for row in rows if row["unplanned"]} == LACKING


def test_the_list_names_chips_without_a_public_price():
    text = " ".join(str(sw.hw_list()).split())
    without = [row["chip"] for row in sw.hw_list().result["chips"] if not row["usd_per_chip_hour"]]
    assert {"tpu7x", "trn2"} < {*without}
    assert f"no price: {', '.join(without)}; give one with --price CHIP=USD" in text


def test_a_plan_on_one_says_so_and_what_to_give():
    with pytest.raises(BadRequest, match=r"no peak for dtype 'bf16'.*sets=chip.peak_flops.bf16="):
        planned("tpu8t")
    assert "cannot be planned: no source gives peak_flops.bf16" in str(sw.hw_show("tpu8t"))
    whole = load_chip("tpu8t", set_=["chip.peak_flops.bf16=3e15"])
    assert whole.unplanned == ()


def test_a_number_that_every_plan_needs_is_asked_for():
    chip = replace(load_chip("v2"), device_link_oneway=None)
    assert chip.unplanned == ("device_link_oneway",)
    with pytest.raises(
        BadRequest, match="no slice of it can be planned without it; give it with --set"
    ):
        chip.require("device_link_oneway")


NEWER = ["v2", "v3", "v4i", "trn1", "trn2", "trn3", "tpu8i", "vr200", "mi455x", "h20-3e", "gb10"]


@pytest.mark.slow
@pytest.mark.parametrize("chip", NEWER)
def test_chips_plan(chip):
    assert planned(chip).best.plan.model == "qwen3-0.6b"


def test_every_other_chip_has_the_numbers_that_a_plan_needs():
    assert {chip for chip in chip_ids() if load_chip(chip).unplanned} == LACKING


def test_a_chip_that_is_not_planned_says_where_its_number_was_looked_for():
    for chip in LACKING:
        assert any("was looked for" in note for note in load_chip(chip).notes)


def _plan(chip, folder, memory, text):
    """A plan in a file on the least slice of so much memory, or on several of the greatest."""
    known, slices = load_chip(chip), slices_of(load_chip(chip))
    chips = math.ceil(memory / known.hbm_usable_bytes)
    on = next((one for one in slices if one.chips >= chips), slices[-1])
    on = replace(on, count=math.ceil(chips / on.chips))
    dtype = "bf16" if "bf16" in known.peak_flops else "f16"
    file = folder / f"{chip}.yaml"
    file.write_text(text.format(on=on, devices=on.devices, dtype=dtype))
    return sw.plan_show(str(file))


SERVED = """\
kind: serve
model: llama-3-8b
slice: "{on}"
mesh: {{tensor: {devices}}}
batch: 1
input_length: 512
output_length: 64
prefill_chunk: 512
dtypes: {{compute: {dtype}, activations: {dtype}, kv: {dtype}}}
"""

TRAINED = """\
model: llama-3-8b
slice: "{on}"
mesh: {{fsdp: {devices}}}
global_batch_sequences: {devices}
sequence_length: 512
remat: block
dtypes: {{compute: {dtype}}}
"""

PLANNED = sorted({*chip_ids()} - LACKING)


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


@pytest.mark.slow
def test_every_chip_serves_an_8b(folder):
    over_every(PLANNED)(lambda chip: _plan(chip, folder, 24e9, SERVED).tokens_per_second_per_chip)()


SMALL = {"v4i"}
"""Its greatest slice, 30 GiB, and no network between slices: it trains adapters alone."""


@pytest.mark.slow
def test_every_chip_trains_an_8b(folder):
    large = sorted({*PLANNED} - SMALL)
    over_every(large)(lambda chip: _plan(chip, folder, 400e9, TRAINED).step_seconds)()
    for chip in SMALL:
        assert sw.plan_train(
            "llama-3-8b", str(slices_of(load_chip(chip))[-1]), batch="64seq", seq=512, lora=16
        ).best
