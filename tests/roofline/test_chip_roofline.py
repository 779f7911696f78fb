"""Critical intensities of chips: by dtype, by memory level, matmul and vector units."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.errors import BadRequest
from shardwise.hardware.catalogue import load_chip
from shardwise.roofline import ElementBytes, matmul_roofline
from shardwise.roofline.chip_roofline import (
    attainable_flops,
    chip_critical_intensity,
    elementwise_times,
    level_bandwidth,
    level_latency,
    vector_critical_intensity,
)

OWN = ("hbm_bandwidth=8e11", "sram_bandwidth=1.6e13", "peak_flops.bf16=2e14", "vector_flops=4e12")
BF16 = ElementBytes.of(left="bf16", right="bf16", result="bf16")


@pytest.fixture(scope="module")
def chip():
    return load_chip("v5e", set_=OWN)


def test_critical_intensity_by_level(chip):
    assert chip_critical_intensity(chip, dtype="bf16") == 250
    assert chip_critical_intensity(chip, dtype="bf16", level="sram") == 12.5
    assert vector_critical_intensity(chip) == 5


def test_critical_intensity_by_dtype(chip):
    ratio = chip.peak("int8") / chip.peak("bf16")
    int8, bf16 = (chip_critical_intensity(chip, dtype=d) for d in ("int8", "bf16"))
    assert int8 == pytest.approx(ratio * bf16)


def test_an_unknown_level_is_refused(chip):
    with pytest.raises(BadRequest, match="unknown memory level 'disk'; known: hbm, l2, sram, host"):
        level_bandwidth(chip, "disk")


def test_levels_have_the_names_that_people_use(chip):
    assert level_bandwidth(chip, "vmem") == level_bandwidth(chip, "sram")
    assert level_bandwidth(chip, "pcie") == level_bandwidth(chip, "host")
    assert level_bandwidth(load_chip("h100"), "nvlink") == 4.5e11
    assert level_bandwidth(load_chip("v5e"), "ici") == load_chip("v5e").network.link_oneway
    assert level_latency(chip, "hbm") == 0 < level_latency(chip, "dcn")
    with pytest.raises(BadRequest, match="chip 'cpu' has no chip link in the catalogue"):
        level_bandwidth(load_chip("cpu"), "link")


def test_the_roof_is_flat_above_the_critical_intensity():
    rates = attainable_flops(np.array([1.0, 125.0, 250.0, 1000.0]), 2e14, 8e11)
    assert np.array_equal(rates, [8e11, 1e14, 2e14, 2e14])


@pytest.mark.parametrize("m", [1, 100, 250, 4096])
def test_bounds_of_a_matmul_are_in_order(chip, m):
    roof = matmul_roofline(m, 4096, 4096, chip=chip, dtype="bf16", elements=BF16)
    assert roof.lower <= roof.expected <= roof.upper
    assert roof.padded_flops >= roof.flops
    assert roof.attainable_flops == pytest.approx(roof.flops / roof.lower)
    assert (roof.at_peak.bound == "math") == (m >= roof.first_batch_at_peak)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("v5e", 8 * 128 * 4 * 1.5e9),
        ("v5p", 2 * 8 * 128 * 4 * 1.75e9),
        ("h100", 33.5e12),  # half of a peak that counts a multiply-add as two
    ],
)
def test_elementwise_work_keeps_an_alu_for_a_cycle(name, rate):
    chip = load_chip(name)
    found = elementwise_times(2**30, chip, 3)
    assert found.math_seconds == pytest.approx(2**30 / rate)
    without = vector_critical_intensity(chip, fma=False)
    assert without == pytest.approx(rate / chip.require("hbm_bandwidth"))


def test_a_vector_peak_says_what_it_counts():
    """A chip whose file gives a peak alone is refused with the field that is missing."""
    chip = replace(load_chip("v5e"), flops_per_alu=None)
    with pytest.raises(BadRequest, match="has no 'flops_per_alu'"):
        elementwise_times(2**30, chip, 3)
