"""What the book's rules read off a chip and off many of them: alpha, totals of a fleet, slices.

A chip is one of `shardwise.hardware`; with `load_chip(name, constants="book")` it has the numbers
of the book's tables.
"""

from dataclasses import dataclass

from shardwise.book.rules.gpu import alphas
from shardwise.errors import BadRequest, check_known, unknown
from shardwise.hardware import Chip, Slice, Torus, slices_of
from shardwise.hardware.fat_tree import bisection_oneway
from shardwise.hardware.network import Switched
from shardwise.hardware.totals import Totals, fat_tree, link_both_ways
from shardwise.work import Quantity


def chip_number(chip: Chip, name: str) -> float:
    """A catalogued number by its path: "hbm_bandwidth", "network.chip_oneway", "cores".

    Raises BadRequest with the nearest names for one that the chip does not have.
    """
    numbers = chip.numbers()
    if name not in numbers:
        raise unknown(f"number of chip '{chip.id}'", name, numbers)
    return numbers[name]


def dense_peak(chip: Chip, dtype: str = "bf16") -> float:
    """Dense peak FLOP/s of one chip in a dtype."""
    return chip.peak(dtype)


def torus_alpha(chip: Chip, axes: float = 1, dtype: str = "bf16") -> float:
    """alpha = C / (M W): peak FLOP/s over both ways of M axes of a torus; 2550 on one of v5p.

    Raises BadRequest for a chip that has no torus, or fewer axes.
    """
    most = len(chip.network.pod) if isinstance(chip.network, Torus) else axes
    if axes > most:
        raise BadRequest(f"axes is {axes}, and the torus of chip '{chip.id}' has {most}")
    return chip.peak(dtype) / (axes * link_both_ways(chip))


def axis_alpha(chip: Chip, level: str = "node", dtype: str = "bf16") -> float:
    """alpha of one mesh axis on any network: `torus_alpha` on a torus, C / W of the `level` ("node"
    or "scale_out", one-way) behind switches."""
    check_known("level", level, ("node", "scale_out"))
    if isinstance(chip.network, Torus):
        return torus_alpha(chip, dtype=dtype)
    return getattr(alphas(chip, dtype), level)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipTotals:
    """Many chips taken together: FLOP/s, bytes, bytes/s, W, dollars per hour; None where the
    catalogue has no number."""

    chips: Quantity
    flops: Quantity
    hbm_bytes: Quantity
    hbm_bandwidth: Quantity
    power_watts: Quantity | None
    usd_per_hour: Quantity | None


def fleet(chip: Chip, chips: Quantity, dtype: str = "bf16") -> ChipTotals:
    """The totals of so many chips."""
    price = chip.price
    return ChipTotals(
        chips=chips,
        flops=chips * chip.peak(dtype),
        hbm_bytes=chips * chip.require("hbm_bytes"),
        hbm_bandwidth=chips * chip.require("hbm_bandwidth"),
        power_watts=None if chip.power_watts is None else chips * chip.power_watts,
        usd_per_hour=None if price is None else chips * price.usd_per_chip_hour,
    )


def chip_cost(chips: Quantity, hours: Quantity, usd_per_chip_hour: Quantity) -> Quantity:
    """Dollars of a run: chips x hours x price."""
    return chips * hours * usd_per_chip_hour


def hosts(chip: Chip, chips: int) -> int:
    """Host machines of so many chips, the last one possibly not full."""
    return Totals(chip=chip, chips=chips).hosts


def smallest_slice(chip: Chip, bytes: float) -> int:
    """Chips of the smallest slice whose main memory holds the bytes.

    Raises BadRequest where no slice does.
    """
    each = chip.require("hbm_bytes")
    for piece in slices_of(chip):
        if piece.chips * each >= bytes:
            return piece.chips
    raise BadRequest(
        f"no slice of chip '{chip.id}' holds {bytes:g} bytes with {each:g} each; "
        "store fewer bytes per parameter or take a chip with more memory"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRow:
    """A slice beside the bytes it is to hold: what is left in all and how many caches fit."""

    slice: str
    chips: int
    free_bytes: float
    caches: int


def topology_table(chip: Chip, param_bytes: float, kv_bytes: float) -> tuple[TopologyRow, ...]:
    """Every slice that holds the weights, with its free memory and the sequences whose caches of
    `kv_bytes` fit into it (the table of ch. 8.1.1)."""
    each = chip.require("hbm_bytes")
    return tuple(
        _row(piece, piece.chips * each - param_bytes, kv_bytes)
        for piece in slices_of(chip)
        if piece.chips * each >= param_bytes
    )


def _row(piece: Slice, free: float, kv_bytes: float) -> TopologyRow:
    return TopologyRow(
        slice=str(piece), chips=piece.chips, free_bytes=free, caches=int(free // kv_bytes)
    )


def bisection(chip: Chip, chips: Quantity) -> Quantity:
    """Bytes/s one-way between the halves of so many chips.

    A torus is cut across its longest axis, which may close into a ring: the links of the pod's
    cross-section, twice. Behind switches it is half of what the chips of a node inject.
    """
    if isinstance(chip.network, Torus):
        longest = max(chip.network.pod)
        return 2 * chips / longest * chip.network.link_oneway
    if isinstance(chip.network, Switched):
        node = fat_tree(chip)[0]
        return bisection_oneway(node) * chips / node.chips
    raise BadRequest(f"chip '{chip.id}' has no torus and no switches, so no bisection to count")
