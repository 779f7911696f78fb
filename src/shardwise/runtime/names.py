"""Names and forms of tensors in Hugging Face checkpoints, for the rows of the parameter table.

A form says how a checkpoint lays out a row's dims: axes separated by commas, each the letters that
are flattened into it, major to minor; `Linear.weight` of q is "NH,D". A part in brackets is one of
several tensors fused along that place: "[NH],D" in `qkv_proj` is the first of three blocks of rows,
"N[P],C" in `kv_b_proj` alternates with V per head, "E,D,F[]" in gpt-oss interleaves element by
element; "K[rU],D" has for each key head a part of its r value heads. E is left out where each
expert has a tensor of its own, named by {expert}.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig, Parameter
from shardwise.models.runnable import numerics_of

Names = Mapping[str, str | tuple[str, str]]
"""Row -> name, or (name, form) where the form is not the one of `default_form`. Rows that share a
name are fused in the order of the table."""

_LAYER = "model.layers.{layer}."


def _plain(prefix: str, rows: Mapping[str, str]) -> dict[str, str]:
    """Weights and biases of torch modules: row -> module, under a prefix."""
    made = {}
    for row, module in rows.items():
        made[row] = f"{prefix}{module}.weight"
        made[f"{row}.bias"] = f"{prefix}{module}.bias"
    return made


def _experts(prefix: str, gate: str, up: str, down: str) -> dict[str, str]:
    names = {"gate": gate, "up": up, "down": down}
    return {f"experts.{k}": f"{prefix}experts.{{expert}}.{v}.weight" for k, v in names.items()}


_OUTER = _plain("", {"embedding": "model.embed_tokens", "norm.final": "model.norm"}) | _plain(
    "", {"lm_head": "lm_head"}
)
_QKVO = {f"attention.{x}": f"self_attn.{x}_proj" for x in "qkvo"}
_GATED = {f"mlp.{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
_TWO_NORMS = {"norm.attention": "input_layernorm", "norm.mlp": "post_attention_layernorm"}
_FOUR_NORMS = {
    "norm.attention": "input_layernorm",
    "norm.post_attention": "post_attention_layernorm",
    "norm.mlp": "pre_feedforward_layernorm",
    "norm.post_mlp": "post_feedforward_layernorm",
}
_QK_NORMS = {"attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm"}

LLAMA: Names = _OUTER | _plain(_LAYER, _QKVO | _GATED | _TWO_NORMS | _QK_NORMS)
_MOE = _plain(_LAYER, {"router": "mlp.gate"}) | _experts(
    f"{_LAYER}mlp.", "gate_proj", "up_proj", "down_proj"
)
_QWEN_MOE = (
    {**LLAMA, **_MOE}
    | _plain(
        _LAYER,
        {f"shared.{x}": f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")},
    )
    | {"shared.gate_weight": (f"{_LAYER}mlp.shared_expert_gate.weight", "1,D")}
)
_DEEPSEEK_MOE = (
    {**LLAMA, **_MOE}
    | _plain(
        _LAYER,
        {f"shared.{x}": f"mlp.shared_experts.{x}_proj" for x in ("gate", "up", "down")},
    )
    | {"router.correction": f"{_LAYER}mlp.gate.e_score_correction_bias"}
)
_KV_DOWN = f"{_LAYER}self_attn.kv_a_proj_with_mqa"
_KV_UP = f"{_LAYER}self_attn.kv_b_proj.weight"
DEEPSEEK: Names = {
    **_DEEPSEEK_MOE,
    **_plain(
        _LAYER,
        {
            "attention.q_down": "self_attn.q_a_proj",
            "attention.q_down_norm": "self_attn.q_a_layernorm",
            "attention.q_up": "self_attn.q_b_proj",
            "attention.kv_down_norm": "self_attn.kv_a_layernorm",
        },
    ),
    "attention.kv_down": (f"{_KV_DOWN}.weight", "[C],D"),
    "attention.k_rope": (f"{_KV_DOWN}.weight", "[R],D"),
    "attention.kv_down.bias": (f"{_KV_DOWN}.bias", "[C]"),
    "attention.k_rope.bias": (f"{_KV_DOWN}.bias", "[R]"),
    "attention.k_up": (_KV_UP, "N[P],C"),
    "attention.v_up": (_KV_UP, "N[U],C"),
}
_OSS = f"{_LAYER}mlp.experts."
GPT_OSS: Names = {
    **LLAMA,
    **_plain(_LAYER, {"router": "mlp.router"}),
    "attention.sinks": f"{_LAYER}self_attn.sinks",
    "experts.gate": (f"{_OSS}gate_up_proj", "E,D,F[]"),
    "experts.up": (f"{_OSS}gate_up_proj", "E,D,F[]"),
    "experts.down": (f"{_OSS}down_proj", "E,F,D"),
    "experts.gate.bias": (f"{_OSS}gate_up_proj_bias", "E,F[]"),
    "experts.up.bias": (f"{_OSS}gate_up_proj_bias", "E,F[]"),
    "experts.down.bias": (f"{_OSS}down_proj_bias", "E,D"),
}
_H = "transformer.h.{layer}."
_CONV = {
    "attention.q": (f"{_H}attn.c_attn.weight", "D,[NH]"),
    "attention.k": (f"{_H}attn.c_attn.weight", "D,[KH]"),
    "attention.v": (f"{_H}attn.c_attn.weight", "D,[KH]"),
    "attention.q.bias": (f"{_H}attn.c_attn.bias", "[NH]"),
    "attention.k.bias": (f"{_H}attn.c_attn.bias", "[KH]"),
    "attention.v.bias": (f"{_H}attn.c_attn.bias", "[KH]"),
    "attention.o": (f"{_H}attn.c_proj.weight", "NH,D"),
    "attention.o.bias": f"{_H}attn.c_proj.bias",
    "mlp.up": (f"{_H}mlp.c_fc.weight", "D,F"),
    "mlp.up.bias": f"{_H}mlp.c_fc.bias",
    "mlp.down": (f"{_H}mlp.c_proj.weight", "F,D"),
    "mlp.down.bias": f"{_H}mlp.c_proj.bias",
}
GPT2: Names = {
    **_CONV,
    **_plain("transformer.", {"embedding": "wte", "positions": "wpe", "norm.final": "ln_f"}),
    **_plain(_H, {"norm.attention": "ln_1", "norm.mlp": "ln_2"}),
}
GPTJ: Names = {
    **_plain("transformer.", {"embedding": "wte", "norm.final": "ln_f"}),
    **_plain("", {"lm_head": "lm_head"}),
    **_plain(_H, {f"attention.{x}": f"attn.{x}_proj" for x in "qkv"}),
    **_plain(_H, {"attention.o": "attn.out_proj", "norm.input": "ln_1"}),
    **_plain(_H, {"mlp.up": "mlp.fc_in", "mlp.down": "mlp.fc_out"}),
}
_NEOX = "gpt_neox.layers.{layer}."
_QKV = f"{_NEOX}attention.query_key_value"
GPT_NEOX: Names = {
    **_plain("gpt_neox.", {"embedding": "embed_in", "norm.final": "final_layer_norm"}),
    "lm_head": "embed_out.weight",
    **{
        f"attention.{x}": (f"{_QKV}.weight", f"{n}[H],D") for x, n in zip("qkv", "NKK", strict=True)
    },
    **{
        f"attention.{x}.bias": (f"{_QKV}.bias", f"{n}[H]")
        for x, n in zip("qkv", "NKK", strict=True)
    },
    **_plain(_NEOX, {"attention.o": "attention.dense", **_TWO_NORMS}),
    **_plain(_NEOX, {"mlp.up": "mlp.dense_h_to_4h", "mlp.down": "mlp.dense_4h_to_h"}),
}
_OPT = "model.decoder."
OPT: Names = {
    **_plain(
        _OPT,
        {
            "embedding": "embed_tokens",
            "positions": "embed_positions",
            "embedding.in": "project_in",
            "embedding.out": "project_out",
            "norm.final": "final_layer_norm",
        },
    ),
    **_plain(
        f"{_OPT}layers.{{layer}}.",
        {
            **{f"attention.{x}": f"self_attn.{x}_proj" for x in "qkv"},
            "attention.o": "self_attn.out_proj",
            "mlp.up": "fc1",
            "mlp.down": "fc2",
            "norm.attention": "self_attn_layer_norm",
            "norm.mlp": "final_layer_norm",
        },
    ),
}
_FC = _plain(_LAYER, {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"})
PHI: Names = {
    **LLAMA,
    **_FC,
    **_plain(
        _LAYER,
        {
            "attention.o": "self_attn.dense",
            "norm.input": "input_layernorm",
            "attention.q_norm": "self_attn.q_layernorm",
            "attention.k_norm": "self_attn.k_layernorm",
        },
    ),
    **_plain("model.", {"norm.final": "final_layernorm"}),
}
_PHI_QKV = f"{_LAYER}self_attn.qkv_proj.weight"
_PHI_MLP = f"{_LAYER}mlp.gate_up_proj.weight"
PHI3: Names = {
    **LLAMA,
    "attention.q": (_PHI_QKV, "[NH],D"),
    "attention.k": (_PHI_QKV, "[KH],D"),
    "attention.v": (_PHI_QKV, "[KH],D"),
    "mlp.gate": (_PHI_MLP, "[F],D"),
    "mlp.up": (_PHI_MLP, "[F],D"),
}
MIXTRAL: Names = {
    **LLAMA,
    **_plain(_LAYER, {"router": "block_sparse_moe.gate"}),
    **_experts(f"{_LAYER}block_sparse_moe.", "w1", "w3", "w2"),
}
GRANITE_MOE: Names = {
    **LLAMA,
    "router": f"{_LAYER}block_sparse_moe.router.layer.weight",
    "experts.gate": (f"{_LAYER}block_sparse_moe.input_linear.weight", "E,[F],D"),
    "experts.up": (f"{_LAYER}block_sparse_moe.input_linear.weight", "E,[F],D"),
    "experts.down": (f"{_LAYER}block_sparse_moe.output_linear.weight", "E,D,F"),
}
FOUR_NORMS: Names = {**LLAMA, **_plain(_LAYER, _FOUR_NORMS)}
POST_NORMS: Names = {
    **LLAMA,
    **_plain(
        _LAYER,
        {
            "norm.post_attention": "post_attention_layernorm",
            "norm.post_mlp": "post_feedforward_layernorm",
        },
    ),
}
ONE_NORM: Names = {**LLAMA, **_plain(_LAYER, {"norm.input": "input_layernorm"})}
COHERE: Names = {
    **ONE_NORM,
    "attention.q_norm": (f"{_LAYER}self_attn.q_norm.weight", "N,H"),
    "attention.k_norm": (f"{_LAYER}self_attn.k_norm.weight", "K,H"),
}
_LFM2_IN = (f"{_LAYER}conv.in_proj.weight", "[F],D")
_LFM2_BIAS = (f"{_LAYER}conv.in_proj.bias", "[F]")
LFM2: Names = {
    **LLAMA,
    **_plain("model.", {"norm.final": "embedding_norm"}),
    **_plain(
        _LAYER,
        {
            "attention.o": "self_attn.out_proj",
            "attention.q_norm": "self_attn.q_layernorm",
            "attention.k_norm": "self_attn.k_layernorm",
            "norm.attention": "operator_norm",
            "norm.mlp": "ffn_norm",
            "mlp.gate": "feed_forward.w1",
            "mlp.up": "feed_forward.w3",
            "mlp.down": "feed_forward.w2",
            "conv.out": "conv.out_proj",
        },
    ),
    **dict.fromkeys(("conv.gate_in", "conv.gate_out", "conv.x"), _LFM2_IN),
    **dict.fromkeys(("conv.gate_in.bias", "conv.gate_out.bias", "conv.x.bias"), _LFM2_BIAS),
    "conv.kernel": (f"{_LAYER}conv.conv.weight", "F,1,W"),
    "conv.kernel.bias": f"{_LAYER}conv.conv.bias",
}
_DELTA = f"{_LAYER}linear_attn."
_DELTA_MIXED = {"q": "K[H],D", "k": "K[H],D", "v": "K[rU],D", "gate": "K[rU],D"}
_DELTA_CONV = {"q": "[KH],1,W", "k": "[KH],1,W", "v": "[NU],1,W"}
QWEN3_NEXT: Names = {
    **_QWEN_MOE,
    "attention.q": (f"{_LAYER}self_attn.q_proj.weight", "N[H],D"),
    "attention.gate": (f"{_LAYER}self_attn.q_proj.weight", "N[H],D"),
    "attention.q.bias": (f"{_LAYER}self_attn.q_proj.bias", "N[H]"),
    "attention.gate.bias": (f"{_LAYER}self_attn.q_proj.bias", "N[H]"),
    **{f"delta.{n}": (f"{_DELTA}in_proj_qkvz.weight", form) for n, form in _DELTA_MIXED.items()},
    **{f"delta.{n}": (f"{_DELTA}in_proj_ba.weight", "K[r],D") for n in ("beta", "decay")},
    **{f"delta.conv_{n}": (f"{_DELTA}conv1d.weight", form) for n, form in _DELTA_CONV.items()},
    "delta.dt_bias": f"{_DELTA}dt_bias",
    "delta.a_log": f"{_DELTA}A_log",
    "delta.norm": f"{_DELTA}norm.weight",
    "delta.out": f"{_DELTA}out_proj.weight",
}
STARCODER2: Names = {**LLAMA, **_plain(_LAYER, {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"})}

NAMES: Mapping[str, Names] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "arcee": LLAMA,
    "seed_oss": LLAMA,
    "ernie4_5": LLAMA,
    "smollm3": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "granite": LLAMA,
    "gemma": LLAMA,
    "lfm2": LFM2,
    "qwen3_next": QWEN3_NEXT,
    "mixtral": MIXTRAL,
    "granitemoe": GRANITE_MOE,
    "qwen2_moe": _QWEN_MOE,
    "qwen3_moe": _QWEN_MOE,
    "olmoe": _QWEN_MOE,
    "gemma2": FOUR_NORMS,
    "gemma3_text": FOUR_NORMS,
    "gemma3": FOUR_NORMS,
    "olmo2": POST_NORMS,
    "olmo3": POST_NORMS,
    "exaone4": POST_NORMS,
    "gpt_oss": GPT_OSS,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "glm4_moe": _DEEPSEEK_MOE,
    "gpt2": GPT2,
    "gptj": GPTJ,
    "gpt_neox": GPT_NEOX,
    "opt": OPT,
    "phi": PHI,
    "phi3": PHI3,
    "stablelm": ONE_NORM,
    "starcoder2": STARCODER2,
    "cohere": COHERE,
    "cohere2": ONE_NORM,
}
"""Names by model type."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a row is in a tensor: letters per axis of the file, and the fused part.

    `axes` are the letters flattened into each axis. With `inside`, the letters after it in axis
    `fused` (index `outer` and on) are a part of `size` starting at `start` of `total`. Where the
    file has a row's N heads as K groups of r, `heads` is (K, r).
    """

    row: Parameter
    template: str
    axes: tuple[str, ...]
    fused: int | None = None
    outer: int = 0
    start: int = 0
    size: int = 0
    total: int = 0
    heads: tuple[int, int] | None = None

    @property
    def sizes(self) -> Mapping[str, int]:
        """Of every letter of the axes."""
        split = {} if self.heads is None else dict(zip("Kr", self.heads, strict=True))
        return dict(self.row.dims) | {"1": 1} | split

    @property
    def letters(self) -> str:
        """Those of the row's dims, in their order."""
        letters = "".join(letter for letter, _ in self.row.dims)
        return letters if self.heads is None else letters.replace("N", "Kr")

    @property
    def per_expert(self) -> bool:
        """Whether each expert is a tensor of its own."""
        return "{expert}" in self.template

    def shape(self) -> tuple[int, ...]:
        """Dims of the tensor in the file."""
        sizes, shape = self.sizes, []
        for i, axis in enumerate(self.axes):
            letters = axis[: self.outer] if i == self.fused else axis
            size = 1
            for letter in letters:
                size *= sizes[letter]
            shape.append(size * (self.total if i == self.fused else 1))
        return tuple(shape)


def pieces(cfg: ModelConfig, rows: tuple[Parameter, ...]) -> tuple[Piece, ...]:
    """One Piece per row. Raises BadRequest for a row that the model type's table lacks."""
    numerics_of(cfg)
    from_architecture = NAMES.get(cfg.model_type)
    if from_architecture is None:
        raise BadRequest(
            f"model '{cfg.name}': tensors of model type '{cfg.model_type}' have no names here; "
            f"known: {', '.join(NAMES)}"
        )
    forms = {(row.group, row.name): _form(row, from_architecture, cfg) for row in rows}
    return tuple(_piece(row, forms, rows) for row in rows)


def _form(row: Parameter, names: Names, cfg: ModelConfig) -> tuple[str, str]:
    entry = names.get(row.name)
    if entry is None:
        raise BadRequest(f"model '{cfg.name}': parameter '{row.name}' has no name in a checkpoint")
    if isinstance(entry, tuple):
        return entry
    return entry, default_form(row, per_expert="{expert}" in entry)


def default_form(row: Parameter, per_expert: bool = False) -> str:
    """A torch Linear is [out, in]; tables and vectors are as in the parameter table."""
    letters = [letter for letter, _ in row.dims if not (per_expert and letter == "E")]
    if row.role == "lookup":
        return ",".join(letters)
    if row.role != "matmul":
        return "".join(letters)
    out = "".join(x for x in letters if x not in row.contracts)
    return f"{out},{''.join(x for x in letters if x in row.contracts)}"


def _piece(
    row: Parameter,
    forms: Mapping[tuple[int | None, str], tuple[str, str]],
    rows: tuple[Parameter, ...],
) -> Piece:
    template, form = forms[row.group, row.name]
    axes = tuple(axis.replace("[", "").replace("]", "") for axis in form.split(","))
    heads = _grouped_heads(row, rows) if "r" in form else None
    if "[" not in form:
        return Piece(row, template, axes, heads=heads)
    fused = next(i for i, axis in enumerate(form.split(",")) if "[" in axis)
    outer = form.split(",")[fused].index("[")
    start = total = size = 0
    for other in rows:
        if other.group != row.group or forms[other.group, other.name][0] != template:
            continue
        part = _part(other, forms[other.group, other.name][1], rows)
        if other is row:
            start, size = total, part
        total += part
    return Piece(row, template, axes, fused, outer, start, size, total, heads)


def _grouped_heads(row: Parameter, rows: tuple[Parameter, ...]) -> tuple[int, int]:
    """N heads of a row as those of the K key heads of its layer, r each."""
    keys = next(dict(r.dims)["K"] for r in rows if r.group == row.group and "K" in dict(r.dims))
    return keys, dict(row.dims)["N"] // keys


def _part(row: Parameter, form: str, rows: tuple[Parameter, ...]) -> int:
    sizes, part = dict(row.dims), 1
    if "r" in form:
        sizes["r"] = _grouped_heads(row, rows)[1]
    for letter in form[form.index("[") + 1 : form.index("]")]:
        part *= sizes[letter]
    return part
