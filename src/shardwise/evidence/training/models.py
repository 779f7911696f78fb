"""The model of a published training run: from the shape columns of a table row to a ModelConfig.

A row with experts takes its layers from the zoo model of the same name if all shape columns agree
(latent attention, shared experts, leading dense layers and windows are in no column); without one
it is a plain mixture of experts. Every other row is built from its columns:

- `gated_mlp` says which MLP; `d_ff` is the width of one expert where there are experts.
- A GPT (model name starting with "gpt", no gated MLP) has learned positions, LayerNorm with biases,
  biases on all matmuls, and a tied head, as Megatron-LM builds it (SC21, section 2.1).
- Any other model has RMSNorm, no biases, rotary positions and a head of its own, unless the notes
  or the FLOP convention say otherwise: "learned position embeddings", "tied embedding",
  "parallel attention+MLP layers".
- A vocabulary that is not stated is Megatron's padded GPT-2 one, 51,200.
"""

from collections.abc import Mapping

from shardwise import boundary
from shardwise.models import ModelConfig, load_model
from shardwise.models.specs import Attention, Layer, Mlp, Moe
from shardwise.models.zoo import zoo_names

Row = Mapping[str, str]
"""One line of a table of runs: column -> text, "" where the source does not state it."""

GPT2_VOCABULARY = 51200


LIMITS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("layers", "pp"), (1, 10000)),
    **dict.fromkeys(("d_model", "d_ff", "heads", "head_dim", "kv_heads"), (1, 2**24)),
    **dict.fromkeys(("vocab", "num_devices", "dp", "fsdp", "tp", "cp", "ep"), (1, 2**27)),
    **dict.fromkeys(("seq_len", "global_batch_seqs"), (1, 2**40)),
    **dict.fromkeys(("experts", "top_k", "vpp", "zero_stage", "micro_batch"), (0, 2**20)),
}
"""The least and the most that each column can hold."""


def whole(row: Row, column: str, default: int | None = None) -> int:
    """A whole number of a row within `LIMITS`, or the default where it is not stated."""
    text = (row.get(column) or "").strip()
    if not text and default is not None:
        return default
    least, most = LIMITS[column]
    return boundary.whole(text, column, least=least, most=most)


def said(row: Row) -> str:
    """What a row says in words, in lower case: its notes and its FLOP convention."""
    return f"{row.get('notes') or ''}; {row.get('flops_convention_note') or ''}".lower()


def model_of(row: Row) -> ModelConfig:
    """The model of a row. Raises BadRequest where a needed column is missing."""
    if row.get("experts"):
        return _zoo_match(row) or _built(row)
    return _built(row)


def _zoo_match(row: Row) -> ModelConfig | None:
    """The zoo model whose name begins with the row's and whose shape is the row's."""
    wanted = row["model"].lower()
    for name in zoo_names():
        if name == wanted or name.startswith(f"{wanted}-"):
            cfg = load_model(name)
            if _agrees(cfg, row):
                return cfg
    return None


def _agrees(cfg: ModelConfig, row: Row) -> bool:
    """Whether every shape column that a ModelConfig holds says the same."""
    moe = next((g.mlp for g in cfg.groups if isinstance(g.mlp, Moe)), None)
    attention = cfg.groups[0].attention
    if moe is None or attention is None:
        return False
    columns = {
        "layers": cfg.layers,
        "d_model": cfg.d_model,
        "vocab": cfg.vocabulary,
        "heads": attention.heads,
        "experts": moe.experts,
        "top_k": moe.experts_per_token,
        "d_ff": moe.d_ff,
    }
    return all(whole(row, column, size) == size for column, size in columns.items())


def _built(row: Row) -> ModelConfig:
    gated = row.get("gated_mlp") == "true"
    gpt = not gated and row["model"].lower().startswith("gpt")
    words, d_model = said(row), whole(row, "d_model")
    vocabulary = whole(row, "vocab", GPT2_VOCABULARY)
    learned = gpt or "learned position" in words
    layer = _layer(row, d_model, gated=gated, bias=gpt)
    return ModelConfig(
        name=row["model"],
        architecture="published",
        model_type="published",
        d_model=d_model,
        vocabulary=vocabulary,
        groups=(layer,),
        pattern=(0,) * whole(row, "layers"),
        tied_embeddings=gpt or _tied(words),
        embedding_dim=d_model,
        embedding_rows=vocabulary,
        position_rows=whole(row, "seq_len") if learned else 0,
        max_context=whole(row, "seq_len"),
        norm_bias=gpt,
    )


def _tied(words: str) -> bool:
    return "tied embedding" in words.replace("untied", "own") and "embeddings=false" not in words


def _layer(row: Row, d_model: int, *, gated: bool, bias: bool) -> Layer:
    heads, d_ff = whole(row, "heads"), whole(row, "d_ff")
    head_dim = whole(row, "head_dim", d_model // heads)
    experts = whole(row, "experts", 0)
    mlp: Mlp | Moe = Mlp(d_ff=d_ff, gated=gated, bias=bias)
    if experts:
        mlp = Moe(experts=experts, experts_per_token=whole(row, "top_k"), d_ff=d_ff, gated=gated)
    parallel = "parallel attention+mlp" in said(row)
    return Layer(
        mixer=Attention(
            kind="full",
            heads=heads,
            kv_heads=whole(row, "kv_heads", heads),
            head_dim=head_dim,
            v_head_dim=head_dim,
            q_bias=bias,
            kv_bias=bias,
            o_bias=bias,
        ),
        mlp=mlp,
        norms=("input",) if parallel else ("attention", "mlp"),
        norm_bias=bias,
        parallel=parallel,
    )
