"""One transformer: tokens -> logits -> loss, for every model that has numerics.

Parameters are a plain tree: {"embedding": [V, D], ..., "layers": (group 0, group 1, ...)} where a
group maps the names of the parameter table to arrays [layers of the group, ...]. The table is
`models.parameters`; `init.py` makes the tree, `checkpoint.py` loads it.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.models.runnable import numerics_of
from shardwise.runtime.attention.scoring import capped
from shardwise.runtime.call import Call
from shardwise.runtime.norms import norm
from shardwise.runtime.options import Options
from shardwise.runtime.precision import wide
from shardwise.runtime.quant import Quantized, looked_up, product, row_product
from shardwise.runtime.stack import run_stack

Params = Mapping[str, Any]
DEFAULT = Options()


def forward(
    params: Params,
    tokens_BT: jax.Array,
    cfg: ModelConfig,
    options: Options = DEFAULT,
    *,
    positions_BT: jax.Array | None = None,
    segments_BT: jax.Array | None = None,
    in_order: bool = True,
) -> jax.Array:
    """Logits [B, T, V] in float32: position t predicts token t + 1.

    Positions count from 0 per row unless given; with `segments_BT` (documents packed in a row)
    give positions that restart at each document. Say `in_order=False` where the tokens of a row do
    not stand in the order of their positions (zig-zag context parallelism). Raises BadRequest for a
    model without numerics.
    """
    call = call_of(tokens_BT, cfg, options, positions_BT, segments_BT, in_order=in_order)
    x_BTD = embed(params, tokens_BT, cfg, call)
    x_BTD, _ = run_stack(params["layers"], x_BTD, cfg, call)
    return head(params, x_BTD, cfg, call)


def loss(
    params: Params,
    batch: Mapping[str, jax.Array],
    cfg: ModelConfig,
    options: Options = DEFAULT,
) -> jax.Array:
    """Mean cross-entropy in nats over the tokens that count, a float32 scalar.

    `batch` holds tokens [B, T] and targets [B, T], and may hold weights [B, T] (0 leaves a token
    out), positions and segments [B, T]. Raises BadRequest without tokens or targets.
    """
    if missing := {"tokens", "targets"} - set(batch):
        raise BadRequest(
            f"the batch has no {' and no '.join(sorted(missing))}; give both [B, T], with "
            "targets shifted by one token"
        )
    logits_BTV = forward(
        params,
        batch["tokens"],
        cfg,
        options,
        positions_BT=batch.get("positions"),
        segments_BT=batch.get("segments"),
    )
    total, count = cross_entropy(logits_BTV, batch["targets"], batch.get("weights"))
    return total / count


@jax.named_scope("lm_head")
def cross_entropy(
    logits_BTV: jax.Array, targets_BT: jax.Array, weights_BT: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Sum over tokens of weight * -log softmax(logits)[target], and the sum of the weights."""
    nats_BT = _nats(logits_BTV, targets_BT)
    if weights_BT is None:
        return nats_BT.sum(), jnp.asarray(float(nats_BT.size), nats_BT.dtype)
    weights_BT = weights_BT.astype(nats_BT.dtype)
    return (nats_BT * weights_BT).sum(), weights_BT.sum()


@jax.custom_vjp
def _nats(logits_BTV: jax.Array, targets_BT: jax.Array) -> jax.Array:
    """-log softmax(logits)[target], with softmax - onehot for a gradient in one pass: autodiff
    would keep the exponentials beside the logits and scatter into zeros of that size."""
    return _nats_forward(logits_BTV, targets_BT)[0]


def _nats_forward(logits_BTV: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, Any]:
    chosen_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    sums_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    return sums_BT - chosen_BT, (logits_BTV, targets_BT, sums_BT)


def _nats_backward(kept: Any, dnats_BT: jax.Array) -> tuple[jax.Array, None]:
    logits_BTV, targets_BT, sums_BT = kept
    places_BTV = lax.broadcasted_iota(targets_BT.dtype, logits_BTV.shape, logits_BTV.ndim - 1)
    softmax_BTV = jnp.exp(logits_BTV - sums_BT[..., None])
    chosen_BTV = places_BTV == targets_BT[..., None]
    return jnp.where(chosen_BTV, softmax_BTV - 1, softmax_BTV) * dnats_BT[..., None], None


_nats.defvjp(_nats_forward, _nats_backward)


def call_of(
    tokens_BT: jax.Array,
    cfg: ModelConfig,
    options: Options,
    positions_BT: jax.Array | None = None,
    segments_BT: jax.Array | None = None,
    *,
    in_order: bool = True,
) -> Call:
    """What the layers of one pass share; positions are 0, 1, ... unless given. Raises BadRequest
    for tokens that are no [B, T]."""
    check_rows(tokens_BT)
    if positions_BT is None:
        if cfg.position_rows and tokens_BT.shape[1] > cfg.learned_tokens:
            raise BadRequest(
                f"{tokens_BT.shape[1]} tokens are more than the {cfg.learned_tokens} learned "
                f"positions of model '{cfg.name}'; cut the sequence"
            )
        positions_BT = jax.lax.broadcasted_iota(jnp.int32, tokens_BT.shape, 1)
    return Call(
        numerics=numerics_of(cfg),
        options=options,
        positions_BT=positions_BT,
        segments_BT=segments_BT,
        in_order=in_order,
    )


def check_rows(tokens_BT: jax.Array) -> None:
    """Raise BadRequest unless the tokens are [B, T]."""
    if jnp.ndim(tokens_BT) != 2:
        raise BadRequest(
            f"tokens are {list(jnp.shape(tokens_BT))}; give [B, T], one row as tokens[None]"
        )


@jax.named_scope("embedding")
def embed(params: Params, tokens_BT: jax.Array, cfg: ModelConfig, call: Call) -> jax.Array:
    """Token embeddings, scaled, projected and with learned positions where the model has them."""
    n, p = call.numerics, call.options.use(-1, _outside(params))
    rows_BTD = call.options.look_up(p["embedding"], tokens_BT, call.options.dtype)
    x_BTD = call.options.at("lookup", rows_BTD)
    if n.embedding_scale != 1.0:
        # Gemma rounds the scale to the dtype of the activations first; so must we.
        x_BTD = x_BTD * jnp.asarray(n.embedding_scale, x_BTD.dtype)
    if "embedding.in" in p:
        x_BTD = product("BTM,MD->BTD", x_BTD, p["embedding.in"])
    if "positions" in p:
        rows_BT = call.positions_BT + n.position_offset
        x_BTD = x_BTD + looked_up(p["positions"], rows_BT, x_BTD.dtype)
    if cfg.embedding_norm:
        x_BTD = norm(p, "norm.embedding", x_BTD, n)
    return call.options.at("embedding", x_BTD)


@jax.named_scope("lm_head")
def head(
    params: Params, x_BTD: jax.Array, cfg: ModelConfig, call: Call, *, padded: bool = False
) -> jax.Array:
    """Final norm and logits [B, T, V], float32 (float64 in float64); those of a `padded` vocabulary
    keep its columns, of which an axis that cuts V has even pieces."""
    n, p = call.numerics, call.options.use(-1, _outside(params))
    if cfg.final_norm:
        x_BTD = norm(p, "norm.final", x_BTD, n)
    if "embedding.out" in p:
        x_BTD = product("BTD,DM->BTM", x_BTD, p["embedding.out"])
    dtype = wide(x_BTD)
    if cfg.tied_embeddings:
        spec, w = "BTD,VD->BTV", p["embedding"]
    else:
        spec, w = "BTD,DV->BTV", p["lm_head"]
    if call.options.rows and x_BTD.dtype == dtype:
        logits_BTV = row_product(spec, x_BTD, w, dtype)
    elif isinstance(w, Quantized):
        logits_BTV = product(spec, x_BTD, w, dtype)
    else:
        logits_BTV: Any = _logits(spec, x_BTD, w.astype(x_BTD.dtype))
    columns = logits_BTV.shape[-1] if padded else cfg.vocabulary
    logits_BTV = logits_BTV[..., :columns]
    if "lm_head.bias" in p:
        bias_V = p["lm_head.bias"].astype(dtype)[:columns]
        logits_BTV = logits_BTV + bias_V[None, None]
    if n.logits_scale != 1.0:
        logits_BTV = logits_BTV * n.logits_scale
    return call.options.at("logits", capped(logits_BTV, n.logits_softcap))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logits(spec: str, x_BTD: jax.Array, w: jax.Array) -> jax.Array:
    """Logits in float32 whose gradient is rounded to the dtype of x before the two matmuls of the
    backward pass: theirs are then no wider than those of any other matmul, nor are their sums."""
    return jnp.einsum(spec, x_BTD, w, preferred_element_type=wide(x_BTD))


def _logits_forward(spec: str, x_BTD: jax.Array, w: jax.Array) -> tuple[jax.Array, Any]:
    return _logits(spec, x_BTD, w), (x_BTD, w)


def _logits_backward(spec: str, kept: Any, dlogits_BTV: jax.Array) -> Any:
    _, pull = jax.vjp(partial(product, spec), *kept)
    return pull(dlogits_BTV.astype(kept[0].dtype))


_logits.defvjp(_logits_forward, _logits_backward)


def _outside(params: Params) -> dict[str, jax.Array]:
    return {name: value for name, value in params.items() if name != "layers"}
