"""The constants that are fitted: names, bounds and scales, and how they enter chips and stacks.

A constant is named "owner.name": the owner is a chip generation or a software stack. Values may be
columns (one per trial), as everything that prices broadcasts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardwise.hardware import Chip, catalogue
from shardwise.hardware.chip import Efficiency
from shardwise.hardware.names import generations
from shardwise.roofline import Stack, load_stack, stack_names
from shardwise.roofline.stacks import CONSTANTS

Values = Mapping[str, float | np.ndarray]

OTHERS = "others"
"""The generation of chips that no published run uses: the medians of the rest."""
GENERATIONS: Mapping[str, tuple[str, ...]] = {
    name: chips for name, chips in generations().items() if name != OTHERS
}
"""Chips that share constants: one design of core, so that the same kernels run on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Bounds of a constant, and the step in which it is varied and regularised."""

    least: float
    most: float
    scale: float


SHARE = Kind(least=0.05, most=1.0, scale=0.1)
CHIP_KINDS: Mapping[str, Kind] = {
    "sustained": Kind(least=0.3, most=1.0, scale=0.1),
    "attention": SHARE,
    "matmul_ramp": Kind(least=0.0, most=5e-5, scale=5e-6),
    "matmul_fp8": Kind(least=0.3, most=0.8, scale=0.1),
}
"""Fitted constants of a generation; no fp8 kernel reaches a larger share of its peak than bf16's
do, 0.7 to 0.82 where measured. The other four, `matmul`, `hbm`, `network` and `outer_network`, are
measured by benchmarks of kernels and links and stay as measured (docs/rates.md)."""
STACK_KINDS: Mapping[str, Kind] = {
    "overlap": Kind(least=0.0, most=1.0, scale=0.2),
    "attention": Kind(least=0.2, most=1.0, scale=0.1),
    "launch_seconds": Kind(least=0.0, most=1e-4, scale=1e-5),
    "passes": Kind(least=1.0, most=6.0, scale=0.5),
}


def kind_of(name: str) -> Kind:
    """Bounds and scale of "owner.constant"."""
    owner, _, constant = name.partition(".")
    return CHIP_KINDS[constant] if owner in GENERATIONS else STACK_KINDS[constant]


def names() -> tuple[str, ...]:
    """Every fitted constant; `matmul_fp8` of the generations to which fp8 is faster than bf16."""
    chips = [f"{g}.{c}" for g in GENERATIONS for c in CHIP_KINDS]
    peaks = {chip.generation: chip.peak_flops for chip in catalogue()}
    narrow = {g for g, p in peaks.items() if p.get("fp8", 0.0) > p.get("bf16", 0.0)}
    chips = [n for n in chips if not n.endswith("fp8") or n.split(".")[0] in narrow]
    return (*chips, *(f"{s}.{c}" for s in stack_names() for c in STACK_KINDS))


def chip_with(chip: Chip, values: Values) -> Chip:
    """The chip at its generation's constants."""
    own = _of(chip.generation, values)
    fp8 = own.pop("matmul_fp8", None)
    narrow = dict(chip.efficiency.matmul_by_dtype)
    if fp8 is not None:
        narrow |= dict.fromkeys(("fp8", "fp4"), fp8)
    return replace(chip, efficiency=replace(chip.efficiency, **own, matmul_by_dtype=narrow))


def stack_with(name: str, values: Values) -> Stack:
    """The stack at its constants."""
    return replace(load_stack(name), **_of(name, values))


def ideal_chip(chip: Chip) -> Chip:
    """The chip with every share at 1: rooflines alone."""
    rates = Efficiency(
        matmul=1.0,
        matmul_ramp=0.0,
        attention=1.0,
        sustained=1.0,
        hbm=1.0,
        network=1.0,
        outer_network=1.0,
        matmul_by_dtype={},
        source="rooflines alone",
    )
    return replace(chip, efficiency=rates)


def _of(owner: str, values: Values) -> dict:
    return {
        name.partition(".")[2]: value
        for name, value in values.items()
        if name.startswith(f"{owner}.")
    }


assert set(STACK_KINDS) == set(CONSTANTS)
