"""Trace: what moved in every round, and what that makes of bytes per link, seconds and hops."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from shardwise.sharding.simulate.fabric import Device, Fabric, Link


@dataclass(frozen=True, slots=True)
class BlockTransfer:
    """One block over one hop, in one round. `stage` is the dimension of the group it serves."""

    src: Device | str
    dst: Device | str
    block: Hashable
    bytes: int
    links: tuple[Link, ...]
    stage: int


@dataclass(frozen=True, kw_only=True)
class CollectiveTrace:
    """All transfers of one collective, round by round; in a round every transfer takes one hop.

    `lockstep`: the rounds of all devices follow each other (a gather); else every message goes its
    way at once (an all-to-all, a permute).
    """

    kind: str
    algorithm: str
    fabric: Fabric
    rounds: tuple[tuple[BlockTransfer, ...], ...]
    lockstep: bool

    @cached_property
    def link_bytes(self) -> Counter[Link]:
        """Bytes over every directed link that was used."""
        return self._bytes(lambda transfer: True)

    @property
    def busiest(self) -> tuple[Link, int]:
        """The link that takes longest, and its bytes; raises ValueError if nothing moved."""
        loads = self.link_bytes
        link = max(loads, key=lambda k: loads[k] / self.fabric.rate(k))
        return link, loads[link]

    @property
    def hops(self) -> int:
        """Rounds."""
        return len(self.rounds)

    @cached_property
    def seconds_by_axis(self) -> dict[str, float]:
        """Seconds of the busiest link of every kind of link, at its rate.

        Times of stages are added up: the reduce-scatter and the all-gather of an all-reduce, and
        pieces of one torus axis with gaps between them, which share links.
        """
        times: dict[str, float] = {}
        for stage in sorted({t.stage for moved in self.rounds for t in moved}):
            worst: dict[str, float] = {}
            for link, size in self._bytes(lambda t, stage=stage: t.stage == stage).items():
                worst[link.name] = max(worst.get(link.name, 0.0), size / self.fabric.rate(link))
            for name, seconds in worst.items():
                times[name] = times.get(name, 0.0) + seconds
        return times

    @property
    def bandwidth_seconds(self) -> float:
        """Seconds if every link were busy all the time it can be: the slowest kind counts."""
        return max(self.seconds_by_axis.values(), default=0.0)

    @cached_property
    def latency_seconds(self) -> float:
        """Seconds of the hops alone: of all rounds, or of the longest way of a message."""
        hop = self.fabric.seconds
        each = [{t: sum(map(hop, t.links)) for t in moved} for moved in self.rounds]
        if self.lockstep:
            return sum(max(times.values(), default=0.0) for times in each)
        ways: dict[Hashable, float] = {}
        for times in each:
            for transfer, seconds in times.items():
                ways[transfer.block] = ways.get(transfer.block, 0.0) + seconds
        return max(ways.values(), default=0.0)

    def _bytes(self, keep) -> Counter[Link]:
        loads: Counter[Link] = Counter()
        for moved in self.rounds:
            for transfer in moved:
                if keep(transfer):
                    for link in transfer.links:
                        loads[link] += transfer.bytes
        return loads
