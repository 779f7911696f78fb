"""Single numbers and the words of a command."""

import pytest

from shardwise.boundary import number, whole
from shardwise.boundary.arguments import check_arguments
from shardwise.errors import BadRequest, shown, unknown


@pytest.mark.parametrize(
    "value",
    ["nan", "inf", "-inf", "1e400", "9" * 5000, 10**5000, "", " ", "1,5", "0x10", "1_000", "²", "٣",
     True, None, [1], float("nan"), float("inf")],
    ids=lambda value: str(type(value)) if isinstance(value, int) else str(value)[:20],
)  # fmt: skip
def test_what_is_no_number(value):
    for read in (number, whole):
        with pytest.raises(BadRequest, match=r"^the rate is .{1,70}; it must be a ") as error:
            read(value, "the rate")
        assert len(str(error.value)) < 200


def test_a_number_lies_in_its_range():
    assert number(" 2.5e3 ", "it", least=0, most=1e4) == 2500
    assert whole("1e3", "it") == 1000
    for value, limits, said in (
        ("0", {"above": 0, "most": 5}, "it must be a number above 0 and at most 5"),
        ("-1", {"least": 0}, "it must be a number of at least 0"),
        (6, {"most": 5}, "it must be a number of at most 5"),
    ):
        with pytest.raises(BadRequest, match=said):
            number(value, "it", **limits)
    with pytest.raises(BadRequest, match=r"at most 9,007,199,254,740,992"):
        whole("1e30", "it")
    with pytest.raises(BadRequest, match="of at least 0 and at most 16,777,216"):
        whole(-3, "it", most=2**24)
    with pytest.raises(BadRequest, match=r"it is 2.5; it must be a whole number"):
        whole(2.5, "it")


def test_messages_quote_values_on_one_short_line():
    assert shown("a\x1b[31m\nb") == r"'a\x1b[31m\nb'"
    assert shown("x" * 5000) == f"'{'x' * 55}...'"
    assert shown(10**5000) == "a number of over 40 digits"
    assert shown([10**5000]) == "of type list"
    assert shown("a\udcff") == r"'a\udcff'"
    assert len(str(unknown("chip", "x" * 5000, ["v5e"]))) < 120


@pytest.mark.parametrize("word", ["a\udcff", "a\0b", "x" * 100_001])
def test_words_that_are_no_text(word):
    with pytest.raises(BadRequest, match=r"^the argument '"):
        check_arguments(["plan", word])
    check_arguments(["plan", "ü😀", "x" * 1000])
