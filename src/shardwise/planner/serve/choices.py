"""What a search of servers chooses from on a chip: slices, and dtypes."""

from shardwise.hardware import Chip, Slice, slices_of
from shardwise.models import ModelConfig, params_text, weight_bytes
from shardwise.plans.serve import CHECKPOINT, ServeDtypes
from shardwise.plans.servers import ServingSoftware, default_compute

MOST_CHIPS = 512
"""A bare chip is searched up to slices of so many chips; larger replicas only copy the weights."""

_WIDE = 1.5
"""Bytes per parameter above which 8-bit weights save memory."""


def candidate_slices(chip: Chip) -> tuple[Slice, ...]:
    """The slices of a chip that a server may take, smallest first; several domains where the chip
    has a data-centre network."""
    domains = MOST_CHIPS if chip.data_centre is not None else 1
    return tuple(p for p in slices_of(chip, domains=domains) if p.chips <= MOST_CHIPS)


def parts_of(piece: Slice) -> tuple[Slice, ...]:
    """A slice and the smaller ones that fill it, smallest first: what a server may lie on."""
    smaller = [
        part
        for part in candidate_slices(piece.chip)
        if part.chips < piece.chips
        and piece.chips % part.chips == 0
        and part.count <= piece.count
        and all(a <= b for a, b in zip(sorted(part.shape), sorted(piece.shape), strict=True))
    ]
    return (*smaller, piece)


def smaller_dtypes(software: ServingSoftware, cfg: ModelConfig, chip: Chip) -> ServeDtypes | None:
    """8-bit weights and cache, where the software stores them, the chip multiplies them, and the
    checkpoint has more bits; None elsewhere."""
    small = next((name for name in ("fp8", "int8") if name in chip.peak_flops), None)
    if small is None or small not in software.weights or small not in software.caches:
        return None
    wide = weight_bytes(cfg) > _WIDE * params_text(cfg)
    weights = small if wide else CHECKPOINT
    return ServeDtypes(weights=weights, kv=small, compute=default_compute(chip), matmuls="stored")
