"""The contiguous cache: per layer group the keys and values of `length` places per sequence.

Softmax layers keep k [L, B, S, K H] and v [L, B, S, K U], latent ones c [L, B, S, C] and the
rotated r [L, B, S, R] (`models.kv` counts the same elements). Place s of a row holds the token at
position s; what lies beyond a row's length is garbage that no query sees. Recurrent layers keep
their states after a row's last token, [L, B, ...]. Heads have no dim of
their own: 10 of them fill a tile of 16 on TPUs, and XLA copied the whole cache into such tiles.

A cache of int8 or fp8 has a bf16 scale for each token and head beside them, `k.scale` and `v.scale`
[L, B, K, S], 2 / H of its bytes (1.6 % at 128; `planner.serve.memory` counts them). A latent one is
a single array cr [L, B, S, C + R] then, with one scale for a token's c and r: what is absorbed
reads both as one key. On TPUs int8 rows wider than a tile's 128 (several KV heads on a device) are
written in other tiles than the loop over layers keeps, so XLA (libtpu 0.0.42) copies the cache:
cut it by heads until each device has one, else keep it in bf16.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.models.specs import RecurrentMixer
from shardwise.runtime.attention.dense import dense_attention
from shardwise.runtime.attention.paged import PagedKeys
from shardwise.runtime.attention.scoring import Scaled
from shardwise.runtime.cache_entry import SCALE, is_small, rounded, states, widths
from shardwise.runtime.call import Call, Past
from shardwise.runtime.paged_cache import extend_pages


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Cache:
    """One dict of arrays per layer group, and how many tokens each row holds."""

    groups: tuple[dict[str, jax.Array], ...]
    lengths_B: jax.Array

    @property
    def places(self) -> int:
        """S, the tokens that a row can hold."""
        return next(iter(self.groups[0].values())).shape[2]


def empty_cache(cfg: ModelConfig, batch: int, places: int, dtype: Any) -> Cache:
    """A cache of zeros. Windowed layers keep all places here; the paged engine is where they do
    not. Raises BadRequest where the model cannot take that many positions."""
    if cfg.position_rows and places > cfg.learned_tokens:
        raise BadRequest(
            f"a cache of {places} tokens exceeds the {cfg.learned_tokens} learned positions "
            f"of model '{cfg.name}'; ask for at most that many tokens"
        )
    small = is_small(dtype)
    groups = []
    for layer, count in cfg.layer_groups():
        if isinstance(layer.mixer, RecurrentMixer):
            groups.append(states(layer.mixer, (count, batch)))
            continue
        entries, heads = widths(layer.mixer, joint=small)
        group = {n: jnp.zeros((count, batch, places, w), dtype) for n, w in entries.items()}
        if small:
            shape = (count, batch, heads, places)
            group |= {n + SCALE: jnp.zeros(shape, jnp.bfloat16) for n in entries}
        groups.append(group)
    return Cache(tuple(groups), jnp.zeros(batch, jnp.int32))


def extend(
    past: Past, positions_BT: jax.Array, new: dict[str, jax.Array]
) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """Write [B, T, ...] of each array at its positions; the group's arrays after it, and what the
    layer attends to: the new tokens where the past was empty, else all places, small numbers with
    its scales (`Scaled`). A cache in pages is read by the kernel (`PagedKeys`)."""
    if past.paging is not None:
        return extend_pages(past, past.paging, positions_BT, new)
    rows_B1 = jnp.arange(positions_BT.shape[0])[:, None]
    arrays = dict(past.arrays)
    for name, value in new.items():
        array = arrays[name]
        if name + SCALE in arrays:
            value, scale_BTK = rounded(value, array.dtype)
            scales = arrays[name + SCALE]
            at = scales.at[past.layer, rows_B1, :, positions_BT]
            arrays[name + SCALE] = at.set(scale_BTK.astype(scales.dtype))
        flat = value.reshape(*value.shape[:2], -1).astype(array.dtype)
        arrays[name] = array.at[past.layer, rows_B1, positions_BT].set(flat)
    if past.fresh:
        return arrays, new
    held: dict[str, Any] = {}
    for name, value in new.items():
        array = arrays[name][past.layer]
        held[name] = array.reshape(*array.shape[:2], *value.shape[2:])
        if name + SCALE in arrays:
            held[name] = Scaled(held[name], arrays[name + SCALE][past.layer])
    return arrays, held


def as_read(held: Any, dtype: Any, call: Call) -> Any:
    """Keys or values as the kernel takes them: int8 ones with their scales where it can (decode),
    else in `dtype` (a chunk of a prompt, which reads one sequence's)."""
    if isinstance(held, PagedKeys):
        return held
    if not isinstance(held, Scaled):
        return held.astype(dtype)
    return held if call.options.kernel is dense_attention else held.wide(dtype)
