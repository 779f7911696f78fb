"""Numbers are read and printed the way the design says, and nothing else is accepted."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from shardwise.errors import BadRequest
from shardwise.units import (
    DAY,
    DTYPE_BYTES,
    YEAR,
    dtype_bytes,
    format_bytes,
    format_count,
    format_flops,
    format_gib,
    format_rate,
    format_seconds,
    format_usd,
    many,
    parse_bytes,
    parse_count,
    parse_seconds,
    sig,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1024", 1024),
        ("4Mi", 4 * 2**20),
        ("4mi", 4 * 2**20),
        ("16Ki", 2**14),
        ("1Gi", 2**30),
        ("1Ti", 2**40),
        ("15T", 15e12),
        ("70B", 70e9),
        ("70e9", 70e9),
        ("2.5k", 2500),
        ("1M", 1e6),
        ("1,000,000", 1e6),
        ("1,000.5", 1000.5),
        ("1_000", 1000),
        (" 4 Mi ", 4 * 2**20),
        (".5k", 500),
        ("+3", 3),
    ],
)
def test_counts(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "four",
        "4X",
        "4Mib",
        "4 4",
        "1e",
        "0x10",
        "nan",
        "inf",
        "-inf",
        "4..5",
        "1e5e5",
        "²",
        "1,5",
        "1,0000",
        "٣",
    ],
)
def test_what_is_no_count(text):
    with pytest.raises(BadRequest) as refused:
        parse_count(text, "--batch")
    assert f"--batch '{text}' is not a number such as 1024, 4Mi, 16e6 or 15T" in str(refused.value)


@pytest.mark.parametrize("text", ["0", "-4", "-4Mi", "1e400", "1e-400", "-0", "1e308k"])
def test_counts_are_positive_and_finite(text):
    with pytest.raises(BadRequest, match="must be positive and finite"):
        parse_count(text)


def test_a_size_says_which_unit():
    assert parse_bytes("16GB") == 16e9
    assert parse_bytes("15.75GiB") == 15.75 * 2**30
    assert parse_bytes("512B") == 512
    assert parse_bytes("1TB") == 1e12
    for text in ("16", "16G", "16Gi", "16 gigabytes"):
        with pytest.raises(BadRequest, match=r"16GB or 15\.75GiB"):
            parse_bytes(text)


def test_durations():
    assert parse_seconds("15ms") == 0.015
    assert parse_seconds("2h") == 7200
    assert parse_seconds("3us") == parse_seconds("3µs") == pytest.approx(3e-6)
    with pytest.raises(BadRequest, match="ns, us, ms, s, min, h, d or y"):
        parse_seconds("15")


@given(st.integers(1, 10**15))
def test_a_whole_number_is_read_exactly(n):
    assert parse_count(str(n)) == n
    if f"{n:,}".count(",") == 1:  # 1,500 may be one and a half
        with pytest.raises(BadRequest, match="one comma may stand for a decimal point or"):
            parse_count(f"{n:,}")
    else:
        assert parse_count(f"{n:,}") == n


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_count, "1e31"), (parse_bytes, "1e30GB"), (parse_seconds, "1e300s")],
)
def test_a_number_beyond_sense_is_refused_with_the_range(parse, text):
    with pytest.raises(BadRequest, match=r"numbers from .* to .* make sense"):
        parse(text)


@given(st.floats(1e-9, 1e24))
def test_three_digits_keep_three_digits(x):
    assert float(sig(x).replace(",", "")) == pytest.approx(x, rel=0.0051)
    assert "e" not in sig(x)


@given(st.floats(1e-9, 1e12))
def test_every_duration_prints_with_its_unit(x):
    number, unit = format_seconds(x).split()
    scale = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    scale |= {"days": DAY, "years": YEAR}
    assert float(number.replace(",", "")) * scale[unit] == pytest.approx(x, rel=0.0051)


def test_printing():
    assert sig(0) == "0"
    assert sig(math.inf) == "inf"
    assert sig(-1234) == "-1,234"
    assert format_seconds(0) == "0 s"
    assert format_seconds(44.3 * DAY) == "44.3 days"
    assert format_seconds(3 * YEAR) == "3 years"
    assert format_count(512) == "512"
    assert format_count(4194304) == "4.19M"
    assert format_count(0.5) == "0.5"
    assert format_bytes(16.9e9) == "16.9 GB"
    assert format_gib(2**30) == "1 GiB (1.07 GB)"
    assert format_flops(6.3e24) == "6.3e24 FLOPs"
    assert format_flops(6.3e12) == "6.3 TFLOPs"
    assert format_rate(459e12, "FLOP/s") == "459 TFLOP/s"
    assert format_usd(0.4321) == "$0.432"
    assert format_usd(12345) == "$12.3k"
    assert format_usd(9876) == "$9,876"
    assert [format_usd(v) for v in (4.2, 31.92, 12)] == ["$4.20", "$31.92", "$12"]
    assert format_usd(40e6) == "$40M"


def test_dtypes():
    assert dtype_bytes("bf16") == 2
    assert dtype_bytes("int4") == 0.5
    assert DTYPE_BYTES["nvfp4"] == 0.5 + 1 / 16
    with pytest.raises(BadRequest, match="unknown dtype 'bf61'; did you mean 'bf16'"):
        dtype_bytes("bf61")


def test_a_year_has_365_days():
    assert YEAR == 365 * 86400


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (7.77e-16, "under 1 ns"), (9.99e-10, "under 1 ns"), (1e-9, "1 ns")],
)
def test_no_duration_below_a_nanosecond_is_spelt_out(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-6, "0.000001"), (7.77e-13, "7.77e-13"), (-1e-12, "-1e-12"), (4.5e-320, "4.5e-320")],
)
def test_tiny_numbers_have_an_exponent(value, text):
    assert sig(value) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 chips"), (1, "1 chip"), (2, "2 chips"), (4824, "4,824 chips")]
)
def test_things_are_counted_in_the_right_number(number, text):
    assert many(number, "chip") == text
