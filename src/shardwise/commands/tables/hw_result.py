"""What is told of chips: the pieces of `hw list`, `hw show` and `hw diff`."""

from dataclasses import dataclass
from typing import Any

from shardwise.boundary.records import Record
from shardwise.hardware import Chip, Price
from shardwise.hardware.chip import field_of
from shardwise.hardware.network import Alone, FullMesh, Network, Torus

Value = bool | float | str | tuple[int, ...] | None
"""One number of a chip; sizes of a shape or tile; null where it has none."""


@dataclass(frozen=True, kw_only=True)
class ChipSummary(Record):
    """One chip of the catalogue. Peaks are dense, a multiply-add counting as two."""

    chip: str
    """Its name in commands."""
    name: str
    """Its name at its vendor."""
    bf16_flops: float | None
    """Peak FLOP/s in bf16."""
    f16_flops: float | None
    """Peak FLOP/s in f16."""
    fp8_flops: float | None
    """Peak FLOP/s in fp8."""
    int8_flops: float | None
    """Peak operations per second in int8."""
    hbm_bytes: float | None
    """Bytes of main memory, nominal."""
    hbm_usable_bytes: float | None
    """Bytes of main memory that a program can use."""
    hbm_bandwidth: float | None
    """Bytes per second of main memory, reads plus writes."""
    network: str
    """The kind and size of its fast network."""
    links_per_chip: int
    """Links of one chip."""
    link_oneway: float
    """Bytes per second of one link, one way."""
    usd_per_chip_hour: float | None
    """Dollars per chip and hour."""
    price_as_of: str | None
    """Date of the price."""
    provider: str | None
    """Whose price it is."""
    unplanned: tuple[str, ...]
    """Numbers that every plan needs and the catalogue lacks."""


@dataclass(frozen=True, kw_only=True)
class ChipNumber(Record):
    """A number of a chip that vendor and book have alike."""

    value: Value
    """The number, by the chosen constants."""
    unit: str
    """Its unit; "" for a plain count or share."""
    about: str
    """Meaning."""
    source: str | None
    """Where it is from."""


@dataclass(frozen=True, kw_only=True)
class BothConstants(ChipNumber):
    """A number of a chip that vendor and book have otherwise."""

    vendor: Value
    """The number by the vendor's constants."""
    book: Value
    """The number by the book's constants."""


@dataclass(frozen=True, kw_only=True)
class ChipPrices(Record):
    """The prices of a chip."""

    price: Price | None
    """The price that answers take."""
    price_low: Price | None
    """A low price."""
    price_high: Price | None
    """A high price."""


@dataclass(frozen=True, kw_only=True)
class NumberPair(Record):
    """A number of two chips."""

    first: Value
    """That of the first chip."""
    second: Value
    """That of the second chip."""
    ratio: float | None
    """The second over the first; null where either has none, or is not a plain number."""


def chip_summary(chip: Chip) -> ChipSummary:
    """A chip of the catalogue."""
    peaks, price = chip.peak_flops, chip.price
    links, rate = links_of(chip.network)
    return ChipSummary.part_of(
        chip,
        chip=chip.id,
        bf16_flops=peaks.get("bf16"),
        f16_flops=peaks.get("f16"),
        fp8_flops=peaks.get("fp8"),
        int8_flops=peaks.get("int8"),
        network=network_kind(chip.network),
        links_per_chip=links,
        link_oneway=rate,
        usd_per_chip_hour=price and price.usd_per_chip_hour,
        price_as_of=price and price.as_of,
        provider=price and price.provider,
    )


def network_kind(network: Network) -> str:
    """The kind of a network and its size, such as "torus 16x20x28"."""
    if isinstance(network, Torus):
        return "torus " + "x".join(map(str, network.pod))
    if isinstance(network, Alone):
        return "none"
    if isinstance(network, FullMesh):
        return f"mesh {network.domain}"
    return f"{'PCIe' if network.cards else 'switched'} {network.domain}"


def links_of(network: Network) -> tuple[int, float]:
    """Links of one chip and the one-way rate of one."""
    if isinstance(network, Torus):
        return 2 * len(network.pod), network.link_oneway
    if isinstance(network, FullMesh):
        return network.domain - 1, network.pair_oneway
    return (0, 0.0) if isinstance(network, Alone) else (network.links_per_chip, network.link_oneway)


def chip_number(chosen: Chip, vendor: Chip, book: Chip, path: str) -> ChipNumber:
    """A number of a chip, and both constants where they differ."""
    field, value = field_of(path), chosen.numbers().get(path)
    source, both = chosen.sources.get(path), [c.numbers().get(path) for c in (vendor, book)]
    shared: dict[str, Any] = {"value": value, "unit": field.unit, "about": field.about}
    if both[0] == both[1]:
        return ChipNumber(**shared, source=source)
    return BothConstants(**shared, source=source, vendor=both[0], book=both[1])


def number_pair(a: Chip, b: Chip, path: str) -> NumberPair:
    """A number of two chips."""
    return ratio_pair(a.numbers().get(path), b.numbers().get(path))


def ratio_pair(first: Any, second: Any) -> NumberPair:
    """Two numbers with the ratio of them."""
    counted = all(
        isinstance(v, int | float) and not isinstance(v, bool) and v for v in (first, second)
    )
    return NumberPair(first=first, second=second, ratio=second / first if counted else None)
