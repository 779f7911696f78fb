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
    """A 2-D or 3-D torus: each chip has one link up and one down every axis.

    `single` says that one chip can be had alone where the rule of the shapes has none.
    """

    link_oneway: float
    pod: tuple[int, ...]
    wrap: WrapRule
    hop_seconds: float
    single: bool | None = None


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
    """Chips behind non-blocking switches (NVLink), or PCIe cards of one host; `domain` chips reach
    each other directly.

    `chip_oneway` is what one chip injects into the domain. `ramp_bytes` is the message size at
    which a collective reaches half of its rate (measured); `sharp` says whether the switches reduce
    in the network.

    PCIe cards have `peer_to_peer`: whether they write into each other's memory. If not, their
    messages pass through the host's, where each sends `staged_oneway`. The cards of a full host
    hang on its `sockets` in equal parts; in a group that spans two a card sends `across_oneway`.
    """

    domain: int
    link_oneway: float
    links_per_chip: int
    chip_oneway: float
    levels: tuple[Level, ...]
    ramp_bytes: float
    sharp: bool
    hop_seconds: float
    peer_to_peer: bool | None = None
    staged_oneway: float | None = None
    sockets: int | None = None
    across_oneway: float | None = None

    @property
    def cards(self) -> bool:
        """Whether the chips are PCIe cards of one host."""
        return self.peer_to_peer is not None


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
