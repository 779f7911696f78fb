"""Transformers' Trainer, as TRL and axolotl run it: PyTorch's DDP or FSDP, or DeepSpeed.

Which of them runs follows from what is stored: DeepSpeed keeps a master copy in f32 beside
parameters in 16 bits, FSDP stores f32 and gathers 16 bits (accelerate's fsdp_utils.py, which casts
up what is mixed), DDP what was loaded. No search plans for it: a plan is read from its files, or
written for it where it can be run so.
"""

from collections.abc import Mapping

import numpy as np

from shardwise.plans.software.candidates import Candidates
from shardwise.plans.software.limit import about_choices, always, of_choice
from shardwise.plans.software.row import SoftwareRow
from shardwise.plans.software.shared import OWN_KERNELS, stores_all
from shardwise.plans.train import Structure, TrainDtypes

OPTIM_WORDS: Mapping[str, tuple[str, ...]] = {
    "adam": (
        *("adamw_torch_fused", "adamw_torch", "adamw_hf", "adamw_apex_fused", "paged_adamw_32bit"),
        *("paged_adamw", "adamw", "adam", "fusedadam", "deepspeedcpuadam", "adamw_torch_xla"),
    ),
    "adam8bit": ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit"),
    "adafactor": ("adafactor",),
    "muon": ("muon",),
    "sgd": ("sgd",),
}
"""Names of optimizers by what they keep, the one that is written first (OptimizerNames of
transformers' training_args.py, DeepSpeed's optimizer types in lower case)."""

CONTEXT_WORDS: Mapping[str, str] = {"all_gather": "allgather", "ring": "alltoall"}
"""Words of accelerate's cp_comm_strategy (docs, context parallelism): alltoall passes pieces of KV
around in a ring."""
CONTEXT_METHODS = tuple(CONTEXT_WORDS)

_HALF = ("bf16", "f16")


def engine_of(plan: Structure, *, stored: bool) -> str:
    """What runs a plan: "deepspeed" where a master copy is kept, "fsdp" where parameters are
    `stored` in pieces, else "ddp"."""
    if plan.dtypes.master != "none":
        return "deepspeed"
    return "fsdp" if stored else "ddp"


def stored_dtypes(engine: str, mixed: str | None, loaded: str) -> dict[str, str]:
    """The dtypes of a plan by what runs it, the dtype of autocast and that of the loaded
    parameters."""
    if engine == "deepspeed" and mixed in _HALF:
        values = (mixed, mixed, mixed, "f32", "f32")
    elif engine == "fsdp" and mixed is not None:
        values = ("f32", mixed, "f32", "none", "f32")
    else:
        values = (loaded, mixed or loaded, loaded, "none", loaded)
    names = ("param", "compute", "grad", "master", "moments")
    return {f"dtypes.{name}": value for name, value in zip(names, values, strict=True)}


def written_dtypes(dtypes: TrainDtypes, engine: str) -> tuple[str | None, str] | None:
    """The dtypes of autocast and of loading that come to a plan's; None where none do."""
    own = {f"dtypes.{name}": getattr(dtypes, name) for name in TrainDtypes.__dataclass_fields__}
    for mixed in (*_HALF, None):
        for loaded in ("bf16", "f16", "f32"):
            if stored_dtypes(engine, mixed, loaded) == own:
                return mixed, loaded
    return None


def _engine(c: Candidates) -> np.ndarray:
    """Where a plan's parameters lie in pieces FSDP runs, else DDP; DeepSpeed by dtypes alone."""
    if c.structure.dtypes.master != "none":
        return np.asarray("deepspeed")
    return np.where(c.degree("fsdp") > 1, "fsdp", "ddp")


def _dtypes_hold(c: Candidates) -> np.ndarray:
    kinds = {kind: written_dtypes(c.structure.dtypes, kind) is not None for kind in _KINDS}
    at = _engine(c)
    return np.select([at == kind for kind in _KINDS], [np.asarray(kinds[k]) for k in _KINDS], False)


_KINDS = ("ddp", "fsdp", "deepspeed")


def _reduces(c: Candidates) -> np.ndarray:
    once = c.structure.gradient_reduce == "per_step"
    rounds = np.asarray(c.stored) & (np.asarray(c.microbatches) > 1)
    return ~rounds | (once == (_engine(c) == "fsdp"))


TRAINER = SoftwareRow(
    name="trl",
    title="transformers' Trainer",
    stack="fsdp",
    vendors=("nvidia", "amd"),
    words={
        "remat": {"none": "", "block": "", "offload": ""},
        "weight_gather": {"per_pass": "true", "per_microbatch": "false"},
        "attention_kernel": {
            "flash": "sdpa",
            "sdpa": "sdpa",
            "fa2": "flash_attention_2",
            "fa3": "flash_attention_3",
            "scores": "eager",
        },
        "optimizer": {kind: names[0] for kind, names in OPTIM_WORDS.items()},
        "quantize": {
            "none": "",
            "int8": "load_in_8bit",
            "nf4": "load_in_4bit",
            **dict.fromkeys(("gptq", "awq"), ""),  # what the model's own config says
        },
        "expert_dispatch": {"ragged": ""},
        "frozen": {(): ""},
        "mtp_layers": {0: ""},
        "logit_chunks": {1: ""},
        "fused_loss": {None: "", False: "", True: "use_liger_kernel"},
        **OWN_KERNELS,
    },
    own=(
        stores_all(),
        always("mesh", lambda c: c.degree("stage") == 1, "it has no pipeline", "use stage=1"),
        always(
            "mesh", lambda c: c.degree("expert") == 1, "it does not shard experts", "use expert=1"
        ),
        about_choices(
            "mesh",
            ("dtypes",),
            lambda c: (c.degree("tensor") * c.degree("context") == 1) | (_engine(c) == "fsdp"),
            "accelerate's ParallelismConfig has tensor and context parallelism only with FSDP",
            "use fsdp=2 or more with them, and set dtypes.master to none, or use fsdp alone",
        ),
        of_choice(
            "sequence_parallel",
            lambda c: np.logical_not(c.structure.sequence_parallel) | (c.degree("tensor") == 1),
            "the tensor parallelism of transformers does not shard activations between matmuls",
            "set sequence_parallel to false",
        ),
        of_choice(
            "context_method",
            lambda c: (c.degree("context") == 1) | (c.structure.context_method in CONTEXT_WORDS),
            f"with FSDP context parallelism is one of {', '.join(CONTEXT_METHODS)}",
            "set context_method to all_gather",
        ),
        about_choices(
            "remat_kinds",
            ("remat",),
            lambda c: not c.structure.remat_kinds,
            "it keeps all activations of a block, or none",
            "leave remat_kinds out",
        ),
        about_choices(
            "mesh",
            ("dtypes",),
            lambda c: (_engine(c) != "deepspeed") | (c.degree("fsdp") == 1) | (c.copies == 1),
            "DeepSpeed's stage 3 shards over all devices",
            "use fsdp alone, or set dtypes.param to f32 and dtypes.master to none",
        ),
        about_choices(
            "zero",
            ("zero", "storage_axes", "dtypes"),
            lambda c: (_engine(c) == "deepspeed") | (c.structure.zero == 0) | (c.copies == 1),
            "with DDP and FSDP each replica has its whole optimizer state",
            "set zero to 0",
        ),
        of_choice(
            "dtypes",
            _dtypes_hold,
            "DeepSpeed keeps an f32 master beside parameters and gradients in 16 bits, FSDP stores "
            "all in f32, DDP all in one dtype",
            "set dtypes to those",
        ),
        about_choices(
            "gradient_reduce",
            ("gradient_reduce", "storage_axes", "dtypes"),
            _reduces,
            "FSDP reduces gradients once per step, DeepSpeed after every microbatch",
            "set gradient_reduce to per_step with FSDP, else to per_microbatch",
        ),
        about_choices(
            "weight_gather",
            ("weight_gather", "storage_axes", "dtypes"),
            lambda c: (
                np.logical_not(c.stored)
                | (_engine(c) != "deepspeed")
                | (c.structure.weight_gather == "per_pass")
            ),
            "DeepSpeed gathers parameters before every pass",
            "set weight_gather to per_pass",
        ),
        about_choices(
            "offload_optimizer",
            ("offload_optimizer", "zero", "dtypes"),
            lambda c: (
                (not c.structure.offload_optimizer)
                | (_engine(c) == "fsdp")
                | ((_engine(c) == "deepspeed") & ((c.structure.zero > 0) | (c.degree("fsdp") > 1)))
            ),
            "FSDP and DeepSpeed's stages 1 to 3 offload, DDP does not",
            "set offload_optimizer to false",
        ),
    ),
    builds=(),
    named=lambda cfg: cfg.name,
)
"""What runs `trl sft`, axolotl and scripts with a Trainer."""
