"""The closed rules, with numbers computed by hand from the book's pages."""

import numpy as np
import pytest

from shardwise.book.rules.gpu import expert_d_ff, few_groups_limit
from shardwise.book.rules.training import (
    book_mesh,
    data_limit,
    min_chips,
    mixed_limit,
    rescaled,
    tensor_limit,
    training_seconds,
    utilisation,
    x_balanced,
    x_opt,
)
from shardwise.errors import BadRequest

ALPHA = 2550
LLAMA = {"batch_tokens": 4.19e6, "d_ff": 28672, "chips": 8960, "alpha": ALPHA}


def test_limits_of_the_book():
    assert data_limit(ALPHA, 3) == 850
    assert tensor_limit(ALPHA, 30000) == pytest.approx(11.7647, rel=1e-5)
    assert mixed_limit(ALPHA, 32768, combine="max") == pytest.approx(99.22027587890625)
    assert mixed_limit(ALPHA, 32768, combine="sum") == pytest.approx(396.881103515625)


def test_both_editions_choose_2048_by_4():
    latest = book_mesh(**LLAMA, edition="latest")
    first = book_mesh(**LLAMA, edition="first")
    assert round(latest.x) == 1618
    assert round(first.x) == 1928
    assert (latest.fsdp, latest.tensor, latest.chips) == (2048, 4, 8192)
    assert (first.fsdp, first.tensor) == (2048, 4)


def test_smaller_examples_of_chapter_5():
    small = book_mesh(batch_tokens=48000, d_ff=32768, chips=64, alpha=ALPHA)
    assert small.x == pytest.approx(13.693063937629153)
    assert (small.fsdp, small.tensor) == (16, 4)
    llama2 = book_mesh(batch_tokens=3e6, d_ff=13824, chips=4096, alpha=ALPHA)
    assert llama2.x == pytest.approx(4000 / 3)
    assert (llama2.fsdp, llama2.tensor) == (1024, 4)


def test_x_opt_minimises_the_summed_communication():
    B, F, N = 4.19e6, 28672, 8960

    def comms(x):
        return F * x / (N * 2) + B / x

    best = x_opt(B, F, N)
    assert comms(best) < min(comms(best * 1.01), comms(best / 1.01))


def test_x_balanced_is_where_communication_equals_math():
    B, F, N = 4.19e6, 28672, 8960
    x = x_balanced(B, F, N, ALPHA)
    assert F * x / (N * 2) + B / x == pytest.approx(B * F / (N * ALPHA))


def test_x_balanced_exists_down_to_the_summed_limit():
    F, N = 28672, 8960
    limit = mixed_limit(ALPHA, F, combine="sum") * N
    found = x_balanced(np.array([limit * 0.999, limit * 1.001]), F, N, ALPHA)
    assert np.isnan(found[0])
    assert not np.isnan(found[1])


def test_below_the_limit_the_error_says_how_many_tokens_it_takes():
    request = {**LLAMA, "batch_tokens": 2e6, "edition": "first"}
    with pytest.raises(BadRequest, match=r"2,000,000 tokens on 8960 chips .* 454 tokens per chip"):
        book_mesh(**request)
    assert book_mesh(**{**request, "edition": "latest"}).fsdp == 1024


def test_a_mesh_never_uses_more_chips_than_there_are():
    huge = book_mesh(batch_tokens=1e9, d_ff=1024, chips=100, alpha=ALPHA)
    assert (huge.fsdp, huge.tensor) == (64, 1)


def test_rules_broadcast():
    batch = np.array([1e6, 4e6])
    assert x_opt(batch, 28672, 8960).shape == (2,)
    assert training_seconds(1e20, np.array([1, 10]), 1e15)[1] == pytest.approx(1e4)
    assert list(min_chips(np.array([96e9, 97e9]), 96e9)) == [1, 2]


def test_time_and_utilisation_are_inverse():
    seconds = training_seconds(6.3e24, 8960, 4.59e14, 0.4)
    assert seconds / 86400 == pytest.approx(44.3247322076979)
    assert utilisation(6.3e24, seconds * 8960, 4.59e14) == pytest.approx(0.4)
    assert rescaled(seconds, 8960, 4480) == pytest.approx(2 * seconds)


def test_thresholds_without_end():
    """Towards infinitely many experts F goes to d alpha, towards many groups data to alpha."""
    with np.errstate(all="raise"):
        assert expert_d_ff(2475, 8, np.inf, 8) == 8 * 2475
        assert few_groups_limit(2475, np.inf) == 2475
        degrees = np.array([8, 16, 64, 1e9, np.inf])
        assert expert_d_ff(2475, 8, degrees, 8) == pytest.approx(
            [0, 2475, 2475 * 7, 8 * 2475, 8 * 2475]
        )
