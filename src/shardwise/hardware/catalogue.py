"""The catalogue: one TOML file per chip and one per generation in data/, and overrides.

A chip's file is written by people, each number beside its source (CONTRIBUTING.md, "A chip"). It
names its generation, whose file `scripts/fit_efficiency.py` writes: the constants that chips with
the same core share. `load_chip` reads these two files only. Names match exactly, apart from case
(`names.py`); there is no matching by part of a name. Where a number comes from is in
`Chip.sources`, and a number changed by `--hw` or `--set` says so there.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

from shardwise.boundary import read_toml, read_yaml
from shardwise.boundary.arguments import once
from shardwise.errors import BadRequest, check_known, shown, unknown
from shardwise.hardware.chip import FIELDS, Chip
from shardwise.hardware.names import (
    DATA,
    NAMES,
    REMEDY,
    aliases,
    chip_names,
    own_names,
    resolve_chip,
)
from shardwise.hardware.prices import price_override
from shardwise.hardware.record import TABLES, Constants, chip_of

GENERATIONS = DATA / "generations"


def load_chip(
    name: str,
    *,
    constants: str = "vendor",
    hw_files: Sequence[str | Path] = (),
    set_: Sequence[str] = (),
    prices: Mapping[str, float] | None = None,
) -> Chip:
    """One chip by its id or an alias.

    constants: "vendor", or "book" for the number of the book's latest table where it gives one.
    hw_files: TOML or YAML files, each one chip record; its `id` is added or overridden, and `base`
        names the chip that it starts from. Later files win. A file of the catalogue works
        too, without its `cloud` and `exports`.
    set_: overrides "chip.hbm_bandwidth=3e12" (the "chip." may be left out), applied last.
    prices: dollars per chip-hour by chip name or alias (`--price`), of this chip.
    Raises BadRequest for an unknown chip, field or constants, for a value of a wrong type, and for
    an override or a price that would change nothing.
    """
    check_known("constants", constants, get_args(Constants))
    files = _hw_records(tuple(str(p) for p in hw_files))
    chip_id = resolve_chip(name, extra=files)
    dollars = [_own_price(named, chip_id, usd, files) for named, usd in (prices or {}).items()]
    if not (files or set_ or dollars):
        return _catalogue_chip(chip_id, constants)
    record = dict(files[chip_id]) if chip_id in files else _read(chip_id)
    changed = record
    once((_path_value(text) for text in set_), "--set")
    for text in set_:
        changed = _with_override(changed, text)
    record = _with_usable(record, changed)
    for usd in dollars:
        record = _with_price(record, usd)
    return chip_of(record, constants)  # type: ignore[arg-type]


def chip_ids(hw_files: Sequence[str | Path] = ()) -> tuple[str, ...]:
    """Canonical ids by vendor and release, then those the files add."""
    return tuple(dict.fromkeys([*chip_names(), *_hw_records(tuple(str(p) for p in hw_files))]))


def catalogue(constants: str = "vendor") -> tuple[Chip, ...]:
    """Every chip of the catalogue."""
    return tuple(load_chip(chip_id, constants=constants) for chip_id in chip_ids())


@cache
def _read(chip_id: str) -> Mapping[str, Any]:
    """A chip's own record, which others are laid on and nobody changes."""
    record = read_toml(DATA / f"{chip_id}.toml", "the chip")
    return _with_generation(record, record)


def _with_generation(record: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """A chip's record with the constants of the generation that it names laid under its own.

    A generation that no published run uses has those that its vendor's other chips let expect. The
    peaks, which say whether it has fp8, are its own or those of the chip it starts from.
    """
    fitted = _generation(record["generation"], record["id"])
    vendors = fitted.pop("vendors", {})
    vendor = record.get("vendor")
    fitted |= vendors.get(vendor, {}) if isinstance(vendor, str) else {}
    if "fp8" not in {**_table(base, "peak_flops"), **_table(record, "peak_flops")}:
        fitted.pop("matmul_fp8", None)
    own = record.get("efficiency", {})
    if not isinstance(own, Mapping):
        return dict(record)  # `chip_of` refuses it
    shares = {**own, **{name: entry for name, entry in fitted.items() if name not in own}}
    if record["generation"] == UNSEEN and "matmul_fp8" not in own:
        shares |= _no_faster(shares)
    derated = {n: {**_not_derated(n), **e} for n, e in shares.items() if isinstance(e, Mapping)}
    return {**record, "efficiency": {**shares, **derated}}


UNSEEN = "others"
"""The generation of chips that no published run is fitted on."""


def _no_faster(shares: Mapping[str, Any]) -> dict[str, Any]:
    """The share that fp8 products reach of a chip whose share in bf16 was measured alone: as other
    chips let expect, and no more than in bf16 (no kernel's is: docs/lab/rates.md)."""
    narrow, wide = _table(shares, "matmul_fp8"), _table(shares, "matmul")
    value, most = narrow.get("value"), wide.get("value")
    if not isinstance(value, float) or not isinstance(most, float) or value <= most:
        return {}
    return {"matmul_fp8": {"value": most, "source": f"as in bf16: {wide.get('source')}"}}


def _not_derated(name: str) -> dict[str, Any]:
    """The book derates nothing: every share is 1, and no kernel takes longer than its FLOPs."""
    book = 0.0 if name == "matmul_ramp" else 1.0
    return {"book": book, "book_source": "the book uses no derating", "book_basis": "book's peak"}


def _generation(name: Any, chip_id: str) -> dict[str, Any]:
    files = {path.stem: path for path in sorted(GENERATIONS.glob("*.toml"))}
    if not isinstance(name, str) or name not in files:
        raise unknown(f"generation of chip '{chip_id}'", str(name), files)
    return read_toml(files[name], "the generation")


def _table(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = record.get(name)
    return table if isinstance(table, Mapping) else {}


@cache
def _catalogue_chip(chip_id: str, constants: Constants) -> Chip:
    return chip_of(_read(chip_id), constants)


def _hw_records(paths: tuple[str, ...]) -> Mapping[str, Mapping[str, Any]]:
    """Chip records of --hw files by id, each laid over its base."""
    records: dict[str, Mapping[str, Any]] = {}
    for path in paths:
        own = _load_file(Path(path))
        if not isinstance(own.get("id"), str):
            raise BadRequest(f"hardware file '{path}' has no 'id'; give the id of the chip")
        spellings = own.get("aliases", [])
        if not isinstance(spellings, list) or not all(isinstance(a, str) for a in spellings):
            raise BadRequest(
                f"'aliases' in hardware file '{path}' is {shown(spellings)}; it must be a list of "
                f"names"
            )
        base = own.pop("base", own["id"])
        chip_id = aliases().get(own["id"].lower(), own["id"])
        if not isinstance(base, str):
            raise BadRequest(
                f"'base' in hardware file '{path}' is {shown(base)}; it must be a chip's name"
            )
        known = base in records or base.lower() in aliases()
        if not known and base != own["id"]:
            raise unknown(f"base in hardware file '{path}'", base, aliases(), REMEDY)
        start: Mapping[str, Any] = {}
        if base in records:
            start = records[base]
        elif known:
            start = _read(resolve_chip(base))
        own = _cited(own, path)
        if "generation" in own:  # written as the catalogue's files are
            own = _with_generation(own, start)
        merged = _with_usable(start, _merged(start, own))
        _check_file_network(own, start, path)
        numbers = {key: value for key, value in merged.items() if key not in NAMES}
        names = {key: own[key] for key in NAMES if key in own}
        records[chip_id] = {**numbers, **own_names(chip_id), **names, "id": chip_id}
    return records


def _check_file_network(own: Mapping[str, Any], base: Mapping[str, Any], path: str) -> None:
    """A file that changes links of its base must say what the chip injects, which is priced."""
    network, old = own.get("network"), base.get("network")
    if not isinstance(network, Mapping) or not old or "chip_oneway" in network:
        return
    for key in network:
        _check_priced({**old, **network}, key, f"'network.{key}' in hardware file '{path}'")


def _load_file(path: Path) -> dict[str, Any]:
    read = read_yaml if path.suffix.lower() in (".yaml", ".yml", ".json") else read_toml
    record = read(path, "hardware file", remedy="`shardwise calibrate -o FILE` writes one")
    if not isinstance(record, dict):
        raise BadRequest(f"hardware file '{path}' must hold one table of a chip's fields")
    return record


def _cited(record: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The user's bare numbers as entries whose source is the user's file."""

    def cite(value: Any) -> Any:
        return value if isinstance(value, Mapping) else {"value": value, "source": path}

    out: dict[str, Any] = {}
    for key, value in record.items():
        if key in FIELDS:
            out[key] = cite(value)
        elif key in TABLES and key not in ("sources", "prices") and isinstance(value, Mapping):
            out[key] = {k: v if k in ("kind", "levels") else cite(v) for k, v in value.items()}
        else:
            out[key] = value
    return out


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, table by table; a network of another kind replaces the whole table."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        out[key] = value
        if key in TABLES and isinstance(old, Mapping) and isinstance(value, Mapping):
            same_kind = value.get("kind", old.get("kind")) == old.get("kind")
            out[key] = {**old, **value} if same_kind else value
    return out


def _with_override(record: Mapping[str, Any], text: str) -> dict[str, Any]:
    path, value = _path_value(text)
    keys = path.split(".")
    entry = {"value": value, "source": f"--set {text.partition('=')[0].strip()}"}
    top = [*FIELDS, *(t for t in TABLES if t not in ("sources", "prices"))]
    check_known("chip field", keys[0], top, "`shardwise hw show --json` lists the paths")
    if keys[0] in FIELDS and len(keys) == 1:
        return {**record, keys[0]: entry}
    if keys[:2] in (["network", "kind"], ["network", "levels"]):
        raise BadRequest(f"--set '{text}': '{path}' can be changed in a --hw file only")
    if keys[0] in FIELDS or len(keys) != 2:
        raise BadRequest(
            f"--set '{text}': '{path}' is not a number of a chip; see `shardwise hw show`"
        )
    if keys[0] == "network":
        _check_priced(record.get("network"), keys[1], f"--set '{text}'")
    return {**record, keys[0]: {**record.get(keys[0], {}), keys[1]: entry}}


def _path_value(text: str) -> tuple[str, str]:
    """The path below a chip, and its value, of one --set."""
    path, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise BadRequest(
            f"--set {shown(text)} is not PATH=VALUE; write it like chip.hbm_bandwidth=3e12"
        )
    return path.strip().removeprefix("chip."), value.strip()


_SHOWN_ONLY: Mapping[str, tuple[str, ...]] = {"switched": ("link_oneway", "links_per_chip")}
"""Numbers of a kind of network that are shown and not priced: what a chip injects is."""


def _check_priced(network: Any, key: str, text: str) -> None:
    """Refuse a changed number of a network from which no time follows."""
    kind = network.get("kind") if isinstance(network, Mapping) else None
    if key in _SHOWN_ONLY.get(str(kind), ()):
        raise BadRequest(
            f"{text} would change no time: a switched chip is priced by its total injection "
            "bandwidth; give network.chip_oneway in bytes/s (--set chip.network.chip_oneway=NUMBER)"
        )


def _with_usable(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A new nominal memory without a new usable one: the usable share of it stays what it was."""
    sizes = ("hbm_bytes", "hbm_usable_bytes")
    changed = [before.get(name) != after.get(name) for name in sizes]
    if changed != [True, False] or not all(name in before for name in sizes):
        return dict(after)
    old, new = chip_of(before, "vendor"), chip_of(after, "vendor")
    share = old.require("hbm_usable_bytes") / old.require("hbm_bytes")
    entry = {
        "value": share * new.require("hbm_bytes"),
        "source": "the usable share of the catalogue's chip, of the given hbm_bytes",
    }
    return {**after, "hbm_usable_bytes": entry}


def _own_price(named: str, chip_id: str, usd: float, files: Mapping[str, Any]) -> float:
    """The dollars of --price; those of another chip are refused, as they would change nothing."""
    other = resolve_chip(named, extra=files)
    if other == chip_id:
        return usd
    asked = f"'{named}'" if named == other else f"'{named}' ({other})"
    raise BadRequest(
        f"--price {named}={usd:g} is for chip {asked}, but the chip here is '{chip_id}', so it "
        f"would have no effect; write --price {chip_id}=USD, or leave it out"
    )


def _with_price(record: Mapping[str, Any], usd: float) -> dict[str, Any]:
    price = price_override(usd, f"price of chip '{record['id']}'")
    entry = {field: getattr(price, field) for field in price.__dataclass_fields__}
    return {**record, "prices": {"price": entry}}
