"""Rows of the parameter table for each kind of mixer."""

from fractions import Fraction

from shardwise.models.parameter import LayerPlace, Parameter
from shardwise.models.specs import (
    Attention,
    CompressedAttention,
    DeltaNet,
    Extra,
    Indexer,
    LatentAttention,
    Lightning,
    Mamba,
    Mixer,
    Recurrence,
    SelectiveScan,
    ShortConv,
)

ATTENTION = "attention"
LINEAR = "linear_attention"


def mixer_rows(p: LayerPlace, m: Mixer) -> list[Parameter]:
    """The tensors of one mixer."""
    match m:
        case Attention():
            return _attention(p, m)
        case LatentAttention():
            return _latent(p, m)
        case CompressedAttention():
            return _compressed(p, m)
        case Mamba():
            return _mamba(p, m)
        case SelectiveScan():
            return _selective_scan(p, m)
        case DeltaNet():
            return _delta(p, m)
        case Lightning():
            return _lightning(p, m)
        case ShortConv():
            return _short_conv(p, m)
        case Recurrence():
            return extra_rows(p, m.tensors)


_PARTS = {
    "attention": ATTENTION,
    "indexer": ATTENTION,
    "recurrence": LINEAR,
    "router": "router",
    "mlp": "mlp_dense",
    "norm": "norms",
    "lm_head": "lm_head",
}
"""Component of a class's own tensors by the first part of their names; the others are "other"."""


def extra_rows(p: LayerPlace, extras: tuple[Extra, ...]) -> list[Parameter]:
    """The tensors that a class has of its own."""
    return [
        p.row(
            x.name,
            dict(x.dims),
            _PARTS.get(x.name.partition(".")[0], "other"),
            x.role,
            x.sums,
            x.batch,
            shares=x.shares,
        )
        for x in extras
        if x.role != "state"
    ]


def _attention(p: LayerPlace, a: Attention) -> list[Parameter]:
    out, n, k, h = {"D": p.d_model}, {"N": a.heads}, {"K": a.kv_heads}, {"H": a.head_dim}
    d = {"D": p.d_model * a.input_copies}
    u = h if a.v_head_dim == a.head_dim else {"U": a.v_head_dim}
    value = next(iter(u))
    kv_role = "cross" if a.kind == "cross" else "matmul"
    heads, chosen = n, {}
    if a.query_experts:  # of every expert all KV heads, of which a token uses N / K
        share = Fraction(a.heads // a.kv_heads, a.query_experts)
        heads, chosen = {"e": a.query_experts} | k, {"batch": "e", "active": share}
    letters = "".join(letter for letter in heads if letter != "e")
    rows = [p.row("attention.q", d | heads | h, ATTENTION, "matmul", "D", **chosen)]
    if a.output_gate:
        rows.append(p.row("attention.gate", d | n | u, ATTENTION, "matmul", "D"))
    if a.output_gate and a.gate_bias == "heads":
        rows.append(p.row("attention.gate.head_bias", n, ATTENTION, "bias"))
    if a.head_gate:
        rows.append(p.row("attention.head_gate", d | n, ATTENTION, "matmul", "D"))
    if not a.reuses_kv:
        rows.append(p.row("attention.k", d | k | h, ATTENTION, kv_role, "D"))
        if not a.key_is_value:
            rows.append(p.row("attention.v", d | k | u, ATTENTION, kv_role, "D"))
    rows.append(
        p.row("attention.o", heads | u | out, ATTENTION, "matmul", letters + value, **chosen)
    )
    if a.q_bias:
        rows.append(p.row("attention.q.bias", n | h, ATTENTION, "bias"))
        if a.output_gate and a.gate_bias == "queries":
            rows.append(p.row("attention.gate.bias", n | u, ATTENTION, "bias"))
    if a.kv_bias and not a.reuses_kv:
        rows.append(p.row("attention.k.bias", k | h, ATTENTION, "bias"))
        if not a.key_is_value:
            rows.append(p.row("attention.v.bias", k | u, ATTENTION, "bias"))
    if a.o_bias:
        rows.append(p.row("attention.o.bias", out, ATTENTION, "bias"))
    if a.sinks:
        rows.append(p.row("attention.sinks", n, ATTENTION, "scale"))
    rows += p.norm("attention.out_norm", n | u) if a.out_norm else []
    if a.differential:
        pairs = ("query_1", "key_1", "query_2", "key_2")
        rows += [p.row(f"attention.lambda_{name}", h, ATTENTION, "scale") for name in pairs]
    if a.chosen_keys is not None:
        m = {"m": a.kv_heads}
        rows.append(p.row("attention.mask", k | u | m, ATTENTION, "matmul", "K" + value))
        rows += [p.row("attention.mask.bias", m, ATTENTION, "bias")] * a.kv_bias
        rows.append(p.row("attention.mask.scale", m, ATTENTION, "scale"))
    rows += [] if a.indexer is None else _block_indexer(p, a.indexer)
    return rows + _qk_norms(p, a)


def _block_indexer(p: LayerPlace, x: Indexer) -> list[Parameter]:
    """Queries and one key from the stream, both normed; its heads have no weights (MiniMax-M3)."""
    d, j, i = {"D": p.d_model}, {"J": x.heads}, {"I": x.head_dim}
    return [
        p.row("indexer.q", d | j | i, ATTENTION, "matmul", "D"),
        p.row("indexer.k", d | i, ATTENTION, "matmul", "D"),
        *p.norm("indexer.q_norm", i),
        *p.norm("indexer.k_norm", i),
    ]


def _qk_norms(p: LayerPlace, a: Attention) -> list[Parameter]:
    if a.qk_norm == "none":
        return []
    h = {"H": a.head_dim}
    q, k = (h, h) if a.qk_norm == "head" else ({"N": a.heads} | h, {"K": a.kv_heads} | h)
    rows = p.norm("attention.q_norm", q, a.qk_norm_bias)
    return rows if a.reuses_kv else rows + p.norm("attention.k_norm", k, a.qk_norm_bias)


def _latent(p: LayerPlace, a: LatentAttention) -> list[Parameter]:
    d, n, h, u = {"D": p.d_model}, {"N": a.heads}, {"H": a.head_dim}, {"U": a.v_head_dim}
    c, r, nope = {"C": a.kv_lora_rank}, {"R": a.rope_head_dim}, {"P": a.nope_head_dim}
    rows = []
    if a.q_lora_rank is None:
        rows.append(p.row("attention.q", d | n | h, ATTENTION, "matmul", "D"))
    else:
        q = {"Q": a.q_lora_rank}
        rows.append(p.row("attention.q_down", d | q, ATTENTION, "matmul", "D"))
        rows += p.norm("attention.q_down_norm", q)
        both = {"q": 2} | q if a.query_gate else q
        rows.append(p.row("attention.q_up", both | n | h, ATTENTION, "matmul", "".join(both)))
        if a.query_gate:
            gate = p.row("attention.gate_up", both | n | u, ATTENTION, "matmul", "".join(both))
            rows.append(gate)
        if a.bias:
            rows.append(p.row("attention.q_down.bias", q, ATTENTION, "bias"))
    rows.append(p.row("attention.kv_down", d | c, ATTENTION, "matmul", "D"))
    if a.rope_head_dim:
        rows.append(p.row("attention.k_rope", d | r, ATTENTION, "matmul", "D"))
    rows += p.norm("attention.kv_down_norm", c)
    rows += p.norm("attention.k_rope_norm", r) if a.rope_norm else []
    rows.append(p.row("attention.k_up", c | n | nope, ATTENTION, "matmul", "C"))
    rows.append(p.row("attention.v_up", c | n | u, ATTENTION, "matmul", "C"))
    if a.output_gate:
        rows.append(p.row("attention.gate", d | n | u, ATTENTION, "matmul", "D"))
    if a.head_gate:
        rows.append(p.row("attention.head_gate", d | n, ATTENTION, "matmul", "D"))
    rows.append(p.row("attention.o", n | u | d, ATTENTION, "matmul", "NU"))
    rows += [p.row("attention.sinks", n, ATTENTION, "scale")] * a.head_sinks
    if a.bias:
        rows.append(p.row("attention.kv_down.bias", c, ATTENTION, "bias"))
        rows.append(p.row("attention.k_rope.bias", r, ATTENTION, "bias"))
        rows.append(p.row("attention.o.bias", d, ATTENTION, "bias"))
    if a.indexer is not None:
        rows += _token_indexer(p, a.indexer, a.q_lora_rank)
    return rows


def _token_indexer(p: LayerPlace, x: Indexer, q_lora_rank: int | None) -> list[Parameter]:
    """One key per token, normed with LayerNorm; queries from the query latent (DeepSeek-V3.2)."""
    d, j, i = {"D": p.d_model}, {"J": x.heads}, {"I": x.head_dim}
    source = d if q_lora_rank is None else {"Q": q_lora_rank}
    letter = next(iter(source))
    return [
        p.row("indexer.q", source | j | i, ATTENTION, "matmul", letter),
        p.row("indexer.k", d | i, ATTENTION, "matmul", "D"),
        *p.norm("indexer.k_norm", i, bias=True),
        p.row("indexer.weights", d | j, ATTENTION, "matmul", "D"),
    ]


def _compressed(p: LayerPlace, a: CompressedAttention) -> list[Parameter]:
    d, n, h, q = {"D": p.d_model}, {"N": a.heads}, {"H": a.head_dim}, {"Q": a.q_lora_rank}
    g, per_group, o = {"g": a.o_groups}, {"n": a.heads // a.o_groups}, {"O": a.o_lora_rank}
    rows = [
        p.row("attention.sinks", n, ATTENTION, "scale"),
        p.row("attention.q_down", d | q, ATTENTION, "matmul", "D"),
        *p.norm("attention.q_down_norm", q),
        p.row("attention.q_up", q | n | h, ATTENTION, "matmul", "Q"),
        p.row("attention.kv", d | {"K": 1} | h, ATTENTION, "matmul", "D"),
        *p.norm("attention.kv_norm", h),
        p.row("attention.o_down", g | per_group | h | o, ATTENTION, "matmul", "nH", "g"),
        p.row("attention.o_up", g | o | d, ATTENTION, "matmul", "gO"),
    ]
    if a.ratio:
        entries = 1 if a.indexer is None else 2
        rows += _compressor(p, "compressor", a.head_dim, a.ratio, entries)
    if a.indexer is not None:
        x = a.indexer
        j, i = {"J": x.heads}, {"I": x.head_dim}
        rows += _compressor(p, "indexer", x.head_dim, a.ratio, 2)
        rows.append(p.row("indexer.q", q | j | i, ATTENTION, "matmul", "Q"))
        rows.append(p.row("indexer.weights", d | j, ATTENTION, "matmul", "D"))
    return rows


def _compressor(p: LayerPlace, name: str, width: int, ratio: int, entries: int) -> list[Parameter]:
    """Pools `ratio` tokens into one entry; `entries` is 2 where neighbours overlap."""
    d, c = {"D": p.d_model}, {"C": entries * width}
    return [
        p.row(f"{name}.kv", d | c, ATTENTION, "matmul", "D"),
        p.row(f"{name}.gate", d | c, ATTENTION, "matmul", "D"),
        p.row(f"{name}.position_bias", {"r": ratio} | c, ATTENTION, "bias"),
        *p.norm(f"{name}.norm", {"H": width}),
    ]


def _mamba(p: LayerPlace, m: Mamba) -> list[Parameter]:
    d, n, h = {"D": p.d_model}, {"N": m.heads}, {"H": m.head_dim}
    k, z, w = {"K": m.groups}, {"Z": m.state}, {"W": m.conv_width}
    rows = []
    for name, out in (("z", n | h), ("x", n | h), ("b", k | z), ("c", k | z), ("dt", n)):
        rows.append(p.row(f"mamba.{name}", d | out, LINEAR, "matmul", "D"))
        if m.proj_bias:
            rows.append(p.row(f"mamba.{name}.bias", out, LINEAR, "bias"))
    for name, channels in (("x", n | h), ("b", k | z), ("c", k | z)):
        rows.append(p.row(f"mamba.conv_{name}", channels | w, LINEAR, "conv"))
        if m.conv_bias:
            rows.append(p.row(f"mamba.conv_{name}.bias", channels, LINEAR, "bias"))
    rows.append(p.row("mamba.dt_bias", n, LINEAR, "bias"))
    rows.append(p.row("mamba.a_log", n, LINEAR, "scan"))
    rows.append(p.row("mamba.skip", n, LINEAR, "scan"))
    rows += p.norm("mamba.norm", n | h) if m.norm else []
    rows.append(p.row("mamba.out", n | h | d, LINEAR, "matmul", "NH"))
    if m.proj_bias if m.out_bias is None else m.out_bias:
        rows.append(p.row("mamba.out.bias", d, LINEAR, "bias"))
    return rows


def _selective_scan(p: LayerPlace, m: SelectiveScan) -> list[Parameter]:
    """Two D x N inputs, N to step, B and C, and the step back to N; each channel is a head."""
    d, n, c = {"D": p.d_model}, {"N": m.width}, {"C": m.step_rank}
    z, w = {"Z": m.state}, {"W": m.conv_width}
    rows = []
    for name in ("z", "x"):
        rows.append(p.row(f"scan.{name}", d | n, LINEAR, "matmul", "D"))
        rows += [p.row(f"scan.{name}.bias", n, LINEAR, "bias")] * m.proj_bias
    rows.append(p.row("scan.conv", n | w, LINEAR, "conv"))
    rows += [p.row("scan.conv.bias", n, LINEAR, "bias")] * m.conv_bias
    for name, out in (("step", c), ("b", z), ("c", z)):
        rows.append(p.row(f"scan.{name}", n | out, LINEAR, "matmul", "N"))
        rows += p.norm(f"scan.{name}_norm", out) if m.norms else []
    rows.append(p.row("scan.step_up", c | n, LINEAR, "matmul", "C"))
    rows.append(p.row("scan.step_up.bias", n, LINEAR, "bias"))
    rows.append(p.row("scan.a_log", n | z, LINEAR, "scan"))
    rows.append(p.row("scan.skip", n, LINEAR, "scan"))
    rows.append(p.row("scan.out", n | d, LINEAR, "matmul", "N"))
    return rows + [p.row("scan.out.bias", d, LINEAR, "bias")] * m.proj_bias


def _delta(p: LayerPlace, m: DeltaNet) -> list[Parameter]:
    d, n, k = {"D": p.d_model}, {"N": m.value_heads}, {"K": m.key_heads}
    h, u, w = {"H": m.key_head_dim}, {"U": m.value_head_dim}, {"W": m.conv_width}
    rows = []
    for name, out in (("q", k | h), ("k", k | h), ("v", n | u)):
        rows.append(p.row(f"delta.{name}", d | out, LINEAR, "matmul", "D"))
        rows.append(p.row(f"delta.conv_{name}", out | w, LINEAR, "conv"))
    rows.append(p.row("delta.beta", d | n, LINEAR, "matmul", "D"))
    if m.output_rank:
        c = {"C": m.output_rank}
        rows.append(p.row("delta.gate_down", d | c, LINEAR, "matmul", "D"))
        rows.append(p.row("delta.gate_up", c | n | u, LINEAR, "matmul", "C"))
    else:
        rows.append(p.row("delta.gate", d | n | u, LINEAR, "matmul", "D"))
    if m.gate == "scalar":
        rows.append(p.row("delta.decay", d | n, LINEAR, "matmul", "D"))
        rows.append(p.row("delta.dt_bias", n, LINEAR, "bias"))
    elif m.gate == "full":
        rows.append(p.row("delta.decay", d | k | h, LINEAR, "matmul", "D"))
        rows.append(p.row("delta.dt_bias", k | h, LINEAR, "bias"))
    else:
        # Kimi: the decay of every key channel comes through a pair of rank value_head_dim.
        rows.append(p.row("delta.decay_down", d | u, LINEAR, "matmul", "D"))
        rows.append(p.row("delta.decay_up", u | k | h, LINEAR, "matmul", "U"))
        rows.append(p.row("delta.dt_bias", k | h, LINEAR, "bias"))
    rows.append(p.row("delta.a_log", n, LINEAR, "scan"))
    rows += p.norm("delta.norm", u)
    rows.append(p.row("delta.out", n | u | d, LINEAR, "matmul", "NU"))
    return rows


def _lightning(p: LayerPlace, m: Lightning) -> list[Parameter]:
    d, heads = {"D": p.d_model}, {"N": m.heads, "H": m.head_dim}
    rows = [
        p.row(f"lightning.{name}", d | heads, LINEAR, "matmul", "D")
        for name in ("q", "k", "v", "gate")
    ]
    rows += p.norm("lightning.norm", heads)
    return [*rows, p.row("lightning.out", heads | d, LINEAR, "matmul", "NH")]


def _short_conv(p: LayerPlace, m: ShortConv) -> list[Parameter]:
    """Gates before and after the convolution and its input: three width x D projections."""
    d, f, w = {"D": p.d_model}, {"F": m.width}, {"W": m.conv_width}
    rows = []
    for name in ("gate_in", "gate_out", "x"):
        rows.append(p.row(f"conv.{name}", d | f, LINEAR, "matmul", "D"))
        if m.bias:
            rows.append(p.row(f"conv.{name}.bias", f, LINEAR, "bias"))
    rows.append(p.row("conv.kernel", f | w, LINEAR, "conv"))
    rows.append(p.row("conv.out", f | d, LINEAR, "matmul", "F"))
    if m.bias:
        rows.append(p.row("conv.kernel.bias", f, LINEAR, "bias"))
        rows.append(p.row("conv.out.bias", d, LINEAR, "bias"))
    return rows
