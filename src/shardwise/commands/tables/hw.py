"""`hw list`, `hw show` and `hw diff`: the catalogue with a source for every number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from shardwise.boundary import Command
from shardwise.boundary.options import place
from shardwise.boundary.records import hidden, plain, values
from shardwise.commands.base.answer import Answer, Page, Resolved, Row, TextTable
from shardwise.commands.base.inputs import CatalogueWords, HardwareWords, words
from shardwise.commands.base.layout import Fact, Facts, percent, wrapped
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.tables.hw_result import (
    BothConstants,
    ChipNumber,
    ChipPrices,
    ChipSummary,
    NumberPair,
    chip_number,
    chip_summary,
    links_of,
    network_kind,
    number_pair,
    ratio_pair,
)
from shardwise.hardware import Chip, chip_ids, slices_of
from shardwise.hardware.catalogue import aliases
from shardwise.hardware.chip import Field, field_of
from shardwise.hardware.network import Switched
from shardwise.hardware.prices import price_text
from shardwise.units import format_seconds, many, sig

MIB, GIB = 2**20, 2**30
DENSE = "Peaks are dense FLOP/s, and a multiply-add counts as two; link rates are one-way."


# ---- list --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipListRequest(CatalogueWords, Command):
    """One line per chip of the catalogue, with the `constants` of the vendors or the book."""

    COMMAND: ClassVar[str] = "hw list"

    def answer(self, progress: Progress | None = None) -> "ChipList":
        """Read them all."""
        files = words(self.hw_files)
        note = "`shardwise hw show CHIP` gives the source of every number"
        return ChipList(
            chips=[chip_summary(self.hardware.chip(chip)) for chip in chip_ids(files)],
            constants=str(self.constants),
            provenance={"note": note},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ChipList(Answer):
    """The catalogue."""

    chips: Sequence[ChipSummary]
    """Every chip."""

    constants: str = hidden()

    def table(self) -> list[Row]:
        """One row per chip."""
        return plain(self.chips)

    def page(self) -> Page:
        """One line per chip."""
        return _list_page(self.chips, self.constants)


hw_list = verb("hw_list", ChipListRequest)


_SPARE = ("name", "int8", "usable")
"""Columns of the list that a narrow terminal goes without, first ones first."""


def _list_page(chips: Sequence[ChipSummary], constants: str) -> Page:
    def tera(value: float | None) -> str:
        return sig(value / 1e12) if value else "-"

    def gib(value: float | None) -> str:
        return sig(value / GIB, 4) if value else "-"

    header = ["chip", "name", "bf16", "fp8", "int8", "HBM", "usable", "HBM rate", "network"]
    header += ["links", "$/h"]
    units = ["", "", "TFLOP/s", "TFLOP/s", "TOP/s", "GiB", "GiB", "TB/s", "chips", "GB/s", ""]
    cells = [
        [
            c.chip,
            c.name,
            tera(c.bf16_flops or c.f16_flops)
            + (" (f16)" if c.f16_flops and not c.bf16_flops else ""),
            tera(c.fp8_flops),
            tera(c.int8_flops),
            gib(c.hbm_bytes),
            gib(c.hbm_usable_bytes),
            tera(c.hbm_bandwidth),
            c.network,
            f"{c.links_per_chip} x {sig(c.link_oneway / 1e9)}" if c.link_oneway else "-",
            f"{c.usd_per_chip_hour:.2f}" if c.usd_per_chip_hour else "-",
        ]
        for c in chips
    ]
    title = f"Catalogue, constants of the {constants}"
    yield TextTable(header, [units, *cells], title, left=2, spare=_SPARE)
    yield f"{DENSE} A dash means: not in the catalogue."
    askers: dict[str, list[str]] = {}
    for c in chips:
        if c.provider:
            askers.setdefault(c.provider, []).append(c.chip)
    told = [f"{name} for {', '.join(asked)}" for name, asked in askers.items()]
    yield wrapped(f"$/h: price of {'; '.join(told)}", 0, 2)
    without = [c.chip for c in chips if not c.usd_per_chip_hour]
    if without:
        names = ", ".join(without)
        yield wrapped(f"no price: {names}; give one with --price CHIP=USD", 0, 2)
    yield from _unplanned(chips)
    yield "Sources and dates: shardwise hw show CHIP."


def _unplanned(chips: Sequence[ChipSummary]) -> Page:
    """The chips of which no slice is planned, by the number that they lack."""
    lacking: dict[str, list[str]] = {}
    for c in chips:
        for name in c.unplanned:
            lacking.setdefault(name, []).append(c.chip)
    for name, without in lacking.items():
        yield wrapped(
            f"cannot be planned: {', '.join(without)}; no source gives {name} "
            f"({field_of(name).about}); give it with --set chip.{name}=NUMBER",
            0,
            2,
        )


# ---- show --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipRequest(HardwareWords, Command):
    """Every number of a `chip` with its source, and the value of the book if it differs."""

    COMMAND: ClassVar[str] = "hw show"

    chip: str = field(kw_only=False, metadata=place(offers="chips"))

    def answer(self, progress: Progress | None = None) -> "ChipNumbers":
        """Read it."""
        chosen, vendor, book = (
            replace(self.hardware, constants=which).chip(self.chip)
            for which in (self.hardware.constants, "vendor", "book")
        )
        numbers = {p: chip_number(chosen, vendor, book, p) for p in _paths(vendor, book)}
        return ChipNumbers.part_of(
            chosen,
            network=network_kind(chosen.network),
            aliases=[name for name, target in aliases().items() if target == chosen.id],
            numbers=numbers,
            prices=ChipPrices(
                price=chosen.price, price_low=chosen.price_low, price_high=chosen.price_high
            ),
            slices=[str(s) for s in slices_of(chosen)],
            chip=chosen,
            resolved={"chip": Resolved(value=chosen.id, origin="argument")},
            provenance={path: number.source for path, number in numbers.items()},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ChipNumbers(Answer):
    """One chip."""

    id: str
    """Its name in commands."""
    name: str
    """Its name at its vendor."""
    vendor: str
    """Who makes it."""
    release: str
    """When it came out; "" where that is not known."""
    status: str
    """Whether it can be had; "" where that is not known."""
    core_kind: str
    """Name of its cores."""
    network: str
    """The kind and size of its fast network."""
    aliases: Sequence[str]
    """Names that commands take for it."""
    numbers: Mapping[str, ChipNumber | BothConstants]
    """Each number by its dotted name."""
    prices: ChipPrices
    """Its prices."""
    slices: Sequence[str]
    """Slices of it, as commands take them."""
    notes: Sequence[str]
    """Further remarks."""

    chip: Chip = hidden()

    def table(self) -> list[Row]:
        """One row per number."""
        return [{"number": path, **plain(number)} for path, number in self.numbers.items()]

    def page(self) -> Page:
        """What a buyer asks first: rates, memory, network, price, slices."""
        chip = self.chip
        about = (self.vendor, self.release, self.status)
        yield ", ".join([f"{self.name} ({self.id})", *(said for said in about if said)])
        yield Facts(_chip_facts(self))
        for note in self.notes:
            yield wrapped(f"- {note}", 2, 4)
        for name in chip.unplanned:
            lacks = f"cannot be planned: no source gives {name} ({field_of(name).about})"
            yield wrapped(f"- {lacks}; give it with --set chip.{name}=NUMBER", 2, 4)

    def sections(self) -> Mapping[str, Page]:
        """Every number with its source."""
        return {"detail": _numbers_page(self)}


hw_show = verb("hw_show", ChipRequest)


def _paths(*chips: Chip) -> list[str]:
    paths = dict.fromkeys(path for chip in chips for path in chip.numbers())
    tables = list(dict.fromkeys(path.partition(".")[0] for path in paths))
    return sorted(paths, key=lambda path: tables.index(path.partition(".")[0]))


def _chip_facts(found: ChipNumbers) -> list[Fact]:
    chip = found.chip
    numbers = {path: number.value for path, number in found.numbers.items()}

    def text(path: str) -> str:
        return _text(path, numbers.get(path))

    peaks = [path for path in numbers if path.startswith("peak_flops.")]
    rates = ", ".join(f"{path.partition('.')[2]} {text(path)}" for path in peaks)
    links, rate = links_of(chip.network)
    network = f"{found.network}, {links} links of {_link_rate(rate)}" if links else "none"
    cards = _cards_text(chip.network) if isinstance(chip.network, Switched) else ""
    shares = ", ".join(
        f"{path.partition('.')[2].replace('_', ' ')} {percent(share)}"
        for path, share in numbers.items()
        if path.startswith("efficiency.") and field_of(path).kind == "fraction"
        if isinstance(share, int | float) and share
    )
    whence = "as the book assumes" if chip.constants == "book" else "as measured or fitted"
    return [
        Fact("peak", f"{rates} (dense, a multiply-add is two)"),
        Fact("reached", f"{shares} of the peak, {whence}"),
        Fact("memory", f"{text('hbm_bytes')} nominal, {text('hbm_usable_bytes')} usable"),
        Fact("bandwidth", text("hbm_bandwidth")),
        Fact("network", network),
        Fact(
            "host",
            f"{text('chips_per_host')} chips per host{cards}, {text('host_link_oneway')} host to "
            "chip",
        ),
        Fact("price", price_text(chip.id, chip.price)),
        Fact("slices", _slices_line(found.slices)),
        Fact("aliases", ", ".join(found.aliases[1:]) or "no other name"),
    ]


def _cards_text(host: Switched) -> str:
    """How the PCIe cards of a host reach each other; "" of chips that are none."""
    if not host.cards:
        return ""
    sockets = host.sockets or 1
    words = [f" on {many(sockets, 'socket')}", "peer-to-peer"]
    if not host.peer_to_peer:
        words[1] = f"no peer-to-peer: {_link_rate(host.staged_oneway or 0)} through host memory"
    if sockets > 1:
        words.append(f"{_link_rate(host.across_oneway or 0)} for a group over several sockets")
    return ", ".join(words)


def _link_rate(rate: float) -> str:
    """Bytes per second of a link."""
    return f"{sig(rate / 1e9)} GB/s"


def _numbers_page(found: ChipNumbers) -> Page:
    cited: dict[str, int] = {}
    constants = found.chip.constants
    other = "vendor" if constants == "book" else "book"
    rows = []
    for path, number in found.numbers.items():
        mark = cited.setdefault(number.source, len(cited) + 1) if number.source else "-"
        beside = ""
        if isinstance(number, BothConstants):
            beside = _text(path, number.vendor if other == "vendor" else number.book)
        rows.append([path, number.about, _text(path, number.value), beside, f"[{mark}]"])
    for role, price in values(found.prices).items():
        if price is not None:
            mark = cited.setdefault(price.source, len(cited) + 1)
            host = "host included" if price.includes_host else "host not included"
            usd = f"${price.usd_per_chip_hour:.2f}/h"
            rows.append([role, f"{price.label}, {host}", usd, "", f"[{mark}]"])
    yield f"cores are {found.core_kind}s"
    yield TextTable(["number", "meaning", constants, other, "source"], rows, DENSE, left=2)
    yield "Sources"
    for source, mark in cited.items():
        yield f"  [{mark}] {source}"


def _slices_line(slices: Sequence[str]) -> str:
    shown = slices if len(slices) <= 12 else [*slices[:8], "...", *slices[-3:]]
    return f"{len(slices)}: " + ", ".join(shown)


# ---- diff --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipDiffRequest(CatalogueWords, Command):
    """Two chips side by side, with the ratio `second` / `first`."""

    COMMAND: ClassVar[str] = "hw diff"

    first: str = field(kw_only=False, metadata=place(offers="chips"))
    second: str = field(kw_only=False, metadata=place(offers="chips"))

    def answer(self, progress: Progress | None = None) -> "ChipsCompared":
        """Read both."""
        a, b = self.hardware.chip(self.first), self.hardware.chip(self.second)
        numbers = {path: number_pair(a, b, path) for path in _paths(a, b)}
        if a.price or b.price:
            usd = [c.price.usd_per_chip_hour if c.price else None for c in (a, b)]
            numbers |= {"usd_per_chip_hour": ratio_pair(*usd)}
        return ChipsCompared(
            first=a.id,
            second=b.id,
            numbers=numbers,
            chips=(a, b),
            provenance={c.id: dict(c.sources) for c in (a, b)},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ChipsCompared(Answer):
    """Two chips, compared."""

    first: str
    """A chip."""
    second: str
    """The second chip."""
    numbers: Mapping[str, NumberPair]
    """Each number of theirs, by its dotted name, and their price."""

    chips: tuple[Chip, Chip] = hidden()

    def table(self) -> list[Row]:
        """One row per number."""
        return [
            {"number": path, self.first: pair.first, self.second: pair.second, "ratio": pair.ratio}
            for path, pair in self.numbers.items()
        ]

    def page(self) -> Page:
        """One line per number that differs."""
        numbers = self.numbers
        differing = {k: pair for k, pair in numbers.items() if pair.first != pair.second}
        yield from _pair_page(*self.chips, differing)
        yield f"  {len(numbers) - len(differing)} numbers are the same"

    def sections(self) -> Mapping[str, Page]:
        """One line per number."""
        return {"detail": _pair_page(*self.chips, self.numbers)}


hw_diff = verb("hw_diff", ChipDiffRequest)


def _pair_page(a: Chip, b: Chip, numbers: Mapping[str, NumberPair]) -> Page:
    rows = []
    for path, pair in numbers.items():
        ratio = "" if pair.ratio is None else f"{sig(pair.ratio)}x"
        rows.append([path, _text(path, pair.first), _text(path, pair.second), ratio])
    title = f"{a.name} and {b.name}. {DENSE}"
    yield TextTable(["number", a.id, b.id, f"{b.id} / {a.id}"], rows, title)


# ---- numbers as text ---------------------------------------------------------------------------


def _text(path: str, value: Any) -> str:
    """One number in the unit that reads best; a size says GiB and GB, or MiB and MB."""
    if value is None:
        return "-"
    if path == "usd_per_chip_hour":
        return f"${value:.2f}"
    field = field_of(path)
    return _BY_KIND.get(field.kind, lambda v, f: str(v))(value, field)


def _size(value: float, field: Field) -> str:
    big = value >= GIB
    binary, decimal = (value / GIB, value / 1e9) if big else (value / MIB, value / 1e6)
    units = ("GiB", "GB") if big else ("MiB", "MB")
    return f"{sig(binary, 4)} {units[0]} ({sig(decimal, 4)} {units[1]})"


def _rate(value: float, field: Field) -> str:
    unit = field.unit.replace("bytes/s", "B/s")
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if value >= scale:
            return f"{sig(value / scale, 4)} {prefix}{unit}"
    return f"{sig(value, 4)} {unit}"


_BY_KIND: Mapping[str, Callable[[Any, Field], str]] = {
    "size": _size,
    "rate": _rate,
    "seconds": lambda value, field: format_seconds(value),
    "fraction": lambda value, field: sig(value),
    "count": lambda value, field: f"{value:,}",
    "shape": lambda value, field: "x".join(map(str, value)),
    "tile": lambda value, field: "x".join(map(str, value)),
    "flag": lambda value, field: "yes" if value else "no",
}
