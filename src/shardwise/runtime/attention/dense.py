"""The reference: the whole T x S matrix of scores, in float32."""

import jax
import jax.numpy as jnp
from jax import ad_checkpoint

from shardwise.runtime.attention.scoring import Scaled, Scoring, capped, visible
from shardwise.runtime.precision import wide


def dense_attention(
    q_BTNH: jax.Array, k_BSKH: jax.Array | Scaled, v_BSKU: jax.Array | Scaled, scoring: Scoring
) -> jax.Array:
    """softmax(cap(scale q k^T) + mask) v, [B, T, N, U] in the dtype of v.

    4 B T S N H FLOPs where U = H (book 4.1.3); memory B N T S in f32. The scales of an int8 cache
    multiply scores and weights, which are fewer than keys and values, so that these are made wide
    only on their way into the matmuls; the answer then is in the dtype of q.
    """
    k_BSKH, k_scale_BKG1S = _parts(k_BSKH, q_BTNH)
    v_BSKU, v_scale_BKG1S = _parts(v_BSKU, q_BTNH)
    B, T, N, H = q_BTNH.shape
    K = k_BSKH.shape[2]
    dtype = wide(q_BTNH)
    q_BTKGH = q_BTNH.reshape(B, T, K, N // K, H)
    scores_BKGTS = jnp.einsum("BTKGH,BSKH->BKGTS", q_BTKGH, k_BSKH, preferred_element_type=dtype)
    if k_scale_BKG1S is not None:
        scores_BKGTS = scores_BKGTS * k_scale_BKG1S.astype(dtype)
    scores_BKGTS = capped(scores_BKGTS * scoring.scale, scoring.softcap)
    seen_BTS = visible(scoring)
    scores_BKGTS = jnp.where(seen_BTS[:, None, None], scores_BKGTS, jnp.finfo(dtype).min)
    if scoring.sinks_N is not None:
        sinks = scoring.sinks_N.astype(dtype).reshape(1, K, N // K, 1, 1)
        sinks_BKGT1 = jnp.broadcast_to(sinks, (*scores_BKGTS.shape[:-1], 1))
        scores_BKGTS = jnp.concatenate((scores_BKGTS, sinks_BKGT1), axis=-1)
    weights_BKGTS = jax.nn.softmax(scores_BKGTS, axis=-1)[..., : k_BSKH.shape[1]]
    # A row that sees nothing would share its weight among all.
    weights_BKGTS = jnp.where(seen_BTS[:, None, None], weights_BKGTS, 0)
    if v_scale_BKG1S is not None:
        weights_BKGTS = weights_BKGTS * v_scale_BKG1S.astype(dtype)
    out_BTKGU = jnp.einsum("BKGTS,BSKU->BTKGU", weights_BKGTS.astype(v_BSKU.dtype), v_BSKU)
    out_BTNU = out_BTKGU.reshape(B, T, N, v_BSKU.shape[-1])
    return ad_checkpoint.checkpoint_name(out_BTNU, "attention")


def _parts(x: jax.Array | Scaled, like: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Values in the dtype of the queries, and scales as they broadcast with scores."""
    if not isinstance(x, Scaled):
        return x, None
    B, S, K, _ = x.shape
    return x.values.astype(like.dtype), x.scale_BKS.reshape(B, K, -1, 1, S)
