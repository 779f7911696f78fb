"""The cache in pages: for each layer group arrays [L, P, S, X] that all sequences share.

L layers, P pages of S places, and the heads of a token side by side as in the contiguous cache
(`cache.py`); one of small numbers has scales [L, P, K, S] beside it. A latent cache keeps c and r
as one entry, which what is absorbed reads as one key. Who has which page is `scheduling/`'s
business; where a step's tokens lie comes as a `Paging`.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models import ModelConfig
from shardwise.runtime.attention.paged import PagedKeys, Paging
from shardwise.runtime.cache_entry import SCALE, is_small, rounded, widths
from shardwise.runtime.call import Past

Pages = tuple[dict[str, jax.Array], ...]
"""One dict of arrays per layer group."""


def empty_pages(cfg: ModelConfig, pages: int, page_size: int, dtype: Any) -> Pages:
    """A cache of zeros; `dtype` a float's or a small one's."""
    groups = []
    for layer, count in cfg.layer_groups():
        entries, heads = widths(layer.mixer, joint=True)
        group = {n: jnp.zeros((count, pages, page_size, w), dtype) for n, w in entries.items()}
        if is_small(dtype):
            shape = (count, pages, heads, page_size)
            group |= {n + SCALE: jnp.ones(shape, jnp.bfloat16) for n in entries}
        groups.append(group)
    return tuple(groups)


def page_bytes(cfg: ModelConfig, page_size: int, dtype: Any, layout: Any = None) -> int:
    """Bytes of one page in all layers, scales included: on one device, of one page of each pool
    where a `layout` (`engine/server_layout.py`) cuts them."""
    pools = 1 if layout is None else layout.pool_count
    shapes = jax.eval_shape(lambda: empty_pages(cfg, pools, page_size, dtype))
    leaves = [x.shape for x in jax.tree.leaves(shapes)]
    if layout is not None:
        lies = jax.tree.leaves(layout.page_shardings(cfg, shapes))
        leaves = [at.shard_shape(shape) for at, shape in zip(lies, leaves, strict=True)]
    sizes = [x.dtype.itemsize for x in jax.tree.leaves(shapes)]
    return sum(prod(shape) * size for shape, size in zip(leaves, sizes, strict=True))


def extend_pages(
    past: Past, paging: Paging, positions_BX: jax.Array, new: dict[str, jax.Array]
) -> tuple[dict[str, jax.Array], dict[str, PagedKeys]]:
    """Write [1, X, K, ...] of each array at its positions; the group's arrays after it, and what
    the layer attends to."""
    arrays = dict(past.arrays)
    held = {}
    for name, value in new.items():
        written: Callable[..., Any] = _write
        if paging.over is not None:
            stored = ("LPSW", "LPKS" if name + SCALE in arrays else None)
            ins = (*stored, "BRKH", "BR", paging.letters, "")
            heads = {"kv_heads": value.shape[2], "heads": value.shape[2]}
            written = paging.over(_write, ins, stored, **heads)
        arguments = (value, positions_BX, paging.alone(), jnp.asarray(past.layer))
        array, scales = written(arrays[name], arrays.get(name + SCALE), *arguments)
        arrays |= {name: array} if scales is None else {name: array, name + SCALE: scales}
        K, H = value.shape[2:]
        held[name] = PagedKeys(array, scales, past.layer, K, H, paging)
    return arrays, held


def _write(
    array: jax.Array,
    scales: jax.Array | None,
    value_BXKH: jax.Array,
    positions_BX: jax.Array,
    paging: Paging,
    layer: Any,
) -> tuple[jax.Array, jax.Array | None]:
    """The array, and its scales, with the entries of a step's tokens."""
    count, size = array.shape[1:3]
    # The page beyond the last is not written.
    pages_X, places_X = paging.put(positions_BX[0], size, none=count)
    entry = value_BXKH[0]
    if scales is not None:
        entry, scale_XK = rounded(entry, array.dtype)
        at = scales.at[layer, pages_X, :, places_X]
        scales = at.set(scale_XK.astype(scales.dtype), mode="drop")
    flat_XW = entry.reshape(entry.shape[0], -1).astype(array.dtype)
    return array.at[layer, pages_X, places_X].set(flat_XW, mode="drop"), scales
