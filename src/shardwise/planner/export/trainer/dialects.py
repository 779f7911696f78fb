"""Programs that train as transformers' Trainer does, by keys of their own: LLaMA-Factory, ms-swift,
torchtune and others are rows of `dialects.toml` in `plans/data/software`, which says what each of
their keys is called here."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import shardwise.plans.software
from shardwise.boundary import read_toml

_FILE = Path(shardwise.plans.software.__file__).parents[1] / "data" / "software" / "dialects.toml"
_SCRIPTS = "scripts"
"""The row of what people's own scripts call their keys, where no program's row is meant."""
_LEAST = 2
"""Keys of a program's own that a text has if it is for it."""
_ITSELF = "$"
"""In a row the value as it stands in the text."""
_RECKONED = re.compile(r"\$((?:[*/][\w.]+)+)")
"""In a row that value times, or over, numbers and other keys of the text."""
CANNOT = "cannot"
"""What a row says of a word that decides how a step runs, and that no plan says."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A program's keys: `names` of keys and `values` of their words in the Trainer's."""

    name: str
    title: str
    source: str
    programs: tuple[str, ...]
    marks: tuple[str, ...]
    idle: str
    names: Mapping[str, str]
    values: Mapping[str, Mapping[str, Mapping[str, Any]]]
    defaults: Mapping[str, Any]
    open_length: bool = False
    closed: bool = False

    def is_idle(self, key: str) -> bool:
        """Whether a key says nothing of a plan."""
        return bool(self.idle) and re.match(self.idle, key) is not None

    def stands_for(
        self, key: str, value: Any, values: Mapping[str, Any] = MappingProxyType({})
    ) -> Mapping[str, Any] | None:
        """The Trainer's keys that a word stands for beside the other `values` of its text; None
        where no row says it."""
        word = str(value).lower() if isinstance(value, bool) else str(value)
        rows = self.values.get(key, {})
        found = next((row for like, row in rows.items() if fnmatchcase(word, like)), None)
        if found is None:
            return None
        try:
            return {name: _told(told, value, values) for name, told in found.items()}
        except (ValueError, ZeroDivisionError):  # no number
            return {CANNOT: value}

    def words_of(self, key: str) -> str:
        """The words of a key that a plan says."""
        words = (like for like, row in self.values[key].items() if CANNOT not in row)
        return " or ".join("a number" if word == "*" else word for word in words) or "a number"


def _told(told: Any, value: Any, values: Mapping[str, Any]) -> Any:
    """What a row says, for the value in the text.

    >>> _told("$*model.width/2", 4, {"model.width": 128}), _told("$", "bf16", {})
    (256, 'bf16')
    """
    if told == _ITSELF:
        return value
    found = _RECKONED.fullmatch(told) if isinstance(told, str) else None
    if found is None:
        return told
    reckoned = Fraction(str(value))
    for sign, name in re.findall(r"([*/])([\w.]+)", found[1]):
        factor = Fraction(str(values.get(name, name)))
        reckoned = reckoned * factor if sign == "*" else reckoned / factor
    return int(reckoned) if reckoned.denominator == 1 else float(reckoned)


@dataclass(frozen=True, slots=True)
class Translation:
    """The Trainer's keys that a text comes to; `spelt` is which of the text's own says each, and
    `silent` are those that say nothing of a plan."""

    dialect: Dialect
    values: dict[str, Any] = field(default_factory=dict)
    spelt: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)

    def say(self, own: str, key: str, value: Any) -> None:
        """Lists of one key are joined, as a program may have a switch for each of their words; of
        two keys that say one the last counts, and the other is without effect."""
        before = self.values.get(key)
        if isinstance(before, list) and isinstance(value, list):
            value = [*before, *value]
        elif self.spelt.get(key, own) != own and before != value:
            self.silent.add(self.spelt[key])
        self.values[key] = value
        self.spelt[key] = own


@cache
def dialects() -> Mapping[str, Dialect]:
    """The rows by name."""
    table = read_toml(_FILE, "the keys of programs like transformers' Trainer")
    return {
        name: Dialect(
            name=name,
            title=row["title"],
            source=row["source"],
            programs=tuple(row["programs"]),
            marks=tuple(row["marks"]),
            idle=row["idle"],
            names=row["names"],
            values=row.get("values", {}),
            defaults=row["defaults"],
            open_length=row.get("open_length", False),
            closed=row.get("closed", False),
        )
        for name, row in table.items()
    }


def dialect_of(keys: Collection[str], words: Collection[str]) -> Dialect | None:
    """The program that a text with such `keys` is for, or that a launch line starts, whose path has
    the `words`; None for none of the rows."""
    rows = [row for row in dialects().values() if row.name != _SCRIPTS]
    started = [row for row in rows if set(row.programs) & set(words)]
    marked = [row for row in rows if len(set(row.marks) & set(keys)) >= _LEAST]
    best = sorted(marked, key=lambda row: -len(set(row.marks) & set(keys)))
    return next(iter([*started, *best]), None)


def translated(values: Mapping[str, Any], dialect: Dialect | None) -> Translation:
    """A text's keys as the Trainer's; without a program's row by what scripts call them."""
    row = dialect or dialects()[_SCRIPTS]
    done = Translation(row)
    for own, value in values.items():
        if own not in row.values or row.stands_for(own, value, values) is None:
            _renamed(done, own, value, values)
    for own in row.values:
        stands = row.stands_for(own, values[own], values) if own in values else None
        if stands is None:
            continue
        if not stands:
            done.silent.add(own)
        for key, value in stands.items():
            done.say(own, key, value)
    return done


def _renamed(done: Translation, own: str, value: Any, values: Mapping[str, Any]) -> None:
    """A key without a row of its words, under its Trainer's name unless the text has that, too."""
    name = done.dialect.names.get(own, own)
    if not name or (done.dialect.name != _SCRIPTS and name == own and done.dialect.is_idle(own)):
        done.silent.add(own)
    elif name != own and name in values and name not in done.dialect.names:
        done.values[own] = value
    else:
        done.say(own, name, value)


def spellings(dialect: Dialect, key: str, value: str | None) -> Iterator[tuple[str, str | None]]:
    """The program's keys that say a Trainer's, each with its word for a value (None: left out); an
    end that several words have is none."""
    for own, rows in dialect.values.items():
        for like, stands in rows.items():
            if like[0] == "*" and len(like) > 1:
                continue
            told = stands.get(key)
            if value is None and told is not None:
                yield own, None
            elif len(stands) == 1 and told == _ITSELF:
                yield own, value
            elif len(stands) == 1 and str(told).lower() == value:
                yield own, like.strip("*")
    yield from ((own, value) for own, name in dialect.names.items() if name == key)
