"""The cache in pages: for each layer group arrays [L, P, S, X] that all sequences share.

L layers, P pages of S places, and the heads of a token side by side as in the contiguous cache
(`cache.py`), on TPUs filled up to whole lanes on each device, for which keys and values may be one
array; one of small numbers has scales
[L, P, K, S] beside it. A latent cache keeps c and r as one entry, which what is absorbed reads as
one key. Where JAX's kernel reads pages (`attention/ragged.py`) a layer has one array
[L, P, G, S, 2 J, H] of G groups of J heads, the value of each after its key. A recurrent layer has
[L, P, ...], in each page the state after the last token of it that was computed. Layers that keep
the same tokens share a pool and a table (`models.kv.CacheGroup`). Who has which page is
`scheduling/`'s business; where a step's tokens lie comes as a `Paging`, one for each layer group.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models import ModelConfig
from shardwise.models.kv import CacheGroup
from shardwise.models.specs import RecurrentMixer
from shardwise.plans.paged_kernel import PagedLayer, kernel_problem
from shardwise.runtime.attention.paged import PagedKeys, Paging, letters_of
from shardwise.runtime.attention.ragged import page_of
from shardwise.runtime.cache_entry import SCALE, is_small, rounded, states, to_held, widths
from shardwise.runtime.call import Past

Pages = tuple[dict[str, jax.Array], ...]
"""One dict of arrays per layer group."""
JOINED = "kv"
"""The array of a layer group whose keys and values lie side by side."""
PAIRED = "k+v"
"""The array of one whose heads fill no lanes: each head's key and then its value."""


def empty_pages(
    cfg: ModelConfig,
    groups: Sequence[CacheGroup],
    pages: Sequence[int],
    page_size: int,
    dtype: Any,
    layers: Sequence[PagedLayer] | None = None,
) -> Pages:
    """A cache of zeros with `pages` of each of the `groups`; `dtype` a float's or a small one's.
    `layers` say how each layer group is read, where that is not by XLA on one device."""
    made: dict[int, dict[str, jax.Array]] = {}
    for group, count in zip(groups, pages, strict=True):
        for layer in group.layers:
            read = layers[layer] if layers else None
            made[layer] = _empty(cfg, layer, count, page_size, dtype, read)
    return tuple(made[layer] for layer in range(len(cfg.groups)))


def _empty(
    cfg: ModelConfig,
    index: int,
    pages: int,
    page_size: int,
    dtype: Any,
    read: PagedLayer | None = None,
) -> dict[str, jax.Array]:
    layer, count = cfg.layer_groups()[index]
    if isinstance(layer.mixer, RecurrentMixer):
        return states(layer.mixer, (count, pages))
    entries, heads = widths(layer.mixer, joint=True)
    if read is not None and kernel_problem(read) is None:
        joined = read.group
        shape = (heads // joined, page_size, 2 * joined, entries["k"] // heads)
        return {JOINED: jnp.zeros((count, pages, *shape), dtype)}
    if read is not None and not is_small(dtype) and read.pairs(entries.values()):
        entries = {PAIRED: sum(entries.values())}
    if read is not None:
        entries = {name: read.width(width, heads) for name, width in entries.items()}
    arrays = {n: jnp.zeros((count, pages, page_size, w), dtype) for n, w in entries.items()}
    if is_small(dtype):
        shape = (count, pages, heads, page_size)
        arrays |= {n + SCALE: jnp.ones(shape, jnp.bfloat16) for n in entries}
    return arrays


def page_bytes(
    cfg: ModelConfig,
    group: CacheGroup,
    page_size: int,
    dtype: Any,
    layout: Any = None,
    layers: Sequence[PagedLayer] | None = None,
) -> int:
    """Bytes of one page in all layers of a group, scales included: on one device, of one page of
    each pool where a `layout` (`engine/server_layout.py`) cuts them."""
    pools, size = 1 if layout is None else layout.pool_count, 0
    for layer in group.layers:
        read = layers[layer] if layers else None
        make = partial(_empty, cfg, layer, pools, page_size, dtype, read)
        for name, x in jax.eval_shape(make).items():
            shape = x.shape
            if layout is not None:
                shape = layout.page_sharding(name, cfg.groups[layer].mixer).shard_shape(shape)
            size += prod(shape) * x.dtype.itemsize
    return size


def extend_pages(
    past: Past, paging: Paging, positions_BX: jax.Array, new: dict[str, jax.Array]
) -> tuple[dict[str, jax.Array], dict[str, PagedKeys]]:
    """Write [1, X, K, ...] of each array at its positions; the group's arrays after it, and what
    the layer attends to."""
    arrays = dict(past.arrays)
    if JOINED in arrays:
        keys = jnp.stack((new["k"], new["v"]), axis=3)
        array, _ = _written(past, paging, positions_BX, JOINED, keys)
        K, H = new["k"].shape[2:]
        return {JOINED: array}, dict.fromkeys(new, PagedKeys(array, None, past.layer, K, H, paging))
    if PAIRED in arrays:
        pair = jnp.concatenate((new["k"], new["v"]), axis=-1)
        array, _ = _written(past, paging, positions_BX, PAIRED, pair)
        K, H = new["k"].shape[2:]
        whole = pair.shape[-1]
        keys = PagedKeys(array, None, past.layer, K, H, paging, whole)
        return {PAIRED: array}, {"k": keys, "v": replace(keys, width=whole - H, after=H)}
    held = {}
    for name, value in new.items():
        array, scales = _written(past, paging, positions_BX, name, value)
        arrays |= {name: array} if scales is None else {name: array, name + SCALE: scales}
        K, H = value.shape[2:]
        held[name] = PagedKeys(array, scales, past.layer, K, H, paging)
    return arrays, held


def _written(
    past: Past, paging: Paging, positions_BX: jax.Array, name: str, value_BXKH: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    """An array of the past and its scales, written into; of each device into its own part."""
    array, scales = past.arrays[name], past.arrays.get(name + SCALE)
    write: Callable[..., Any] = _join if name == JOINED else _write
    if paging.over is not None:
        stored, heads = (letters_of(array), None if scales is None else "LPKS"), value_BXKH.shape[2]
        ins = (*stored, "BRKH", "BR", paging.letters, "")
        write = paging.over(write, ins, stored, kv_heads=heads, heads=heads)
    return write(array, scales, value_BXKH, positions_BX, paging.alone(), jnp.asarray(past.layer))


def _join(
    array: jax.Array,
    scales: None,
    both_BXK2H: jax.Array,
    positions_BX: jax.Array,
    paging: Paging,
    layer: Any,
) -> tuple[jax.Array, None]:
    """The array with each head's key and value of a step's tokens."""
    L, P, G, S, J, H = array.shape
    pages_X, places_X = paging.put(positions_BX[0], S, none=P)
    first_X1 = page_of(layer, pages_X, P, G)[:, None]
    pages_XG = jnp.where(pages_X[:, None] < P, first_X1 + jnp.arange(G)[None], L * P * G)
    entries = both_BXK2H.reshape(len(pages_X), G, J, H).astype(array.dtype)
    flat = array.reshape(-1, S, J, H).at[pages_XG, places_X[:, None]].set(entries, mode="drop")
    return flat.reshape(array.shape), scales


def _write(
    array: jax.Array,
    scales: jax.Array | None,
    value_BXKH: jax.Array,
    positions_BX: jax.Array,
    paging: Paging,
    layer: Any,
) -> tuple[jax.Array, jax.Array | None]:
    """The array, and its scales, with the entries of a step's tokens."""
    count, here = array.shape[1:3]
    pages_X, places_X = paging.put(positions_BX[0], here, none=count)  # that one is not written
    entry = value_BXKH[0]
    if scales is not None:
        entry, scale_XK = rounded(entry, array.dtype)
        at = scales.at[layer, pages_X, :, places_X]
        scales = at.set(scale_XK.astype(scales.dtype), mode="drop")
    flat_XW = to_held(entry.reshape(entry.shape[0], -1), array.dtype)
    flat_XW = jnp.pad(flat_XW, ((0, 0), (0, array.shape[-1] - flat_XW.shape[-1])))
    return array.at[layer, pages_X, places_X].set(flat_XW, mode="drop"), scales
