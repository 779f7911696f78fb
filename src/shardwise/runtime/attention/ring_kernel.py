"""Ring attention by JAX's Pallas kernel, for causal rows that are dealt in zig-zag, on TPUs.

A device holds parts d and 2|c| - 1 - d of a row (`zigzag.py`), `low` and `high`, n tokens each. To
its own keys low and high are causal, and high sees all of low. Of the keys of the device s that is
`i` places before it on the ring, high sees all of low; beside that

    s < d (i <= d)    low sees all of low
    s > d             high sees all of high

so that every hop is two products of whole [n, n] blocks without a mask, whichever device: the
second of halves that are chosen. Outputs are merged by their log-sum-exps, as in `flash.py`:

    lse = log(exp(lse_1) + exp(lse_2)),   out = exp(lse_1 - lse) out_1 + exp(lse_2 - lse) out_2

The kernel's backward pass takes the merged output and lse in place of its own, which makes its
weights those of the whole row. Of JAX 0.10.2, whose function for that has no public name.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import ad_checkpoint, lax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from shardwise.runtime.attention.scoring import Scoring
from shardwise.runtime.attention.splash import LANES, blocks
from shardwise.runtime.collective_matmul import hop


class Halves(NamedTuple):
    """Low and high part of something with tokens in dim 2: [B, N, n, ...] each."""

    low: Any
    high: Any


class RingRule(NamedTuple):
    """What is known before anything runs."""

    axis: str
    softcap: float | None
    interpret: bool


def ring_kernel_serves(q_BTNH: jax.Array, s: Scoring) -> bool:
    """Whether rows that are dealt can be met by the kernel: tokens alone decide what is seen."""
    plain = s.window is None and s.chunk is None and s.sinks_N is None and s.q_segments_BT is None
    return plain and not s.in_order and q_BTNH.shape[1] % (2 * LANES) == 0


def ring_kernel_attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKU: jax.Array,
    scoring: Scoring,
    *,
    axis: str,
    interpret: bool = False,
) -> jax.Array:
    """`ring_attention` of rows dealt in zig-zag. Inside `shard_map`; `interpret` for CPUs."""
    q, k, v = (_halves(x.swapaxes(1, 2)) for x in (q_BTNH * scoring.scale, k_BSKH, v_BSKU))
    out = _ring(RingRule(axis, scoring.softcap, interpret), q, k, v)
    return jnp.concatenate(out, 2).swapaxes(1, 2).astype(v_BSKU.dtype)


def _halves(x: jax.Array) -> Halves:
    return Halves(*jnp.split(x, 2, axis=2))


def _values(rule: RingRule, q: Halves, k: Halves, v: Halves) -> tuple[Halves, Halves]:
    """Outputs and log-sum-exps."""
    own = _forward(rule, True, q, k, v)
    (seen,) = _forward(rule, False, (q.high,), (k.low,), (v.low,))
    state = Halves((own[0][0].astype(jnp.float32), own[0][1]), _merge(own[1], seen))

    def step(state: Halves, i: jax.Array, here: tuple[Halves, Halves]) -> Halves:
        before = i <= lax.axis_index(rule.axis)
        k, v = here
        chosen = [_chosen(before, x) for x in (q, k, v)]
        first, second = _forward(
            rule, False, (q.high, chosen[0]), (k.low, chosen[1]), (v.low, chosen[2])
        )
        none = jnp.full_like(second[1], -jnp.inf)
        low = second[0], jnp.where(before, second[1], none)
        high = second[0], jnp.where(before, none, second[1])
        return Halves(_merge(state.low, low), _merge(_merge(state.high, first), high))

    state = _round(rule, step, state, (k, v))
    return Halves(state.low[0], state.high[0]), Halves(state.low[1], state.high[1])


def _round(rule: RingRule, step: Any, state: Any, here: Any) -> Any:
    """`step(state, i, blocks)` for the blocks of all others, each on its way while the one before
    is worked on."""
    hops = lax.axis_size(rule.axis) - 1
    if not hops:
        return state

    def turn(carry: Any, i: jax.Array) -> Any:
        state, here = carry
        coming = _hop(here, rule.axis)
        return (step(state, i, here), coming), None

    (state, last), _ = lax.scan(turn, (state, _hop(here, rule.axis)), jnp.arange(1, hops))
    return step(state, jnp.int32(hops), last)


def _forward_rule(rule: RingRule, q: Halves, k: Halves, v: Halves):
    out, lse = _values(rule, q, k, v)
    out, lse = (
        Halves(*(ad_checkpoint.checkpoint_name(x, "attention") for x in both))
        for both in (out, lse)
    )
    return out, (q, k, v, out, lse)


def _backward_rule(rule: RingRule, kept: Any, dout: Halves):
    q, k, v, out, lse = kept
    wide = partial(jnp.asarray, dtype=jnp.float32)
    own = _backward(rule, True, tuple(q), tuple(k), tuple(v), out, lse, dout)
    (seen,) = _backward(rule, False, (q.high,), (k.low,), (v.low,), out[1:], lse[1:], dout[1:])
    dq = Halves(wide(own[0][0]), own[1][0] + wide(seen[0]))
    dkv = tuple(Halves(wide(own[0][n]) + seen[n], wide(own[1][n])) for n in (1, 2))

    def step(state: Any, i: jax.Array, here: Any) -> Any:
        """The sums of a block come in with it, one hop behind; this device's share is added."""
        dq, sums = state
        before = i <= lax.axis_index(rule.axis)
        arriving = _hop(sums, rule.axis)
        k, v = here
        chosen = [_chosen(before, x) for x in (q, k, v, out, lse, dout)]
        first, second = _backward(
            rule,
            False,
            (q.high, chosen[0]),
            (k.low, chosen[1]),
            (v.low, chosen[2]),
            (out.high, chosen[3]),
            (lse.high, chosen[4]),
            (dout.high, chosen[5]),
        )
        low, high = ([_only(when, x) for x in second] for when in (before, ~before))
        dq = Halves(dq.low + low[0], dq.high + wide(first[0]) + high[0])
        mine = (Halves(first[n] + low[n], high[n]) for n in (1, 2))
        return dq, tuple(
            Halves(*(a + b for a, b in zip(one, other, strict=True)))
            for one, other in zip(arriving, mine, strict=True)
        )

    dq, sums = _round(rule, step, (dq, dkv), (k, v))
    home = jax.tree.map(lambda x: hop(x, rule.axis, 1 - lax.axis_size(rule.axis)), sums)
    return jax.tree.map(lambda d, x: d.astype(x.dtype), (dq, *home), (q, k, v))


_ring = jax.custom_vjp(lambda rule, q, k, v: _values(rule, q, k, v)[0], nondiff_argnums=(0,))
_ring.defvjp(_forward_rule, _backward_rule)


def _chosen(before: jax.Array, x: Halves) -> jax.Array:
    return jnp.where(before, x.low, x.high)


def _only(when: jax.Array, x: jax.Array) -> jax.Array:
    """The values, wide, or zeros."""
    return jnp.where(when, x.astype(jnp.float32), 0.0)


def _hop(tree: Any, axis: str) -> Any:
    return jax.tree.map(lambda x: hop(x, axis, 1), tree)


def _merge(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """Two softmaxes, each as normalised output and log-sum-exp, as one; both wide."""
    lse = jnp.logaddexp(one[1], other[1])
    first, second = (
        x[0].astype(jnp.float32) * jnp.exp(x[1] - lse)[..., None] for x in (one, other)
    )
    return first + second, lse


# The kernel, for blocks of the same form one by one: stacked, all of them would be copied --------


def _kernel(rule: RingRule, causal: bool, heads: int, n: int, keeps: bool) -> Any:
    mask = masks.CausalMask((n, n)) if causal else masks.FullMask((n, n))
    return splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=blocks(n),
        attn_logits_soft_cap=rule.softcap,
        save_residuals=keeps,
        interpret=rule.interpret,
    )


def _forward(
    rule: RingRule, causal: bool, q: Any, k: Any, v: Any
) -> list[tuple[jax.Array, jax.Array]]:
    """(output, lse) of each pair of blocks."""
    kernel = _kernel(rule, causal, q[0].shape[1], q[0].shape[2], keeps=True)
    run = jax.vmap(lambda q, k, v: kernel(q, k, v))
    found = [run(*block) for block in zip(q, k, v, strict=True)]
    return [(out, lse) for out, (lse,) in found]


def _backward(rule: RingRule, causal: bool, *blocks: Any) -> list[tuple[jax.Array, ...]]:
    """(dq, dk, dv) of each pair of blocks, from (q, k, v, out, lse, dout)."""
    first = blocks[0][0]
    kernel = _kernel(rule, causal, first.shape[1], first.shape[2], keeps=False)
    pull: Any = splash._splash_attention_bwd
    given = [kernel.kwargs[name] for name in _GIVEN]

    def one(q, k, v, out, lse, dout):
        kept = (q, k, v, None, None, out, lse, kernel.dq_mask_info, kernel.dkv_mask_info)
        return pull(*given, kept, dout)[3:6]

    return [
        jax.vmap(one)(q, k, v, out.astype(q.dtype), lse, dout.astype(q.dtype))
        for q, k, v, out, lse, dout in zip(*blocks, strict=True)
    ]


_GIVEN = (
    "save_residuals",
    "mask_value",
    "is_mqa",
    "block_sizes",
    "residual_checkpoint_name",
    "mask_function",
    "attn_logits_soft_cap",
    "interpret",
)
