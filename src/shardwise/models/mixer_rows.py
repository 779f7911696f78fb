"""Rows of the parameter table for each kind of mixer."""

from fractions import Fraction

from shardwise.models.parameter import LayerPlace, Parameter, TensorRows
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
    t = TensorRows.at(p, "other")
    for x in extras:
        if x.role != "state":
            part = _PARTS.get(x.name.partition(".")[0], "other")
            own = t.of(part, **dict(x.dims))
            letters = "".join(letter for letter, _ in x.dims)
            own.add(x.role, x.name, letters, x.sums, batch=x.batch, shares=x.shares)
    return t.rows


def _attention(p: LayerPlace, a: Attention) -> list[Parameter]:
    t = TensorRows.at(
        *(p, ATTENTION),
        D=p.d_model * a.input_copies,
        N=a.heads,
        K=a.kv_heads,
        m=a.kv_heads,
        H=a.head_dim,
        U=a.v_head_dim,
        e=a.query_experts,
    )
    out, u = t.of(D=p.d_model), "H" if a.v_head_dim == a.head_dim else "U"
    kv_role = "cross" if a.kind == "cross" else "matmul"
    heads, e, chosen = "N", "", {}
    if a.query_experts:  # of every expert all KV heads, of which a token uses N / K
        share = Fraction(a.heads // a.kv_heads, a.query_experts)
        heads, e, chosen = "K", "e", {"batch": "e", "active": share}
    keys = not a.reuses_kv
    values, masked = keys and not a.key_is_value, a.chosen_keys is not None
    t.matmul("attention.q", f"D{e}{heads}H", **chosen)
    t.matmul("attention.gate", f"DN{u}", when=a.output_gate)
    t.bias("attention.gate.head_bias", "N", a.output_gate and a.gate_bias == "heads")
    t.matmul("attention.head_gate", "DN", when=a.head_gate)
    t.add(kv_role, "attention.k", "DKH", "D", when=keys)
    t.add(kv_role, "attention.v", f"DK{u}", "D", when=values)
    out.matmul("attention.o", f"{e}{heads}{u}D", f"{heads}{u}", **chosen)
    t.bias("attention.q.bias", "NH", a.q_bias)
    queries = a.q_bias and a.output_gate and a.gate_bias == "queries"
    t.bias("attention.gate.bias", f"N{u}", queries)
    t.bias("attention.k.bias", "KH", a.kv_bias and keys)
    t.bias("attention.v.bias", f"K{u}", a.kv_bias and values)
    out.bias("attention.o.bias", "D", a.o_bias)
    t.scale("attention.sinks", "N", a.sinks)
    t.norm("attention.out_norm", f"N{u}", when=a.out_norm)
    for name in ("query_1", "key_1", "query_2", "key_2") if a.differential else ():
        t.scale(f"attention.lambda_{name}", "H")
    t.matmul("attention.mask", f"K{u}m", f"K{u}", when=masked)
    t.bias("attention.mask.bias", "m", masked and a.kv_bias)
    t.scale("attention.mask.scale", "m", masked)
    if a.indexer is not None:
        _block_indexer(t.of(D=p.d_model), a.indexer)
    if a.qk_norm != "none":
        head = a.qk_norm == "head"
        t.norm("attention.q_norm", "H" if head else "NH", a.qk_norm_bias)
        t.norm("attention.k_norm", "H" if head else "KH", a.qk_norm_bias, keys)
    return t.rows


def _block_indexer(t: TensorRows, x: Indexer) -> None:
    """Queries and one key from the stream, both normed; its heads have no weights (MiniMax-M3)."""
    t = t.of(J=x.heads, I=x.head_dim)
    t.matmul("indexer.q", "DJI")
    t.matmul("indexer.k", "DI")
    t.norm("indexer.q_norm", "I")
    t.norm("indexer.k_norm", "I")


def _latent(p: LayerPlace, a: LatentAttention) -> list[Parameter]:
    t = TensorRows.at(
        *(p, ATTENTION),
        N=a.heads,
        H=a.head_dim,
        U=a.v_head_dim,
        Q=a.q_lora_rank,
        q=2,
        C=a.kv_lora_rank,
        R=a.rope_head_dim,
        P=a.nope_head_dim,
    )
    low = a.q_lora_rank is not None
    both = "qQ" if a.query_gate else "Q"
    t.matmul("attention.q", "DNH", when=not low)
    t.matmul("attention.q_down", "DQ", when=low)
    t.norm("attention.q_down_norm", "Q", when=low)
    t.matmul("attention.q_up", f"{both}NH", both, when=low)
    t.matmul("attention.gate_up", f"{both}NU", both, when=low and a.query_gate)
    t.bias("attention.q_down.bias", "Q", low and a.bias)
    t.matmul("attention.kv_down", "DC")
    t.matmul("attention.k_rope", "DR", when=a.rope_head_dim)
    t.norm("attention.kv_down_norm", "C")
    t.norm("attention.k_rope_norm", "R", when=a.rope_norm)
    t.matmul("attention.k_up", "CNP")
    t.matmul("attention.v_up", "CNU")
    t.matmul("attention.gate", "DNU", when=a.output_gate)
    t.matmul("attention.head_gate", "DN", when=a.head_gate)
    t.matmul("attention.o", "NUD", "NU")
    t.scale("attention.sinks", "N", a.head_sinks)
    t.bias("attention.kv_down.bias", "C", a.bias)
    t.bias("attention.k_rope.bias", "R", a.bias)
    t.bias("attention.o.bias", "D", a.bias)
    if a.indexer is not None:
        _token_indexer(t, a.indexer, "Q" if low else "D")
    return t.rows


def _token_indexer(t: TensorRows, x: Indexer, source: str) -> None:
    """One key per token, normed with LayerNorm; queries from the query latent (DeepSeek-V3.2)."""
    t = t.of(J=x.heads, I=x.head_dim)
    t.matmul("indexer.q", f"{source}JI")
    t.matmul("indexer.k", "DI")
    t.norm("indexer.k_norm", "I", bias=True)
    t.matmul("indexer.weights", "DJ")


def _compressed(p: LayerPlace, a: CompressedAttention) -> list[Parameter]:
    t = TensorRows.at(
        *(p, ATTENTION),
        N=a.heads,
        K=1,
        H=a.head_dim,
        Q=a.q_lora_rank,
        g=a.o_groups,
        n=a.heads // a.o_groups,
        O=a.o_lora_rank,
    )
    t.scale("attention.sinks", "N")
    t.matmul("attention.q_down", "DQ")
    t.norm("attention.q_down_norm", "Q")
    t.matmul("attention.q_up", "QNH")
    t.matmul("attention.kv", "DKH")
    t.norm("attention.kv_norm", "H")
    t.matmul("attention.o_down", "gnHO", "nH", batch="g")
    t.matmul("attention.o_up", "gOD", "gO")
    if a.ratio:
        entries = 1 if a.indexer is None else 2
        _compressor(t, "compressor", a.head_dim, a.ratio, entries)
    if a.indexer is not None:
        x = a.indexer
        _compressor(t, "indexer", x.head_dim, a.ratio, 2)
        own = t.of(J=x.heads, I=x.head_dim)
        own.matmul("indexer.q", "QJI")
        own.matmul("indexer.weights", "DJ")
    return t.rows


def _compressor(t: TensorRows, name: str, width: int, ratio: int, entries: int) -> None:
    """Pools `ratio` tokens into one entry; `entries` is 2 where neighbours overlap."""
    t = t.of(C=entries * width, r=ratio, H=width)
    t.matmul(f"{name}.kv", "DC")
    t.matmul(f"{name}.gate", "DC")
    t.bias(f"{name}.position_bias", "rC")
    t.norm(f"{name}.norm", "H")


def _mamba(p: LayerPlace, m: Mamba) -> list[Parameter]:
    sizes = {"N": m.heads, "H": m.head_dim, "K": m.groups, "Z": m.state, "W": m.conv_width}
    t = TensorRows.at(p, LINEAR, **sizes)
    for name, out in (("z", "NH"), ("x", "NH"), ("b", "KZ"), ("c", "KZ"), ("dt", "N")):
        t.matmul(f"mamba.{name}", f"D{out}")
        t.bias(f"mamba.{name}.bias", out, m.proj_bias)
    for name, channels in (("x", "NH"), ("b", "KZ"), ("c", "KZ")):
        t.add("conv", f"mamba.conv_{name}", f"{channels}W")
        t.bias(f"mamba.conv_{name}.bias", channels, m.conv_bias)
    t.bias("mamba.dt_bias", "N")
    t.add("scan", "mamba.a_log", "N")
    t.add("scan", "mamba.skip", "N")
    t.norm("mamba.norm", "NH", when=m.norm)
    t.matmul("mamba.out", "NHD", "NH")
    t.bias("mamba.out.bias", "D", m.proj_bias if m.out_bias is None else m.out_bias)
    return t.rows


def _selective_scan(p: LayerPlace, m: SelectiveScan) -> list[Parameter]:
    """Two D x N inputs, N to step, B and C, and the step back to N; each channel is a head."""
    t = TensorRows.at(p, LINEAR, N=m.width, C=m.step_rank, Z=m.state, W=m.conv_width)
    for name in ("z", "x"):
        t.matmul(f"scan.{name}", "DN")
        t.bias(f"scan.{name}.bias", "N", m.proj_bias)
    t.add("conv", "scan.conv", "NW")
    t.bias("scan.conv.bias", "N", m.conv_bias)
    for name, out in (("step", "C"), ("b", "Z"), ("c", "Z")):
        t.matmul(f"scan.{name}", f"N{out}")
        t.norm(f"scan.{name}_norm", out, when=m.norms)
    t.matmul("scan.step_up", "CN")
    t.bias("scan.step_up.bias", "N")
    t.add("scan", "scan.a_log", "NZ")
    t.add("scan", "scan.skip", "N")
    t.matmul("scan.out", "ND")
    t.bias("scan.out.bias", "D", m.proj_bias)
    return t.rows


def _delta(p: LayerPlace, m: DeltaNet) -> list[Parameter]:
    t = TensorRows.at(
        *(p, LINEAR),
        N=m.value_heads,
        K=m.key_heads,
        H=m.key_head_dim,
        U=m.value_head_dim,
        W=m.conv_width,
        C=m.output_rank,
    )
    for name, out in (("q", "KH"), ("k", "KH"), ("v", "NU")):
        t.matmul(f"delta.{name}", f"D{out}")
        t.add("conv", f"delta.conv_{name}", f"{out}W")
    t.matmul("delta.beta", "DN")
    t.matmul("delta.gate_down", "DC", when=m.output_rank)
    t.matmul("delta.gate_up", "CNU", when=m.output_rank)
    t.matmul("delta.gate", "DNU", when=not m.output_rank)
    decays = "N" if m.gate == "scalar" else "KH"
    paired = m.gate not in ("scalar", "full")
    t.matmul("delta.decay", f"D{decays}", when=not paired)
    # Kimi: the decay of every key channel comes through a pair of rank value_head_dim.
    t.matmul("delta.decay_down", "DU", when=paired)
    t.matmul("delta.decay_up", "UKH", when=paired)
    t.bias("delta.dt_bias", decays)
    t.add("scan", "delta.a_log", "N")
    t.norm("delta.norm", "U")
    t.matmul("delta.out", "NUD", "NU")
    return t.rows


def _lightning(p: LayerPlace, m: Lightning) -> list[Parameter]:
    t = TensorRows.at(p, LINEAR, N=m.heads, H=m.head_dim)
    for name in ("q", "k", "v", "gate"):
        t.matmul(f"lightning.{name}", "DNH")
    t.norm("lightning.norm", "NH")
    t.matmul("lightning.out", "NHD", "NH")
    return t.rows


def _short_conv(p: LayerPlace, m: ShortConv) -> list[Parameter]:
    """Gates before and after the convolution and its input: three width x D projections."""
    t = TensorRows.at(p, LINEAR, F=m.width, W=m.conv_width)
    for name in ("gate_in", "gate_out", "x"):
        t.matmul(f"conv.{name}", "DF")
        t.bias(f"conv.{name}.bias", "F", m.bias)
    t.add("conv", "conv.kernel", "FW")
    t.matmul("conv.out", "FD")
    t.bias("conv.kernel.bias", "F", m.bias)
    t.bias("conv.out.bias", "D", m.bias)
    return t.rows
