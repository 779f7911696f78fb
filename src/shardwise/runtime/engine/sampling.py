"""Choosing tokens from logits inside a step, each row by its own settings.

A row's token depends on its logits, its seed and its place in its sequence alone: noise is drawn
per row from (seed, place), never from the batch. Adding Gumbel noise to log-probabilities and
taking the largest draws from the softmax (Gumbel, 1954); filters set what they drop to -inf first.
What no row asks for is skipped where a program has it: a batch that only wants the likeliest
tokens sorts and draws nothing. `Choices` says what takes a program of its own; there are three
kinds. What one row asks for changes no token of another.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.runtime.engine.generation import MOST_LOGPROBS, NO_TOKEN

LOWEST = float("-inf")
ALL_ALLOWED = np.uint32(0xFFFFFFFF)
"""A word of tokens that may all come."""
BENT_BLOCK = 128
"""Tokens of each row whose logits are changed at a time: most requests change fewer."""


class Choices(NamedTuple):
    """What a step's program does beside choosing tokens. `every` takes all that a row may ask for:
    changed logits (penalties, biases, bans), forms, logprobs; `prompts` reports logprobs of
    prompts, too."""

    every: bool = False
    prompts: bool = False


TOKEN_ALONE = Choices()
EVERY = Choices(every=True)
WITH_PROMPTS = Choices(every=True, prompts=True)


class RowSettings(NamedTuple):
    """The settings of R rows; and per row up to B tokens whose logits change: l > 0 becomes
    l / `divisor`, l < 0 l * `divisor`, then `added` is added. Padding names a token beyond the
    vocabulary, and stands after the first `changes_R`. `allowed_RW` has a bit for each token that a
    row may emit; `reported_R` says whose logprobs are asked for."""

    seeds_R: Any
    temperature_R: Any
    top_k_R: Any
    top_p_R: Any
    min_p_R: Any
    reported_R: Any
    changes_R: Any
    bent_RB: Any
    divisor_RB: Any
    added_RB: Any
    allowed_RW: Any


def choose(
    logits_RV: jax.Array,
    places_R: jax.Array,
    rows: RowSettings,
    choices: Choices,
    by_rows: Callable[[jax.Array], jax.Array] = lambda x: x,
) -> jax.Array:
    """The next token of each row [R], int32, NO_TOKEN where none of its logits is the greatest
    number; `places_R` is its place in the sequence. On a mesh `by_rows` gives each device whole
    rows, which those that are drawn need."""
    numbers_R = jnp.isfinite(logits_RV.max(-1))  # which is NaN where one is
    if choices.every:
        logits_RV = _held(bent(logits_RV, rows), rows.allowed_RW)
    likeliest_R = _likeliest(logits_RV)
    warm_R = rows.temperature_R > 0
    chosen_R = lax.cond(
        warm_R.any(),
        lambda: jnp.where(warm_R, _drawn(by_rows(logits_RV), places_R, rows), likeliest_R),
        lambda: likeliest_R,
    )
    return jnp.where(numbers_R, chosen_R, NO_TOKEN)


def _drawn(logits_RV: jax.Array, places_R: jax.Array, rows: RowSettings) -> jax.Array:
    """A token of each row by its temperature; of rows without one whatever comes."""
    warm_R = rows.temperature_R > 0
    scaled_RV = logits_RV / jnp.where(warm_R, rows.temperature_R, 1.0)[:, None]
    limits_R = (rows.top_k_R > 0) | (rows.top_p_R < 1) | (rows.min_p_R > 0)
    scaled_RV = lax.cond(
        (warm_R & limits_R).any(), lambda: _filtered(scaled_RV, rows), lambda: scaled_RV
    )
    noise_RV = jax.vmap(_gumbel, (0, 0, None))(rows.seeds_R, places_R, logits_RV.shape[1])
    return _likeliest(scaled_RV + noise_RV)


def _likeliest(scores_RV: jax.Array) -> jax.Array:
    """The first place of each row's greatest score: argmax in two sums of one value each, which
    XLA on CPUs computes 4 to 6 times as fast as one of pairs."""
    V = scores_RV.shape[1]
    places_RV = lax.broadcasted_iota(jnp.int32, scores_RV.shape, 1)
    greatest_RV = scores_RV >= scores_RV.max(-1, keepdims=True)
    return jnp.where(greatest_RV, places_RV, V - 1).min(-1)


Report = tuple[jax.Array, jax.Array, jax.Array]


def report_where(asked: jax.Array, logits_RV: jax.Array, tokens_R: jax.Array) -> Report:
    """`report`, or zeros where it is not `asked` for."""
    found = jax.eval_shape(report, logits_RV, tokens_R)
    return lax.cond(
        asked,
        lambda: report(logits_RV, tokens_R),
        lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), found),
    )


def report(logits_RV: jax.Array, tokens_R: jax.Array) -> Report:
    """Log-probability of the tokens [R], the likeliest tokens [R, 20] and theirs."""
    logprobs_RV = jax.nn.log_softmax(logits_RV, axis=-1)
    chosen_R = jnp.take_along_axis(logprobs_RV, tokens_R[:, None], axis=1)[:, 0]
    top_RK, tokens_RK = lax.top_k(logprobs_RV, min(MOST_LOGPROBS, logits_RV.shape[1]))
    return chosen_R, tokens_RK.astype(jnp.int32), top_RK


def bent(logits_RV: jax.Array, rows: RowSettings) -> jax.Array:
    """The logits with each row's changes, of which none names a token twice; in blocks, of which
    only those are done that have any."""
    rows_R1 = jnp.arange(logits_RV.shape[0])[:, None]
    size = min(BENT_BLOCK, rows.bent_RB.shape[1])

    def block(number: jax.Array, logits_RV: jax.Array) -> jax.Array:
        tokens_RB, divisor_RB, added_RB = (
            lax.dynamic_slice_in_dim(x, number * size, size, axis=1)
            for x in (rows.bent_RB, rows.divisor_RB, rows.added_RB)
        )
        old_RB = logits_RV.at[rows_R1, tokens_RB].get(mode="fill", fill_value=0)
        divided_RB = jnp.where(old_RB > 0, old_RB / divisor_RB, old_RB * divisor_RB)
        return logits_RV.at[rows_R1, tokens_RB].set(divided_RB + added_RB, mode="drop")

    return lax.fori_loop(0, -(-jnp.max(rows.changes_R) // size), block, logits_RV)


def _held(logits_RV: jax.Array, allowed_RW: jax.Array) -> jax.Array:
    """The logits of tokens that are allowed; those beyond the bits are not."""

    def held() -> jax.Array:
        tokens_V = jnp.arange(logits_RV.shape[1])
        words_RV = allowed_RW.at[:, tokens_V // 32].get(mode="fill", fill_value=0)
        bits_RV = words_RV >> (tokens_V % 32).astype(jnp.uint32)[None] & 1
        return jnp.where(bits_RV == 1, logits_RV, LOWEST)

    return lax.cond((allowed_RW != ALL_ALLOWED).any(), held, lambda: logits_RV)


def _filtered(scaled_RV: jax.Array, rows: RowSettings) -> jax.Array:
    """Without what top-k, top-p and min-p drop, in this order and each among all tokens: top-p
    keeps a token while those before it sum to less than p, so it keeps at least one."""
    V = scaled_RV.shape[1]
    sorted_RV = -jnp.sort(-scaled_RV, axis=-1)
    k_R = jnp.where(rows.top_k_R > 0, jnp.minimum(rows.top_k_R, V), V)
    least_R = jnp.take_along_axis(sorted_RV, k_R[:, None] - 1, axis=1)[:, 0]
    kept_RV = jnp.where(jnp.arange(V)[None] < k_R[:, None], sorted_RV, LOWEST)
    shares_RV = jax.nn.softmax(kept_RV, axis=-1)
    before_RV = jnp.cumsum(shares_RV, axis=-1) - shares_RV
    count_R = (before_RV < rows.top_p_R[:, None]).sum(-1)
    last_R = jnp.take_along_axis(sorted_RV, count_R[:, None] - 1, axis=1)[:, 0]
    last_R = jnp.where(rows.top_p_R < 1, last_R, LOWEST)
    share_R = sorted_RV[:, 0] + jnp.log(rows.min_p_R)  # log 0 drops nothing
    limit_R = jnp.maximum(jnp.maximum(least_R, last_R), share_R)
    return jnp.where(scaled_RV >= limit_R[:, None], scaled_RV, LOWEST)


def _gumbel(seed: jax.Array, place: jax.Array, size: int) -> jax.Array:
    key = jax.random.fold_in(jax.random.key(seed), place)
    return jax.random.gumbel(key, (size,), jnp.float32)
