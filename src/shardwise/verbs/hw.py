"""`hw list`, `hw show` and `hw diff`: the catalogue with a source for every number."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise.hardware import Chip, Price, chip_ids, slices_of
from shardwise.hardware.catalogue import aliases
from shardwise.hardware.chip import FIELDS, Field, field_of
from shardwise.hardware.network import Alone, FullMesh, Network, Torus
from shardwise.hardware.prices import price_text
from shardwise.units import format_seconds, sig
from shardwise.verbs.answer import LooseAnswer, Page, Row, TextTable
from shardwise.verbs.layout import Fact, Facts, percent, wrapped
from shardwise.verbs.request import Progress, verb
from shardwise.workflows.inputs import CatalogueWords, HardwareWords, words

MIB, GIB = 2**20, 2**30
DENSE = "Peaks are dense FLOP/s, a multiply-add counting as two; link rates are one-way."


# ---- list --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipListRequest(CatalogueWords):
    """One line per chip of the catalogue, with the `constants` of the vendors or the book."""

    def answer(self, progress: Progress | None = None) -> "ChipList":
        """Read them all."""
        files = words(self.hw_files)
        rows = [_summary(self.hardware.chip(chip)) for chip in chip_ids(files)]
        note = "`shardwise hw show CHIP` gives the source of every number"
        return ChipList(
            constants=str(self.constants), result={"chips": rows}, provenance={"note": note}
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ChipList(LooseAnswer):
    """The catalogue."""

    constants: str

    def table(self) -> list[Row]:
        """One row per chip."""
        return self.result["chips"]

    def page(self) -> Page:
        """One line per chip."""
        return _list_page(self.table(), self.constants)


hw_list = verb("hw_list", ChipListRequest)


def _summary(chip: Chip) -> dict[str, Any]:
    network = chip.network
    return {
        "chip": chip.id,
        "name": chip.name,
        "bf16_flops": chip.peak_flops.get("bf16"),
        "f16_flops": chip.peak_flops.get("f16"),
        "fp8_flops": chip.peak_flops.get("fp8"),
        "int8_flops": chip.peak_flops.get("int8"),
        "hbm_bytes": chip.hbm_bytes,
        "hbm_usable_bytes": chip.hbm_usable_bytes,
        "hbm_bandwidth": chip.hbm_bandwidth,
        "network": _network_kind(network),
        "links_per_chip": _links(network)[0],
        "link_oneway": _links(network)[1],
        "usd_per_chip_hour": chip.price.usd_per_chip_hour if chip.price else None,
        "price_as_of": chip.price.as_of if chip.price else None,
        "provider": chip.price.provider if chip.price else None,
        "unplanned": list(chip.unplanned),
    }


def _network_kind(network: Network) -> str:
    if isinstance(network, Torus):
        return "torus " + "x".join(map(str, network.pod))
    if isinstance(network, Alone):
        return "none"
    return f"{'mesh' if isinstance(network, FullMesh) else 'switched'} {network.domain}"


def _links(network: Network) -> tuple[int, float]:
    """Links of one chip and the one-way rate of one."""
    if isinstance(network, Torus):
        return 2 * len(network.pod), network.link_oneway
    if isinstance(network, FullMesh):
        return network.domain - 1, network.pair_oneway
    return (0, 0.0) if isinstance(network, Alone) else (network.links_per_chip, network.link_oneway)


_SPARE = ("name", "int8", "usable")
"""Columns of the list that a narrow terminal goes without, first ones first."""


def _list_page(rows: Sequence[Mapping[str, Any]], constants: str) -> Page:
    def tera(value: float | None) -> str:
        return sig(value / 1e12) if value else "-"

    header = ["chip", "name", "bf16", "fp8", "int8", "HBM", "usable", "HBM rate", "network"]
    header += ["links", "$/h"]
    units = ["", "", "TFLOP/s", "TFLOP/s", "TOP/s", "GiB", "GiB", "TB/s", "chips", "GB/s", ""]
    cells = []
    for r in rows:
        price = f"{r['usd_per_chip_hour']:.2f}" if r["usd_per_chip_hour"] else "-"
        links = (
            f"{r['links_per_chip']} x {sig(r['link_oneway'] / 1e9)}" if r["link_oneway"] else "-"
        )
        fast = r["bf16_flops"] or r["f16_flops"]
        cells.append(
            [
                r["chip"],
                r["name"],
                tera(fast) + ("" if r["bf16_flops"] else " (f16)"),
                tera(r["fp8_flops"]),
                tera(r["int8_flops"]),
                *(sig(r[k] / GIB, 4) if r[k] else "-" for k in ("hbm_bytes", "hbm_usable_bytes")),
                sig(r["hbm_bandwidth"] / 1e12) if r["hbm_bandwidth"] else "-",
                r["network"],
                links,
                price,
            ]
        )
    title = f"Catalogue, constants of the {constants}"
    yield TextTable(header, [units, *cells], title, left=2, spare=_SPARE)
    yield f"{DENSE} A dash: not in the catalogue."
    askers: dict[str, list[str]] = {}
    for r in rows:
        askers.setdefault(r["provider"], []).append(r["chip"])
    told = [f"{name} asks for {', '.join(chips)}" for name, chips in askers.items() if name]
    yield wrapped(f"$/h: what {'; '.join(told)}", 0, 2)
    yield from _unplanned(rows)
    yield "Sources and dates: shardwise hw show CHIP."


def _unplanned(rows: Sequence[Mapping[str, Any]]) -> Page:
    """The chips of which no slice is planned, by the number that they lack."""
    lacking: dict[str, list[str]] = {}
    for r in rows:
        for name in r["unplanned"]:
            lacking.setdefault(name, []).append(r["chip"])
    for name, chips in lacking.items():
        yield wrapped(
            f"not planned: {', '.join(chips)}, whose {name} ({FIELDS[name].about}) no source read "
            f"gives; with --set chip.{name}=NUMBER they are",
            0,
            2,
        )


# ---- show --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipRequest(HardwareWords):
    """Every number of a `chip` with its source, and the other constants where they differ."""

    chip: str = field(kw_only=False)

    def answer(self, progress: Progress | None = None) -> "ChipNumbers":
        """Read it."""
        chosen, vendor, book = (
            replace(self.hardware, constants=which).chip(self.chip)
            for which in (self.hardware.constants, "vendor", "book")
        )
        numbers = {path: _number(chosen, vendor, book, path) for path in _paths(vendor, book)}
        result = {
            **{k: getattr(chosen, k) for k in ("id", "name", "vendor", "release", "status")},
            "core_kind": chosen.core_kind,
            "network": _network_kind(chosen.network),
            "aliases": [name for name, target in aliases().items() if target == chosen.id],
            "numbers": numbers,
            "prices": {role: _price(getattr(chosen, role)) for role in PRICES},
            "slices": [str(s) for s in slices_of(chosen)],
            "notes": chosen.notes,
        }
        return ChipNumbers(
            chip=chosen,
            result=result,
            resolved={"chip": {"value": chosen.id, "origin": "argument"}},
            provenance={path: entry["source"] for path, entry in numbers.items()},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ChipNumbers(LooseAnswer):
    """One chip."""

    chip: Chip

    def table(self) -> list[Row]:
        """One row per number."""
        return [{"number": path, **entry} for path, entry in self.result["numbers"].items()]

    def page(self) -> Page:
        """What a buyer asks first: rates, memory, network, price, slices."""
        return _chip_page(self.chip, self.result)

    def sections(self) -> Mapping[str, Page]:
        """Every number with its source."""
        return {"detail": _numbers_page(self.chip, self.result)}


hw_show = verb("hw_show", ChipRequest)

PRICES = ("price", "price_low", "price_high")


def _paths(*chips: Chip) -> list[str]:
    """The paths of all numbers of the chips, table by table."""
    paths = dict.fromkeys(path for chip in chips for path in chip.numbers())
    tables = list(dict.fromkeys(path.partition(".")[0] for path in paths))
    return sorted(paths, key=lambda path: tables.index(path.partition(".")[0]))


def _number(chosen: Chip, vendor: Chip, book: Chip, path: str) -> dict[str, Any]:
    field = field_of(path)
    values = {"vendor": vendor.numbers().get(path), "book": book.numbers().get(path)}
    return {
        "value": chosen.numbers().get(path),
        "unit": field.unit,
        "about": field.about,
        "source": chosen.sources.get(path),
        **(values if values["vendor"] != values["book"] else {}),
    }


def _price(price: Price | None) -> dict[str, Any] | None:
    if price is None:
        return None
    return {field: getattr(price, field) for field in Price.__dataclass_fields__}


def _chip_page(chip: Chip, result: Mapping[str, Any]) -> Page:
    about = (chip.vendor, chip.release, chip.status)
    yield ", ".join([f"{chip.name} ({chip.id})", *(said for said in about if said)])
    yield Facts(_chip_facts(chip, result))
    for note in chip.notes:
        yield wrapped(f"- {note}", 2, 4)
    for name in chip.unplanned:
        lacks = f"no slice is planned: no source read gives {name} ({FIELDS[name].about})"
        yield wrapped(f"- {lacks}; plan with --set chip.{name}=NUMBER", 2, 4)


def _chip_facts(chip: Chip, result: Mapping[str, Any]) -> list[Fact]:
    numbers = {path: entry["value"] for path, entry in result["numbers"].items()}

    def text(path: str) -> str:
        return _text(path, numbers.get(path))

    peaks = [path for path in numbers if path.startswith("peak_flops.")]
    rates = ", ".join(f"{path.partition('.')[2]} {text(path)}" for path in peaks)
    links, rate = _links(chip.network)
    network = f"{result['network']}, {links} links of {_link_rate(rate)}" if links else "none"
    kept = [path for path in numbers if path.startswith("efficiency.")]
    shares = ", ".join(
        f"{path.partition('.')[2].replace('_', ' ')} {percent(numbers[path])}"
        for path in kept
        if field_of(path).kind == "fraction" and numbers[path]
    )
    return [
        Fact("peak", f"{rates} (dense, a multiply-add is two)"),
        Fact(
            "reached",
            f"{shares} of the peak, as measured or fitted",
        ),
        Fact("memory", f"{text('hbm_bytes')} nominal, {text('hbm_usable_bytes')} usable"),
        Fact("its rate", text("hbm_bandwidth")),
        Fact("network", network),
        Fact("host", f"{text('chips_per_host')} chips a host, {text('host_link_oneway')} to it"),
        Fact("price", price_text(chip.id, chip.price)),
        Fact("slices", _slices_line(result["slices"])),
        Fact("also", ", ".join(result["aliases"][1:]) or "no other name"),
    ]


def _link_rate(rate: float) -> str:
    """Bytes per second of a link."""
    return f"{sig(rate / 1e9)} GB/s"


def _numbers_page(chip: Chip, result: Mapping[str, Any]) -> Page:
    cited: dict[str, int] = {}
    constants = chip.constants
    other = "vendor" if constants == "book" else "book"
    rows = []
    for path, entry in result["numbers"].items():
        mark = cited.setdefault(entry["source"], len(cited) + 1) if entry["source"] else "-"
        beside = _text(path, entry[other]) if other in entry else ""
        rows.append([path, entry["about"], _text(path, entry["value"]), beside, f"[{mark}]"])
    for role, price in result["prices"].items():
        if price is not None:
            mark = cited.setdefault(price["source"], len(cited) + 1)
            host = "host included" if price["includes_host"] else "host not included"
            usd = f"${price['usd_per_chip_hour']:.2f}/h"
            rows.append([role, f"{Price(**price).label}, {host}", usd, "", f"[{mark}]"])
    yield f"cores are {chip.core_kind}s"
    yield TextTable(["number", "meaning", constants, other, "source"], rows, DENSE, left=2)
    yield "Sources"
    for source, mark in cited.items():
        yield f"  [{mark}] {source}"


def _slices_line(slices: list[str]) -> str:
    shown = slices if len(slices) <= 12 else [*slices[:8], "...", *slices[-3:]]
    return f"{len(slices)}: " + ", ".join(shown)


# ---- diff --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipDiffRequest(CatalogueWords):
    """Two chips side by side, with the ratio `second` / `first`."""

    first: str = field(kw_only=False)
    second: str = field(kw_only=False)

    def answer(self, progress: Progress | None = None) -> "ChipsCompared":
        """Read both."""
        a, b = self.hardware.chip(self.first), self.hardware.chip(self.second)
        numbers = {path: _pair(a, b, path) for path in _paths(a, b)}
        if a.price or b.price:
            usd = [c.price.usd_per_chip_hour if c.price else None for c in (a, b)]
            numbers["usd_per_chip_hour"] = _ratio(*usd)
        return ChipsCompared(
            chips=(a, b),
            result={"first": a.id, "second": b.id, "numbers": numbers},
            provenance={c.id: dict(c.sources) for c in (a, b)},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ChipsCompared(LooseAnswer):
    """Two chips beside each other."""

    chips: tuple[Chip, Chip]

    def table(self) -> list[Row]:
        """One row per number."""
        a, b = (chip.id for chip in self.chips)
        return [
            {"number": path, a: entry["first"], b: entry["second"], "ratio": entry["ratio"]}
            for path, entry in self.result["numbers"].items()
        ]

    def page(self) -> Page:
        """One line per number that differs."""
        numbers = self.result["numbers"]
        differing = {k: v for k, v in numbers.items() if v["first"] != v["second"]}
        yield from _pair_page(*self.chips, differing)
        yield f"  {len(numbers) - len(differing)} numbers are the same"

    def sections(self) -> Mapping[str, Page]:
        """One line per number."""
        return {"detail": _pair_page(*self.chips, self.result["numbers"])}


hw_diff = verb("hw_diff", ChipDiffRequest)


def _pair(a: Chip, b: Chip, path: str) -> dict[str, Any]:
    return _ratio(a.numbers().get(path), b.numbers().get(path))


def _ratio(first: Any, second: Any) -> dict[str, Any]:
    plain = all(
        isinstance(v, int | float) and not isinstance(v, bool) and v for v in (first, second)
    )
    return {"first": first, "second": second, "ratio": second / first if plain else None}


def _pair_page(a: Chip, b: Chip, numbers: Mapping[str, Mapping[str, Any]]) -> Page:
    rows = []
    for path, entry in numbers.items():
        ratio = "" if entry["ratio"] is None else f"{sig(entry['ratio'])}x"
        rows.append([path, _text(path, entry["first"]), _text(path, entry["second"]), ratio])
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
