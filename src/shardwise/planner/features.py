"""The features of a training plan: what kind of thing is run by what kind of software on what.

A predicted time is as sure as published runs of its kind are many: every feature has a few values,
all of them kinds, and no name, identifier or size is among them. `roofline/residuals.py` makes a
range from them.
"""

from collections.abc import Mapping

from shardwise.hardware import Chip, Torus
from shardwise.models import ModelConfig
from shardwise.models.specs import CompressedAttention, LatentAttention, RecurrentMixer
from shardwise.plans import TrainPlan
from shardwise.units import dtype_bytes

FEATURES: Mapping[str, str] = {
    "chip": "on this chip",
    "generation": "on this generation of chips",
    "vendor": "on a chip of this vendor",
    "trainer": "of this training software",
    "kernels": "with these attention kernels",
    "year": "of software of this year",
    "precision": "in this precision",
    "mlp": "of this kind of MLP",
    "mixer": "of this kind of attention",
    "compiler": "compiled like this",
    "devices": "on so many devices",
    "trained": "that trains these parameters",
}
"""Every feature, and what a run is that shares its value."""

EAGER_KERNELS = {"megatron": "transformer engine", "fsdp": "flash-attention", "nanotron": "flash-attention"}
"""Attention kernels of software that runs ops one by one."""


def features_of(
    plan: TrainPlan, cfg: ModelConfig, chip: Chip, devices: int, year: str = ""
) -> dict[str, str]:
    """The value of every feature; `devices` run the plan, `year` is that of the software, "" for
    today's."""
    own = chip.generation not in ("", "others")
    return {
        "chip": chip.id,
        "generation": chip.generation if own else chip.id,
        "vendor": chip.vendor,
        "trainer": plan.stack,
        "kernels": _kernels(plan, chip),
        "year": year,
        "precision": _precision(plan),
        "mlp": "routed" if cfg.has_experts else "dense",
        "mixer": _mixer(cfg),
        "compiler": "compiled" if plan.fuses_elementwise else "eager",
        "devices": "one" if devices == 1 else "one domain" if devices <= 8 else "many",
        "trained": "adapters" if plan.lora_rank else "all",
    }


def _kernels(plan: TrainPlan, chip: Chip) -> str:
    """The library of attention: what the software calls on such a chip."""
    if plan.attention_kernel == "scores":
        return "scores"
    if plan.stack in EAGER_KERNELS:
        return EAGER_KERNELS[plan.stack]
    return "splash" if isinstance(chip.network, Torus) else "cudnn"


def _precision(plan: TrainPlan) -> str:
    """The dtype of the matmuls; 16 bits are one kind."""
    compute = plan.dtypes.compute
    return "16 bit" if dtype_bytes(compute) == 2 else compute


def _mixer(cfg: ModelConfig) -> str:
    """The kind of attention that is furthest from the plain one."""
    mixers = [layer.mixer for layer in cfg.groups]
    if any(isinstance(mixer, RecurrentMixer) for mixer in mixers):
        return "recurrent"
    if any(isinstance(mixer, CompressedAttention) for mixer in mixers):
        return "compressed"
    if any(isinstance(mixer, LatentAttention) for mixer in mixers):
        return "latent"
    return "softmax"
