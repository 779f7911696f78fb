"""MaxText 0.2.5 as a row; its words are those of src/maxtext/configs/base.yml and types.py."""

from collections.abc import Mapping
from math import prod

import numpy as np

from shardwise.models import ModelConfig
from shardwise.models.remat import remat_row
from shardwise.models.specs import Attention, LatentAttention
from shardwise.plans.software.candidates import Candidates
from shardwise.plans.software.features import (
    EXPERTS,
    HEAD_NORM,
    LATENT,
    LEADING,
    LLAMA3,
    OTHER_EXPERTS,
    QKV_BIAS,
    SHARED,
    YARN,
    features,
)
from shardwise.plans.software.limit import about_choices, always, of_choice
from shardwise.plans.software.maxtext_context import CONTEXT, KV_HEADS
from shardwise.plans.software.maxtext_models import named_model
from shardwise.plans.software.row import SoftwareRow
from shardwise.plans.software.shared import OWN_KERNELS, crosses_whole, dtype_of_store, stores_all

TENSORS = {
    "block_input": ("decoder_layer_input",),
    "qkv": ("query_proj", "key_proj", "value_proj"),
    "attention": ("context",),
    "attention_out": ("out_proj",),
    "mlp_in": ("mlpwi_0", "mlpwi_1"),
    "mlp_out": ("mlpwo",),
}
"""Names of the tensors that the policy `custom` places, by our kind; norms have none."""
FUSED = {"qkv": ("qkv_proj",), "mlp_in": ("mlpwi",)}
"""Names that the same kinds have where MaxText fuses their matmuls."""
OTHERS = (
    *("moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo", "query_wa_proj", "kv_wa_proj", "kv_proj"),
    *("mla_q", "mla_kv", "attention_out", "engram"),
)
"""Tensors that `custom` places, too, of which no kind of ours is one."""
KEPT: Mapping[str, tuple[str, ...]] = {
    "minimal_with_context": ("qkv", "attention", "attention_out", "mlp_in", "mlp_out"),
    "minimal_flash": ("qkv", "attention", "attention_out", "mlp_in", "mlp_out"),
    "save_dot_with_context_except_mlp": ("qkv", "attention", "attention_out"),
    "save_dot_except_mlpwi": ("qkv", "attention_out", "mlp_out"),
    "save_dot_except_mlp": ("qkv", "attention_out"),
    "save_qkv_proj": ("qkv",),
    "save_out_proj": ("attention_out",),
}
"""Its other policies, by the kinds that they keep beside the layer's input (`get_remat_policy` of
src/MaxText/layers/decoders.py)."""
OFFLOADED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj_offloaded": ("qkv",),
    "minimal_offloaded": ("qkv", "attention_out", "mlp_in", "mlp_out"),
}
"""Policies by the kinds that they offload to the host."""
NEAREST = {
    "minimal_with_quantization": "minimal",
    "minimal_with_context_and_quantization": "minimal_with_context",
}
"""Policies that keep what kernels quantized, too, which is no kind of ours, and those that keep the
same but for that."""
DTYPES = {"bf16": "bfloat16", "f32": "float32", "f16": "float16"}
QUANTIZED = {"fp8": "fp8", "int8": "int8", "mxfp8": "te_mxfp8", "nvfp4": "te_nvfp4"}


def decoder_block(cfg: ModelConfig) -> str:
    """Which of MaxText's blocks has the parts of this model's layers."""
    mixer = cfg.groups[-1].mixer
    normed = isinstance(mixer, Attention) and mixer.qk_norm != "none"
    if isinstance(mixer, LatentAttention):
        return "deepseek"
    if cfg.has_experts:
        return "qwen3_moe" if normed else "mixtral"
    if normed:
        return "qwen3"
    biased = isinstance(mixer, Attention) and mixer.q_bias
    return "qwen2" if biased else "llama2"


MUON_BLOCKS = ("deepseek", "qwen3_moe", "qwen3", "llama2")
"""Blocks of `decoder_block` whose weights its Muon tells apart (types.py)."""
ONE_SCALE = ("fp8",)
"""Types whose running scales do not go with accumulated gradients (types.py)."""


def _placeable(c: Candidates) -> bool:
    """Kinds of activations that a plan treats apart are among those that it names."""
    structure = c.structure
    if not structure.remat_kinds and not remat_row(structure.remat).offloads:
        return True
    places = {**remat_row(structure.remat).kinds, **structure.remat_kinds}
    return all(kind in TENSORS for kind, place in places.items() if place != "recompute")


def _stored_evenly(c: Candidates) -> np.ndarray:
    """Whether fsdp, context and expert divide every dim that they store (`logical_axis_rules` of
    base.yml): jit refuses a state whose pieces are not alike."""
    latent = [g.mixer for g in c.cfg.groups if isinstance(g.mixer, LatentAttention)]
    ranks = {rank for m in latent for rank in (m.q_lora_rank, m.kv_lora_rank) if rank}
    rows = c.degree("fsdp") * c.degree("context") * c.degree("expert")
    return np.all([size % rows == 0 for size in {c.cfg.d_model, *ranks}], axis=0)


def _cut_evenly(c: Candidates) -> np.ndarray:
    """Whether tensor divides the dims that it cuts, besides heads."""
    mlps = [g.mlp for g in c.cfg.groups if g.mlp]
    widths = {mlp.d_ff for mlp in mlps} | {getattr(mlp, "shared_d_ff", 0) for mlp in mlps}
    sizes = {c.cfg.d_model, c.cfg.vocabulary, *widths}
    return np.all([size % c.degree("tensor") == 0 for size in sizes], axis=0)


def _tiled(c: Candidates) -> np.ndarray:
    """Whether a device's share of the tokens that pass at once is cut into equal tiles (types.py);
    a pipeline takes all microbatches at once."""
    accumulated = np.where(c.degree("stage") > 1, 1, np.asarray(c.microbatches))
    devices = prod((c.degree(axis) for axis in c.degrees), start=np.asarray(1))
    tiles = accumulated * devices * c.structure.logit_chunks
    return np.asarray(c.sequences * c.sequence_length % tiles == 0)


def _one_kind(c: Candidates) -> np.ndarray:
    return (c.degree("stage") == 1) | (len(c.cfg.groups) == 1)


MAXTEXT = SoftwareRow(
    name="maxtext",
    title="MaxText",
    stack="xla",
    vendors=("google", "nvidia", "amd"),
    unwritten=("lora_rank",),  # enable_lora of its configs/types.py
    words={
        "remat": {"matmul_outputs": "minimal", "block": "full", "offload": "custom"},
        "pipeline_schedule": {"gpipe": "gpipe", "interleaved": "circular"},
        "zero": {1: "true", 0: "false"},
        "weight_gather": {"per_pass": "false", "per_microbatch": "true"},
        "gradient_reduce": {"per_microbatch": ""},
        "optimizer": {"adam": "adamw", "muon": "muon", "sgd": "sgd"},
        "attention_kernel": {"flash": "flash", "scores": "dot_product"},
        "context_method": {"all_gather": "all_gather", "ring": "ring", "ulysses": "ulysses"},
        "dtypes.grad": DTYPES,
        "dtypes.compute": DTYPES | QUANTIZED,
        "expert_over_tensor": {False: ""},
        "lora_rank": {0: ""},
        "frozen": {(): ""},
        "compiled": {None: "", True: ""},
        "fused_loss": {None: ""},
        **OWN_KERNELS,
    },
    own=(
        stores_all(),
        *dtype_of_store(DTYPES),
        crosses_whole(),
        always(
            "box",
            lambda c: tuple(c.box) == tuple(c.piece.shape),
            "a job uses whole slices",
            "use the whole slice, or plan for a smaller one",
        ),
        of_choice(
            "weight_gather",
            lambda c: (
                (c.structure.weight_gather == "per_pass") | ~c.stored | (c.degree("stage") > 1)
            ),
            "without a pipeline it gathers weights before every pass",
            "set weight_gather to per_pass",
        ),
        of_choice(
            "zero",
            lambda c: (c.copies == 1) | (c.degree("fsdp") == 1) | (c.structure.zero == 0),
            "with fsdp it does not shard the optimizer state over data",
            "set zero to 0",
        ),
        about_choices(
            "remat_kinds",
            ("remat",),
            _placeable,
            f"it can place only {', '.join(TENSORS)} and recomputes the rest",
            "leave the other kinds out of remat_kinds",
        ),
        about_choices(
            "layers_per_stage",
            ("pipeline_schedule", "virtual_stages"),
            lambda c: (c.degree("stage") == 1) | ~c.uneven,
            "every (virtual) stage has the same layers",
            "use a number of stages that divides the layers",
        ),
        of_choice(
            "dtypes.compute",
            lambda c: (
                (c.structure.dtypes.compute not in ONE_SCALE)
                | (c.degree("stage") > 1)
                | (np.asarray(c.microbatches) == 1)
            ),
            "its fp8 does not accumulate gradients over microbatches",
            "set microbatches to 1, or dtypes.compute to bf16",
        ),
        of_choice(
            "expert_dispatch",
            lambda c: c.structure.ragged or OTHER_EXPERTS not in features(c.cfg),
            "experts with biases drop no tokens",
            "set expert_dispatch to ragged",
        ),
        of_choice(
            "logit_chunks",
            _tiled,
            "its vocabulary tiles divide the tokens per device of a microbatch",
            "set logit_chunks to 1, or use a batch and length that divide",
        ),
        of_choice(
            "optimizer",
            lambda c: c.structure.optimizer != "muon" or decoder_block(c.cfg) in MUON_BLOCKS,
            f"its Muon supports the blocks {', '.join(MUON_BLOCKS)}",
            "set optimizer to adam",
        ),
        always(
            "microbatches",
            lambda c: (
                (c.degree("stage") == 1) | (np.asarray(c.microbatches) % c.degree("stage") == 0)
            ),
            "a pipeline takes multiples of its stages",
            "use a multiple of the stages",
        ),
        always("mesh", _one_kind, "its pipeline repeats one kind of layer", "use stage=1"),
        always(
            "mesh",
            _stored_evenly,
            "fsdp x context x expert divides d_model and the ranks of latent attention",
            "use degrees that divide them",
        ),
        always(
            "mesh",
            _cut_evenly,
            "tensor divides d_model, d_ff and the vocabulary",
            "use a degree that divides them",
        ),
        KV_HEADS,
        *CONTEXT,
    ),
    named=named_model,
    builds=(EXPERTS, HEAD_NORM, LATENT, LEADING, LLAMA3, QKV_BIAS, SHARED, YARN),
    usual={
        "expert_dispatch": "ragged",
        "dtypes.param": "f32",
        "dtypes.master": "none",
        "dtypes.grad": "f32",
    },
)
"""Runs on TPUs, and on GPUs too."""
