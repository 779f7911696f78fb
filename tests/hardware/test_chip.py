"""Chip: peaks by dtype, what is required, what is refused."""

import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import load_chip
from shardwise.hardware.chip import field_of


def test_v100_has_f16_and_no_bf16():
    chip = load_chip("v100")
    assert chip.peak("f16") == 1.25e14
    with pytest.raises(BadRequest) as error:
        chip.peak("bf16")
    assert str(error.value) == (
        "chip 'v100' has no peak for dtype 'bf16' in the catalogue; it has f32, f16: compute in "
        "one of those, or give the rate with --set chip.peak_flops.bf16=NUMBER"
    )


def test_block_formats_run_at_the_rate_of_their_elements():
    chip = load_chip("b200")
    assert chip.peak("nvfp4") == chip.peak("mxfp4") == chip.peak("fp4") == 9e15
    assert chip.peak("mxfp8") == chip.peak("fp8")


@pytest.mark.parametrize("dtype", ["mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("name", ["h100", "a100", "mi300x", "v5p"])
def test_block_formats_need_units_that_scale_blocks(name, dtype):
    """Below Blackwell and CDNA 4 there are none; a rate that a user gives stands."""
    with pytest.raises(BadRequest) as error:
        load_chip(name).peak(dtype)
    said = str(error.value)
    assert f"chip '{name}' does not compute in '{dtype}'" in said
    assert "scale blocks" in said
    assert "compute in " in said
    assert f"--set chip.peak_flops.{dtype}=NUMBER" in said
    given = load_chip(name, set_=[f"peak_flops.{dtype}=1e15"])
    assert given.peak(dtype) == 1e15


def test_fp8_is_not_twice_bf16_everywhere():
    assert load_chip("v6e").peak("fp8") == load_chip("v6e").peak("bf16")
    assert load_chip("tpu7x").peak("fp8") == 2 * load_chip("tpu7x").peak("bf16")


def test_a_number_the_catalogue_lacks_names_the_remedy():
    with pytest.raises(BadRequest) as error:
        load_chip("v2").require("host_link_oneway")
    assert str(error.value) == (
        "chip 'v2' has no 'host_link_oneway' (host to chip, one-way) in the catalogue and the "
        "answer needs it; give it with --set chip.host_link_oneway=NUMBER or --hw FILE"
    )


def test_no_price_no_dollars():
    with pytest.raises(BadRequest, match="--price trn2=USD"):
        load_chip("trn2").require_price()
    assert load_chip("trn2", prices={"TRN2": 3.0}).require_price().usd_per_chip_hour == 3.0


@pytest.mark.parametrize("name", ["v5p", "h100", "mi300x", "l4"])
def test_every_number_says_what_it_is(name):
    for path in load_chip(name).numbers():
        assert field_of(path).about


def test_usable_memory_is_the_compilers():
    assert load_chip("v5e").hbm_usable_bytes == 15.75 * 2**30
    assert load_chip("v5p").hbm_usable_bytes == round(95.74 * 2**30)
    assert load_chip("v5e", constants="book").hbm_usable_bytes == 16e9


def test_fp8_kernels_reach_less_of_their_peak():
    rates = load_chip("h100").efficiency
    assert rates.matmul_rate("fp8") == rates.matmul_rate("mxfp8") < rates.matmul_rate("bf16")
    assert load_chip("h100", constants="book").efficiency.matmul_rate("fp8") == 1.0
    assert load_chip("v5e").efficiency.matmul_rate("int8") == load_chip("v5e").efficiency.matmul
