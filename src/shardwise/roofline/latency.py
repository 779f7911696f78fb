"""Whether a collective waits for its bytes or for its hops, and the size where that turns.

Source: book ch. 3.2 and 7.6.3: a shard of less than 45 kB on v5e takes less than the 1 us of a hop.
"""

from dataclasses import dataclass
from typing import Literal

from shardwise.boundary.records import Record
from shardwise.hardware.placement import Placement
from shardwise.roofline.collectives import collective_seconds
from shardwise.work import Collective


@dataclass(frozen=True, kw_only=True)
class WireBound(Record):
    """Seconds of a collective's bytes and of its hops, at peak rates."""

    bandwidth_seconds: float
    """Seconds of its bytes."""
    latency_seconds: float
    """Seconds of its hops."""
    turning_bytes: float | None
    """The V in bytes at which both take as long; null where bytes take no time."""
    bound_by: Literal["latency", "bandwidth"]
    """Which takes longer."""


def wire_bound(wire: Collective, placement: Placement) -> WireBound:
    """The two times of a collective on its axes' links; bytes scale with V, hops do not."""
    found = collective_seconds(
        wire.kind,
        wire.bytes,
        placement.links(wire.axes),
        fan_out=wire.fan_out,
        exchange=wire.exchange,
    )
    moving, waiting = float(found.bandwidth), float(found.latency)
    return WireBound(
        bandwidth_seconds=moving,
        latency_seconds=waiting,
        turning_bytes=float(wire.bytes) * waiting / moving if moving else None,
        bound_by="latency" if waiting > moving else "bandwidth",
    )
