"""Attention to keys and values in pages: rows of one token, and prompts in blocks, in one call.

A cache array is [L, P, S, X]: layers, pages, places of a page, the heads of a token side by side. A
sequence's table names its pages in order, so that position s lies in place s mod S of page
table[s // S]. Keys are read in blocks of at most `BLOCK` places, from the first block that a window
still sees to the last that any row has filled, so that what is read grows with what is used and not
with what a table could hold. Blocks lie at fixed positions and a block that a row does not see adds
exactly nothing to it: its answer is bit for bit the same in any batch of the same size. On TPUs a
kernel reads the blocks, each row its own (`paged_softmax.py`).

Per row, with the greatest score so far m, a block of scores s changes the softmax under way to
m' = max(m, max s), l' = l exp(m - m') + sum exp(s - m'), o' = o exp(m - m') + exp(s - m') v; a sink
is one more score without a value. The answer is o / l (Milakov and Gimelshein, arXiv 1805.02867).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.attention.paged_softmax import (
    PageParts,
    RowTable,
    paged_softmax,
    pages_at_once,
    queries_at_once,
)
from shardwise.runtime.attention.paged_triton import (
    RowPages,
    paged_softmax_triton,
    triton_queries,
    triton_serves,
)
from shardwise.runtime.attention.ragged import RaggedRows, ragged_attention
from shardwise.runtime.attention.scoring import Scoring, capped, visible_places
from shardwise.runtime.cache_entry import from_held
from shardwise.runtime.precision import wide

BLOCK = 128
"""Places that are read at once, in whole pages."""
LEAST_BLOCK = 32
NEAR = 2**18
"""Bytes of keys that single rows on a CPU read at once, so that a core's own cache (1 MiB here) has
them and the values when the products come: of 32 rows x 150 places x 512 bytes in 4 layers
attention took 9.3 ms of CPU by blocks of 128 places, 6.2 ms by blocks of 32."""
Reader = Literal["loop", "kernel", "interpreted", "triton", "triton interpreted"]
NOWHERE = -1
"""The position of a row that is only padding: it sees nothing and writes nothing."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("decode_DM", "blocks_CM", "starts_C"),
    meta_fields=("size", "over", "places", "each", "reader"),
)
@dataclass(frozen=True, slots=True)
class Paging:
    """Where the sequences of a step lie: a table [D, M] of the rows that decode, which come first,
    and one [C, M] of the blocks of prompts after them, each of Q tokens of one sequence, whose
    chunk begins at position `starts_C`. Pages hold `size` tokens.

    On a mesh `over` makes a function of one device's part (`ServerLayout.over`), inside of which
    the places of each page may be cut over the axis `places`. A row that decodes has `each` tokens,
    more than one where guesses are checked. `reader`: whether blocks are read by a loop of XLA's,
    by our kernel for TPUs or by the one for GPUs ("triton"), which are interpreted where there are
    none.
    """

    decode_DM: Any
    blocks_CM: Any
    starts_C: Any
    size: int
    over: Callable[..., Any] | None = None
    places: str | None = None
    each: int = 1
    reader: Reader = "loop"

    @property
    def decoding(self) -> int:
        """Tokens of the rows that decode; they come first."""
        return self.decode_DM.shape[0] * self.each

    @property
    def letters(self) -> "Paging":
        """The dims of what `over` cuts."""
        return replace(self.alone(), decode_DM="RM", blocks_CM="RM", starts_C="R")

    def alone(self) -> "Paging":
        """The same on one device."""
        return replace(self, over=None)

    def first(self, here: int) -> Any:
        """The first place of a page that this device has, one of `here`."""
        return lax.axis_index(self.places) * here if self.places else 0

    def put(self, positions_X: jax.Array, here: int, none: int) -> tuple[jax.Array, jax.Array]:
        """The page, and the place in it, in which each token is written; page `none` for padding
        and for what another device has."""
        index_X = jnp.maximum(positions_X, 0) // self.size
        halves = (
            (self.decode_DM, index_X[: self.decoding]),
            (self.blocks_CM, index_X[self.decoding :]),
        )
        parts = [
            jnp.take_along_axis(table_RM, index.reshape(len(table_RM), -1), axis=1).reshape(-1)
            for table_RM, index in halves
            if len(table_RM)
        ]
        places_X = positions_X % self.size - self.first(here)
        here_X = (positions_X >= 0) & (places_X >= 0) & (places_X < here)
        return jnp.where(here_X, jnp.concatenate(parts), none), jnp.maximum(places_X, 0)

    def ragged(self, positions_X: jax.Array) -> RaggedRows:
        """Rows and blocks as sequences, each of as many tokens as it has room for: what padding at
        its end sees is of no matter. Of padding alone it is the first places of some page."""
        D, C = len(self.decode_DM), len(self.blocks_CM)
        first, rest = positions_X[: self.decoding], positions_X[self.decoding :]
        Q = rest.shape[0] // max(C, 1)
        counts_R = jnp.concatenate((jnp.full(D, self.each), jnp.full(C, Q))).astype(jnp.int32)
        begin_R = jnp.concatenate((first[:: self.each], rest[:: max(Q, 1)]))
        starts_R1 = jnp.concatenate((jnp.zeros(1, jnp.int32), jnp.cumsum(counts_R)))
        table_RM = jnp.concatenate((self.decode_DM, self.blocks_CM))
        return RaggedRows(jnp.maximum(begin_R, 0) + counts_R, table_RM, starts_R1)


@dataclass(frozen=True, slots=True)
class PagedKeys:
    """Keys or values of one layer: `heads` of `width` from the front of each entry of the array,
    and int8 ones' scales [L, P, K, S]. Of keys and values in one a head has `whole` numbers, and
    these come `after` others. Keys and values side by side, for JAX's kernel, are one array
    [L, P, G, S, 2 J, H] (`ragged.py`)."""

    array_LPSX: jax.Array
    scales_LPKS: jax.Array | None
    layer: Any
    heads: int
    width: int
    paging: Paging
    whole: int = 0
    after: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """As of [B, S, K, H]; S is a page's."""
        return (1, self.array_LPSX.shape[2], self.heads, self.width)

    def first(self, width: int) -> "PagedKeys":
        """The first channels of each head, as the values of a latent cache are."""
        return replace(self, width=width, whole=self.each)

    @property
    def each(self) -> int:
        """Numbers of a head in an entry, of which these are `width`, `after` some others."""
        return self.whole or self.width

    def read(self, pages_RG: jax.Array, dtype: Any) -> jax.Array:
        """The entries of G pages for each of R rows, [R, G S, K, H]."""
        R, filled = pages_RG.shape[0], self.heads * self.each
        found = self.array_LPSX.at[self.layer, pages_RG].get(mode="clip")[..., :filled]
        entries = from_held(found).reshape(R, -1, self.heads, self.each).astype(dtype)
        if self.scales_LPKS is not None:
            scales_RGKS = self.scales_LPKS.at[self.layer, pages_RG].get(mode="clip")
            scale = jnp.swapaxes(scales_RGKS, 2, 3).reshape(R, -1, self.heads, 1)
            entries = (entries.astype(jnp.float32) * scale.astype(jnp.float32)).astype(dtype)
        return entries[..., self.after : self.after + self.width]


def paged_attention(
    q_BXNH: jax.Array, keys: PagedKeys, values: PagedKeys, scoring: Scoring
) -> jax.Array:
    """The attention [1, X, N, U] of a step's tokens [1, X, N, H] to their own sequences' pages, in
    which they are written already."""
    if keys.paging.over is not None:
        return _on_mesh(q_BXNH, keys, values, scoring)
    if keys.array_LPSX.ndim == 6:
        rows = keys.paging.ragged(scoring.q_positions_BT[0])
        return ragged_attention(q_BXNH[0], keys.array_LPSX, keys.layer, rows, scoring)[None]
    q_XNH, positions_X = q_BXNH[0], scoring.q_positions_BT[0]
    paging, outs = keys.paging, []
    first, rest = slice(paging.decoding), slice(paging.decoding, None)
    for table_RM, part in ((paging.decode_DM, first), (paging.blocks_CM, rest)):
        if R := len(table_RM):
            q_RQNH = q_XNH[part].reshape(R, -1, *q_XNH.shape[1:])
            positions_RQ = positions_X[part].reshape(R, -1)
            out_RQNU = _attend(q_RQNH, positions_RQ, table_RM, keys, values, scoring)
            outs.append(out_RQNU.reshape(-1, *out_RQNU.shape[2:]))
    return jnp.concatenate(outs)[None]


def _attend(
    q_RQNH: jax.Array,
    positions_RQ: jax.Array,
    table_RM: jax.Array,
    keys: PagedKeys,
    values: PagedKeys,
    s: Scoring,
) -> jax.Array:
    """Q tokens of each of R rows, [R, Q, N, U]."""
    R, Q, N, H = q_RQNH.shape
    K, U, dtype, paging = keys.heads, values.width, wide(q_RQNH), keys.paging
    q_RQKGH = (q_RQNH * jnp.asarray(s.scale, q_RQNH.dtype)).reshape(R, Q, K, N // K, H)
    read = _reader(N // K, keys, values)
    top, total, out = read(q_RQKGH, positions_RQ, table_RM, keys, values, s)
    if paging.places is not None:
        top, total, out = _combined(paging.places, top, total, out)
    if s.sinks_N is not None:
        sink = s.sinks_N.astype(dtype).reshape(1, K, N // K, 1)
        higher = jnp.maximum(top, sink)
        kept = jnp.exp(top - higher)
        total, out = total * kept + jnp.exp(sink - higher), out * kept[..., None]
    out = out / jnp.where(total == 0, 1, total)[..., None]
    return jnp.moveaxis(out, 3, 1).reshape(R, Q, N, U).astype(q_RQNH.dtype)


def _reader(heads: int, keys: PagedKeys, values: PagedKeys) -> Callable[..., Any]:
    """What reads the pages, of `heads` that read one KV head."""
    reader = keys.paging.reader
    if reader in ("kernel", "interpreted"):
        return _kernel
    apart = keys.array_LPSX is not values.array_LPSX
    serves = triton_serves(heads, max(keys.width, values.width), apart=apart)
    return _loop if reader == "loop" or not serves else _triton


def _loop(
    q_RQKGH: jax.Array,
    positions_RQ: jax.Array,
    table_RM: jax.Array,
    keys: PagedKeys,
    values: PagedKeys,
    s: Scoring,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The softmax under way after all blocks, whose rows see them together."""
    R, Q, K, G, _ = q_RQKGH.shape
    U, dtype, paging = values.width, wide(q_RQKGH), keys.paging
    size = keys.array_LPSX.shape[2]
    apart = Q == 1 and q_RQKGH.dtype == dtype  # on CPUs a batched product of single rows is slow
    entry = keys.array_LPSX.shape[-1] * keys.array_LPSX.dtype.itemsize
    most = max(LEAST_BLOCK, NEAR // (R * entry)) if apart else BLOCK
    group = max(1, min(most, BLOCK) // size)
    span = group * paging.size
    table_RM = jnp.pad(table_RM, ((0, 0), (0, -table_RM.shape[1] % group)))
    lowest = jnp.finfo(dtype).min

    def block(at: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top, total, out = state
        pages_RG = lax.dynamic_slice_in_dim(table_RM, at * group, group, axis=1)
        k_RSKH = keys.read(pages_RG, q_RQKGH.dtype)
        same = values.array_LPSX is keys.array_LPSX and not values.after
        v_RSKU = k_RSKH[..., :U] if same else values.read(pages_RG, q_RQKGH.dtype)
        if apart:
            scores = (q_RQKGH[:, 0, None] * k_RSKH[:, :, :, None]).sum(-1)
            scores = scores.transpose(0, 2, 3, 1)[:, :, :, None]
        else:
            scores = jnp.einsum("RQKGH,RSKH->RKGQS", q_RQKGH, k_RSKH, preferred_element_type=dtype)
        places_GS = jnp.arange(group)[:, None] * paging.size + jnp.arange(size)[None]
        places_S = at * span + paging.first(size) + places_GS.reshape(-1)
        seen_R11QS = _seen(positions_RQ, places_S, s)[:, None, None]
        scores = jnp.where(seen_R11QS, capped(scores, s.softcap), lowest)
        higher = jnp.maximum(top, scores.max(-1))
        weights = jnp.where(seen_R11QS, jnp.exp(scores - higher[..., None]), 0)
        kept = jnp.exp(top - higher)
        if apart:
            added = (
                weights[:, :, :, 0].transpose(0, 3, 1, 2)[..., None] * v_RSKU[:, :, :, None]
            ).sum(1)[:, :, :, None]
        else:
            added = jnp.einsum(
                "RKGQS,RSKU->RKGQU",
                weights.astype(v_RSKU.dtype),
                v_RSKU,
                preferred_element_type=dtype,
            )
        return higher, total * kept + weights.sum(-1), out * kept[..., None] + added

    shape = (R, K, G, Q)
    state = (jnp.full(shape, lowest), jnp.zeros(shape, dtype), jnp.zeros((*shape, U), dtype))
    first, end = _blocks(positions_RQ, span, s)
    end = jnp.minimum(end, table_RM.shape[1] // group)  # which says how long it can take
    return lax.fori_loop(first, end, block, state)


def _kernel(
    q_RQKGH: jax.Array,
    positions_RQ: jax.Array,
    table_RM: jax.Array,
    keys: PagedKeys,
    values: PagedKeys,
    s: Scoring,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The same by our kernel, each row through the blocks that it sees itself."""
    paging = keys.paging
    array = keys.array_LPSX
    group = pages_at_once(array.shape[2], array.shape[3], array.dtype.itemsize, table_RM.shape[1])
    apart = keys.each - keys.width  # of keys and values in one, the queries meet zeros
    q_RQKGH = jnp.pad(q_RQKGH, (*[(0, 0)] * 4, (0, apart)))
    (R, Q, *heads), U = q_RQKGH.shape, values.after + values.width
    each = queries_at_once(q_RQKGH.shape, U, group * array.shape[2])
    parts = Q // each
    positions_RQ = positions_RQ.reshape(R * parts, each)
    begin_R, end_R = jax.vmap(lambda row: _blocks(row, group * paging.size, s))(positions_RQ)
    table = RowTable(
        pages_RM=jnp.repeat(table_RM, parts, axis=0),
        position_R=positions_RQ[:, 0],
        begin_R=begin_R,
        end_R=jnp.clip(end_R, begin_R + 1, -(-table_RM.shape[1] // group)),
        size=paging.size,
        group=group,
        first=paging.first(array.shape[2]),
        layer=keys.layer,
    )
    top, total, out = paged_softmax(
        q_RQKGH.reshape(R * parts, each, *heads),
        PageParts(array, keys.scales_LPKS),
        PageParts(values.array_LPSX, values.scales_LPKS),
        table,
        s,
        U=U,
        asked=keys.width + values.width,
        interpret=paging.reader == "interpreted",
    )

    top, total, out = (_rejoined(x, parts) for x in (top, total, out))
    return top, total, out[..., values.after :]


def _triton(
    q_RQKGH: jax.Array,
    positions_RQ: jax.Array,
    table_RM: jax.Array,
    keys: PagedKeys,
    values: PagedKeys,
    s: Scoring,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The same by our kernel for GPUs."""
    (R, Q, *heads), paging = q_RQKGH.shape, keys.paging
    each = triton_queries(Q, heads[1])
    parts = Q // each
    table = RowPages(
        pages_RM=jnp.repeat(table_RM, parts, axis=0),
        position_R=positions_RQ.reshape(R * parts, each)[:, 0],
        size=paging.size,
        first=paging.first(keys.array_LPSX.shape[2]),
        layer=keys.layer,
    )
    found = paged_softmax_triton(
        q_RQKGH.reshape(R * parts, each, *heads),
        PageParts(keys.array_LPSX, keys.scales_LPKS),
        PageParts(values.array_LPSX, values.scales_LPKS),
        table,
        s,
        U=values.width,
        interpret=paging.reader == "triton interpreted",
    )
    top, total, out = (_rejoined(x, parts) for x in found)
    return top, total, out


def _rejoined(x: jax.Array, parts: int) -> jax.Array:
    """[R parts, K, G, Q / parts, ...] as [R, K, G, Q, ...]."""
    rows, K, G, each, *rest = x.shape
    x = jnp.moveaxis(x.reshape(rows // parts, parts, K, G, each, *rest), 1, 3)
    return x.reshape(rows // parts, K, G, parts * each, *rest)


def _combined(
    axis: str, top: jax.Array, total: jax.Array, out: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The softmax over the places of all devices of an axis, of those over each one's own."""
    higher = lax.pmax(top, axis)
    kept = jnp.exp(top - higher)
    return higher, lax.psum(total * kept, axis), lax.psum(out * kept[..., None], axis)


def _on_mesh(q_BXNH: Any, keys: PagedKeys, values: PagedKeys, scoring: Scoring) -> jax.Array:
    """`paged_attention` of what each device has: of X its sequences', of heads and pages its own.
    A latent cache is keys and values in one, and is passed once."""
    paging, both = keys.paging, (keys, values)
    read = both[: 1 if values.array_LPSX is keys.array_LPSX else 2]
    widths = [_cut(held.array_LPSX) for held in read]

    def local(q: Any, positions_BX: Any, sinks_N: Any, inner: Paging, held: Any, layer: Any) -> Any:
        places = {"q_positions_BT": positions_BX, "k_positions_BS": positions_BX}
        own = replace(scoring, sinks_N=sinks_N, **places)
        mine = [
            replace(
                whole,
                array_LPSX=array,
                scales_LPKS=scales,
                layer=layer,
                paging=inner,
                heads=whole.heads * _cut(array) // width,
            )
            for whole, (array, scales), width in zip(read, held, widths, strict=True)
        ]
        return paged_attention(
            q,
            mine[0],
            replace(mine[-1], width=values.width, whole=values.whole, after=values.after),
            own,
        )

    stored = [
        (letters_of(held.array_LPSX), None if held.scales_LPKS is None else "LPKS") for held in read
    ]
    sinks = None if scoring.sinks_N is None else "N"
    ins = ("BRNH", "BR", sinks, paging.letters, stored, "")
    assert paging.over is not None
    inside = paging.over(local, ins, "BRNH", kv_heads=keys.heads, heads=q_BXNH.shape[2])
    arrays = [(held.array_LPSX, held.scales_LPKS) for held in read]
    given = (q_BXNH, scoring.q_positions_BT, scoring.sinks_N, paging.alone(), arrays)
    return inside(*given, jnp.asarray(keys.layer))


def letters_of(array: jax.Array) -> str:
    """The dims of pages by the letters of a layout's `axes_of`."""
    return "LPSW" if array.ndim == 4 else "LPKS"


def _cut(array: jax.Array) -> int:
    """The dim of pages in which a device has its own heads."""
    return array.shape[letters_of(array).index("W" if array.ndim == 4 else "K")]


def _blocks(positions_RQ: jax.Array, span: int, s: Scoring) -> tuple[jax.Array, jax.Array]:
    """The first block that any row sees, and the one after the last."""
    end = positions_RQ.max() // span + 1
    used_RQ = jnp.where(positions_RQ == NOWHERE, jnp.iinfo(jnp.int32).max, positions_RQ)
    lowest, first = used_RQ.min(), jnp.int32(0)
    if s.window is not None:
        first = jnp.maximum(lowest - s.window + 1, 0) // span
    if s.chunk is not None:
        first = jnp.maximum(first, lowest // s.chunk * s.chunk // span)
    return jnp.minimum(first, end), end


def _seen(positions_RQ: jax.Array, places_S: jax.Array, s: Scoring) -> jax.Array:
    """Which places each token sees, [R, Q, S]."""
    return visible_places(positions_RQ[..., None], places_S[None, None], s)
