"""Networks as values: what joins the chips of one slice, and what joins slices.

All bandwidths are one-way (per direction, full duplex) in bytes/s. A torus link is counted per
direction and per axis; a switched chip by what it can inject.
"""

from dataclasses import dataclass
from typing import Literal

WrapRule = Literal["all_multiples_of_4", "exactly_16", "full_pod", "always", "never"]
"""When an axis of a torus slice closes into a ring.

all_multiples_of_4: every axis, iff all dims are multiples of 4 (v4, v5p, tpu7x: optical cubes).
exactly_16: an axis iff its size is 16 (v5e, v6e). full_pod: an axis iff it spans the pod (v2, v3).
always: as full_pod, for a domain that is cut into any boxes that divide it (trn2). never: no axis.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torus:
    """A 2-D or 3-D torus: each chip has one link up and one down every axis."""

    link_oneway: float
    pod: tuple[int, ...]
    wrap: WrapRule
    hop_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One switch level: units of `chips` chips behind `switches` switches of `switch_oneway` each.

    `unit_oneway` is what the parts of one unit inject into its switches together: the chips of the
    innermost level, the units of the level below of every other.
    """

    name: str
    chips: int
    switches: int
    switch_oneway: float
    unit_oneway: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """Chips behind non-blocking switches (NVLink); `domain` chips reach each other directly.

    `chip_oneway` is what one chip injects into the domain. `ramp_bytes` is the message size at
    which a collective reaches half of its rate (measured); `sharp` says whether the switches reduce
    in the network.
    """

    domain: int
    link_oneway: float
    links_per_chip: int
    chip_oneway: float
    levels: tuple[Level, ...]
    ramp_bytes: float
    sharp: bool
    hop_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FullMesh:
    """Every pair of the domain has its own link: a group of g chips sends (g-1) x pair_oneway."""

    domain: int
    pair_oneway: float
    hop_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """No fast network: one chip is its own domain."""

    hop_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCentre:
    """What joins slices or nodes: NIC bandwidth per chip, one-way bytes/s."""

    chip_oneway: float
    hop_seconds: float


Network = Torus | Switched | FullMesh | Alone
