"""The constants that are fitted: names, bounds and scales, and how they enter chips and stacks.

A constant is named "owner.constant": the owner is a chip generation or a software stack. Values may
be columns (one per trial), as everything that prices broadcasts. A further constant is a row of
`CHIP_KINDS` or `STACK_KINDS` here, and a field of `Efficiency` or `Stack` there.
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
"""The generation of chips that no published run uses: they take what the hierarchy expects."""
GENERATIONS: Mapping[str, tuple[str, ...]] = {
    name: chips for name, chips in generations().items() if name != OTHERS
}
"""Chips that share constants: one design of core, so that the same kernels run on them."""
VENDORS: Mapping[str, str] = {c.generation: c.vendor for c in catalogue() if c.generation != OTHERS}
"""Who makes the chips of a generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A constant that every owner has: its bounds, the unit in which it is drawn and varied, what
    it is expected to be where nothing measured says so, and why.

    `idle` is the value at which it changes nothing, None where there is none. `by_dtype` names the
    peak that a chip needs beyond bf16's for the constant to mean anything.
    """

    least: float
    most: float
    scale: float
    expected: float
    source: str
    idle: float | None = None
    by_dtype: str = ""


CHIP_KINDS: Mapping[str, Kind] = {
    "sustained": Kind(
        least=0.3,
        most=1.0,
        scale=0.1,
        expected=0.88,
        source="assumed: power limits and shared units cost a tenth",
        idle=1.0,
    ),
    "attention": Kind(
        least=0.05,
        most=1.0,
        scale=0.1,
        expected=0.45,
        source="assumed: no public kernel timing of this chip; a tenth below the best GPU's 0.5",
        idle=1.0,
    ),
    "matmul_ramp": Kind(
        least=0.0,
        most=5e-5,
        scale=5e-6,
        expected=2.3e-6,
        source="assumed: as the matmuls of Ironwood",
        idle=0.0,
    ),
    "matmul_fp8": Kind(
        least=0.3,
        most=0.8,
        scale=0.1,
        expected=0.7,
        source="assumed: somewhat below bf16's share of its peak",
        by_dtype="fp8",
    ),
}
"""Fitted constants of a generation; no fp8 kernel reaches a larger share of its peak than bf16's
do, 0.7 to 0.9 where measured. The other four, `matmul`, `hbm`, `network` and `outer_network`, are
measured by benchmarks of kernels and links and stay as measured (docs/lab/rates.md)."""
STACK_KINDS: Mapping[str, Kind] = {
    "overlap": Kind(
        least=0.0,
        most=1.0,
        scale=0.2,
        expected=0.8,
        source="assumed: most of what order allows hides",
        idle=1.0,
    ),
    "launch_seconds": Kind(
        least=0.0,
        most=1e-4,
        scale=5e-6,
        expected=4e-6,
        source="assumed: a kernel launch of CUDA takes 2 to 10 us of the host",
        idle=0.0,
    ),
    "passes": Kind(
        least=1.0,
        most=6.0,
        scale=0.5,
        expected=2.0,
        source="assumed: eager frameworks fuse part of it",
        idle=1.0,
    ),
}
"""Fitted constants of a stack."""


def kind_of(name: str) -> Kind:
    """Bounds, scale and expectation of "owner.constant"."""
    owner, constant = parts_of(name)
    return (STACK_KINDS if owner in stack_names() else CHIP_KINDS)[constant]


def parts_of(name: str) -> tuple[str, str]:
    """Owner and constant of "owner.constant"."""
    owner, _, constant = name.rpartition(".")
    return owner, constant


def family_of(name: str) -> str:
    """What the same constant of all owners is called: "chip.sustained", "stack.overlap"."""
    owner, constant = parts_of(name)
    return f"stack.{constant}" if owner in stack_names() else f"chip.{constant}"


def names() -> tuple[str, ...]:
    """Every fitted constant; those `by_dtype` of the generations to which it is faster than
    bf16."""
    chips = [f"{g}.{c}" for g in GENERATIONS for c, kind in CHIP_KINDS.items() if _has(g, kind)]
    return (*chips, *(f"{s}.{c}" for s in stack_names() for c in STACK_KINDS))


def _has(generation: str, kind: Kind) -> bool:
    peaks = [chip.peak_flops for chip in catalogue() if chip.generation == generation]
    wanted = kind.by_dtype
    return not wanted or any(p.get(wanted, 0.0) > p.get("bf16", 0.0) for p in peaks)


def chip_with(chip: Chip, values: Values) -> Chip:
    """The chip at its generation's constants."""
    own = _of(chip.generation, values)
    apart = {CHIP_KINDS[c].by_dtype: own.pop(c) for c in list(own) if CHIP_KINDS[c].by_dtype}
    apart = {**chip.efficiency.matmul_by_dtype, **apart}
    return replace(chip, efficiency=replace(chip.efficiency, **own, matmul_by_dtype=apart))


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
    return {parts_of(n)[1]: value for n, value in values.items() if parts_of(n)[0] == owner}


assert set(STACK_KINDS) == set(CONSTANTS)
