"""Megatron-LM (megatron-core 0.19.2) as a row; its words are those of training/arguments.py."""

import numpy as np

from shardwise.models import ModelConfig
from shardwise.models.remat import remat_row
from shardwise.plans.software.candidates import Candidates
from shardwise.plans.software.features import (
    ALL_BIASES,
    EXPERTS,
    GELU,
    HEAD_NORM,
    LATENT,
    LAYER_NORM,
    LEADING,
    LEARNED,
    LLAMA3,
    LLAMA3_FACTOR,
    MIXED,
    PARTIAL,
    QKV_BIAS,
    SHARED,
    SHARED_GATE,
    UNGATED,
    YARN,
    features,
)
from shardwise.plans.software.limit import about_choices, always, of_choice
from shardwise.plans.software.row import SoftwareRow
from shardwise.plans.software.shared import all_stored

MODULES = {"attention": "core_attn", "norm": "layernorm", "activation": "moe_act"}
"""Kinds of activations that `--recompute-granularity selective` can recompute alone."""
_MLP = ("mlp_in", "activation")
WHOLE_MODULES = {"mlp": _MLP, "moe": _MLP, "mla_up_proj": ("qkv",)}
"""Modules that are recomputed whole, of which only the input and the result stay: the kinds of
activations inside. `mlp` is an MLP without experts, `moe` one with them."""
RECIPES = {"fp8": "delayed", "mxfp8": "mxfp8"}
MIXED_DTYPES = {"bf16": "--bf16", "f16": "--fp16"}
MOMENTS = {"f32": "fp32", "f16": "fp16", "fp8": "fp8", "bf16": "bf16"}
SUMS = {"bf16": "--grad-reduce-in-bf16", "f32": "--accumulate-allreduce-grads-in-fp32"}


def _recomputes(c: Candidates) -> bool:
    """Whole layers, or modules of them; an MLP without experts is never split."""
    structure = c.structure
    places = {**remat_row(structure.remat).kinds, **structure.remat_kinds}
    if places in (remat_row("none").kinds, remat_row("block").kinds):
        return True
    known = {kind for kind in MODULES if c.cfg.has_experts or kind != "activation"}
    again = {kind for kind, place in places.items() if place == "recompute"}
    whole = {module for module in modules_of(c.cfg) if again.issuperset(WHOLE_MODULES[module])}
    again -= {kind for module in whole for kind in WHOLE_MODULES[module]}
    return "offload" not in places.values() and again <= known


def modules_of(cfg: ModelConfig) -> tuple[str, ...]:
    """The modules of `WHOLE_MODULES` that a model's layers have."""
    latent = ("mla_up_proj",) if LATENT in features(cfg) else ()
    return ("moe" if cfg.has_experts else "mlp", *latent)


def _one_attention(c: Candidates) -> bool:
    mixers = {group.mixer for group in c.cfg.groups}
    return len(mixers) == 1


def _f32(c: Candidates) -> bool:
    d = c.structure.dtypes
    return d.param == d.compute == "f32"


def _computes(c: Candidates) -> bool:
    d = c.structure.dtypes
    kind = d.param if d.param in MIXED_DTYPES else "bf16"
    return _f32(c) or d.compute == kind or d.compute in RECIPES


def _parameters(c: Candidates) -> bool:
    d = c.structure.dtypes
    return _f32(c) or d.param in MIXED_DTYPES or (d.param == d.compute and d.compute in RECIPES)


def _master(c: Candidates) -> bool:
    return c.structure.dtypes.master == ("none" if _f32(c) else "f32")


def _sharded(c: Candidates) -> np.ndarray:
    """Where Megatron-FSDP runs: parameters in pieces, or gradients too (ZeRO-2)."""
    return c.stored | ((c.copies > 1) & (c.structure.zero == 2))


MEGATRON = SoftwareRow(
    name="megatron",
    title="Megatron-LM",
    stack="megatron",
    vendors=("nvidia", "amd"),
    words={
        "pipeline_schedule": {"1f1b": "1f1b", "interleaved": "interleaved"},
        "zero": {1: "optim", 0: "no_shard", 2: "optim_grads"},
        "weight_gather": {"per_pass": ""},
        "gradient_reduce": {"per_microbatch": ""},
        "context_method": {"ring": "p2p", "all_gather": "all_gather", "ulysses": "a2a"},
        "optimizer": {"adam": "adam", "muon": "muon", "sgd": "sgd"},
        "attention_kernel": {"flash": "flash", "scores": "unfused"},
        "dtypes.grad": SUMS,
        "dtypes.moments": MOMENTS,
        "logit_chunks": {1: ""},
        "lora_rank": {0: ""},
        "frozen": {(): ""},
        "compiled": {None: "", False: ""},
        "fused_loss": {None: ""},
        "grouped_kernel": {"per_expert": ""},
        "dispatcher": {
            None: "",
            "alltoall": "alltoall",
            "deepep": "deepep",
            "hybridep": "hybridep",
        },
        "wide": {(): ""},
    },
    own=(
        of_choice(
            "storage_axes",
            lambda c: ~c.stored | all_stored(c),
            "Megatron-FSDP also shards parameters over expert and context",
            "set storage_axes to [fsdp, expert, context], or fsdp to 1",
        ),
        of_choice(
            "zero",
            lambda c: ~c.stored | (c.copies == 1) | (c.structure.zero < 2),
            "replicas of Megatron-FSDP support no_shard (0) and optim (1)",
            "set zero to 1",
        ),
        about_choices(
            "optimizer",
            ("optimizer", "zero", "storage_axes"),
            lambda c: ~_sharded(c) | (c.structure.optimizer in ("adam", "sgd")),
            "Megatron-FSDP runs adam and sgd",
            "set optimizer to adam",
        ),
        of_choice(
            "remat",
            _recomputes,
            f"it recomputes whole layers, or only {', '.join(MODULES)} (activations: those of "
            "experts)",
            "set remat to block, or to none, with remat_kinds left out",
        ),
        of_choice(
            "dtypes.param",
            _parameters,
            "parameters are bf16 or f16, or fp8 with fp8 compute only",
            "set dtypes.param to bf16",
        ),
        of_choice(
            "dtypes.compute",
            _computes,
            "it computes in the dtype of the parameters, or in fp8 or mxfp8",
            "set dtypes.compute to bf16",
        ),
        of_choice(
            "dtypes.master",
            _master,
            "mixed precision keeps an f32 copy of the parameters; f32 keeps none",
            lambda c: f"set dtypes.master to {'none' if _f32(c) else 'f32'}",
        ),
        of_choice(
            "sequence_parallel",
            lambda c: (
                c.structure.sequence_parallel | (c.degree("tensor") == 1) | (not c.cfg.has_experts)
            ),
            "experts under tensor parallelism need sequence parallelism",
            "set sequence_parallel to true",
        ),
        always(
            "model",
            _one_attention,
            "its arguments describe one kind of attention",
            "plan for a model with one kind",
        ),
    ),
    builds=(
        *(ALL_BIASES, EXPERTS, GELU, HEAD_NORM, LATENT, LAYER_NORM, LEADING, LEARNED, LLAMA3),
        LLAMA3_FACTOR,
        *(MIXED, PARTIAL, QKV_BIAS, SHARED, SHARED_GATE, UNGATED, YARN),
    ),
    usual={"expert_dispatch": "ragged", "dtypes.grad": "f32"},
)
"""The training library that runs of NVIDIA's GPUs start from."""
