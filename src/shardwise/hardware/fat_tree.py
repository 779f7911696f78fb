"""Fat trees: how many switches and cables join so many chips, and what crosses the middle.

Counts and sums of catalogue numbers, no times. `totals.fat_tree` has the levels of one chip's
network as the catalogue gives them; here they are counted for a whole cluster, or built for any
size. Source: How To Scale Your Model, ch. 12, quizzes 2 and 3.
"""

from dataclasses import dataclass
from itertools import pairwise

from shardwise.errors import BadRequest
from shardwise.hardware.chip import Chip
from shardwise.hardware.totals import TreeLevel, fat_tree, switched_of


def switch_counts(chip: Chip) -> dict[str, int]:
    """Switches of the largest catalogued cluster by level, then their "total": 512 NVSwitches, 32
    leaf and 16 spine switches join 1,024 H100."""
    levels = fat_tree(chip)
    counts = {level.name: levels[-1].chips // level.chips * level.switches for level in levels}
    return {**counts, "total": sum(counts.values())}


def bisection_oneway(level: TreeLevel) -> float:
    """Bytes/s that one half of a unit can send to the other: half of what its parts inject, as
    the levels above the node block nothing. Both directions together are twice that."""
    return level.cable_oneway / 2


def effective_oneway(level: TreeLevel) -> float:
    """Bytes/s that a unit carries: the lesser of its switches and what its parts inject."""
    return min(level.switch_oneway, level.cable_oneway)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOut:
    """Switches above the nodes of a cluster without oversubscription, outermost tier last.

    `switches` has one count per tier, `cables` the cables between one switch of a tier and one of
    the next (a fraction where not every pair is joined).
    """

    chips: int
    ports: int
    switches: tuple[int, ...]
    cables: tuple[float, ...]

    @property
    def total(self) -> int:
        """All switches above the nodes."""
        return sum(self.switches)


def scale_out(chip: Chip, chips: int) -> ScaleOut:
    """The tiers that join so many chips with one NIC each through switches of the catalogued ports.

    Every tier but the last uses half of its ports downwards, so p-port switches in t tiers join
    2 (p/2)^t chips: 2,048 H100 with two tiers, more with three. Raises BadRequest where the chip
    has no catalogued leaf switch, or where the chips fill no whole switches.
    """
    leaf = _leaf(chip)
    per_port = leaf.cable_oneway / leaf.chips
    ports = round(leaf.switch_oneway / leaf.switches / per_port)
    half, tiers = ports // 2, 2
    while chips > 2 * half**tiers:
        tiers += 1
    if chips % ports:
        raise BadRequest(
            f"{chips:,} chips fill no whole switches of {ports} ports; use a multiple of {ports}"
        )
    switches = (*[chips // half] * (tiers - 1), chips // ports)
    cables = tuple(chips / (below * above) for below, above in pairwise(switches))
    return ScaleOut(chips=chips, ports=ports, switches=switches, cables=cables)


def _leaf(chip: Chip) -> TreeLevel:
    domain = switched_of(chip).domain
    for level in fat_tree(chip):
        if level.chips > domain:
            return level
    raise BadRequest(f"chip '{chip.id}' has no switches above its node in the catalogue")
