"""A chip's record (one TOML or YAML table) -> Chip: reading, checking, choosing the constants.

An entry is a bare number, or a table {value, source, basis, book, book_source, book_basis}: `value`
is the vendor's (or the best-supported) number, `book` what the book's latest table says. `source`
is a key of the record's [sources] table or the citation itself, `basis` what kind of number it is
(`BASES`).
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, Literal, get_args

from shardwise.boundary.numbers import number
from shardwise.errors import BadRequest, check_known, shown, unknown
from shardwise.hardware.chip import (
    BASES,
    CLOCK,
    EFFICIENCIES,
    FIELDS,
    PART_FIELDS,
    PEAK,
    PRICE,
    REQUIRED,
    Chip,
    Compiler,
    Efficiency,
    Field,
    field_of,
)
from shardwise.hardware.names import NAMES
from shardwise.hardware.network import (
    Alone,
    DataCentre,
    FullMesh,
    Level,
    Network,
    Switched,
    Torus,
    WrapRule,
)
from shardwise.hardware.prices import Price, as_last_seen
from shardwise.units import DTYPE_BYTES, parse_bytes

Constants = Literal["vendor", "book"]
Record = Mapping[str, Any]

TEXTS = ("id", "name", "vendor", "release", "status", "core_kind")
TABLES = ("sources", "peak_flops", "efficiency", "network", "data_centre", "prices")
KINDS = {"torus": Torus, "switched": Switched, "full_mesh": FullMesh, "alone": Alone}
ENTRY = ("value", "prior", "source", "basis", "book", "book_source", "book_basis")
PLATFORMS = ("tpu", "cuda")
PRICE_ROLES = ("price", "price_low", "price_high")


class RecordReader:
    """Reads the numbers of one record for one set of constants and notes each one's source."""

    def __init__(self, record: Record, constants: Constants) -> None:
        self.record = record
        self.chip = shown(str(record.get("id", "?"))).strip("'")
        self.constants = constants
        self.citations = {key: str(text) for key, text in _table(record, "sources").items()}
        self.sources: dict[str, str] = {}
        self.bases: dict[str, str] = {}

    def has(self, table: Record, name: str) -> bool:
        """Whether the entry has a number for these constants; some the book alone gives."""
        entry = table.get(name)
        if isinstance(entry, Mapping) and "book" in entry:
            return self.constants == "book" or "value" in entry
        return entry is not None

    def read(self, table: Record, name: str, field: Field, path: str) -> Any:
        """The checked value of one entry under `path`; raises BadRequest naming both."""
        entry = table[name]
        source = ""
        if isinstance(entry, Mapping):
            for key in entry:
                check_known(f"key of '{path}' of chip '{self.chip}'", key, ENTRY)
            book = self.constants == "book" and "book" in entry
            if not book and "value" not in entry:
                raise BadRequest(f"'{path}' of chip '{self.chip}' has no 'value'; write one")
            source = str(entry.get("book_source" if book else "source", ""))
            if basis := str(entry.get("book_basis" if book else "basis", "")):
                check_known(f"basis of '{path}' of chip '{self.chip}'", basis, BASES)
                self.bases[path] = basis
            entry = entry["book" if book else "value"]
        key, *remark = source.split("; ", 1)
        cited = "; ".join([self.citations.get(key, key), *remark])
        self.sources[path] = cited or "no source given"
        return check_value(entry, field, f"'{path}' of chip '{self.chip}'")


def chip_of(record: Record, constants: Constants) -> Chip:
    """The Chip that a record describes.

    Raises BadRequest for an unknown key (with the nearest spelling), a wrong type, a number that is
    not positive, or a field that no chip may lack.
    """
    reader = RecordReader(record, constants)
    for key in record:
        if key not in (*TEXTS, *NAMES, *TABLES, *FIELDS, "notes"):
            raise unknown(f"field of chip '{reader.chip}'", key, (*TEXTS, *TABLES, *FIELDS))
    for key in ("id", "name", "network", *REQUIRED):
        if key not in record:
            raise BadRequest(
                f"chip '{reader.chip}' lacks '{key}', which every chip must have; write it, or "
                f'start from a chip of the catalogue with base = "h100"'
            )
    for name in TEXTS:
        if not isinstance(record.get(name, ""), str):
            raise BadRequest(
                f"'{name}' of chip '{reader.chip}' is {shown(record[name])}; it must be text"
            )
    plain: dict[str, Any] = {name: record.get(name, "") for name in TEXTS}
    for name, field in FIELDS.items():
        plain[name] = reader.read(record, name, field, name) if reader.has(record, name) else None
    prices = _prices(record, reader)
    return Chip(
        **plain,
        notes=_notes(record, reader.chip),
        generation=record.get("generation", ""),
        compiler=_compiler(record["compiler"], reader.chip) if "compiler" in record else None,
        peak_flops=_peaks(_table(record, "peak_flops"), reader),
        efficiency=_efficiency(_table(record, "efficiency"), reader),
        network=_network(_table(record, "network"), reader),
        data_centre=_data_centre(_table(record, "data_centre"), reader),
        price=prices.get("price"),
        price_low=prices.get("price_low"),
        price_high=prices.get("price_high"),
        constants=constants,
        sources=reader.sources,
        bases=reader.bases,
    )


def _compiler(entry: Any, chip: str) -> Compiler:
    what, names = f"'compiler' of chip '{chip}'", [f.name for f in fields(Compiler)]
    if not isinstance(entry, Mapping) or not {"platform", "name"} <= set(entry):
        raise BadRequest(f"{what} is {shown(entry)}; it must be a table with a platform and a name")
    for key, value in entry.items():
        check_known(f"key of {what}", key, names)
        parts = value if key == "no_cycles" and isinstance(value, list) else [value]
        if not all(isinstance(part, str) for part in parts):
            raise BadRequest(f"'{key}' in {what} is {shown(value)}; it must be text")
    check_known(f"platform in {what}", entry["platform"], PLATFORMS)
    return Compiler(**entry)


def _notes(record: Record, chip: str) -> tuple[str, ...]:
    notes = record.get("notes", [])
    notes = [notes] if isinstance(notes, str) else notes
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise BadRequest(
            f"'notes' of chip '{chip}' is {shown(notes)}; it must be text, or a list of texts"
        )
    return tuple(notes)


def _table(record: Record, name: str) -> Record:
    table = record.get(name, {})
    if not isinstance(table, Mapping):
        chip = record.get("id", "?")
        raise BadRequest(f"'{name}' of chip '{chip}' is {shown(table)}; it must be a table")
    return table


def _peaks(table: Record, reader: RecordReader) -> dict[str, float]:
    if "value" in table:
        raise BadRequest(
            f"'peak_flops' of chip '{reader.chip}' is one number; write one for each dtype: "
            'peak_flops.bf16 = { value = 1e15, source = "where it is from" }'
        )
    for dtype in table:
        check_known(f"dtype in 'peak_flops' of chip '{reader.chip}'", dtype, DTYPE_BYTES)
    return {
        d: reader.read(table, d, PEAK, f"peak_flops.{d}") for d in table if reader.has(table, d)
    }


def _efficiency(table: Record, reader: RecordReader) -> Efficiency:
    apart = {f"matmul_{dtype}": dtype for dtype in DTYPE_BYTES}
    for name in table:
        if name not in (*EFFICIENCIES, CLOCK, *apart):
            known = [*EFFICIENCIES, CLOCK, *apart]
            raise unknown(f"efficiency of chip '{reader.chip}'", name, known)
    missing = [name for name in _MEASURED if name not in table]
    if missing:
        raise BadRequest(
            f"chip '{reader.chip}' lacks efficiency.{missing[0]}, the fraction of peak behind "
            f'"expected"; write it, or start from a catalogue chip with base = "h100"'
        )
    paths = {name: f"efficiency.{name}" for name in table}
    values = {name: reader.read(table, name, field_of(path), path) for name, path in paths.items()}
    # A file that knows only the measured three: the others say nothing more.
    plain = {
        "matmul_ramp": 0.0,
        "attention": values["matmul"],
        "sustained": 1.0,
        "outer_network": values["network"],
    }
    reader.sources.setdefault(f"efficiency.{CLOCK}", "that of its generation")
    return Efficiency(
        **{name: (plain | values)[name] for name in EFFICIENCIES},
        clock=values.get(CLOCK, 1.0),
        matmul_by_dtype={apart[name]: rate for name, rate in values.items() if name in apart},
        source="; ".join(f"{n}: {reader.sources[f'efficiency.{n}']}" for n in table),
    )


_MEASURED = ("matmul", "hbm", "network")
"""Efficiencies that no chip may lack."""


def _network(table: Record, reader: RecordReader) -> Network:
    kind = str(table.get("kind", ""))
    check_known(f"network.kind of chip '{reader.chip}'", kind, KINDS)
    part = KINDS[kind]
    values = _part_values(part, {k: v for k, v in table.items() if k != "kind"}, "network", reader)
    for name, plain, rate in _HOST_RATES:
        if values.get(name, plain) != plain and rate not in values:
            raise BadRequest(
                f"'network.{name}' of chip '{reader.chip}' is {shown(values[name])}, which needs "
                f"'network.{rate}' ({PART_FIELDS[rate].about}); give it with "
                f"--set chip.network.{rate}=NUMBER"
            )
    return part(**values)


_HOST_RATES = (("peer_to_peer", True, "staged_oneway"), ("sockets", 1, "across_oneway"))
"""What a host of cards has, its value that changes no rate, and the rate that another needs."""


def _data_centre(table: Record, reader: RecordReader) -> DataCentre | None:
    if not table:
        return None
    return DataCentre(**_part_values(DataCentre, table, "data_centre", reader))


def _part_values(part: Any, table: Record, path: str, reader: RecordReader) -> dict[str, Any]:
    """The fields of one network part, checked against its dataclass."""
    names = [f.name for f in fields(part) if f.name != "name"]
    required = {f.name for f in fields(part) if f.default is MISSING}
    for key in table:
        check_known(f"field of '{path}' of chip '{reader.chip}'", key, names)
    values: dict[str, Any] = {}
    for name in names:
        if name == "levels":
            values[name] = _levels(table.get("levels", []), f"{path}.levels", reader)
        elif name in table:
            values[name] = reader.read(table, name, PART_FIELDS[name], f"{path}.{name}")
        elif name in required:
            raise BadRequest(f"chip '{reader.chip}' lacks '{path}.{name}'; write it")
    return values


def _levels(levels: Any, path: str, reader: RecordReader) -> tuple[Level, ...]:
    if not isinstance(levels, list) or not all(isinstance(v, Mapping) for v in levels):
        raise BadRequest(f"'{path}' of chip '{reader.chip}' must be a list of tables")
    found = []
    for level in levels:
        name = str(level.get("name", "?"))
        numbers = {key: value for key, value in level.items() if key != "name"}
        found.append(Level(name=name, **_part_values(Level, numbers, f"{path}.{name}", reader)))
    return tuple(found)


def _prices(record: Record, reader: RecordReader) -> dict[str, Price]:
    prices: dict[str, Price] = {}
    for role, entry in _table(record, "prices").items():
        check_known(f"price of chip '{reader.chip}'", role, PRICE_ROLES)
        names = [f.name for f in fields(Price)]
        for key in (f.name for f in fields(Price) if f.default is MISSING):
            if not isinstance(entry, Mapping) or key not in entry:
                raise BadRequest(
                    f"'{role}' of chip '{reader.chip}' lacks '{key}'; a price needs an amount, a "
                    "date, a source, a kind and whether it includes the host"
                )
        for key in entry:
            check_known(f"field of '{role}' of chip '{reader.chip}'", key, names)
        what = f"'{role}' of chip '{reader.chip}'"
        for key in entry:
            text = key not in ("usd_per_chip_hour", "includes_host")
            given = isinstance(entry[key], str) and (entry[key].strip() or key in ("region", "sku"))
            if text and not given:
                raise BadRequest(f"'{key}' in {what} is {shown(entry[key])}; it must be text")
        if not isinstance(entry["includes_host"], bool):
            given = shown(entry["includes_host"])
            raise BadRequest(f"'includes_host' in {what} is {given}; it must be true or false")
        usd = check_value(entry["usd_per_chip_hour"], PRICE, what)
        source = reader.citations.get(str(entry["source"]), str(entry["source"]))
        price = Price(**{**entry, "usd_per_chip_hour": usd, "source": source})
        if price.provider != "you":
            price = replace(price, source=f"{price.listed}: {source}")
        prices[role] = as_last_seen(reader.chip, price)
    return prices


def check_value(value: Any, field: Field, what: str) -> Any:
    """The value in its type and range; text (from --set) is parsed by the kind of the field."""
    if isinstance(value, str) and field.kind != "wrap":
        value = _parsed(value, field.kind, what)
    return _CHECKS[field.kind](value, field, what)


def _parsed(text: str, kind: str, what: str) -> Any:
    if kind == "size" and text.strip()[-1:] in ("b", "B"):
        return parse_bytes(text, what)
    if kind in ("shape", "tile"):
        if not re.fullmatch(r"\d{1,9}(x\d{1,9})*", text.strip(), re.ASCII):
            raise BadRequest(f"{what} is {shown(text)}; it must be whole numbers like 16x20x28")
        return [int(n) for n in text.strip().split("x")]
    if kind == "flag":
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return number(text, what, suffix=True)
    except BadRequest:
        like = "3e12 or 16GiB" if kind == "size" else "3e12"
        raise BadRequest(f"{what} is {shown(text)}; it must be a number such as {like}") from None


def _number(value: Any, field: Field, what: str) -> float:
    bad = isinstance(value, bool) or not isinstance(value, int | float)
    bad = bad or (isinstance(value, float) and not math.isfinite(value))
    if bad or not field.least <= value <= field.most or (value == 0 and field.least):
        rule = "positive" if field.least else "zero or positive"
        least = f" of at least {field.least:g} and" if field.least not in (0, 1e-6) else " of"
        raise BadRequest(
            f"{what} is {shown(value)}; it must be a {rule} number{least} at most {field.most:g}"
        )
    return float(value)


def _count(value: Any, field: Field, what: str) -> int:
    found = _number(value, field, what)
    if not found.is_integer():
        raise BadRequest(f"{what} is {shown(value)}; it must be a whole number")
    return int(found)


def _shape(value: Any, field: Field, what: str) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value or len(value) > _MOST_SIZES:
        raise BadRequest(f"{what} is {shown(value)}; it must be whole numbers like 16x20x28")
    return tuple(_count(n, field, what) for n in value)


_MOST_SIZES = 8
"""At most this many dimensions has a shape in a hardware file."""


def _tile(value: Any, field: Field, what: str) -> tuple[int, ...]:
    tile = _shape(value, field, what)
    if len(tile) != 3:
        raise BadRequest(f"{what} is {shown(value)}; it must be three sizes, m x k x n")
    return tile


def _wrap(value: Any, field: Field, what: str) -> str:
    if not isinstance(value, str) or value not in get_args(WrapRule):
        raise unknown(f"wrap rule {what}", str(value), get_args(WrapRule))
    return value


def _flag(value: Any, field: Field, what: str) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(f"{what} is {shown(value)}; it must be true or false")
    return value


_CHECKS: Mapping[str, Callable[[Any, Field, str], Any]] = {
    "size": _number,
    "rate": _number,
    "seconds": _number,
    "fraction": _number,
    "count": _count,
    "shape": _shape,
    "tile": _tile,
    "wrap": _wrap,
    "flag": _flag,
}
