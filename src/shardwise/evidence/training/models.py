"""The model of a measured run: a `config`, a zoo model that `model` names, or the shape columns.

A name that is not the zoo's own, such as a Hugging Face id, means its model where the columns do
not give a shape.

A zoo model is taken where every stated number is its own: it has kinds of layers (latent attention,
shared experts, windows) that are in no column. `layers` may cut it short and `vocab` replaces its
table. A row that states `tied_embeddings`, `positions` or `biases` is built from its columns, in
which

- an ungated MLP means GPT-2's block, with learned positions, LayerNorm, biases on all matmuls and a
  tied head, as Megatron-LM builds it (SC21, section 2.1); a gated one means Llama's. The columns
  `tied_embeddings`, `positions` and `biases` say otherwise;
- experts are plain ones, in every layer.
"""

from dataclasses import replace
from pathlib import Path

from shardwise.boundary.tables import of_column
from shardwise.evidence.training.table import RunRow, needed
from shardwise.models import ModelConfig, load_model
from shardwise.models.specs import Attention, Layer, Mlp, Moe
from shardwise.models.spelling import meant, zoo_names

GPT2_VOCABULARY = 51_200
"""Megatron's padded one, where a row states none."""


def model_of(row: RunRow, folder: Path) -> ModelConfig:
    """The model of a row; `folder` is the table's. Raises BadRequest where a needed column is
    missing, or where a stated number is not the zoo model's."""
    if row.config:
        with of_column("config"):
            return load_model(folder / row.config)
    zoo = _named(row)
    if zoo is not None and _agrees(row, zoo):
        return _of_zoo(row, zoo)
    needed(
        row,
        SHAPE,
        f"'{row.model}' is no model of the zoo (`shardwise model list`) that the other columns "
        "agree with, so its shape is needed",
    )
    return _of_shape(row)


SHAPE = ("layers", "d_model", "d_ff", "heads")
"""Columns without which there is no shape."""


def _named(row: RunRow) -> ModelConfig | None:
    """The zoo model that a row's name is, or means where its columns are no shape."""
    if row.model in zoo_names():
        return load_model(row.model)
    found = None if all(getattr(row, name) for name in SHAPE) else meant(row.model)
    return load_model(found.model) if found else None


def vocabulary_inferred(row: RunRow, cfg: ModelConfig) -> tuple[str, ...]:
    """That the vocabulary is none that the row or its model states, where it is so."""
    if row.vocab is not None or row.config or cfg.vocabulary != GPT2_VOCABULARY:
        return ()
    return (f"vocabulary not stated: {GPT2_VOCABULARY:,}",)


def _of_zoo(row: RunRow, cfg: ModelConfig) -> ModelConfig:
    """The zoo's model, cut to the row's layers, with the row's vocabulary."""
    if row.vocab:
        cfg = replace(cfg, vocabulary=row.vocab, embedding_rows=row.vocab)
    layers = row.layers or cfg.layers
    return cfg if layers == cfg.layers else replace(cfg, **_cut(cfg, layers))


def _cut(cfg: ModelConfig, layers: int) -> dict[str, tuple]:
    """The first layers of a model: their distinct kinds, and which is where."""
    kept = list(dict.fromkeys(cfg.pattern[:layers]))
    pattern = tuple(kept.index(kind) for kind in cfg.pattern[:layers])
    return {"groups": tuple(cfg.groups[kind] for kind in kept), "pattern": pattern}


def _agrees(row: RunRow, cfg: ModelConfig) -> bool:
    """Whether every number that a row states is the zoo model's, with at most its layers."""
    if (row.tied_embeddings, row.positions, row.biases) != (None, None, None):
        return False
    moe = next((layer.mlp for layer in cfg.groups if isinstance(layer.mlp, Moe)), None)
    attention = next((layer.attention for layer in cfg.groups if layer.attention), None)
    pairs = [(row.d_model, cfg.d_model)]
    if attention is not None:
        pairs += [(row.heads, attention.heads)]
    if moe is not None:
        pairs += [(row.experts, moe.experts), (row.top_k, moe.experts_per_token)]
        pairs += [(row.d_ff, moe.d_ff)]
    return (row.layers or 1) <= cfg.layers and all(a in (None, b) for a, b in pairs)


def _of_shape(row: RunRow) -> ModelConfig:
    ungated, vocabulary = not row.gated_mlp, row.vocab or GPT2_VOCABULARY
    learned = row.positions == "learned" if row.positions else ungated
    biases = ungated if row.biases is None else row.biases
    return ModelConfig(
        name=row.model,
        architecture="published",
        model_type="published",
        d_model=row.d_model or 0,
        vocabulary=vocabulary,
        groups=(_layer(row, biases),),
        pattern=(0,) * (row.layers or 0),
        tied_embeddings=ungated if row.tied_embeddings is None else row.tied_embeddings,
        embedding_dim=row.d_model or 0,
        embedding_rows=vocabulary,
        position_rows=row.seq_len if learned else 0,
        max_context=row.seq_len,
        norm_bias=biases,
    )


def _layer(row: RunRow, biases: bool) -> Layer:
    heads, d_ff = row.heads or 0, row.d_ff or 0
    head_dim = row.head_dim or (row.d_model or 0) // heads
    mlp: Mlp | Moe = Mlp(d_ff=d_ff, gated=row.gated_mlp, bias=biases)
    if row.experts:
        needed(row, ("top_k",), "a mixture of experts needs it")
        mlp = Moe(
            experts=row.experts, experts_per_token=row.top_k or 1, d_ff=d_ff, gated=row.gated_mlp
        )
    return Layer(
        mixer=Attention(
            kind="full",
            heads=heads,
            kv_heads=row.kv_heads or heads,
            head_dim=head_dim,
            v_head_dim=head_dim,
            q_bias=biases,
            kv_bias=biases,
            o_bias=biases,
        ),
        mlp=mlp,
        norms=("input",) if row.parallel_block else ("attention", "mlp"),
        norm_bias=biases,
        parallel=row.parallel_block,
    )
