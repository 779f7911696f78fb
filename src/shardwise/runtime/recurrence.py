"""Layers that carry a state along a sequence: where it comes from and where it is kept.

A layer gives `carried` its scan, which makes of tokens and the states before them what comes out
and the states after them. In the contiguous cache each row has its states. In pages a step reads
those in the page of the token before its first, and writes those after its last into that one's
(`scheduling/kept.py`). To a scan position 0 begins a document, whatever the states before it are,
and NOWHERE is padding, which stands last in its row and changes no state.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.attention.paged import NOWHERE, Paging
from shardwise.runtime.call import Call, Past

States = dict[str, jax.Array]
Tokens = Any
"""What a scan reads of each token: an array [R, Q, ...], or a tree of them."""
Scan = Callable[[Tokens, jax.Array, States], tuple[jax.Array, States]]
"""(x [R, Q, ...], positions [R, Q], states [R, ...]) -> (out [R, Q, ...], states [R, ...])."""
Channels = tuple[jax.Array, ...]
"""What a scan of channels that lie apart reads of each, [F, ...]."""


def carried_apart(
    scan: Callable[[Channels], Scan],
    channels: Channels,
    x_BTF: jax.Array,
    fresh: States,
    call: Call,
    past: Past | None,
) -> tuple[jax.Array, States]:
    """`carried` of a scan whose channels do not meet, x [B, T, F] and states [1, ..., F]: on a mesh
    each device of tensor has some of them."""
    if past is None or past.paging is None or past.paging.over is None:
        return carried(scan(channels), x_BTF, fresh, call, past)

    def local(channels: Channels, *rest: Any) -> tuple[jax.Array, States]:
        return _in_pages(scan(channels), *rest)

    width, kept = x_BTF.shape[-1], {n: f"LP{'.' * (s.ndim - 2)}W" for n, s in fresh.items()}
    apart = tuple("W" for _ in channels)
    ins = (apart, "BRW", "BR", kept, "", past.paging.letters)
    run = past.paging.over(local, ins, ("BRW", kept), kv_heads=width, heads=width)
    given = call.positions_BT, past.arrays, jnp.asarray(past.layer), past.paging.alone()
    return run(channels, x_BTF, *given)


def carried(
    scan: Scan, x_BTX: Tokens, fresh: States, call: Call, past: Past | None
) -> tuple[jax.Array, States]:
    """What a scan makes of x, and the cache arrays of the group ({} without a past). `fresh` are
    the states [1, ...] of a sequence that has not begun."""
    positions_BT = call.positions_BT
    if past is None or past.fresh:
        B = positions_BT.shape[0]
        before = {n: jnp.broadcast_to(s, (B, *s.shape[1:])) for n, s in fresh.items()}
    elif past.paging is not None:
        paging, run = past.paging, partial(_in_pages, scan)
        if paging.over is not None:
            kept = dict.fromkeys(past.arrays, "LP")
            rows = jax.tree.map(lambda _: "BR", x_BTX)
            ins = (rows, "BR", kept, "", paging.letters)
            run = paging.over(run, ins, ("BR", kept), kv_heads=1, heads=1)
        return run(x_BTX, positions_BT, past.arrays, jnp.asarray(past.layer), paging.alone())
    else:
        before = {name: past.arrays[name][past.layer] for name in fresh}
    if past is not None and past.lengths_B is not None:
        positions_BT = jnp.where(positions_BT < past.lengths_B[:, None], positions_BT, NOWHERE)
    out_BTY, after = scan(x_BTX, positions_BT, before)
    if past is None:
        return out_BTY, {}
    return out_BTY, {n: past.arrays[n].at[past.layer].set(s) for n, s in after.items()}


def _in_pages(
    scan: Scan,
    x_1XX: Tokens,
    positions_1X: jax.Array,
    arrays: States,
    layer: Any,
    paging: Paging,
) -> tuple[jax.Array, States]:
    """First the rows that decode, at once, then the blocks of prompts, in order."""
    D, C = paging.decode_DM.shape[0], paging.blocks_CM.shape[0]
    positions = positions_1X[0]
    outs = []
    if D:
        tokens = jax.tree.map(lambda x: x[0, :D, None], x_1XX)
        places = positions[:D, None]
        out_D1Y, arrays = _decoded(scan, tokens, places, arrays, layer, paging)
        outs.append(out_D1Y[:, 0])
    if C:
        x_CQX = jax.tree.map(lambda x: x[0, D:].reshape(C, -1, *x.shape[2:]), x_1XX)
        positions_CQ = positions[D:].reshape(C, -1)
        out_CQY, arrays = _chunks(scan, x_CQX, positions_CQ, arrays, layer, paging)
        outs.append(out_CQY.reshape(-1, *out_CQY.shape[2:]))
    return jnp.concatenate(outs)[None], arrays


def _decoded(
    scan: Scan,
    x_D1X: Tokens,
    positions_D1: jax.Array,
    arrays: States,
    layer: Any,
    paging: Paging,
) -> tuple[jax.Array, States]:
    position_D = positions_D1[:, 0]
    from_D = _page(paging.decode_DM, position_D - 1, paging.size)
    into_D = _page(paging.decode_DM, position_D, paging.size)
    states = {name: array[layer, from_D] for name, array in arrays.items()}
    out_D1Y, states = scan(x_D1X, positions_D1, states)
    return out_D1Y, _written(arrays, layer, into_D, position_D != NOWHERE, states)


def _chunks(
    scan: Scan,
    x_CQX: Tokens,
    positions_CQ: jax.Array,
    arrays: States,
    layer: Any,
    paging: Paging,
) -> tuple[jax.Array, States]:
    """A block goes on with the states of the one before it where both are of one chunk; the last of
    a chunk writes them."""
    first_C, last_C = positions_CQ[:, 0], positions_CQ.max(1)
    goes_on_C = first_C > paging.starts_C
    ends_C = (first_C != NOWHERE) & ~jnp.append(goes_on_C[1:], jnp.array(False))
    from_C = _page(paging.blocks_CM, first_C - 1, paging.size)
    into_C = _page(paging.blocks_CM, last_C, paging.size)

    def block(carry: tuple[States, States], xs: Any) -> tuple[tuple[States, States], jax.Array]:
        (arrays, states), (x_QX, positions_Q, goes_on, source, target, ends) = carry, xs
        held = {name: array[layer, source][None] for name, array in arrays.items()}
        states = jax.tree.map(partial(jnp.where, goes_on), states, held)
        out_1QY, states = scan(jax.tree.map(lambda x: x[None], x_QX), positions_Q[None], states)
        arrays = _written(arrays, layer, target[None], ends[None], states)
        return (arrays, states), out_1QY[0]

    none = {name: jnp.zeros_like(array[0, :1]) for name, array in arrays.items()}
    xs = (x_CQX, positions_CQ, goes_on_C, from_C, into_C, ends_C)
    (arrays, _), out_CQY = lax.scan(block, (arrays, none), xs)
    return out_CQY, arrays


def _page(table_RM: jax.Array, positions_R: jax.Array, size: int) -> jax.Array:
    index_R1 = jnp.maximum(positions_R, 0)[:, None] // size
    return jnp.take_along_axis(table_RM, index_R1, axis=1)[:, 0]


def _written(
    arrays: States, layer: Any, pages_R: jax.Array, kept_R: jax.Array, states: States
) -> States:
    beyond = next(iter(arrays.values())).shape[1]  # is not written
    into_R = jnp.where(kept_R, pages_R, beyond)
    return {
        name: array.at[layer, into_R].set(states[name].astype(array.dtype), mode="drop")
        for name, array in arrays.items()
    }
