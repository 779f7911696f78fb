"""Prefill, decode steps and greedy generation over a contiguous cache; plain functions."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.runtime.cache import Cache, empty_cache
from shardwise.runtime.model import DEFAULT, Params, call_of, check_rows, embed, head
from shardwise.runtime.options import Options
from shardwise.runtime.stack import run_stack


def prefill(
    params: Params,
    tokens_BT: jax.Array,
    lengths_B: jax.Array,
    cache: Cache,
    cfg: ModelConfig,
    options: Options = DEFAULT,
) -> tuple[jax.Array, Cache]:
    """Read prompts into an empty cache: logits [B, V] after each row's last token.

    Rows shorter than T are padded on the right with any token.
    """
    call = call_of(tokens_BT, cfg, options)
    x_BTD = embed(params, tokens_BT, cfg, call)
    x_BTD, groups = run_stack(
        params["layers"], x_BTD, cfg, call, cache.groups, fresh=True, lengths_B=lengths_B
    )
    last_B11 = (lengths_B - 1)[:, None, None]
    x_B1D = jnp.take_along_axis(x_BTD, last_B11, axis=1)
    logits_B1V = head(params, x_B1D, cfg, call)
    assert groups is not None
    return logits_B1V[:, 0], Cache(groups, lengths_B)


def decode(
    params: Params,
    tokens_B: jax.Array,
    cache: Cache,
    cfg: ModelConfig,
    options: Options = DEFAULT,
) -> tuple[jax.Array, Cache]:
    """One token per row: its keys go to place `lengths_B`, its logits [B, V] come back.

    A row whose cache is full drops the write; the caller stops it before that.
    """
    tokens_B1 = tokens_B[:, None]
    call = call_of(tokens_B1, cfg, options, positions_BT=cache.lengths_B[:, None])
    x_B1D = embed(params, tokens_B1, cfg, call)
    x_B1D, groups = run_stack(params["layers"], x_B1D, cfg, call, cache.groups)
    logits_B1V = head(params, x_B1D, cfg, call)
    assert groups is not None
    return logits_B1V[:, 0], Cache(groups, cache.lengths_B + 1)


def generate(
    params: Params,
    prompt_BT: jax.Array,
    cfg: ModelConfig,
    new: int,
    options: Options = DEFAULT,
    *,
    lengths_B: jax.Array | None = None,
    cache_dtype: Any = None,
) -> jax.Array:
    """The `new` tokens [B, new] that greedy decoding appends to each prompt.

    One prefill and one loop of decode steps, compiled together; the cache has T + new places.
    Raises BadRequest for a prompt that is no [B, T], and for `new` below 1.
    """
    check_rows(prompt_BT)
    B, T = prompt_BT.shape
    if new < 1:
        raise BadRequest(f"{new} new tokens are requested; ask for at least 1")
    lengths_B = jnp.full(B, T, jnp.int32) if lengths_B is None else lengths_B
    cache = empty_cache(cfg, B, T + new, cache_dtype or options.dtype)
    return _generate(params, prompt_BT, lengths_B, cache, cfg, new, options)


@partial(jax.jit, static_argnames=("cfg", "new", "options"))
def _generate(
    params: Params,
    prompt_BT: jax.Array,
    lengths_B: jax.Array,
    cache: Cache,
    cfg: ModelConfig,
    new: int,
    options: Options,
) -> jax.Array:
    logits_BV, cache = prefill(params, prompt_BT, lengths_B, cache, cfg, options)

    def step(carry: tuple[jax.Array, Cache], _: None) -> tuple[tuple[jax.Array, Cache], jax.Array]:
        tokens_B, cache = carry
        logits_BV, cache = decode(params, tokens_B, cache, cfg, options)
        return (logits_BV.argmax(-1).astype(tokens_B.dtype), cache), tokens_B

    first_B = logits_BV.argmax(-1).astype(prompt_BT.dtype)
    (last_B, _), tokens_NB = lax.scan(step, (first_B, cache), None, length=new - 1)
    return jnp.concatenate((tokens_NB, last_B[None]), axis=0).T
