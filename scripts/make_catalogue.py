#!/usr/bin/env python3
"""Make src/shardwise/hardware/data/*.toml from data sheets, measurements and catalogue.toml.

    python scripts/make_catalogue.py DATA_DIR

DATA_DIR holds hardware.csv, aliases.csv, prices.csv and measured/{collectives,microbench}.csv and
measured/kernels/gemm_best.csv.gz. Each chip is a row of the sheet, with what `catalogue.toml` adds,
the efficiencies derived here and the default, lowest and highest on-demand price.
"""

import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from measured_rates import add_efficiency, read_csv

HERE = Path(__file__).parent
OUT = HERE.parent / "src" / "shardwise" / "hardware" / "data"
READ_ON = "2026-11-20"  # the day the undated price lists of prices.csv were read
GIB = 2**30
Entry = dict[str, Any]
Row = Mapping[str, str]

NUMBERS = (
    "hbm_bytes",
    "hbm_usable_bytes",
    "hbm_bandwidth",
    "sram_bytes",
    "sram_bandwidth",
    "l2_bytes",
    "l2_bandwidth",
    "vector_flops",
    "flops_per_alu",
    "clock_hz",
    "compiler_clock_hz",
    "cores",
    "matmul_units_per_core",
    "vector_units_per_core",
    "registers_per_core",
    "words_per_register",
    "matmul_tile",
    "jax_devices_per_chip",
    "device_link_oneway",
    "chips_per_host",
    "host_link_oneway",
    "host_dram_bytes",
    "power_watts",
)
COLUMNS = {
    "hbm_bytes": ("hbm_bytes", ""),
    "hbm_bandwidth": ("hbm_bw_Bps", ""),
    "sram_bytes": ("onchip_sram_bytes", "onchip_sram_kind"),
    "l2_bytes": ("l2_llc_bytes", ""),
    "vector_flops": ("fp32_nontensor", ""),
    "clock_hz": ("clock_hz", "clock_basis"),
    "cores": ("cores", ""),
    "jax_devices_per_chip": ("jax_devices_per_chip", ""),
    "chips_per_host": ("chips_per_host", ""),
    "host_link_oneway": ("pcie_oneway_Bps", ""),
    "host_dram_bytes": ("host_dram_bytes", ""),
    "power_watts": ("tdp_w", "tdp_basis"),
}
PEAKS = {
    "bf16": "bf16_dense",
    "fp8": "fp8_dense",
    "int8": "int8_dense",
    "int4": "int4_dense",
    "fp4": "fp4_dense",
    "f32": "fp32_nontensor",
}
BOOK = {"google": "book2", "nvidia": "book12"}

READ = {  # how far the sheet's authors checked the vendor's page
    "primary": "",
    "secondary": " (page not opened; figures cross-checked between second-hand sources)",
    "vendor URL NOT": " (page not opened; figures from general knowledge, check before relying)",
}
BASIS = {  # how the sheet's numbers came about, by the start of its remark
    "derived": "clock derived from the peak and the width of the matmul units",
    "reproduces": "clock at which the dense peak comes out",
    "boost (reproduces": "boost clock, at which the dense peak comes out",
    "boost": "boost clock",
    "device max": "largest SM clock",
    "hl-smi": "clock that hl-smi shows",
    "base": "base clock",
    "paper TDP": "TDP of the paper",
    "docs measured": "largest power measured",
    "per-GPU max": "most per GPU",
    "SMEM/L1": "SMEM and L1 of all SMs",
    "L2": "L2 of all dies",
    "SBUF": "SBUF of all cores",
}


def main(data: Path) -> None:
    extras = tomllib.loads((HERE / "catalogue.toml").read_text())
    rows = {row["id"]: row for row in read_csv(data / "hardware.csv")}
    blank = dict.fromkeys(next(iter(rows.values())), "")
    for own in extras["chips"].values():
        if "sheet" in own:  # a chip that the data sheets lack brings its row along
            rows[own["row"]] = {**blank, "id": own["row"], **own["sheet"]}
    records = {
        chip: record_of(chip, own, rows[own["row"]], extras)
        for chip, own in extras["chips"].items()
    }
    add_efficiency(records, data)
    add_prices(records, extras["chips"], data)
    OUT.mkdir(exist_ok=True)
    for chip, record in records.items():
        (OUT / f"{chip}.toml").write_text(toml_of(record), encoding="utf-8")
    (OUT / "index.toml").write_text(index_of(extras["chips"], data), encoding="utf-8")


# ---- one record ----------------------------------------------------------------------------


def record_of(chip: str, own: Mapping[str, Any], row: Row, extras: Mapping[str, Any]) -> Entry:
    """The sheet's row with the families' and the chip's own additions laid over it."""
    record = from_row(chip, row)
    layers = [extras["families"][name] for name in own.get("families", ())]
    levels = list(own.get("levels", ()))
    for layer in layers:
        levels += layer.get("levels", ())
        lay(record, layer)
    lay(record, own)
    record["core_kind"] = own.get("core_kind", row["core_kind"].split(" (")[0])
    record["notes"] = list(own.get("notes", ()))
    if record["network"]["kind"] == "switched" and levels:
        record["network"]["levels"] = [level_of(level, own) for level in levels]
    finish(record, row)
    page = row["sources"].split(" | ")[0]
    read = next(words for start, words in READ.items() if row["source_read"].startswith(start))
    sources = {"vendor": page + read, **extras["sources"]}
    record["sources"] = sources
    return record


def from_row(chip: str, row: Row) -> Entry:
    """The entries that the sheet has, each with the vendor's page as its source."""

    def entry(column: str, basis: str = "") -> Entry:
        return {"value": number(row[column]), "source": cite(row, column, row.get(basis, ""))}

    record: Entry = {
        "id": chip,
        "name": row["name"],
        "vendor": row["vendor"],
        "release": row["release"],
        "status": row["status"],
    }
    for field, (column, basis) in COLUMNS.items():
        if row[column]:
            record[field] = entry(column, basis)
    record["peak_flops"] = {d: entry(c) for d, c in PEAKS.items() if row[c]}
    if row["vendor"] in ("nvidia", "amd", "aws") and row["bf16_dense"]:  # f16 at the bf16 rate
        record["peak_flops"]["f16"] = entry("bf16_dense")
    network: Entry = {}
    switched = row["topology"].startswith(("NVSwitch", "hybrid")) or "NVSwitch" in row["topology"]
    if row["vendor"] == "google" and row["link_oneway_Bps"]:
        network["link_oneway"] = entry("link_oneway_Bps")
    if switched:
        network["domain"] = entry("scaleup_domain_chips")
        network["link_oneway"] = entry("link_oneway_Bps")
        network["links_per_chip"] = entry("links_per_chip")
        network["chip_oneway"] = entry("scaleup_oneway_Bps_per_chip")
    if "full mesh" in row["topology"] or "all-to-all" in row["topology"]:
        network["domain"] = entry("scaleup_domain_chips")
        network["pair_oneway"] = entry("link_oneway_Bps")
    record["network"] = network
    record["data_centre"] = (
        {"chip_oneway": entry("nic_oneway_Bps_per_chip")} if row["nic_oneway_Bps_per_chip"] else {}
    )
    return record


def cite(row: Row, column: str, basis: str) -> str:
    """The key of the source of one number: the vendor's page unless the sheet says otherwise."""
    if row["vendor"] == "google":
        if column in ("onchip_sram_bytes", "l2_llc_bytes", "int4_dense"):
            return "jax"
        if column == "clock_hz" and basis == "paper":
            return "papers"
    for start, words in BASIS.items():
        if basis.startswith(start):
            return f"vendor; {words}"
    return "vendor"


def lay(record: Entry, layer: Mapping[str, Any]) -> None:
    """Merge entries key by key; an addition without a value leaves the sheet's value."""
    for key, value in layer.items():
        if key in ("peak_flops", "network", "data_centre"):
            for name, entry in value.items():
                merge(record[key], name, entry)
        elif key in NUMBERS:
            merge(record, key, value)


def merge(table: Entry, name: str, entry: Any) -> None:
    table[name] = {**table.get(name, {}), **entry} if isinstance(entry, dict) else entry


def level_of(level: Mapping[str, Any], own: Mapping[str, Any]) -> Entry:
    """One switch level; chips that the book has not take the levels of a relative that it has."""
    source = own.get("levels_source", "book12")
    ports = {9e11: "36 ports of 25 GB/s", 3.6e12: "72 ports of 50 GB/s"}
    if level["switch_oneway"] in ports:
        source += f"; rate of a switch by NVIDIA: {ports[level['switch_oneway']]}"

    def cited(entry: Any) -> Entry:
        if not isinstance(entry, dict):
            return {"value": entry, "source": source}
        return {**entry, "source": source, "book_source": "book12; units x what a chip sends"}

    return {k: v if k == "name" else cited(v) for k, v in level.items()}


def finish(record: Entry, row: Row) -> None:
    """Usable memory, derived bandwidths, and the default source of a book value."""
    usable = record.get("hbm_usable_bytes", {})
    nominal = record["hbm_bytes"]["value"]
    if "gib" in usable:
        usable["value"] = round(usable.pop("gib") * GIB)
    elif usable.pop("gpu", False):
        usable |= {"value": round(0.9889 * nominal) - GIB, "source": "gpu_rest"}
    elif usable.pop("smi", False):
        usable |= {"value": nominal - GIB, "source": "smi"}
    elif usable.pop("less1", False):
        usable |= {"value": nominal - GIB, "source": "less1"}
    sram = record.get("sram_bandwidth")
    if sram and "times_hbm" in sram:
        ratio = sram.pop("times_hbm")
        sram["value"] = ratio * record["hbm_bandwidth"]["value"]
        sram["source"] = f"book2; about {ratio} x the HBM bandwidth"
    if row["vendor"] == "nvidia" and "clock_hz" in record:
        rate = record["cores"]["value"] * 128 * record["clock_hz"]["value"]
        record["sram_bandwidth"] = {"value": rate, "source": "smem"}
    if record["peak_flops"].get("bf16", {}).get("book") and row["vendor"] == "nvidia":
        record["peak_flops"]["f16"]["book"] = record["peak_flops"]["bf16"]["book"]
    if record["network"]["kind"] == "alone":
        record["network"] = {"kind": "alone"}
    if "value" not in record["data_centre"].get("chip_oneway", {}):
        record["data_centre"] = {}
    for table in (record, *(record[t] for t in ("peak_flops", "network", "data_centre"))):
        for name, entry in list(table.items()):
            if isinstance(entry, dict) and "book" in entry:
                entry.setdefault("book_source", BOOK[row["vendor"]])
            if isinstance(entry, dict) and name in NUMBERS and "value" not in entry:
                del table[name]


# ---- prices, aliases, text -----------------------------------------------------------------


def add_prices(records: dict[str, Entry], chips: Mapping[str, Any], data: Path) -> None:
    """Default: on-demand, newest date, cheapest dedicated host; also the lowest and highest."""
    rows = [
        r
        for r in read_csv(data / "prices.csv")
        if r["price_type"] == "on_demand" and r["quality"] == "ok" and r["usd_per_chip_hour"]
    ]
    for chip, record in records.items():
        own = [r for r in rows if r["accelerator"] == chips[chip]["row"]]
        record["prices"] = {}
        if not own:
            continue
        usd: Callable[[Row], float] = lambda r: float(r["usd_per_chip_hour"])  # noqa: E731
        dedicated = [r for r in own if r["sku"] != "community"]
        newest = max(day(r) for r in dedicated)
        record["prices"] = {
            "price": price(min((r for r in dedicated if day(r) == newest), key=usd)),
            "price_low": price(min(own, key=usd)),
            "price_high": price(max(own, key=usd)),
        }


def day(row: Row) -> str:
    """The list's own date; lists without one count as older than any dated one of the same chip."""
    return row["as_of"] if row["as_of"][:2] == "20" else ""


def price(row: Row) -> Entry:
    read = "" if day(row) else "; the list bears no date, as_of is the day it was read"
    place = " ".join(w for w in (row["provider"], row["region"], row["sku"]) if w and w != "any")
    return {
        "usd_per_chip_hour": number(row["usd_per_chip_hour"]),
        "as_of": day(row) or READ_ON,
        "source": f"{place}: {row['source'].split(' (')[0]}{read}",
        "kind": row["price_type"],
        "includes_host": row["includes_host"].startswith("yes"),
    }


def index_of(chips: Mapping[str, Any], data: Path) -> str:
    """The alias table: row ids, names of the aliases file, JAX device kinds, our own."""
    by_row = {own["row"]: chip for chip, own in chips.items()}
    names: dict[str, list[str]] = {c: [own["row"], *own["names"]] for c, own in chips.items()}
    for row in read_csv(data / "aliases.csv"):
        if row["hardware_id"] in by_row:
            names[by_row[row["hardware_id"]]].append(row["name_in_data"])
    lines = [
        "# Made by scripts/make_catalogue.py: the chips in order, and every accepted spelling.",
        "# Left out, because the sources read give no topology or host size: TPU 8t and 8i,",
        "# Trainium3; because no FLOP/s are published: Apple's chips.",
        "[chips]",
    ]
    for chip, spellings in names.items():
        unique = list({s.lower(): s for s in spellings if s and s.lower() != chip}.values())
        lines.append(f"{json.dumps(chip)} = {json.dumps(unique)}")
    return "\n".join(lines) + "\n"


def toml_of(record: Entry) -> str:
    """The record as TOML, naming only the sources it uses."""
    lines = ["# Made by scripts/make_catalogue.py; change scripts/catalogue.toml and run it again."]
    for key in ("id", "name", "vendor", "release", "status", "core_kind"):
        lines.append(f"{key} = {json.dumps(record[key])}")
    lines.append(f"notes = {json.dumps(record['notes'])}")
    for key in NUMBERS:
        if key in record:
            lines.append(f"{key} = {inline(record[key])}")
    for table in ("peak_flops", "efficiency", "network", "data_centre", "prices"):
        if record[table]:
            lines += ["", f"[{table}]"]
            lines += [f"{k} = {inline(v)}" for k, v in record[table].items() if k != "levels"]
    for level in record["network"].get("levels", ()):
        lines += ["", "[[network.levels]]"]
        lines += [f"{k} = {inline(v)}" for k, v in level.items()]
    body = "\n".join(lines)
    used = {k: v for k, v in record["sources"].items() if f'"{k}"' in body or f'"{k}; ' in body}
    cited = ["", "[sources]", *(f"{k} = {json.dumps(v)}" for k, v in used.items())]
    return "\n".join([body, *cited]) + "\n"


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {inline(v)}" for k, v in value.items()) + " }"
    if isinstance(value, float):
        return f"{value:.12g}" if value % 1 or abs(value) >= 1e6 else f"{value:.1f}"
    return json.dumps(value)


def number(text: str) -> int | float:
    value = float(text)
    return int(value) if "e" not in text.lower() and value == int(value) else value


if __name__ == "__main__":
    main(Path(sys.argv[1]))
