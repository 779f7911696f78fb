"""What the book's rules read off a chip and off many of them: alpha, totals of a fleet, slices.

A chip is one of `shardwise.hardware`; with `load_chip(name, constants="book")` it has the numbers
of the book's tables.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.book.rules.gpu import alphas
from shardwise.errors import BadRequest, check_known, entry_of
from shardwise.hardware import Chip, Slice, Torus, slices_of
from shardwise.hardware.fat_tree import bisection_oneway
from shardwise.hardware.network import Switched
from shardwise.hardware.totals import Totals, fat_tree, link_both_ways, node_egress
from shardwise.roofline import ElementBytes
from shardwise.roofline.chip_roofline import attainable_flops, level_bandwidth
from shardwise.roofline.matmul import matmul_intensity, matmul_times
from shardwise.work import Quantity


def chip_number(chip: Chip, name: str) -> float:
    """A catalogued number by its path: "hbm_bandwidth", "cores", "network.link_oneway" of a torus,
    "network.chip_oneway" behind switches; `shardwise hw show` lists them.

    Raises BadRequest with the nearest names for one that the chip does not have.
    """
    return entry_of(f"number of chip '{chip.id}'", name, chip.numbers())


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


def slice_bisection(slice: Slice) -> float:
    """Bytes/s one-way between the halves of a slice.

    A torus is cut across its longest axis: the links of its cross-section, twice where that axis
    is a ring. Behind switches it is half of what the chips of a node, or the nodes, inject. Raises
    BadRequest for other networks.
    """
    chip, network = slice.chip, slice.chip.network
    if isinstance(network, Torus):
        longest = int(np.argmax(slice.shape))
        ways = 2 if slice.wraps[longest] else 1
        section = slice.chips // slice.shape[longest]
        return ways * section * network.link_oneway
    if isinstance(network, Switched):
        if slice.count > 1:
            return slice.count * node_egress(chip) / 2
        return bisection_oneway(fat_tree(chip)[0]) * slice.chips / network.domain
    raise BadRequest(f"'{slice}' has no torus and no switches, so no bisection to count")


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRoofline:
    """A matmul fed from one level of memory: seconds of math and of bytes, FLOPs per byte of the
    matmul and of the level, and the FLOP/s that the lesser of both allows."""

    math_seconds: Quantity
    bytes_seconds: Quantity
    intensity: Quantity
    critical_intensity: float
    attainable_flops: Quantity


def level_roofline(
    chip: Chip, m: Quantity, k: Quantity, n: Quantity, level: str = "hbm", dtype: str = "bf16"
) -> LevelRoofline:
    """The roofline of [m, k] x [k, n] with its operands in "hbm", "sram" (VMEM or SMEM), "l2",
    "host" (over PCIe), on the next chip ("link") or in another slice ("dcn") (ch. 1 and 2).

    Raises BadRequest where the chip's catalogue has no bandwidth of that level.
    """
    elements = ElementBytes.of(left=dtype, right=dtype, result=dtype)
    bandwidth, peak = level_bandwidth(chip, level), chip.peak(dtype)
    times = matmul_times(m, k, n, elements=elements, peak_flops=peak, bandwidth=bandwidth)
    intensity = matmul_intensity(m, k, n, elements=elements)
    return LevelRoofline(
        math_seconds=times.math_seconds,
        bytes_seconds=times.comms_seconds,
        intensity=intensity,
        critical_intensity=peak / bandwidth,
        attainable_flops=attainable_flops(intensity, peak, bandwidth),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSeconds:
    """Seconds of the same bytes over each way out of a chip; None where it has none."""

    hbm: Quantity
    link: Quantity | None
    host: Quantity | None
    data_centre: Quantity | None


def route_seconds(chip: Chip, bytes: Quantity) -> RouteSeconds:
    """Seconds to move bytes from one chip to the next: read from its memory, over one link of its
    fast network, over PCIe to its host, over its share of the data-centre network (ch. 2)."""
    network, outside = chip.network, chip.data_centre
    link = network.link_oneway if isinstance(network, Torus) else None
    if isinstance(network, Switched):
        link = network.chip_oneway
    ways = {
        "link": link,
        "host": chip.host_link_oneway,
        "data_centre": None if outside is None else outside.chip_oneway,
    }
    seconds = {name: None if rate is None else bytes / rate for name, rate in ways.items()}
    return RouteSeconds(hbm=bytes / chip.require("hbm_bandwidth"), **seconds)
