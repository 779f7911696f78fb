"""Prices: defaults with date and source, overrides, bad spellings."""

import re
from dataclasses import replace
from datetime import date

import pytest
from tests.every import over_every

from shardwise.errors import BadRequest
from shardwise.hardware import catalogue, load_chip, parse_price
from shardwise.hardware.prices import (
    PriceRange,
    _listed,
    listed_price,
    only_provider,
    price_range,
    price_text,
)

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


def test_whose_price_it_is_is_no_word_of_its_source(tmp_path):
    own = 'id = "own"\nbase = "h100"\n[prices.price]\nusd_per_chip_hour = 3\nas_of = "2026-11-01"\n'
    own += 'source = "quoted by phone"\nkind = "on_demand"\nincludes_host = true\n'
    file = tmp_path / "own.toml"
    offers = []
    for columns in ("", 'provider = "acme"\nsku = "8x"\n', 'provider = "acme"\nregion = "us"\n'):
        file.write_text(own + columns)
        price = load_chip("own", hw_files=[file]).require_price()
        assert price.source.endswith("quoted by phone")
        offers.append((price.provider, price.offer, price.listed))
    assert offers == [
        ("you", "you", "you"),
        ("acme", "acme 8x", "acme 8x"),
        ("acme", "acme us", "acme us"),
    ]
    assert listed_price("a100", "azure").region == "eastus"


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
        "would have no effect; write --price h100=USD, or leave it out"
    )
    assert load_chip("h100-sxm", prices={"H100": 2.0}).require_price().usd_per_chip_hour == 2.0


def test_what_providers_ask_is_a_range_with_dates():
    found = price_range("h100")
    assert found is not None
    assert found.low.usd_per_chip_hour < found.high.usd_per_chip_hour
    assert found.providers >= 5
    assert f"({found.low.offer}, on demand, {found.low.as_of[:7]})" in str(found)
    assert found.low.offer.split()[0] == found.low.provider
    offers = {str(listed_price("h100", "runpod")), str(load_chip("h100").price)}
    assert len(offers) == 2  # two prices of one provider say which is which
    assert price_range("tpu7x") is None


def test_a_provider_and_the_spot_market_can_be_chosen():
    assert listed_price("h100", "lambda").provider == "lambda"
    cheapest = listed_price("h100", spot=True)
    assert cheapest.kind == "spot"
    assert cheapest.usd_per_chip_hour < listed_price("h100").usd_per_chip_hour
    with pytest.raises(BadRequest, match=r"unknown provider 'nobody'.*'h100' has no price"):
        listed_price("h100", "nobody")
    with pytest.raises(BadRequest, match="no spot price of 'h200'"):
        listed_price("h200", spot=True)


def test_a_price_of_more_than_half_a_year_ago_is_marked():
    price = listed_price("v5p")
    today = date(2026, 11, 23)
    assert not price.stale(today)
    assert replace(price, as_of="2024-12").stale(today)
    assert str(replace(price, as_of="2024-12-23")).endswith(", on demand, 2024-12: old)")
    assert not parse_price("v5p=3")[1].stale(today)


def test_every_listed_chip_is_in_the_catalogue():
    for chip in {name for name, _ in _listed()}:
        assert load_chip(chip).id == chip


def test_a_lone_provider_is_named():
    low = listed_price("v5e")
    one = PriceRange(low=low, high=low, providers=1)
    assert only_provider(low, one) == "the only provider"
    assert only_provider(replace(low, usd_per_chip_hour=9.0), one) == ""
    assert only_provider(low, PriceRange(low=low, high=low, providers=2)) == ""


@over_every(PRICED, lambda chip: chip.id)
def test_a_price_that_still_stands_has_the_date_at_which_it_was_last_seen(chip):
    """A list of today and a file of two years ago with one price do not call it old and new."""
    for name, row in _listed():
        if (name, row.provider, row.kind) == (chip.id, chip.price.provider, chip.price.kind):
            same = row.usd_per_chip_hour == chip.price.usd_per_chip_hour
            assert not same or row.as_of <= chip.price.as_of


def test_a_price_says_one_date():
    for name in ("v5e", "v5p"):
        said = price_text(name, load_chip(name).price)
        assert len(set(re.findall(r"20\d\d-\d\d", said))) == 1
        assert "old" not in said
