"""Sampling in a step: distributions by chi-square, filters and penalties by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare
from tests.tiers import spread

from shardwise.runtime.engine import Generation, Sampling
from shardwise.runtime.engine.row_settings import choices_of, settings_of
from shardwise.runtime.engine.sampling import EVERY, bent, choose, report

ENDS = frozenset({6})
LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -1.5, -2.0, -6.0], np.float32)


def asked(tokens=(), prompt=(0, 1), seed=0, **values):
    return Generation(1, list(prompt), Sampling(**values), seed, 0.0, list(tokens))


def drawn(count, **values):
    """`count` tokens of the same logits under different seeds."""
    rows = [asked(seed=seed, **values) for seed in range(count)]
    choices = choices_of(rows, (), ENDS)
    settings = settings_of(rows, choices, ENDS, len(LOGITS))
    logits = np.broadcast_to(LOGITS, (count, len(LOGITS)))
    step = jax.jit(choose, static_argnums=3)
    return np.asarray(step(logits, np.full(count, 5), settings, choices))


def softmax(logits):
    weights = np.exp(logits.astype(float) - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize("temperature", spread([1.0, 0.5, 2.0], slow=2))
def test_50_000_draws_follow_the_softmax(temperature):
    counts = np.bincount(drawn(50_000, temperature=temperature), minlength=8)
    expected = softmax(LOGITS / temperature) * 50_000
    likely = expected > 5
    merged = [*counts[likely], counts[~likely].sum()]
    wanted = [*expected[likely], expected[~likely].sum()]
    if not wanted[-1]:
        merged, wanted = merged[:-1], wanted[:-1]
    assert chisquare(merged, wanted).pvalue > 1e-4


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({"top_k": 3}, 3),
        ({"top_p": 0.5}, 1),  # the first has 0.55 of the probability
        ({"top_p": 0.6}, 2),
        ({"top_p": 0.9}, 4),
        ({"min_p": 0.2}, 3),  # exp(-1.5) = 0.22, exp(-2) = 0.14
        ({"top_k": 5, "top_p": 0.6}, 2),
        ({"top_k": 2, "min_p": 0.01}, 2),
        ({"top_p": 1.0, "top_k": 0}, 8),
    ],
)
def test_filters_keep_what_they_say_and_leave_the_rest_in_proportion(values, kept):
    tokens = drawn(20_000, temperature=1.0, **values)
    counts = np.bincount(tokens, minlength=8)
    assert not counts[kept:].any()
    if kept > 1:
        assert chisquare(counts[:kept], softmax(LOGITS[:kept]) * 20_000).pvalue > 1e-4


def test_one_rows_wishes_change_no_other_row():
    plain = [asked(seed=s, temperature=1.0) for s in range(4)]
    mixed = [*plain, asked(temperature=0), asked(temperature=0.3, top_k=2, seed=9)]
    logits = np.broadcast_to(LOGITS, (6, 8))

    def tokens(rows):
        choices = choices_of(rows, (), ENDS)
        settings = settings_of(rows, choices, ENDS, 8)
        return np.asarray(choose(logits[: len(rows)], np.full(len(rows), 3), settings, choices))

    both = tokens(mixed)
    assert both[:4].tolist() == tokens(plain).tolist()
    assert both[4] == 0


def changed(generation):
    """The logits of a row after penalties."""
    rows = [generation]
    settings = settings_of(rows, EVERY, ENDS, 8)
    return np.asarray(bent(jnp.asarray(LOGITS)[None], settings))[0]


def test_penalties_are_subtracted_and_divided_as_documented():
    seen = asked(tokens=[2, 2, 4], prompt=(0, 7), repetition_penalty=2.0)
    right = LOGITS.copy()
    right[[0, 2]] /= 2
    right[[4, 7]] *= 2
    assert changed(seen) == pytest.approx(right)
    counted = asked(tokens=[2, 2, 4], frequency_penalty=0.5, presence_penalty=0.25)
    right = LOGITS.copy()
    right[2] -= 1.25
    right[4] -= 0.75
    assert changed(counted) == pytest.approx(right)
    biased = changed(asked(logit_bias=((3, 2.5), (7, -100.0))))
    assert (biased[3], biased[7]) == (2.5, -106)


def test_bans_take_the_last_token_of_a_sequence_and_early_ends():
    assert changed(asked(tokens=[3, 1], banned=((1, 2), (5,), (0, 4))))[[2, 5]].tolist() == [
        -np.inf,
        -np.inf,
    ]
    early = changed(asked(tokens=[3], min_tokens=2, stop_ids=(1,)))
    assert np.isneginf(early[[1, 6]]).all()
    assert np.isfinite(changed(asked(tokens=[3, 3], min_tokens=2, stop_ids=(1,)))).all()


def test_reports_are_the_log_probabilities_and_the_likeliest():
    chosen, top, values = map(np.asarray, report(LOGITS[None], np.array([3])))
    right = np.log(softmax(LOGITS))
    assert chosen[0] == pytest.approx(right[3], abs=1e-6)
    assert top[0].tolist() == list(range(8))
    assert values[0] == pytest.approx(right, abs=1e-6)
