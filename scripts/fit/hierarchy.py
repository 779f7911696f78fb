"""Where constants are drawn from: a generation's from its vendor's, that and a stack's from a
common one.

In units of its scale, a constant is x = prior + common + vendor + own. The three are normal around
zero with the sigmas of `Levels`, the same for all constants; a stack's has no vendor. The prior is
what kernels say of this owner, or what is assumed of all. A group of runs has an effect of its own
on top, so that eighty rows of one publisher are not eighty looks at a machine.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fit.constants import (
    CHIP_KINDS,
    GENERATIONS,
    VENDORS,
    Kind,
    family_of,
    kind_of,
    parts_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What a constant is expected to be, why, and one sigma of what was measured of it: where that
    is less than its scale, it is drawn so much closer."""

    value: float
    source: str
    sigma: float | None = None

    def closeness(self, scale: float) -> float:
        """By what its own sigma shrinks."""
        return 1.0 if self.sigma is None else min(1.0, self.sigma / scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """One sigma of each level, in scales of a constant; of `group` in log seconds."""

    common: float = 0.5
    vendor: float = 0.3
    own: float = 0.7
    group: float = 0.1


CHOICES: Mapping[str, Sequence[float]] = {
    "common": (0.15, 0.5, 1.5),
    "vendor": (0.1, 0.3, 1.0),
    "own": (0.5, 0.7, 1.0),
    "group": (0.05, 0.1, 0.2),
}
"""The sigmas that are tried; the left-out error of inner groups chooses (`folds.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """0.5 z'Hz - g'z over the constants and then what they are drawn from, all in scales."""

    columns: tuple[str, ...]
    matrix: np.ndarray
    target: np.ndarray


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Constants with their priors, and the columns above them."""

    priors: Mapping[str, Prior]

    @property
    def names(self) -> tuple[str, ...]:
        """The constants."""
        return tuple(self.priors)

    @property
    def columns(self) -> tuple[str, ...]:
        """The constants, the common ones ("chip.sustained") and the vendors' ("google:...")."""
        above = (above for name in self.names for above in self.above(name))
        return tuple(dict.fromkeys((*self.names, *above)))

    def above(self, name: str) -> tuple[str, ...]:
        """What a constant is drawn from."""
        family, vendor = family_of(name), VENDORS.get(parts_of(name)[0])
        return (family,) if vendor is None else (family, f"{vendor}:{family}")

    def penalty(self, levels: Levels) -> Penalty:
        """The squared sigmas by which every column leaves what it is drawn from."""
        columns = self.columns
        at = {name: i for i, name in enumerate(columns)}
        matrix, target = np.zeros((len(at), len(at))), np.zeros(len(at))
        for name, i in at.items():
            row, mean = np.zeros(len(at)), 0.0
            row[i] = 1.0
            if name in self.priors:
                row[[at[above] for above in self.above(name)]] = -1.0
                prior, scale = self.priors[name], kind_of(name).scale
                mean, sigma = prior.value / scale, levels.own * prior.closeness(scale)
            else:
                sigma = levels.vendor if ":" in name else levels.common
            matrix += np.outer(row, row) / sigma**2
            target += row * mean / sigma**2
        return Penalty(columns=columns, matrix=matrix, target=target)

    def expected(self, vendor: str, constant: str, found: Mapping[str, float]) -> float:
        """A constant of a new generation of a vendor, "" for one that nobody knows: the mean of
        the priors of the vendor's generations, or of all, and what they all turned out to be off
        by."""
        kind, family = CHIP_KINDS[constant], f"chip.{constant}"
        off = found.get(family, 0.0) + found.get(f"{vendor}:{family}", 0.0)
        every = {g: p for g in GENERATIONS if (p := self.priors.get(f"{g}.{constant}"))}
        own = [p.value for g, p in every.items() if VENDORS[g] == vendor]
        means = own or [p.value for p in every.values()]
        return float(np.clip(np.mean(means) + kind.scale * off, kind.least, kind.most))


def scales_of(names: Iterable[str]) -> np.ndarray:
    """The scale of each constant."""
    return np.array([kind_of(n).scale for n in names])


def bounds_of(names: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of each constant, in scales."""
    kinds: list[Kind] = [kind_of(n) for n in names]
    return (
        np.array([k.least / k.scale for k in kinds]),
        np.array([k.most / k.scale for k in kinds]),
    )
