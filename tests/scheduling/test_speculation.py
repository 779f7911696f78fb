"""Speculation: how many guesses are taken, and where n-grams find them."""

from random import Random

import pytest

from shardwise.errors import BadRequest
from shardwise.scheduling import Speculation
from shardwise.scheduling.speculation import PastTokens


@pytest.mark.parametrize(("acceptance", "expected"), [(0.0, 1.0), (0.8, 3.3616), (1.0, 5.0)])
def test_tokens_per_step_are_those_of_the_paper(acceptance, expected):
    guess = Speculation(tokens=4, acceptance=acceptance)
    assert guess.tokens_per_step == pytest.approx(expected)
    draw = Random(0)
    mean = 1 + sum(guess.accepted(draw) for _ in range(20_000)) / 20_000
    assert mean == pytest.approx(expected, rel=0.02)


def test_shares_by_position_are_those_of_the_steps():
    """vLLM counts in how many steps each guess held: 1 + 0.8 + 0.5 + 0.3 tokens a step."""
    found = Speculation(tokens=3, positions=(0.8, 0.5, 0.3, 0.2))
    assert found.tokens_per_step == pytest.approx(2.6)
    draw = Random(1)
    counts = [found.accepted(draw) for _ in range(20_000)]
    for place, share in enumerate((0.8, 0.5, 0.3), 1):
        assert sum(n >= place for n in counts) / len(counts) == pytest.approx(share, abs=0.01)
    for bad in ((0.5,), (0.5, 0.6, 0.1), (1.2, 0.5, 0.1)):
        with pytest.raises(BadRequest, match="give a share of the steps for each guess"):
            Speculation(tokens=3, positions=bad)


def test_n_grams_guess_what_followed_the_last_time():
    assert PastTokens([1, 2, 3, 9, 1, 2, 4, 9, 1, 2]).guess(3) == [4, 9, 1]
    assert PastTokens([1, 2, 3]).guess(3) == []
    assert PastTokens([7, 7, 7]).guess(2) == [7]
    assert PastTokens([1, 2, 5, 3, 1, 2, 6, 9, 5, 1, 2]).guess(1) == [6]
    assert PastTokens([4, 1, 2, 5, 3, 1, 2, 6, 4, 1, 2]).guess(1) == [5]  # three tokens first


def test_tokens_that_come_one_by_one_are_known_as_at_once():
    draw = Random(1)
    tokens = [draw.randrange(3) for _ in range(60)]
    past = PastTokens()
    for count, token in enumerate(tokens, 1):
        past.extend([token])
        assert past.guess(4) == PastTokens(tokens[:count]).guess(4)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tokens": 0}, "speculation of 0 tokens guesses nothing"),
        ({"acceptance": 1.2}, "acceptance is 1.2; it is a probability"),
        ({"cost": -1.0}, "cost of a guess is -1.0"),
        ({"cost": 0.1}, "guesses by n-grams run no model"),
    ],
)
def test_bad_choices_are_refused(changes, text):
    with pytest.raises(BadRequest) as error:
        Speculation(**{"tokens": 4, "acceptance": 0.5, **changes})
    assert text in str(error.value)
