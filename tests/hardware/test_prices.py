"""Prices: defaults with date and source, overrides, bad spellings."""

import re

import pytest
from tests.every import over_every

from shardwise.errors import BadRequest
from shardwise.hardware import catalogue, load_chip, parse_price

PRICED = [chip for chip in catalogue() if chip.price is not None]


@over_every(PRICED, lambda chip: chip.id)
def test_a_price_has_a_date_and_a_source(chip):
    for price in (chip.price, chip.price_low, chip.price_high):
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", price.as_of)
        assert len(price.source) > 10
        assert price.kind == "on_demand"
    low, high = chip.price_low.usd_per_chip_hour, chip.price_high.usd_per_chip_hour
    assert low <= chip.price.usd_per_chip_hour <= high


def test_the_price_is_per_chip_not_per_core():
    assert load_chip("v5p").require_price().usd_per_chip_hour == 4.2
    assert load_chip("v5e").require_price().usd_per_chip_hour == 1.2


def test_an_override():
    name, price = parse_price("v5p=3.5")
    chip = load_chip("v5p", prices={name: price.usd_per_chip_hour})
    assert chip.price == price


@pytest.mark.parametrize("text", ["v5p", "=3", "v5p=", "v5p=x", "v5p=-1", "v5p=0", "v5p=inf"])
def test_bad_prices(text):
    with pytest.raises(BadRequest, match="pric"):
        parse_price(text)


def test_a_price_for_an_unknown_chip():
    with pytest.raises(BadRequest, match="unknown chip 'v5q'"):
        load_chip("v5p", prices={"v5q": 2.0})


def test_a_price_for_another_chip_is_refused_with_both_names():
    with pytest.raises(BadRequest) as raised:
        load_chip("h100", prices={"v5litepod": 2.0})
    assert str(raised.value) == (
        "--price v5litepod=2 is for chip 'v5litepod' (v5e), but the chip here is 'h100', so it "
        "would change nothing; write --price h100=USD, or leave it out"
    )
    assert load_chip("h100-sxm", prices={"H100": 2.0}).require_price().usd_per_chip_hour == 2.0
