"""The score matrix cut into tiles: how tensors are laid out for it, and which tiles are visible.

A tile is a block of `block_T` queries against a block of `block_S` keys. Only tiles in which some
query sees some key are computed; under a causal mask that is half of them, under a window W about
(W + block_S) / S of them. Where positions decide which, the loop over them is named by the rounds
that it is expected to have (`rounds_36`), which no compiled text tells.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.runtime.attention.scoring import Scoring, visible
from shardwise.runtime.attention.varying import axes_of, varying

State = TypeVar("State")
Tile = Callable[[jax.Array, State], State]


class Rows(NamedTuple):
    """Queries, heads before tokens: q [B, K, G, T, H], positions and segments [B, T]."""

    q_BKGTH: jax.Array
    positions_BT: jax.Array
    segments_BT: jax.Array | None


class KeyColumns(NamedTuple):
    """Keys and values, heads before tokens; what travels round a ring."""

    k_BKSH: jax.Array
    v_BKSU: jax.Array
    positions_BS: jax.Array
    segments_BS: jax.Array | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRule:
    """What is known before anything runs: the choices of a Scoring, the size of a tile, and the
    share of all tiles that a device is expected to compute where positions decide."""

    scale: float
    softcap: float | None
    window: int | None
    chunk: int | None
    in_order: bool
    block_T: int
    block_S: int
    share: float = 0.5


def arrange(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKU: jax.Array,
    s: Scoring,
    *,
    block_T: int,
    block_S: int,
    share: float | None = None,
) -> tuple[Rows, KeyColumns, MaskRule]:
    """The inputs laid out for tiles, padded to whole ones with keys that no query sees."""
    B, T, N, H = q_BTNH.shape
    S, K = k_BSKH.shape[1:3]
    block_T, block_S = min(block_T, T), min(block_S, S)
    rule = MaskRule(
        scale=s.scale,
        softcap=s.softcap,
        window=s.window,
        chunk=s.chunk,
        in_order=s.in_order,
        block_T=block_T,
        block_S=block_S,
        share=share_seen(s.window or s.chunk, S, block_S) if share is None else share,
    )
    q_BKGTH = q_BTNH.reshape(B, T, K, N // K, H).transpose(0, 2, 3, 1, 4)
    ids = _both(s.q_segments_BT, s.k_segments_BS)
    never = jnp.iinfo(s.k_positions_BS.dtype).max
    rows = Rows(
        _padded(q_BKGTH, 3, -T % block_T),
        _padded(s.q_positions_BT, 1, -T % block_T, "edge"),
        _padded(ids[0], 1, -T % block_T, "edge") if ids else None,
    )
    columns = KeyColumns(
        _padded(k_BSKH.swapaxes(1, 2), 2, -S % block_S),
        _padded(v_BSKU.swapaxes(1, 2), 2, -S % block_S),
        _padded(s.k_positions_BS, 1, -S % block_S, never),
        _padded(ids[1], 1, -S % block_S, "edge") if ids else None,
    )
    axes = axes_of((rows, columns))
    return varying(rows, axes), varying(columns, axes), rule


def share_seen(window: int | None, S: int, block_S: int, causal: float = 0.5) -> float:
    """The share of S keys whose tiles a query needs: half under a causal mask, fewer of a window's.

    >>> share_seen(None, 4096, 256), share_seen(256, 4096, 256)
    (0.5, 0.125)
    """
    return causal if window is None else min(causal, (window + block_S) / S)


def over_tiles(
    rule: MaskRule, pairs_P2: jax.Array, count: jax.Array | int, tile: Tile[State], state: State
) -> State:
    """`tile(p, state)` for the first `count` of the tiles; the loop is named by the rounds that it
    is expected to have where the count is not known."""
    if isinstance(count, int):
        return lax.fori_loop(0, count, tile, state)
    with jax.named_scope(f"rounds_{max(round(len(pairs_P2) * rule.share), 1)}"):
        return lax.fori_loop(0, count, tile, state)


def _both(a: jax.Array | None, b: jax.Array | None) -> tuple[jax.Array, jax.Array] | None:
    return None if a is None or b is None else (a, b)


def _padded(x: jax.Array, dim: int, by: int, fill: int | str = 0) -> jax.Array:
    widths = [(0, by if i == dim else 0) for i in range(x.ndim)]
    if not by:
        return x
    if fill == "edge":
        return jnp.pad(x, widths, mode="edge")
    return jnp.pad(x, widths, constant_values=fill)


def block_of(x: jax.Array, dim: int, i: jax.Array, size: int) -> jax.Array:
    """Block i of a dim, in blocks of `size`."""
    return lax.dynamic_slice_in_dim(x, i * size, size, dim)


def add_block(x: jax.Array, dim: int, i: jax.Array, block: jax.Array) -> jax.Array:
    """x with a block added to its block i."""
    old = block_of(x, dim, i, block.shape[dim])
    return put_block(x, dim, i, old + block)


def put_block(x: jax.Array, dim: int, i: jax.Array, block: jax.Array) -> jax.Array:
    """x with its block i replaced."""
    return lax.dynamic_update_slice_in_dim(x, block, i * block.shape[dim], dim)


def seen(rule: MaskRule, rows: Rows, columns: KeyColumns, i: jax.Array, j: jax.Array) -> jax.Array:
    """Which keys of tile (i, j) each of its queries sees, [B, block_T, block_S]."""
    t, s = rule.block_T, rule.block_S
    ids = _both(rows.segments_BT, columns.segments_BS)
    return visible(
        Scoring(
            scale=rule.scale,
            softcap=rule.softcap,
            window=rule.window,
            chunk=rule.chunk,
            q_positions_BT=block_of(rows.positions_BT, 1, i, t),
            k_positions_BS=block_of(columns.positions_BS, 1, j, s),
            q_segments_BT=block_of(ids[0], 1, i, t) if ids else None,
            k_segments_BS=block_of(ids[1], 1, j, s) if ids else None,
        )
    )


def visible_tiles(
    rule: MaskRule, rows: Rows, columns: KeyColumns
) -> tuple[jax.Array, jax.Array | int]:
    """The tiles to compute, row by row, as [P, 2] of (i, j), and how many of them count.

    Where places in the row are promised to be in order they are known before anything runs and the
    loop over them has a fixed length. Else all tiles are listed, those that may be visible first,
    judged by the least and the greatest position and segment of each block.
    """
    tiles_T = rows.positions_BT.shape[1] // rule.block_T
    tiles_S = columns.positions_BS.shape[1] // rule.block_S
    if rule.in_order:
        known_P2 = np.argwhere(_ordered(rule, tiles_T, tiles_S)).astype(np.int32)
        return jnp.asarray(known_P2), len(known_P2)
    may_IJ = _possible(rule, rows, columns)
    order_P = jnp.argsort(~may_IJ.reshape(-1), stable=True).astype(jnp.int32)
    return jnp.stack((order_P // tiles_S, order_P % tiles_S), axis=1), may_IJ.sum(dtype=jnp.int32)


def _ordered(rule: MaskRule, tiles_T: int, tiles_S: int) -> np.ndarray:
    first_I1 = np.arange(tiles_T)[:, None] * rule.block_T
    first_1J = np.arange(tiles_S)[None] * rule.block_S
    may_IJ = first_1J <= first_I1 + rule.block_T - 1
    if rule.window is not None:
        may_IJ &= first_I1 - (first_1J + rule.block_S - 1) < rule.window
    return may_IJ


def _possible(rule: MaskRule, rows: Rows, columns: KeyColumns) -> jax.Array:
    q_low, q_high = _range(rows.positions_BT, rule.block_T)
    k_low, k_high = _range(columns.positions_BS, rule.block_S)
    q_low, q_high = q_low[:, :, None], q_high[:, :, None]
    k_low, k_high = k_low[:, None], k_high[:, None]
    may_BIJ = k_low <= q_high
    if rule.window is not None:
        may_BIJ &= q_low - k_high < rule.window
    if rule.chunk is not None:
        may_BIJ &= q_low // rule.chunk <= k_high // rule.chunk
        may_BIJ &= k_low // rule.chunk <= q_high // rule.chunk
    if ids := _both(rows.segments_BT, columns.segments_BS):
        q_first, q_last = _range(ids[0], rule.block_T)
        k_first, k_last = _range(ids[1], rule.block_S)
        may_BIJ &= q_first[:, :, None] <= k_last[:, None]
        may_BIJ &= k_first[:, None] <= q_last[:, :, None]
    return may_BIJ.any(0)


def _range(x_BT: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """The least and the greatest of each block, [B, blocks]."""
    x_BIT = x_BT.reshape(x_BT.shape[0], -1, block)
    return x_BIT.min(-1), x_BIT.max(-1)
