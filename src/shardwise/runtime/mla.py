"""Multi-head latent attention (DeepSeek-V2, section 2.1), in both of its equal forms.

Keys and values are products of one latent c per token. Training and prefill make them ("expanded",
N heads); decoding moves the up projections to the query and to the output ("absorbed"), so that
the cache is read as one KV head of width C + R.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models import LatentAttention
from shardwise.models.numerics import Rope
from shardwise.runtime.attention.paged import PagedKeys
from shardwise.runtime.attention.scoring import Scaled
from shardwise.runtime.cache import as_read, extend
from shardwise.runtime.call import Call, Past, scoring_of
from shardwise.runtime.linear import biased, out_of
from shardwise.runtime.norms import norm
from shardwise.runtime.quant import Quantized, Weight, product, scaled_last
from shardwise.runtime.rope import rotate

Params = Mapping[str, jax.Array]


def latent_attention(
    p: Params,
    x_BTD: jax.Array,
    a: LatentAttention,
    rope: Rope | None,
    call: Call,
    past: Past | None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Attention(x) [B, T, D], and the cache arrays of the group ({} without a past)."""
    mark, n = call.options.mark, call.numerics
    q_BTNH = mark("qkv", _queries(p, x_BTD, call))
    c_BTC = mark("qkv", _with_bias(p, "attention.kv_down", "BTD,DC->BTC", x_BTD))
    r_BTR = mark("qkv", _with_bias(p, "attention.k_rope", "BTD,DR->BTR", x_BTD))
    c_BTC = norm(p, "attention.kv_down_norm", c_BTC, n)
    q_BTNP, q_BTNR = q_BTNH[..., : a.nope_head_dim], q_BTNH[..., a.nope_head_dim :]
    q_BTNR = rotate(q_BTNR, call.positions_BT, rope)
    r_BTR = rotate(r_BTR[:, :, None], call.positions_BT, rope)[:, :, 0]
    arrays: dict[str, jax.Array] = {}
    joint: Any = None  # c and r as an int8 cache keeps them
    if past is not None and "cr" in past.arrays:
        joint = jnp.concatenate((c_BTC, r_BTR), axis=-1)[:, :, None]
        arrays, held = extend(past, call.positions_BT, {"cr": joint})
        joint = as_read(held["cr"], x_BTD.dtype, call)
    elif past is not None:
        arrays, held = extend(past, call.positions_BT, {"c": c_BTC, "r": r_BTR})
        c_BTC, r_BTR = held["c"].astype(x_BTD.dtype), held["r"].astype(x_BTD.dtype)
    scoring = scoring_of(call, past=past, keys=(c_BTC if joint is None else joint).shape[1])
    if past is None or past.fresh:
        k_BSNP = product("BSC,CNP->BSNP", c_BTC, p["attention.k_up"])
        v_BSNU = mark("qkv", product("BSC,CNU->BSNU", c_BTC, p["attention.v_up"]))
        r_BSNR = jnp.broadcast_to(r_BTR[:, :, None], (*k_BSNP.shape[:3], a.rope_head_dim))
        q_BTNH = jnp.concatenate((q_BTNP, q_BTNR), axis=-1)
        k_BSNH = jnp.concatenate((mark("qkv", k_BSNP), r_BSNR), axis=-1)
        out_BTNU = call.attend(q_BTNH, k_BSNH, v_BSNU, scoring)
    else:
        q_BTNC = _absorbed(q_BTNP, p["attention.k_up"])
        q_BTNA = jnp.concatenate((q_BTNC, q_BTNR), axis=-1)
        if joint is None:
            joint = jnp.concatenate((c_BTC, r_BTR), axis=-1)[:, :, None]
        out_BTNC = call.attend(q_BTNA, joint, _first(joint, a.kv_lora_rank), scoring)
        out_BTNU = product("BTNC,CNU->BTNU", out_BTNC, p["attention.v_up"])
    out_BTNU = mark("attention", out_BTNU)
    out_BTD = out_of(p, "attention.o", "BTNU,NUD->BTD", out_BTNU, call)
    return mark("attention_out", out_BTD), arrays


def _queries(p: Params, x_BTD: jax.Array, call: Call) -> jax.Array:
    if "attention.q" in p:
        return product("BTD,DNH->BTNH", x_BTD, p["attention.q"])
    q_BTQ = call.options.mark("qkv", _with_bias(p, "attention.q_down", "BTD,DQ->BTQ", x_BTD))
    q_BTQ = norm(p, "attention.q_down_norm", q_BTQ, call.numerics)
    return product("BTQ,QNH->BTNH", q_BTQ, p["attention.q_up"])


def _absorbed(q_BTNP: jax.Array, k_up: Weight) -> jax.Array:
    """q k_up^T. A scale that belongs to (n, p), which is summed here, goes to q first."""
    k_up = scaled_last(k_up, (0,), q_BTNP.dtype)
    if isinstance(k_up, Quantized):
        scaled = q_BTNP * k_up.scale.astype(q_BTNP.dtype)[None]
        return jnp.einsum("BTNP,CNP->BTNC", scaled, k_up.values.astype(q_BTNP.dtype))
    return product("BTNP,CNP->BTNC", q_BTNP, k_up)


def _first(x: Any, width: int) -> Any:
    """The first channels of an array, or of one with scales."""
    if isinstance(x, PagedKeys):
        return x.first(width)
    if isinstance(x, Scaled):
        return Scaled(x.values[..., :width], x.scale_BKS)
    return x[..., :width]


def _with_bias(p: Params, name: str, spec: str, x: jax.Array) -> jax.Array:
    return biased(p, name, product(spec, x, p[name]))
