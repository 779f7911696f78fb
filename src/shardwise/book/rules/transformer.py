"""The book's Transformer from its letters, and what ch. 4 counts of it."""

import numpy as np

from shardwise.book.rules.blocks import check_size
from shardwise.errors import BadRequest, check_known
from shardwise.models import ModelConfig
from shardwise.models.activations import recompute_flops_per_token
from shardwise.models.contraction import Contraction
from shardwise.models.flops import attention_intensity, flops_by_op
from shardwise.models.remat import remat_row
from shardwise.models.specs import Attention, Layer, Mlp, Moe
from shardwise.models.training_state import TrainingState, training_state
from shardwise.work import Quantity


def transformer(
    *,
    layers: int = 1,
    d_model: int = 1,
    d_ff: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    vocabulary: int = 1,
    norms: int = 0,
    tied: bool = False,
    experts: int | None = None,
    experts_per_token: int | None = None,
) -> ModelConfig:
    """A model of L equal layers by the book's letters: L, D, F, N, K, H, V.

    A part without its dims is left out: no attention without `heads`, no MLP without `d_ff`. The
    MLP is gated, with `experts` it is a mixture of them. Norms before attention and the MLP are
    counted where `norms` is 2, before attention alone where it is 1.
    """
    layer = Layer(
        mixer=_attention(heads, kv_heads, head_dim),
        mlp=_mlp(d_ff, experts, experts_per_token),
        norms=("attention", "mlp")[:norms],
    )
    return ModelConfig(
        name="book",
        architecture="Transformer",
        model_type="book",
        d_model=d_model,
        vocabulary=vocabulary,
        groups=(layer,),
        pattern=(0,) * _whole("layers", layers),
        tied_embeddings=tied,
        embedding_dim=d_model,
        embedding_rows=vocabulary,
        final_norm=False,
    )


MOST = 10**6
"""Layers of a model, and dims of a small array that is run."""


def _whole(name: str, value: float) -> int:
    if value != int(value) or not 1 <= value <= MOST:
        raise BadRequest(f"{name} is {value:g}; it is a whole number from 1 to {MOST:,}")
    return int(value)


def _attention(heads, kv_heads, head_dim) -> Attention | None:
    if heads is None:
        return None
    width = head_dim or 1
    return Attention(
        kind="full", heads=heads, kv_heads=kv_heads or heads, head_dim=width, v_head_dim=width
    )


def _mlp(d_ff, experts, chosen) -> Mlp | Moe | None:
    if d_ff is None:
        return None
    if experts is None:
        return Mlp(d_ff=d_ff)
    return Moe(experts=experts, experts_per_token=chosen or 1, d_ff=d_ff, gated=True)


def contraction_flops(contraction: str, sizes: dict[str, int]) -> int:
    """FLOPs of a product such as NP,PM->NM: twice the product of all dims, each once (ch. 4.1)."""
    return Contraction.parse(contraction).flops(sizes)


def training_flops(cfg: ModelConfig, component: str) -> Quantity:
    """Forward and backward FLOPs per token of one component, attention's scores left out. Raises
    BadRequest for one that the model lacks."""
    ops = flops_by_op(cfg, context=0, causal=False)
    check_known("component", component, {op.component for op in ops})
    return sum(op.training for op in ops if op.component == component)


def flash_intensity(
    heads: int, kv_heads: int, head_dim: int, queries: Quantity, keys: Quantity, bytes: float = 2.0
) -> Quantity:
    """FLOPs per byte of flash attention that reads Q, K and V once and writes O (exercise 4.4)."""
    mixer = _attention(heads, kv_heads, head_dim)
    assert mixer is not None
    return attention_intensity(mixer, queries, keys, bytes)


def book_saved(policy: str) -> int:
    """Intermediates of width D that the book counts per layer under a remat policy (ch. 4.4.2)."""
    saved = remat_row(policy).book_saved
    if not saved:
        raise BadRequest(f"the book counts no intermediates for policy '{policy}'; give a number")
    return saved


def remat_multiplier(cfg: ModelConfig, policy: str, context: Quantity = 0) -> Quantity:
    """Training FLOPs of the layers under a remat policy over those without one."""
    layers = sum(op.training for op in flops_by_op(cfg, context) if op.group is not None)
    return (layers + recompute_flops_per_token(cfg, policy, context)) / layers


def state_bytes(params: Quantity, param: str = "bf16", moments: str = "f32") -> TrainingState:
    """Bytes of weights and of Adam's two moments for so many parameters (ch. 5.1.2)."""
    return training_state(param=param, moments=moments) * params


def combine_softmax(
    max_one: Quantity, sum_one: Quantity, max_two: Quantity, sum_two: Quantity
) -> tuple[Quantity, Quantity]:
    """Maximum and denominator of two chunks of a softmax as one (ch. 4, flash attention).

    M = max(M1, M2), L = L1 exp(M1 - M) + L2 exp(M2 - M).
    """
    top = np.maximum(max_one, max_two)
    return top, sum_one * np.exp(max_one - top) + sum_two * np.exp(max_two - top)


def flash_gap(queries: int = 8, keys: int = 16, head_dim: int = 4) -> float:
    """The largest |P dP - dO O| over queries, relative: 0 is what lets flash attention's backward
    pass do without the probabilities' row sums (ch. 4, appendix).

    Runs on numbers drawn with a fixed seed.
    """
    draw = np.random.default_rng(0)
    shape = (_whole("queries", queries), _whole("keys", keys), _whole("head_dim", head_dim))
    for sizes in (shape[:2], shape[1:], shape[::2]):
        check_size(*sizes)
    scores, values = draw.normal(size=shape[:2]), draw.normal(size=shape[1:])
    d_out = draw.normal(size=(shape[0], shape[2]))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    inner = (probabilities * (d_out @ values.T)).sum(axis=1)
    outer = (d_out * (probabilities @ values)).sum(axis=1)
    return float(np.abs(inner - outer).max() / np.abs(outer).max())
