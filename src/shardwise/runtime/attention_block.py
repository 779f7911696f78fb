"""Softmax attention with its projections: x -> q, k, v -> kernel -> out."""

from collections.abc import Mapping

import jax

from shardwise.models import Attention
from shardwise.models.numerics import Rope
from shardwise.runtime.cache import as_read, extend
from shardwise.runtime.call import Call, Past, scoring_of
from shardwise.runtime.linear import into, out_of
from shardwise.runtime.norms import norm
from shardwise.runtime.rope import rotate

Params = Mapping[str, jax.Array]
PROJECTIONS = {
    "attention.q": "BTD,DNH->BTNH",
    "attention.k": "BTD,DKH->BTKH",
    "attention.v": "BTD,DKU->BTKU",
}
GATE = {"attention.gate": "BTD,DNU->BTNU"}


def attention_block(
    p: Params, x_BTD: jax.Array, a: Attention, rope: Rope | None, call: Call, past: Past | None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Attention(x) [B, T, D], and the cache arrays of the group ({} without a past)."""
    mark = call.options.mark
    q_BTNH, k_BTKH, v_BTKU = (mark("qkv", y) for y in into(p, PROJECTIONS, x_BTD, call))
    if a.qk_norm != "none":
        q_BTNH = _head_norm(p, "attention.q_norm", q_BTNH, a, call)
        k_BTKH = _head_norm(p, "attention.k_norm", k_BTKH, a, call)
    q_BTNH = rotate(q_BTNH, call.positions_BT, rope)
    k_BTKH = rotate(k_BTKH, call.positions_BT, rope)
    arrays: dict[str, jax.Array] = {}
    keys_BSKH, values_BSKU = k_BTKH, v_BTKU  # from an int8 cache they may come with scales
    if past is not None:
        arrays, held = extend(past, call.positions_BT, {"k": k_BTKH, "v": v_BTKU})
        keys_BSKH, values_BSKU = (as_read(held[n], q_BTNH.dtype, call) for n in ("k", "v"))
    scoring = scoring_of(
        call,
        past=past,
        window=a.window if a.kind == "window" else None,
        chunk=a.window if a.kind == "chunk" else None,
        sinks_N=p.get("attention.sinks"),
        keys=keys_BSKH.shape[1],
    )
    out_BTNU = mark("attention", call.attend(q_BTNH, keys_BSKH, values_BSKU, scoring))
    if a.output_gate:
        (gate_BTNU,) = into(p, GATE, x_BTD, call)
        out_BTNU = out_BTNU * jax.nn.sigmoid(gate_BTNU)
    out_BTD = out_of(p, "attention.o", "BTNU,NUD->BTD", out_BTNU, call)
    return mark("attention_out", out_BTD), arrays


def _head_norm(p: Params, name: str, x_BTNH: jax.Array, a: Attention, call: Call) -> jax.Array:
    """ "head" and "heads" norm each head, "full" all heads together."""
    return norm(p, name, x_BTNH, call.numerics, dims=2 if a.qk_norm == "full" else 1)
