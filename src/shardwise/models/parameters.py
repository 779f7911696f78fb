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
from shardwise.models.parameter import LayerPlace, Parameter, TensorRows
from shardwise.models.specs import Layer, Mlp, Moe

_TOWER_LETTERS = "abcdefgh"


@lru_cache(maxsize=128)
def parameters(cfg: ModelConfig) -> tuple[Parameter, ...]:
    """Every tensor of the model, one row per distinct tensor; letters as above.

    Rows of layer group i have `group=i`, and `layers` says how often it occurs. `sum(p.params)`
    over all rows is params_total.
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
    """TensorRows that a checkpoint holds and the forward pass reads, but no gradient trains.

    They are in no count: the bias that balances DeepSeek-V3's experts, one per expert.
    """
    if cfg.numerics is None or not cfg.numerics.routing.correction:
        return ()
    rows: list[Parameter] = []
    for index, (layer, count) in enumerate(cfg.layer_groups()):
        if isinstance(layer.mlp, Moe):
            place = LayerPlace(d_model=cfg.d_model, group=index, layers=count)
            t = TensorRows.at(place, "router", E=layer.mlp.experts)
            t.bias("router.correction", "E")
            rows += t.rows
    return tuple(rows)


def layer_rows(p: LayerPlace, layer: Layer) -> list[Parameter]:
    """The tensors of one layer."""
    rows = _block_rows(p, layer)
    if layer.reused:
        rows = [replace(row, shares=row.name) for row in rows]
    return rows + extra_rows(p, layer.extras)


def _block_rows(p: LayerPlace, layer: Layer) -> list[Parameter]:
    t = TensorRows.at(p, "other", q=layer.laurel_rank, G=layer.norm_gate_rank)
    for mixer in (layer.mixer, layer.beside):
        t.rows.extend([] if mixer is None else mixer_rows(p, mixer))
    if isinstance(layer.mlp, Mlp):
        _mlp(t.of("mlp_dense"), layer.mlp, "mlp")
    elif layer.mlp is not None:
        _moe(t, layer.mlp)
    for name in layer.norms:
        t.norm(f"norm.{name}", "D", layer.norm_bias)
    if layer.per_layer_input:
        _per_layer_input(t, layer.per_layer_input)
    t.matmul("laurel.down", "Dq", when=layer.laurel_rank)
    t.matmul("laurel.up", "qD", when=layer.laurel_rank)
    t.norm("laurel.norm", "D", when=layer.laurel_rank)
    if layer.streams > 1 and layer.mixing == "altup":
        _altup(t, layer.streams)
    elif layer.streams > 1 and layer.mixing != "extras":
        _hyper(t, "hyper.attention", layer)
        _hyper(t, "hyper.mlp", layer)
    for name in ("attention", "mlp") if layer.attention_residual else ():
        t.scale(f"residual.{name}.query", "D")
        t.add("norm", f"residual.{name}.norm", "D")
    t.of("attention").scale("cross_gate.attention", "", layer.cross_gates)
    t.of("attention").scale("cross_gate.mlp", "", layer.cross_gates)
    for name in layer.gated_norms:
        t.of("norms").matmul(f"norm.{name}.gate_down", "DG")
        t.of("norms").matmul(f"norm.{name}.gate_up", "GD")
    t.scale("residual.attention.scale", "D", layer.residual_scales)
    t.scale("residual.mlp.scale", "D", layer.residual_scales)
    return t.rows


def _mlp(t: TensorRows, m: Mlp, name: str) -> None:
    t = t.of(F=m.d_ff, c=m.activation_scalars)
    ins = ("gate", "up") if m.gated else ("up",)
    for part in ins:
        t.matmul(f"{name}.{part}", "DF")
    t.matmul(f"{name}.down", "FD")
    for part in ins:
        t.bias(f"{name}.{part}.bias", "F", m.bias)
    t.bias(f"{name}.down.bias", "D", m.bias)
    t.add("norm", f"{name}.norm", "F", when=m.inner_norm)
    t.scale(f"{name}.activation", "c", m.activation_scalars)


def _moe(t: TensorRows, m: Moe) -> None:
    scored = m.choices + m.shared_experts * m.scores_shared
    t = t.of(E=m.experts, F=m.d_ff, R=m.router_dim, A=m.latent_dim, k=2 * isqrt(m.experts))
    router, latent, routed = t.of("router"), t.of("moe_latent"), t.of("routed_experts")
    weighed = "k" if m.product_keys else "E"
    router.of(E=scored).matmul("router", f"{'R' if m.router_dim else 'D'}{weighed}")
    router.bias("router.bias", "E", m.bias)
    router.bias("router.selection_bias", "E", m.selection_bias)
    router.scale("router.scale", "D", m.router_scales)
    router.scale("router.expert_scale", "E", m.router_scales)
    width = "A" if m.latent_dim else "D"
    latent.matmul("latent.down", "DA", when=m.latent_dim)
    latent.matmul("latent.up", "AD", when=m.latent_dim)
    latent.norm("latent.norm", "A", when=m.latent_dim and m.latent_norm)
    share = Fraction(m.experts_per_token, m.choices)
    for part in ("gate", "up") if m.gated and not m.product_keys else ("up",):
        routed.matmul(f"experts.{part}", f"E{width}F", width, batch="E", active=share)
        routed.bias(f"experts.{part}.bias", "EF", m.bias, active=share)
    routed.matmul("experts.down", f"EF{width}", "F", batch="E", active=share)
    routed.bias("experts.down.bias", f"E{width}", m.bias, active=share)
    if m.shared_d_ff:
        shared = Mlp(d_ff=m.shared_d_ff, gated=m.gated, bias=m.shared_bias)
        _mlp(t.of("shared_experts"), shared, "shared")
    t.of("shared_experts").matmul("shared.gate_weight", "D", when=m.shared_gate)
    if m.dense is not None:
        _mlp(t.of("mlp_dense"), m.dense, "mlp")


def _per_layer_input(t: TensorRows, width: int) -> None:
    t = t.of(Y=width)
    t.matmul("per_layer.gate", "DY")
    t.matmul("per_layer.out", "YD")
    t.add("norm", "per_layer.norm", "D")


def _hyper(t: TensorRows, name: str, layer: Layer) -> None:
    """Hyper-connections: from all streams the weights to read, write and mix them (2s + s^2)."""
    streams, mixing = layer.streams, layer.streams_mixed
    t = t.of(s=streams, m=(2 + streams * mixing) * streams, c=2 + mixing)
    t.matmul(name, "sDm", "sD")
    t.scale(f"{name}.base", "m")
    t.scale(f"{name}.scale", "c")


def _altup(t: TensorRows, streams: int) -> None:
    """AltUp: from the active stream the weights by which the layer's input is predicted of all s
    streams, and from its output those by which all are corrected. One router serves both."""
    t = t.of(s=streams)
    t.matmul("altup.router", "Ds")
    t.matmul("altup.router_again", "Ds", shares="altup.router")
    t.norm("altup.router_norm", "D")
    t.of(m=streams**2).matmul("altup.predict", "sm")
    t.of(m=streams).matmul("altup.correct", "sm")
    t.scale("altup.scale", "D")


def _embedding(cfg: ModelConfig) -> list[Parameter]:
    p = LayerPlace(d_model=cfg.d_model)
    altup, layered = cfg.streams > 1 and cfg.mixing == "altup", cfg.per_layer_input
    t = TensorRows.at(
        *(p, "other"),
        V=cfg.embedding_rows,
        M=cfg.embedding_dim,
        X=cfg.position_rows,
        s=cfg.streams - 1,
        m=cfg.d_model,
        L=cfg.layers,
        Y=layered,
    )
    width = _embedding_width(cfg)
    t.of("embedding").add("lookup", "embedding", f"V{width}")
    t.matmul("embedding.in", "MD", when=width == "M")
    t.of("embedding").add("lookup", "positions", "XD", when=cfg.position_rows)
    t.scale("state.initial", "D", cfg.initial_state)
    t.rows.extend(extra_rows(p, cfg.extras))
    t.norm("norm.embedding", "D", cfg.norm_bias, cfg.embedding_norm)
    t.matmul("altup.in", "Dsm", when=altup)
    per_layer = t.of("embedding_per_layer", V=cfg.per_layer_rows)
    per_layer.add("lookup", "per_layer.embedding", "VLY", when=layered)
    t.matmul("per_layer.in", "DLY", when=layered)
    t.add("norm", "per_layer.in_norm", "Y", when=layered)
    return t.rows


def _head(cfg: ModelConfig) -> list[Parameter]:
    t = TensorRows.at(
        LayerPlace(d_model=cfg.d_model), "other", V=cfg.vocabulary, M=cfg.embedding_dim, c=1
    )
    width, several = _embedding_width(cfg), cfg.streams > 1
    altup, hyper = several and cfg.mixing == "altup", several and cfg.mixing == "hyper"
    t.norm("norm.final", "D", cfg.norm_bias, cfg.final_norm)
    t.of(s=cfg.streams - 1, m=cfg.d_model).matmul("altup.out", "smD", "m", when=altup, batch="s")
    mixed = t.of(s=cfg.streams, m=cfg.streams)
    mixed.matmul("hyper.head", "sDm", "sD", when=hyper)
    mixed.scale("hyper.head.base", "m", hyper)
    mixed.scale("hyper.head.scale", "c", hyper)
    t.scale("residual.head.query", "D", cfg.attention_residual)
    t.add("norm", "residual.head.norm", "D", when=cfg.attention_residual)
    t.matmul("embedding.out", "DM", when=width == "M")
    head = t.of("lm_head")
    head.matmul("lm_head", f"{width}V", shares="embedding" if cfg.tied_embeddings else "")
    head.bias("lm_head.bias", "V", cfg.head_bias)
    return t.rows


def _embedding_width(cfg: ModelConfig) -> str:
    """The letter of an embedding's width."""
    return "D" if cfg.embedding_dim == cfg.d_model else "M"


def _tower(tower: Tower) -> list[Parameter]:
    return [
        Parameter(
            name=f"{tower.name}.{tensor.name}",
            dims=tuple(zip(_TOWER_LETTERS, tensor.shape, strict=False)),
            component=tower.name,
            role="tower",
            layers=tensor.repeats,
        )
        for tensor in tower.tensors
    ]
