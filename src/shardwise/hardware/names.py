"""What chips are called: ids, aliases, Cloud TPU names, generations, other programs' names.

A chip is the file `data/ID.toml`; no list of chips is kept. The first paragraph of a file holds
everything that a name can be looked up by. An id is a file's name, so it is resolved without
opening a file; any other name reads the first paragraphs of all files, once.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

from shardwise.errors import unknown

DATA = Path(__file__).parent / "data"
REMEDY = "list them with `shardwise hw list`, add one with --hw FILE"
NAMES = ("aliases", "cloud", "compiler", "exports", "generation")
"""Entries of the first paragraph that belong to the chip itself: a chip of a --hw file that starts
from it does not take them over."""
VENDORS = ("google", "nvidia", "amd", "aws", "intel")
"""The order of lists; another vendor comes last. A vendor's chips are listed by release."""


def chip_names() -> tuple[str, ...]:
    """The ids of the catalogue by vendor, release and id."""
    return tuple(_heads())


@cache
def aliases() -> Mapping[str, str]:
    """Every accepted spelling in lower case -> canonical id; the ids themselves included."""
    table: dict[str, str] = {}
    for chip_id, head in _heads().items():
        for name in (chip_id, *head.get("aliases", ())):
            assert table.setdefault(name.lower(), chip_id) == chip_id, f"alias '{name}' twice"
    return table


def resolve_chip(name: str, extra: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """The canonical id of a chip name; `extra` holds the chips of --hw files by id.

    >>> resolve_chip("TPU v5 lite"), resolve_chip("ironwood"), resolve_chip("A100 80GB")
    ('v5e', 'tpu7x', 'a100')
    """
    key = name.strip().lower()
    for chip_id, record in (extra or {}).items():
        if name == chip_id or key in (alias.lower() for alias in record.get("aliases", ())):
            return chip_id
    if key in _ids():
        return key
    known, meant = aliases(), _by_squeezed().get(_squeezed(key), ())
    if key not in known and len(meant) != 1:
        raise unknown("chip", name, [*(extra or {}), *_nearest(key)], REMEDY)
    return known.get(key) or next(iter(meant))


def _nearest(name: str) -> Iterable[str]:
    """Of each chip the spelling that is most like a name."""
    likest = sorted(aliases(), key=lambda known: SequenceMatcher(a=known, b=name).ratio())
    return {aliases()[known]: known for known in likest}.values()


@cache
def _by_squeezed() -> Mapping[str, set[str]]:
    """Ids by what is left of their spellings without what people put between words."""
    table: dict[str, set[str]] = defaultdict(set)
    for alias, chip_id in aliases().items():
        table[_squeezed(alias)].add(chip_id)
    return dict(table)


def _squeezed(name: str) -> str:
    """A name without what people put between its words.

    >>> _squeezed("RTX PRO 6000"), _squeezed("h100_sxm-80gb")
    ('rtxpro6000', 'h100sxm80gb')
    """
    return re.sub(r"[-_ ]", "", name.lower())


def own_names(chip_id: str) -> Mapping[str, Any]:
    """The entries of `NAMES` that a chip of the catalogue has; none for another id."""
    head = _heads().get(chip_id, {}) if chip_id in _ids() else {}
    return {key: head[key] for key in NAMES if key in head}


def cloud_names_by_chip() -> Mapping[str, Mapping[str, Any]]:
    """The `cloud` entry of every chip that Cloud offers as a TPU."""
    return {chip: head["cloud"] for chip, head in _heads().items() if "cloud" in head}


def exported(program: str) -> Mapping[str, str]:
    """What another program calls the chips that it knows.

    >>> exported("skypilot")["a100"]
    'A100-80GB'
    """
    names = {chip: head.get("exports", {}).get(program) for chip, head in _heads().items()}
    return {chip: name for chip, name in names.items() if name is not None}


def compiled() -> tuple[str, ...]:
    """The chips that a compiler knows which runs without them."""
    return tuple(chip for chip, head in _heads().items() if "compiler" in head)


def generations() -> Mapping[str, tuple[str, ...]]:
    """The generations that chips name, each with its chips."""
    found: dict[str, list[str]] = defaultdict(list)
    for chip, head in _heads().items():
        found[head["generation"]].append(chip)
    return {name: tuple(chips) for name, chips in found.items()}


@cache
def _ids() -> frozenset[str]:
    return frozenset(path.stem for path in DATA.glob("*.toml"))


@cache
def _heads() -> Mapping[str, Mapping[str, Any]]:
    """The first paragraph of every chip's file, in the order of lists."""
    heads = {}
    for path in DATA.glob("*.toml"):
        head, _, _ = path.read_text(encoding="utf-8").partition("\n\n")
        heads[path.stem] = tomllib.loads(head)
    return dict(sorted(heads.items(), key=lambda item: _place(item[0], item[1])))


def _place(chip_id: str, head: Mapping[str, Any]) -> tuple[int, str, str]:
    vendor = head["vendor"]
    rank = VENDORS.index(vendor) if vendor in VENDORS else len(VENDORS)
    return rank, head["release"], chip_id
