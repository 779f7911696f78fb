"""What follows from a chip's numbers: pod totals, unit counts, on-chip totals, fat-tree tables.

Sums and products of catalogue numbers, no times. Sources: book ch. 2 (TPU pods, MXU, VREGs) and
the GPU chapter (SM units, NVLink nodes, the SuperPod fat tree).
"""

from dataclasses import dataclass

from shardwise.errors import BadRequest
from shardwise.hardware.chip import Chip
from shardwise.hardware.network import Level, Switched, Torus
from shardwise.hardware.slices import domain_of

WORD_BYTES = 4
"""Bytes of a register's word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """So many chips of one kind taken together."""

    chip: Chip
    chips: int

    @property
    def hosts(self) -> int:
        """Host machines, the last one possibly not full."""
        return -(-self.chips // self.chip.chips_per_host)

    @property
    def cores(self) -> int:
        return self.chips * self.chip.cores

    @property
    def hbm_bytes(self) -> float:
        """Nominal main memory in bytes."""
        return self.chips * self.chip.require("hbm_bytes")

    def flops(self, dtype: str) -> float:
        """Dense peak FLOP/s in a dtype."""
        return self.chips * self.chip.peak(dtype)


def pod_totals(chip: Chip) -> Totals:
    """A full pod (book ch. 2, exercise 2.2)."""
    return Totals(chip=chip, chips=domain_of(chip))


def torus_of(chip: Chip) -> Torus:
    """The chip's torus; BadRequest if it has another network."""
    if not isinstance(chip.network, Torus):
        raise BadRequest(f"chip '{chip.id}' has no torus; its links are not counted per axis")
    return chip.network


def link_both_ways(chip: Chip) -> float:
    """Bytes/s of one torus link, both directions together: what a ring uses along one axis."""
    return 2 * torus_of(chip).link_oneway


def torus_axes(chip: Chip) -> int:
    """Axes of the chip's torus; two links each."""
    return len(torus_of(chip).pod)


# ---- on the chip -------------------------------------------------------------------------------


def systolic_flops_per_cycle(tile: tuple[int, int, int]) -> int:
    """FLOPs of one k x n systolic array per cycle: one row enters each cycle, 2kn.

    The MXU's [8, 128] x [128, 128] product takes 8 cycles (book 2.5.2).
    """
    _, k, n = tile
    return 2 * k * n


def systolic_flops(tile: tuple[int, int, int], clock_hz: float) -> float:
    """FLOP/s of one full systolic array: FLOPs per cycle times the clock."""
    return systolic_flops_per_cycle(tile) * clock_hz


def matmul_units(chip: Chip) -> int:
    """MXUs or tensor cores of the whole chip."""
    return chip.cores * int(chip.require("matmul_units_per_core"))


def vector_units(chip: Chip) -> int:
    """VPU slots (ALUs per lane) or warp schedulers of the whole chip."""
    return chip.cores * int(chip.require("vector_units_per_core"))


def sram_bytes_per_core(chip: Chip) -> float:
    """VMEM of a TensorCore, SMEM and L1 of an SM."""
    return chip.require("sram_bytes") / chip.cores


def register_bytes_per_core(chip: Chip) -> int:
    """Vector registers x words x 4: 64 x (8 x 128) x 4 on a TensorCore, 65,536 x 4 on an SM."""
    words = chip.require("registers_per_core") * chip.require("words_per_register")
    return int(words) * WORD_BYTES


def register_bytes(chip: Chip) -> int:
    """Register bytes of the whole chip."""
    return chip.cores * register_bytes_per_core(chip)


# ---- switched networks -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLevel:
    """One level of a fat tree: units of `chips` chips made of `degree` units of the level below.

    All rates are one-way in bytes/s, per unit unless the name says otherwise: `cable_oneway` is
    what the parts below inject together, `switch_oneway` what the switches could carry,
    `chip_oneway` the share of one chip, `collective_oneway` what a collective sees: one chip's
    injection inside a node, one node's above it.
    """

    name: str
    chips: int
    degree: int
    switches: int
    switch_oneway: float
    cable_oneway: float
    chip_oneway: float
    collective_oneway: float


def switched_of(chip: Chip) -> Switched:
    """The chip's switched network; BadRequest if it has another kind."""
    if not isinstance(chip.network, Switched):
        raise BadRequest(f"chip '{chip.id}' has no switched network, so no nodes and no fat tree")
    return chip.network


def fat_tree(chip: Chip) -> tuple[TreeLevel, ...]:
    """The switch levels, innermost first, as the GPU chapter's two SuperPod tables have them."""
    network = switched_of(chip)
    below = [1, *(level.chips for level in network.levels)]
    return tuple(
        _tree_level(level, under, network.domain)
        for level, under in zip(network.levels, below, strict=False)
    )


def _tree_level(level: Level, under: int, domain: int) -> TreeLevel:
    members = level.chips if level.chips <= domain else level.chips // domain
    return TreeLevel(
        name=level.name,
        chips=level.chips,
        degree=level.chips // under,
        switches=level.switches,
        switch_oneway=level.switches * level.switch_oneway,
        cable_oneway=level.unit_oneway,
        chip_oneway=level.unit_oneway / level.chips,
        collective_oneway=level.unit_oneway / members,
    )


def node_egress(chip: Chip) -> float:
    """Bytes/s one-way that one NVLink domain sends into the scale-out network: chips x NIC."""
    network = switched_of(chip)
    if chip.data_centre is None:
        raise BadRequest(
            f"chip '{chip.id}' has no data-centre link in the catalogue; give it with "
            f"--set chip.data_centre.chip_oneway=NUMBER --set chip.data_centre.hop_seconds=NUMBER"
        )
    return network.domain * chip.data_centre.chip_oneway


# ---- lanes and warps -----------------------------------------------------------------------------

WARP = 32
"""Lanes of one warp scheduler of an SM (GPU chapter, SM structure)."""


def alus(chip: Chip) -> int:
    """f32 lanes of the whole chip: vector units x lanes, 32 per warp scheduler (CUDA cores) or the
    words of a vector register per VPU slot (8 x 128)."""
    words = int(chip.require("words_per_register"))
    return vector_units(chip) * (WARP * words if chip.core_kind == "SM" else words)


def resident_warps(chip: Chip, registers_per_thread: int) -> float:
    """Warps of one SM whose threads all use so many registers: registers / (threads x warp)."""
    return chip.require("registers_per_core") / (registers_per_thread * WARP)


def matmul_flops_per_cycle(chip: Chip, dtype: str = "bf16") -> float:
    """FLOPs per matmul unit and cycle: dense peak / (units x clock)."""
    return chip.peak(dtype) / (matmul_units(chip) * chip.require("clock_hz"))


def vector_ops(chip: Chip) -> float:
    """f32 operations per second on the vector units, one per ALU and cycle.

    The vector peak counts what an ALU does in a cycle: one FLOP on a TPU (ch. 2, appendix on its
    internals), a multiply-add, so two, on a GPU (ch. 12). Elementwise work keeps an ALU for a cycle
    for each operation, on both.
    """
    return chip.require("vector_flops") / chip.require("flops_per_alu")


def vector_clock(chip: Chip) -> float:
    """Clock in Hz behind the vector peak."""
    return vector_ops(chip) / alus(chip)


def torus_egress(chip: Chip) -> float:
    """Bytes/s one-way over all links of one chip of a torus: two links per axis."""
    return 2 * torus_axes(chip) * torus_of(chip).link_oneway
