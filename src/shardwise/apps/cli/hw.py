"""`shardwise hw list|show|diff`: the catalogue with a source for every number."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import check_outputs
from shardwise.apps.cli.output import (
    crowded_out,
    csv_option,
    document,
    emit,
    json_option,
    table,
    write_csv,
)
from shardwise.hardware import Chip, Price, chip_ids, load_chip, parse_price, slices_of
from shardwise.hardware.catalogue import aliases
from shardwise.hardware.chip import Field, field_of
from shardwise.hardware.network import Alone, FullMesh, Network, Torus
from shardwise.units import format_seconds, sig

MIB, GIB = 2**20, 2**30
DENSE = "Peaks are dense FLOP/s, a multiply-add counting as two; link rates are one-way."

constants_option = click.option(
    "--constants",
    default="vendor",
    show_default=True,
    metavar="vendor|book",
    help="The vendor's numbers, or the book's where it gives one.",
)
hw_option = click.option(
    "--hw",
    "hw_files",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML or YAML file that adds or overrides a chip; may be repeated.",
)
set_option = click.option(
    "--set",
    "set_",
    multiple=True,
    metavar="PATH=VALUE",
    help="Override one number of the chip; may be repeated.",
)
price_option = click.option(
    "--price", "prices", multiple=True, metavar="CHIP=USD", help="Dollars per chip-hour of CHIP."
)


@click.group()
def hw() -> None:
    """Chips, networks, slices and prices of the catalogue."""


# ---- list --------------------------------------------------------------------------------------


@hw.command("list")
@constants_option
@hw_option
@json_option
@csv_option
def list_chips(
    constants: str, hw_files: tuple[Path, ...], as_json: bool, csv_path: Path | None
) -> None:
    """One line per chip."""
    check_outputs()
    rows = [
        _summary(load_chip(chip, constants=constants, hw_files=hw_files))
        for chip in chip_ids(hw_files)
    ]
    doc = document(
        inputs={"constants": constants, "hw": [str(f) for f in hw_files]},
        result={"chips": rows},
        provenance={"note": "`shardwise hw show CHIP` gives the source of every number"},
    )
    if csv_path is not None:
        write_csv(csv_path, list(rows[0]), [list(row.values()) for row in rows])
    emit(doc, as_json, lambda: _render_list(rows, constants))


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


def _render_list(rows: list[dict[str, Any]], constants: str) -> None:
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
    rows_shown = [units, *cells]
    hidden = crowded_out(header, rows_shown, _SPARE)
    kept = [i for i, name in enumerate(header) if name not in hidden]
    table(
        [header[i] for i in kept],
        [[row[i] for i in kept] for row in rows_shown],
        f"Catalogue, constants of the {constants}",
        left=1 if "name" in hidden else 2,
    )
    if hidden:
        click.echo(f"No room for: {', '.join(hidden)}; see --csv, --json or a wider terminal.")
    click.echo(f"{DENSE} A dash: not in the catalogue.")
    click.echo("Sources and dates: shardwise hw show CHIP.")


# ---- show --------------------------------------------------------------------------------------


@hw.command()
@click.argument("chip")
@constants_option
@hw_option
@set_option
@price_option
@json_option
def show(
    chip: str,
    constants: str,
    hw_files: tuple[Path, ...],
    set_: tuple[str, ...],
    prices: tuple[str, ...],
    as_json: bool,
) -> None:
    """Every number of CHIP with its source, and the other constants where they differ."""
    dollars = {name: price.usd_per_chip_hour for name, price in map(parse_price, prices)}

    def load(which: str) -> Chip:
        return load_chip(chip, constants=which, hw_files=hw_files, set_=set_, prices=dollars)

    chosen, vendor, book = load(constants), load("vendor"), load("book")
    numbers = {path: _number(chosen, vendor, book, path) for path in _paths(vendor, book)}
    slices = [str(s) for s in slices_of(chosen)]
    result = {
        **{k: getattr(chosen, k) for k in ("id", "name", "vendor", "release", "status")},
        "core_kind": chosen.core_kind,
        "network": _network_kind(chosen.network),
        "aliases": [name for name, target in aliases().items() if target == chosen.id],
        "numbers": numbers,
        "prices": {role: _price(getattr(chosen, role)) for role in PRICES},
        "slices": slices,
        "notes": chosen.notes,
    }
    doc = document(
        inputs={
            "chip": chip,
            "constants": constants,
            "hw": [str(f) for f in hw_files],
            "set": set_,
        },
        resolved={"chip": {"value": chosen.id, "origin": "argument"}},
        result=result,
        provenance={path: entry["source"] for path, entry in numbers.items()},
    )
    emit(doc, as_json, lambda: _render_show(chosen, result, constants))


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


def _render_show(chip: Chip, result: Mapping[str, Any], constants: str) -> None:
    cited: dict[str, int] = {}
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
            what = f"{price['kind']}, as of {price['as_of']}, {host}"
            usd = f"${price['usd_per_chip_hour']:.2f}/h"
            rows.append([role, what, usd, "", f"[{mark}]"])
    title = f"{chip.name} ({chip.id}), {chip.vendor}, {chip.release}, {chip.status}"
    click.echo(f"{title}; cores are {chip.core_kind}s, network {result['network']}")
    table(["number", "meaning", constants, other, "source"], rows, DENSE, left=2)
    if result["prices"]["price"] is None:
        click.echo(f"No public price: give one with --price {chip.id}=USD.")
    click.echo("Also called: " + (", ".join(result["aliases"][1:]) or "nothing else"))
    click.echo(_slices_line(result["slices"]))
    for note in chip.notes:
        click.echo(f"- {note}")
    click.echo("Sources")
    for source, mark in cited.items():
        click.echo(f"  [{mark}] {source}")


def _slices_line(slices: list[str]) -> str:
    shown = slices if len(slices) <= 12 else [*slices[:8], "...", *slices[-3:]]
    return f"Slices ({len(slices)}): " + ", ".join(shown)


# ---- diff --------------------------------------------------------------------------------------


@hw.command()
@click.argument("first")
@click.argument("second")
@constants_option
@hw_option
@json_option
@csv_option
def diff(
    first: str,
    second: str,
    constants: str,
    hw_files: tuple[Path, ...],
    as_json: bool,
    csv_path: Path | None,
) -> None:
    """FIRST and SECOND side by side, with the ratio SECOND / FIRST."""
    check_outputs()
    a = load_chip(first, constants=constants, hw_files=hw_files)
    b = load_chip(second, constants=constants, hw_files=hw_files)
    numbers = {path: _pair(a, b, path) for path in _paths(a, b)}
    if a.price or b.price:
        usd = [c.price.usd_per_chip_hour if c.price else None for c in (a, b)]
        numbers["usd_per_chip_hour"] = _ratio(*usd)
    doc = document(
        inputs={
            "first": first,
            "second": second,
            "constants": constants,
            "hw": [str(f) for f in hw_files],
        },
        result={"first": a.id, "second": b.id, "numbers": numbers},
        provenance={c.id: dict(c.sources) for c in (a, b)},
    )
    if csv_path is not None:
        rows = [[path, *entry.values()] for path, entry in numbers.items()]
        write_csv(csv_path, ["number", a.id, b.id, "ratio"], rows)
    emit(doc, as_json, lambda: _render_diff(a, b, numbers))


def _pair(a: Chip, b: Chip, path: str) -> dict[str, Any]:
    return _ratio(a.numbers().get(path), b.numbers().get(path))


def _ratio(first: Any, second: Any) -> dict[str, Any]:
    plain = all(
        isinstance(v, int | float) and not isinstance(v, bool) and v for v in (first, second)
    )
    return {"first": first, "second": second, "ratio": second / first if plain else None}


def _render_diff(a: Chip, b: Chip, numbers: Mapping[str, Mapping[str, Any]]) -> None:
    rows = []
    for path, entry in numbers.items():
        ratio = "" if entry["ratio"] is None else f"{sig(entry['ratio'])}x"
        rows.append([path, _text(path, entry["first"]), _text(path, entry["second"]), ratio])
    table(["number", a.id, b.id, f"{b.id} / {a.id}"], rows, f"{a.name} and {b.name}. {DENSE}")


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
