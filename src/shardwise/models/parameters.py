"""The parameter table: one row per distinct tensor; counts, FLOPs and sharding are maps over it.

Letters: D d_model, F width of an MLP or of one expert, N query heads, K key/value heads, H head dim
of queries and keys, U head dim of values where it is not H, V vocabulary rows, E experts. Latent
widths: Q query latent (q_lora), C key/value latent (kv_lora), P and R the parts of a query head
without and with rotation, A width that latent experts work in, O output latent and g its groups
(DeepSeek-V4), G rank of a norm's gate. J heads and I head dim of a sparse indexer. In the rows of a
recurrent mixer N, K, H and U are that mixer's own heads (value heads, key heads or groups, key and
value dim), Z its state size and W the width of its convolution. X learned positions, M width of an
embedding that is projected to D, Y width of a per-layer embedding, L layers, s residual streams.
Towers use lower-case letters, and so have tensors of one class alone the sizes that no other has
(`extras.py`). Sharding cuts F, N, K, V (tensor), E (expert) and D (fsdp).
"""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from math import isqrt

from shardwise.models.config import ModelConfig, Tower
from shardwise.models.mixer_rows import extra_rows, mixer_rows
from shardwise.models.parameter import LayerPlace, Parameter
from shardwise.models.specs import Layer, Mlp, Moe

_TOWER_LETTERS = "abcdefgh"


@lru_cache(maxsize=128)
def parameters(cfg: ModelConfig) -> tuple[Parameter, ...]:
    """Every tensor of the model, one row per distinct tensor; letters as above.

    Rows of layer group i carry `group=i` and `layers=` how often it occurs. Sums over the rows
    are the counts: `sum(p.params)` is params_total. Layer rows of a group: `p.group == i`.
    """
    rows = _embedding(cfg)
    for index, (layer, count) in enumerate(cfg.layer_groups()):
        rows += layer_rows(LayerPlace(d_model=cfg.d_model, group=index, layers=count), layer)
    rows += _head(cfg)
    for tower in cfg.towers:
        rows += _tower(tower)
    return tuple(rows)


def first_matmuls(cfg: ModelConfig) -> tuple[str, ...]:
    """The names of the matmuls of the first layer, which stand for those of the others."""
    return tuple(r.name for r in parameters(cfg) if r.group == 0 and r.role == "matmul")


def buffers(cfg: ModelConfig) -> tuple[Parameter, ...]:
    """Tensors that a checkpoint holds and the forward pass reads, but no gradient trains.

    They are in no count: the bias that balances DeepSeek-V3's experts, one per expert.
    """
    if cfg.numerics is None or not cfg.numerics.routing.correction:
        return ()
    return tuple(
        LayerPlace(d_model=cfg.d_model, group=index, layers=count).row(
            "router.correction", {"E": layer.mlp.experts}, "router", "bias"
        )
        for index, (layer, count) in enumerate(cfg.layer_groups())
        if isinstance(layer.mlp, Moe)
    )


def layer_rows(p: LayerPlace, layer: Layer) -> list[Parameter]:
    """The tensors of one layer."""
    rows = _block_rows(p, layer)
    if layer.reused:
        rows = [replace(row, shares=row.name) for row in rows]
    return rows + extra_rows(p, layer.extras)


def _block_rows(p: LayerPlace, layer: Layer) -> list[Parameter]:
    rows = []
    if layer.mixer is not None:
        rows += mixer_rows(p, layer.mixer)
    if layer.beside is not None:
        rows += mixer_rows(p, layer.beside)
    if isinstance(layer.mlp, Mlp):
        rows += _mlp(p, layer.mlp, "mlp", "mlp_dense")
    elif layer.mlp is not None:
        rows += _moe(p, layer.mlp)
    d = {"D": p.d_model}
    for name in layer.norms:
        rows += p.norm(f"norm.{name}", d, layer.norm_bias)
    if layer.per_layer_input:
        rows += _per_layer_input(p, layer.per_layer_input)
    if layer.laurel_rank:
        q = {"q": layer.laurel_rank}
        rows.append(p.row("laurel.down", d | q, "other", "matmul", "D"))
        rows.append(p.row("laurel.up", q | d, "other", "matmul", "q"))
        rows += p.norm("laurel.norm", d)
    if layer.streams > 1 and layer.mixing == "altup":
        rows += _altup(p, layer.streams)
    elif layer.streams > 1 and layer.mixing != "extras":
        rows += _hyper(p, "hyper.attention", layer)
        rows += _hyper(p, "hyper.mlp", layer)
    if layer.attention_residual:
        for name in ("attention", "mlp"):
            rows.append(p.row(f"residual.{name}.query", d, "other", "scale"))
            rows.append(p.row(f"residual.{name}.norm", d, "other", "norm"))
    if layer.cross_gates:
        rows.append(p.row("cross_gate.attention", {}, "attention", "scale"))
        rows.append(p.row("cross_gate.mlp", {}, "attention", "scale"))
    for name in layer.gated_norms:
        g = {"G": layer.norm_gate_rank}
        rows.append(p.row(f"norm.{name}.gate_down", d | g, "norms", "matmul", "D"))
        rows.append(p.row(f"norm.{name}.gate_up", g | d, "norms", "matmul", "G"))
    if layer.residual_scales:
        rows.append(p.row("residual.attention.scale", d, "other", "scale"))
        rows.append(p.row("residual.mlp.scale", d, "other", "scale"))
    return rows


def _mlp(p: LayerPlace, m: Mlp, name: str, component: str) -> list[Parameter]:
    d, f = {"D": p.d_model}, {"F": m.d_ff}
    ins = ("gate", "up") if m.gated else ("up",)
    rows = [p.row(f"{name}.{part}", d | f, component, "matmul", "D") for part in ins]
    rows.append(p.row(f"{name}.down", f | d, component, "matmul", "F"))
    if m.bias:
        rows += [p.row(f"{name}.{part}.bias", f, component, "bias") for part in ins]
        rows.append(p.row(f"{name}.down.bias", d, component, "bias"))
    if m.inner_norm:
        rows.append(p.row(f"{name}.norm", f, component, "norm"))
    if m.activation_scalars:
        scalars = {"c": m.activation_scalars}
        rows.append(p.row(f"{name}.activation", scalars, component, "scale"))
    return rows


def _moe(p: LayerPlace, m: Moe) -> list[Parameter]:
    d, e, f = {"D": p.d_model}, {"E": m.experts}, {"F": m.d_ff}
    read = {"R": m.router_dim} if m.router_dim else d
    weighed = {"E": m.choices + m.shared_experts * m.scores_shared}
    if m.product_keys:
        weighed = {"k": 2 * isqrt(m.experts)}
    rows = [p.row("router", read | weighed, "router", "matmul", next(iter(read)))]
    if m.bias:
        rows.append(p.row("router.bias", e, "router", "bias"))
    if m.selection_bias:
        rows.append(p.row("router.selection_bias", e, "router", "bias"))
    if m.router_scales:
        rows.append(p.row("router.scale", d, "router", "scale"))
        rows.append(p.row("router.expert_scale", e, "router", "scale"))
    width = {"A": m.latent_dim} if m.latent_dim else d
    letter = next(iter(width))
    if m.latent_dim:
        rows.append(p.row("latent.down", d | width, "moe_latent", "matmul", "D"))
        rows.append(p.row("latent.up", width | d, "moe_latent", "matmul", "A"))
        rows += p.norm("latent.norm", width) if m.latent_norm else []
    share = Fraction(m.experts_per_token, m.choices)
    ins = ("gate", "up") if m.gated and not m.product_keys else ("up",)
    routed = "routed_experts"
    for part in ins:
        dims = e | width | f
        rows.append(p.row(f"experts.{part}", dims, routed, "matmul", letter, "E", share))
        if m.bias:
            rows.append(p.row(f"experts.{part}.bias", e | f, routed, "bias", active=share))
    rows.append(p.row("experts.down", e | f | width, routed, "matmul", "F", "E", share))
    if m.bias:
        rows.append(p.row("experts.down.bias", e | width, routed, "bias", active=share))
    if m.shared_d_ff:
        shared = Mlp(d_ff=m.shared_d_ff, gated=m.gated, bias=m.shared_bias)
        rows += _mlp(p, shared, "shared", "shared_experts")
    if m.shared_gate:
        rows.append(p.row("shared.gate_weight", d, "shared_experts", "matmul", "D"))
    if m.dense is not None:
        rows += _mlp(p, m.dense, "mlp", "mlp_dense")
    return rows


def _per_layer_input(p: LayerPlace, width: int) -> list[Parameter]:
    d, y = {"D": p.d_model}, {"Y": width}
    return [
        p.row("per_layer.gate", d | y, "other", "matmul", "D"),
        p.row("per_layer.out", y | d, "other", "matmul", "Y"),
        p.row("per_layer.norm", d, "other", "norm"),
    ]


def _hyper(p: LayerPlace, name: str, layer: Layer) -> list[Parameter]:
    """Hyper-connections: from all streams the weights to read, write and mix them (2s + s^2)."""
    streams, mixing = layer.streams, layer.streams_mixed
    mixed = {"m": (2 + streams * mixing) * streams}
    return [
        p.row(name, {"s": streams, "D": p.d_model} | mixed, "other", "matmul", "sD"),
        p.row(f"{name}.base", mixed, "other", "scale"),
        p.row(f"{name}.scale", {"c": 2 + mixing}, "other", "scale"),
    ]


def _altup(p: LayerPlace, streams: int) -> list[Parameter]:
    """AltUp: from the active stream the weights by which the layer's input is predicted of all s
    streams, and from its output those by which all are corrected. One router serves both."""
    d, s = {"D": p.d_model}, {"s": streams}
    return [
        p.row("altup.router", d | s, "other", "matmul", "D"),
        p.row("altup.router_again", d | s, "other", "matmul", "D", shares="altup.router"),
        *p.norm("altup.router_norm", d),
        p.row("altup.predict", s | {"m": streams**2}, "other", "matmul", "s"),
        p.row("altup.correct", s | {"m": streams}, "other", "matmul", "s"),
        p.row("altup.scale", d, "other", "scale"),
    ]


def _embedding(cfg: ModelConfig) -> list[Parameter]:
    p = LayerPlace(d_model=cfg.d_model)
    d, width = {"D": cfg.d_model}, _embedding_width(cfg)
    rows = [p.row("embedding", {"V": cfg.embedding_rows} | width, "embedding", "lookup")]
    if cfg.embedding_dim != cfg.d_model:
        rows.append(p.row("embedding.in", width | d, "other", "matmul", "M"))
    if cfg.position_rows:
        rows.append(p.row("positions", {"X": cfg.position_rows} | d, "embedding", "lookup"))
    if cfg.initial_state:
        rows.append(p.row("state.initial", d, "other", "scale"))
    rows += extra_rows(p, cfg.extras)
    if cfg.embedding_norm:
        rows += p.norm("norm.embedding", d, cfg.norm_bias)
    if cfg.streams > 1 and cfg.mixing == "altup":
        rows.append(
            p.row("altup.in", d | {"s": cfg.streams - 1, "m": cfg.d_model}, "other", "matmul", "D")
        )
    if cfg.per_layer_input:
        y = {"L": cfg.layers, "Y": cfg.per_layer_input}
        table = {"V": cfg.per_layer_rows} | y
        rows.append(p.row("per_layer.embedding", table, "embedding_per_layer", "lookup"))
        rows.append(p.row("per_layer.in", d | y, "other", "matmul", "D"))
        rows.append(p.row("per_layer.in_norm", {"Y": cfg.per_layer_input}, "other", "norm"))
    return rows


def _head(cfg: ModelConfig) -> list[Parameter]:
    p = LayerPlace(d_model=cfg.d_model)
    d, width = {"D": cfg.d_model}, _embedding_width(cfg)
    rows = p.norm("norm.final", d, cfg.norm_bias) if cfg.final_norm else []
    if cfg.streams > 1 and cfg.mixing == "altup":
        dims = {"s": cfg.streams - 1, "m": cfg.d_model} | d
        rows.append(p.row("altup.out", dims, "other", "matmul", "m", "s"))
    elif cfg.streams > 1 and cfg.mixing == "hyper":
        mixed = {"m": cfg.streams}
        dims = {"s": cfg.streams} | d | mixed
        rows.append(p.row("hyper.head", dims, "other", "matmul", "sD"))
        rows.append(p.row("hyper.head.base", mixed, "other", "scale"))
        rows.append(p.row("hyper.head.scale", {"c": 1}, "other", "scale"))
    if cfg.attention_residual:
        rows.append(p.row("residual.head.query", d, "other", "scale"))
        rows.append(p.row("residual.head.norm", d, "other", "norm"))
    if cfg.embedding_dim != cfg.d_model:
        rows.append(p.row("embedding.out", d | width, "other", "matmul", "D"))
    shares = "embedding" if cfg.tied_embeddings else ""
    dims = width | {"V": cfg.vocabulary}
    rows.append(p.row("lm_head", dims, "lm_head", "matmul", next(iter(width)), shares=shares))
    if cfg.head_bias:
        rows.append(p.row("lm_head.bias", {"V": cfg.vocabulary}, "lm_head", "bias"))
    return rows


def _embedding_width(cfg: ModelConfig) -> dict[str, int]:
    letter = "D" if cfg.embedding_dim == cfg.d_model else "M"
    return {letter: cfg.embedding_dim}


def _tower(tower: Tower) -> list[Parameter]:
    return [
        Parameter(
            name=f"{tower.name}.{tensor.name}",
            dims=tuple(zip(_TOWER_LETTERS, tensor.shape, strict=False)),
            component=tower.name,
            role="tower",
            layers=tensor.repeats,
            dtype_role=tower.name,
        )
        for tensor in tower.tensors
    ]
