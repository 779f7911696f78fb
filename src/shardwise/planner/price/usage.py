"""What a priced plan uses of its slice: the same for training and serving answers."""

from typing import Any

from shardwise.hardware import Slice
from shardwise.work import MemoryTimeline


class Usage:
    """Chips and bytes of an answer that has a plan, a slice and a memory timeline per device."""

    __slots__ = ()

    plan: Any  # a TrainPlan or a ServePlan
    piece: Slice
    memory: MemoryTimeline

    @property
    def chips_used(self) -> int:
        """Chips that the mesh uses."""
        return self.plan.devices // self.piece.chip.jax_devices_per_chip

    @property
    def chips_idle(self) -> int:
        """Chips of the slice that the mesh leaves out; they are paid for."""
        return self.piece.chips - self.chips_used

    @property
    def peak_bytes_per_chip(self) -> float:
        """Peak HBM bytes of one chip (all its devices)."""
        return float(self.memory.peak()) * self.piece.chip.jax_devices_per_chip

    @property
    def memory_by_kind(self) -> dict[str, float]:
        """Bytes per chip by kind at the peak."""
        devices = self.piece.chip.jax_devices_per_chip
        return {k: float(v) * devices for k, v in self.memory.peak_point()[1].items()}
