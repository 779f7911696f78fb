"""The features of a priced training plan: what kind of thing is run by what kind of software on
what, and what its time is made of.

A predicted time is as sure as published runs of its kind are many: every feature has a few values,
all of them kinds, and no name of a model or a run, no identifier and no size is among them.
`roofline/residuals.py` makes a range from them.
"""

from bisect import bisect
from collections.abc import Mapping, Sequence

from shardwise.hardware import Chip, Slice, Torus
from shardwise.models import ModelConfig
from shardwise.models.specs import CompressedAttention, LatentAttention, RecurrentMixer
from shardwise.planner.evaluate import TrainAnswer
from shardwise.plans import TrainPlan
from shardwise.units import dtype_bytes

FEATURES: Mapping[str, str] = {
    "chip": "on this chip ({})",
    "generation": "on this generation of chips ({})",
    "vendor": "on chips of this vendor ({})",
    "trainer": "of this training software ({})",
    "kernels": "with these attention kernels ({})",
    "year": "of software of {}",
    "precision": "in this precision ({})",
    "mlp": "with a {} MLP",
    "mixer": "with {} attention",
    "compiler": "of {} software",
    "devices": "on {}",
    "trained": "that train {}",
    "math": "with {} of the step in math at peak",
    "waits": "that wait {} for networks",
    "host": "whose host adds {}",
}
"""Every feature, and what a run is that shares its value."""
NOW = "2026"
"""The year of software that a plan names no release of."""
LIBRARIES = {"sdpa": "flash-attention", "fa2": "flash-attention", "fa3": "flash-attention"}
"""Libraries of attention kernels, where they go by another name."""
TRAINERS = {"jax_gpu": "jax"}
"""Trainers of which a stack is one half."""


def features_of(answer: TrainAnswer, year: str = NOW) -> dict[str, str]:
    """The value of every feature of a priced plan; `year` is that of its software."""
    plan, chip = answer.plan, answer.piece.chip
    parts, waits = answer.parts_as_priced, answer.exposed_seconds / answer.step_seconds.expected
    math, starts = parts.math_at_peak / parts.seconds, parts.host / parts.seconds
    return {
        "chip": chip.id,
        "generation": chip.generation if chip.generation not in ("", "others") else chip.id,
        "vendor": chip.vendor,
        "trainer": TRAINERS.get(plan.stack, plan.stack),
        "kernels": _kernels(plan, chip),
        "year": year,
        "precision": _precision(plan),
        "mlp": "routed" if answer.cfg.has_experts else "dense",
        "mixer": _mixer(answer.cfg),
        "compiler": "compiled" if plan.fuses_elementwise else "eager",
        "devices": _devices(answer.piece),
        "trained": "adapters" if plan.lora_rank else "all parameters",
        "math": _kind(math, (0.2, 0.35, 0.5), ("little", "a third", "half", "most")),
        "waits": _kind(waits, (0.2, 0.4), ("little", "some of the step", "long")),
        "host": _kind(starts, (0.1,), ("little", "a good part of the step")),
    }


def _kind(share: float, edges: Sequence[float], names: Sequence[str]) -> str:
    """The name of the interval of a share of the step.

    >>> _kind(0.4, (0.2, 0.5), ("little", "some", "much"))
    'some'
    """
    return names[bisect(edges, share)]


def _kernels(plan: TrainPlan, chip: Chip) -> str:
    """The library of attention: what the software calls on such a chip."""
    if plan.kernel != "flash":
        return LIBRARIES.get(plan.kernel, plan.kernel)
    if plan.stack_row.eager:
        return "transformer engine"
    return "splash" if isinstance(chip.network, Torus) else "cudnn"


def _devices(piece: Slice) -> str:
    """How far apart the devices of a slice lie."""
    if piece.chips == 1:
        return "one chip"
    return "one domain" if piece.count == 1 else "several domains"


def _precision(plan: TrainPlan) -> str:
    """The dtype of the matmuls; 16 bits are one kind."""
    compute = plan.dtypes.compute
    return "16 bit" if dtype_bytes(compute) == 2 else compute


def _mixer(cfg: ModelConfig) -> str:
    """The kind of attention that is furthest from the plain one."""
    mixers = [part.mixer for layer in cfg.groups for part in layer.by_mixer]
    if any(isinstance(mixer, RecurrentMixer) for mixer in mixers):
        return "recurrent"
    if any(isinstance(mixer, CompressedAttention) for mixer in mixers):
        return "compressed"
    if any(isinstance(mixer, LatentAttention) for mixer in mixers):
        return "latent"
    return "softmax"
