"""TorchTitan 0.3.0 as a row; its words are those of torchtitan/config/configs.py.

It trains the models of its own registry alone: `data/software/torchtitan.toml` has their shapes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardwise.boundary import read_toml
from shardwise.models import ModelConfig, params_total
from shardwise.models.remat import RematKind, Saved
from shardwise.plans.software.limit import about_choices, always, of_choice
from shardwise.plans.software.row import SoftwareRow
from shardwise.plans.software.shared import OWN_KERNELS, dtype_of_store, stores_all

DTYPES = {"f32": "float32", "bf16": "bfloat16"}
COMPUTED = {**DTYPES, "fp8": "float8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
"""Of matmuls; the narrow ones by its converters (components/quantization)."""


def selective(*, experts: bool) -> Mapping[RematKind, Saved]:
    """What its SelectiveAC keeps beside the layer's input: of attention all, of matmuls every
    second, which of an MLP are the gate's and the last; grouped matmuls of experts not at all
    (distributed/activation_checkpoint.py)."""
    kept: list[RematKind] = ["qkv", "attention"]
    return dict.fromkeys(kept if experts else [*kept, "mlp_gate", "mlp_out"], "keep")


_FILE = Path(__file__).parents[1] / "data" / "software" / "torchtitan.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A model of TorchTitan's registry: `model_registry(name)` of `module`, and its shape.

    `ties_weights` marks one embedding for both ends."""

    module: str
    name: str
    layers: int
    d_model: int
    vocabulary: int
    parameters: int


@cache
def flavors() -> tuple[Flavor, ...]:
    """All of them, in the order of the file."""
    table = read_toml(_FILE, "the table of TorchTitan's models")
    return tuple(
        Flavor(module=module, name=name, **_counts(entry))
        for module, entries in table.items()
        for name, entry in entries.items()
    )


def _counts(entry: Mapping[str, int]) -> dict[str, int]:
    return {name: int(entry[name]) for name in ("layers", "d_model", "vocabulary", "parameters")}


def flavor_of(cfg: ModelConfig) -> Flavor | None:
    """The model of the registry with the very shape of this one, if there is one."""
    return next((f for f in flavors() if not _differing(f, cfg)), None)


def nearest_flavor(cfg: ModelConfig) -> str:
    """The model of the registry with most numbers in common, of those the one nearest in
    parameters, and the numbers in which it differs."""
    total = params_total(cfg)
    near = min(
        flavors(), key=lambda f: (len(_differing(f, cfg)), abs(math.log(f.parameters / total)))
    )
    told = [f"{name} {it:,} where this has {own:,}" for name, it, own in _differing(near, cfg)]
    return f"the nearest, {near.name} of {near.module}, has {', '.join(told)}"


def _differing(f: Flavor, cfg: ModelConfig) -> list[tuple[str, int, int]]:
    """The numbers of a flavor's shape that a model has otherwise: name, its own, the model's."""
    own = {"layers": cfg.layers, "d_model": cfg.d_model, "vocabulary": cfg.vocabulary}
    own["parameters"] = params_total(cfg)
    found = ((name, getattr(f, name), value) for name, value in own.items())
    return [row for row in found if row[1] != row[2]]


TORCHTITAN = SoftwareRow(
    name="torchtitan",
    title="TorchTitan",
    stack="fsdp",
    vendors=("nvidia", "amd"),
    words={
        "remat": {"none": "None", "block": "FullAC"},
        "pipeline_schedule": {
            "1f1b": "1F1B",
            "gpipe": "GPipe",
            "interleaved": "Interleaved1F1B",
            "zb_v": "ZBVZeroBubble",
        },
        "zero": {0: ""},
        "weight_gather": {
            "per_pass": "always",
            "per_microbatch": "never",
        },
        "context_method": {"all_gather": ""},
        "optimizer": {"adam": "AdamW"},
        "offload_optimizer": {False: ""},
        "attention_kernel": {"flash": ""},
        "expert_dispatch": {"ragged": ""},
        "mtp_layers": {0: ""},
        "dtypes.compute": COMPUTED,
        "dtypes.grad": {"f32": "float32"},
        "lora_rank": {0: ""},
        "frozen": {(): ""},
        "fused_loss": {None: "", True: "compiled", False: "not compiled"},
        **OWN_KERNELS,
    },
    own=(
        stores_all(),
        *dtype_of_store(DTYPES),
        about_choices(
            "remat_kinds",
            ("remat",),
            lambda c: (
                not c.structure.remat_kinds
                or (c.structure.remat, dict(c.structure.remat_kinds))
                == ("block", selective(experts=c.cfg.has_experts))
            ),
            "besides whole blocks it keeps what its SelectiveAC does: qkv and attention, and of an "
            "MLP mlp_gate and mlp_out",
            "leave remat_kinds out",
        ),
        of_choice(
            "dtypes.compute",
            lambda c: c.structure.dtypes.compute != "nvfp4" or not c.cfg.has_experts,
            "its nvfp4 covers linear layers, not experts",
            "set dtypes.compute to mxfp8",
        ),
        of_choice(
            "gradient_reduce",
            lambda c: (
                ~(c.stored & (c.microbatches > 1))
                | ((c.structure.gradient_reduce == "per_step") == (c.degree("stage") > 1))
            ),
            "with a pipeline it reduces gradients once per step, else after every microbatch",
            "set gradient_reduce to per_step with stages, else to per_microbatch",
        ),
        of_choice(
            "weight_gather",
            lambda c: (
                ~c.stored | (c.degree("stage") == 1) | (c.structure.weight_gather == "per_pass")
            ),
            "its pipeline gathers weights before every pass, or once a step, which no search tries",
            "set weight_gather to per_pass",
        ),
        of_choice(
            "expert_over_tensor",
            lambda c: (
                c.structure.expert_over_tensor | (c.degree("tensor") == 1) | (not c.cfg.has_experts)
            ),
            "tensor does not shard its experts",
            "set expert_over_tensor to true",
        ),
        always(
            "mesh",
            lambda c: (c.degree("stage") == 1) | (not c.cfg.tied_embeddings),
            "a pipeline cannot tie the embedding to the head",
            "use stage=1",
        ),
        always(
            "model",
            lambda c: flavor_of(c.cfg) is not None,
            "no model of its registry has this shape",
            lambda c: f"{nearest_flavor(c.cfg)}; export to another target",
        ),
    ),
    builds=None,
    unwritten=("lora_rank",),  # components/lora.py
    usual={
        "expert_dispatch": "ragged",
        "dtypes.param": "f32",
        "dtypes.master": "none",
        "dtypes.grad": "f32",
        "compiled": True,
    },
)
"""PyTorch's own trainer of large models."""
