"""Whether a collective waits for its bytes or for its hops, and the size where that turns.

Source: book ch. 3.2 and 7.6.3: a shard of less than 45 kB on v5e takes less than the 1 us of a hop.
"""

from dataclasses import dataclass

from shardwise.hardware.placement import Placement
from shardwise.roofline.collectives import collective_seconds
from shardwise.work import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class WireBound:
    """Seconds of a collective's bytes and of its hops, at peak rates. `turning_bytes` is the V at
    which both take as long; None where bytes take no time."""

    bandwidth_seconds: float
    latency_seconds: float
    turning_bytes: float | None

    @property
    def bound(self) -> str:
        """What takes longer: "latency" or "bandwidth"; for one collective."""
        return "latency" if self.latency_seconds > self.bandwidth_seconds else "bandwidth"


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
    )
