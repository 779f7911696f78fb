"""The cache in pages: for each layer group arrays [L, P, S, X] that all sequences share.

L layers, P pages of S places, and the heads of a token side by side as in the contiguous cache
(`cache.py`); one of small numbers has scales [L, P, K, S] beside it. A latent cache keeps c and r
as one entry, which what is absorbed reads as one key. A recurrent layer has [L, P, ...], in each
page the state after the last token of it that was computed. Layers that keep the same tokens share
a pool and a table (`models.kv.CacheGroup`). Who has which page is `scheduling/`'s business; where a
step's tokens lie comes as a `Paging`, one for each layer group.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models import ModelConfig
from shardwise.models.kv import CacheGroup
from shardwise.models.specs import RecurrentMixer
from shardwise.runtime.attention.paged import PagedKeys, Paging
from shardwise.runtime.cache_entry import SCALE, is_small, rounded, states, widths
from shardwise.runtime.call import Past

Pages = tuple[dict[str, jax.Array], ...]
"""One dict of arrays per layer group."""


def empty_pages(
    cfg: ModelConfig,
    groups: Sequence[CacheGroup],
    pages: Sequence[int],
    page_size: int,
    dtype: Any,
) -> Pages:
    """A cache of zeros with `pages` of each of the `groups`; `dtype` a float's or a small one's."""
    made: dict[int, dict[str, jax.Array]] = {}
    for group, count in zip(groups, pages, strict=True):
        made |= {layer: _empty(cfg, layer, count, page_size, dtype) for layer in group.layers}
    return tuple(made[layer] for layer in range(len(cfg.groups)))


def _empty(
    cfg: ModelConfig, index: int, pages: int, page_size: int, dtype: Any
) -> dict[str, jax.Array]:
    layer, count = cfg.layer_groups()[index]
    if isinstance(layer.mixer, RecurrentMixer):
        return states(layer.mixer, (count, pages))
    entries, heads = widths(layer.mixer, joint=True)
    arrays = {n: jnp.zeros((count, pages, page_size, w), dtype) for n, w in entries.items()}
    if is_small(dtype):
        shape = (count, pages, heads, page_size)
        arrays |= {n + SCALE: jnp.ones(shape, jnp.bfloat16) for n in entries}
    return arrays


def page_bytes(cfg: ModelConfig, group: CacheGroup, page_size: int, dtype: Any) -> int:
    """Bytes of one page in all layers of a group, scales included."""
    shapes = [
        jax.eval_shape(lambda i=layer: _empty(cfg, i, 1, page_size, dtype))
        for layer in group.layers
    ]
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))


def extend_pages(
    past: Past, paging: Paging, positions_BX: jax.Array, new: dict[str, jax.Array]
) -> tuple[dict[str, jax.Array], dict[str, PagedKeys]]:
    """Write [1, X, K, ...] of each array at its positions; the group's arrays after it, and what
    the layer attends to."""
    arrays = dict(past.arrays)
    count = arrays[next(iter(new))].shape[1]
    pages_X = paging.pages_of(positions_BX[0], none=count)  # beyond the last: not written
    places_X = positions_BX[0] % paging.size
    held = {}
    for name, value in new.items():
        scales = arrays.get(name + SCALE)
        entry = value[0]
        if scales is not None:
            entry, scale_XK = rounded(entry, arrays[name].dtype)
            at = scales.at[past.layer, pages_X, :, places_X]
            scales = arrays[name + SCALE] = at.set(scale_XK.astype(scales.dtype), mode="drop")
        flat_XW = entry.reshape(entry.shape[0], -1).astype(arrays[name].dtype)
        arrays[name] = arrays[name].at[past.layer, pages_X, places_X].set(flat_XW, mode="drop")
        held[name] = PagedKeys(
            arrays[name], scales, past.layer, value.shape[2], value.shape[3], paging
        )
    return arrays, held
