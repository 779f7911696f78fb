"""What every layer of one forward pass shares: numerics, options, positions, segments."""

from dataclasses import dataclass
from typing import Any

import jax

from shardwise.models.components import CORE
from shardwise.models.numerics import Numerics
from shardwise.runtime.attention.paged import Paging
from shardwise.runtime.attention.scoring import Scoring
from shardwise.runtime.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One forward pass. `positions_BT` count tokens of a document from 0; `segments_BT` tell the
    documents of a packed row apart, None where a row is one document. `in_order` as in Scoring."""

    numerics: Numerics
    options: Options
    positions_BT: jax.Array
    segments_BT: jax.Array | None = None
    in_order: bool = True

    @jax.named_scope(CORE)
    def attend(self, q_BTNH: Any, k_BSKH: Any, v_BSKU: Any, scoring: Scoring) -> jax.Array:
        """The attention of the options' kernel, [B, T, N, U]."""
        return self.options.kernel(q_BTNH, k_BSKH, v_BSKU, scoring)


@dataclass(frozen=True, slots=True)
class Past:
    """The cache of a layer group (`cache.py`), and which of its layers this is.

    `fresh`: nothing was there before, so new tokens attend to each other alone; `lengths_B` are
    those of rows padded on the right, if any. `paging` tells where the sequences of a step lie, for
    a cache in pages (`paged_cache.py`).
    """

    arrays: dict[str, jax.Array]
    layer: jax.Array | int
    fresh: bool
    paging: Paging | None = None
    lengths_B: jax.Array | None = None


def scoring_of(
    call: Call,
    *,
    past: Past | None = None,
    window: int | None = None,
    chunk: int | None = None,
    sinks_N: jax.Array | None = None,
    keys: int | None = None,
) -> Scoring:
    """The Scoring of a layer: keys are the call's own tokens, or the `keys` places of a cache."""
    from_cache = past is not None and not past.fresh
    in_pages = past is not None and past.paging is not None
    return Scoring(
        scale=call.numerics.attention_scale,
        softcap=call.numerics.attention_softcap,
        window=window,
        chunk=chunk,
        in_order=call.in_order and not from_cache,
        q_positions_BT=call.positions_BT,
        k_positions_BS=_places(keys, call) if from_cache and not in_pages else call.positions_BT,
        q_segments_BT=None if from_cache else call.segments_BT,
        k_segments_BS=None if from_cache else call.segments_BT,
        sinks_N=sinks_N,
    )


def _places(keys: int | None, call: Call) -> jax.Array:
    assert keys is not None
    batch = call.positions_BT.shape[0]
    return jax.lax.broadcasted_iota(call.positions_BT.dtype, (batch, keys), 1)
