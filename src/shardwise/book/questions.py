"""The book's numbers as data, each answered live by public rules: `book_answer("5.3.3.limit")`.

`data/entries/` has one file per chapter. An entry says what is asked in our own words, its inputs
with their units, the steps to its answer, and what the book prints. A step is a name, a rule of
`registry.py` and its arguments; an argument is a value, "$NAME" for an input or an earlier step, or
"$NAME.PART" for a field, a key or a place of one. Nothing in the data is run as code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardwise.book.registry import rule
from shardwise.book.seed import CONSTANTS, book_chip, book_slice, seed_numbers
from shardwise.boundary import read_json
from shardwise.boundary.records import Record, hidden
from shardwise.errors import BadRequest, check_known, entry_of, shown, unknown
from shardwise.hardware import Chip, Slice

ENTRIES = Path(__file__).parent / "data" / "entries"
EDITIONS = ("latest", "first")
Edition = Literal["latest", "first"]


InputValue = float | str | Sequence[float | Sequence[float]]
"""A number, a name, or numbers."""
Known = Mapping[str, object]
"""Values of inputs and steps by name: numbers, chips, slices, and what rules give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input(Record):
    """A value of an entry with its unit; `constant` is the chip's number that it is, if one."""

    name: str
    """Its name."""
    value: Any
    """A number, numbers, or a name."""
    unit: str
    """Its unit; of a name what it names."""
    constant: str = hidden("")

    @property
    def numeric(self) -> bool:
        """Whether it is a number or a list of them."""
        return _numeric(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class BookStep:
    """One call of a rule."""

    name: str
    rule: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BookEntry:
    """One number, or a few, of the book: what is asked, how it is answered, what is printed.

    `correct` is the answer worked out independently, `book` what the latest edition prints and
    `first` what the first did, None where it prints none; `tolerance` is relative. `note` says why
    the book's value differs.
    """

    id: str
    chapter: str
    kind: str
    asks: str
    source: str
    inputs: Mapping[str, Input]
    steps: Sequence[BookStep]
    answer: Sequence[str]
    unit: str | Sequence[str]
    correct: Any
    book: Any
    first: Any
    first_inputs: Mapping[str, Any]
    first_tolerance: float
    constants: str
    tolerance: float
    abs_tol: float
    status: str
    note: str

    def printed(self, edition: Edition = "latest") -> Any:
        """What an edition prints; the first edition's value only where the latest changed it."""
        return self.first if edition == "first" and self.first is not None else self.book

    @property
    def can_be_asked(self) -> bool:
        """Whether a person can work it out: not what was measured, nor an error of rounding."""
        return self.kind != "measured" and not self.abs_tol

    def constants_of(self, edition: Edition = "latest") -> str:
        """Whose numbers an edition takes: the first edition's own only where its value is another,
        as it has two for v5e's memory (errata 0.3)."""
        return "seed" if edition == "first" and self.first is not None else self.constants

    def rounding(self, edition: Edition = "latest") -> float:
        """How far an edition's value may lie off by its rounding, relative."""
        return self.tolerance if edition == "latest" else self.first_tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """A step that was worked out: its arguments as plain values, and what it gave."""

    step: BookStep
    given: Mapping[str, Any]
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BookAnswer:
    """An entry's answer for its inputs, or for others.

    `value` is one number or a list of them in the order of the entry's units.
    """

    entry: BookEntry
    edition: Edition
    constants: str
    inputs: Mapping[str, Input]
    steps: Sequence[Worked]
    value: Any
    changed: Sequence[str] = field(default_factory=tuple)

    @property
    def values(self) -> list[float]:
        """The numbers, of one too."""
        return self.value if isinstance(self.value, list) else [self.value]

    def python(self) -> str:
        """The Python that gives the answer: one line per input and step."""
        return "\n".join(_snippet(self))


@cache
def entries() -> Mapping[str, BookEntry]:
    """All entries by id, in the order of the book."""
    order = [f"ch{n}" for n in range(1, 13)] + ["deck", "notes"]
    found = [
        _entry(record, name.removeprefix("ch"))
        for name in order
        if (ENTRIES / f"{name}.json").exists()
        for record in read_json(ENTRIES / f"{name}.json", "the book's entries")
    ]
    return {entry.id: entry for entry in found}


def entry(entry_id: str) -> BookEntry:
    """One entry; BadRequest names the parts of a question that has several, and the nearest ids
    for a typo."""
    parts = [name for name in entries() if name.startswith(f"{entry_id}.")]
    if parts and entry_id not in entries():
        raise BadRequest(
            f"question '{entry_id}' of the book has parts; ask for one of them: {', '.join(parts)}"
        )
    return entry_of("entry of the book", entry_id, entries(), "`shardwise book list` shows all")


def book_answer(
    entry_id: str,
    *,
    set: Mapping[str, InputValue] | None = None,
    edition: Edition = "latest",
    constants: str | None = None,
) -> BookAnswer:
    """The answer of an entry, live.

    set: other values of its inputs, by name.
    edition: "first" takes the inputs and hardware of the first edition where its value differs.
    constants: "book", "seed" (the first edition's) or "vendor" for its chips and the inputs that
        are theirs; by default the edition's.
    Raises BadRequest for an unknown id, input or edition, for a value of a wrong kind, and where
    the rules refuse the values.
    """
    check_known("edition", edition, EDITIONS)
    asked = entry(entry_id)
    which = constants or asked.constants_of(edition)
    check_known("constants", which, CONSTANTS)
    inputs = _inputs(asked, edition, which, set or {})
    known: dict[str, object] = {
        name: _read(value, which if constants else _own(asked, which))
        for name, value in inputs.items()
    }
    steps = []
    for step in asked.steps:
        given = {name: _resolved(value, known) for name, value in step.arguments.items()}
        known[step.name] = rule(step.rule)(**given)
        steps.append(Worked(step=step, given=given, value=known[step.name]))
    numbers = [n for ref in asked.answer for n in _numbers(_resolved(ref, known))]
    several = isinstance(asked.correct, list)
    if not several and len(numbers) != 1:
        raise BadRequest(f"entry '{entry_id}' asks for one number; give one value per input")
    return BookAnswer(
        entry=asked,
        edition=edition,
        constants=which,
        inputs=inputs,
        steps=steps,
        value=numbers if several else numbers[0],
        changed=tuple(set or {}),
    )


def agrees(got: Any, wanted: Any, tolerance: float, abs_tol: float = 0.0) -> bool:
    """Whether numbers lie within a relative tolerance of those wanted, one by one."""
    gots = got if isinstance(got, list) else [got]
    wants = wanted if isinstance(wanted, list) else [wanted]
    return len(gots) == len(wants) and all(
        abs(g - w) <= max(tolerance * abs(w), abs_tol, 1e-12 * abs(w))
        for g, w in zip(gots, wants, strict=True)
    )


def rounds_to(got: Any, printed: Any) -> bool:
    """Whether numbers are those that are printed, one by one, as far as the digits printed say.

    >>> rounds_to(0.0312, 0.03), rounds_to(7.1e9, 8e9), rounds_to([26.2, 49.2], [26, 56])
    (True, False, False)
    """
    gots = got if isinstance(got, list) else [got]
    prints = printed if isinstance(printed, list) else [printed]
    # An edition may print the first of several numbers alone.
    return all(
        abs(g - p) <= max(_half_digit(p), LEAST_OFF * abs(p))
        for g, p in zip(gots, prints, strict=False)
    )


LEAST_OFF = 1e-3
"""Numbers closer than this are rounding, however many digits are printed."""


def off_by(got: Any, printed: Any) -> float:
    """The largest share by which a printed number misses what it is."""
    gots = got if isinstance(got, list) else [got]
    prints = printed if isinstance(printed, list) else [printed]
    return max(abs(g - p) / abs(g) if g else 1.0 for g, p in zip(gots, prints, strict=False))


def _half_digit(printed: float) -> float:
    """Half a unit of the last digit that a number is printed with, zeros at its end left out."""
    exponent = Decimal(f"{printed:.12g}").normalize().as_tuple().exponent
    return 0.5 * 10.0 ** int(exponent)


def _entry(record: Mapping[str, Any], chapter: str) -> BookEntry:
    first = record.get("first", {})
    inputs = {
        name: Input(name=name, value=row[0], unit=row[1], constant=(*row, "")[2])
        for name, row in record["inputs"].items()
    }
    steps = [BookStep(name=n, rule=r, arguments=a) for n, r, a in record["steps"]]
    same = ("id", "kind", "asks", "source", "answer", "unit", "correct", "book", "tolerance")
    return BookEntry(
        **{name: record[name] for name in same},
        chapter=chapter,
        inputs=inputs,
        steps=steps,
        first=first.get("book"),
        first_inputs=first.get("inputs", {}),
        first_tolerance=first.get("tolerance", record["tolerance"]),
        constants=record.get("constants", "book"),
        abs_tol=record.get("abs_tol", 0.0),
        status=record["status"],
        note=record.get("note", ""),
    )


def _own(asked: BookEntry, which: str) -> str:
    """Vendors' numbers stay where an entry is about them: the first edition changed others."""
    return asked.constants if asked.constants == "vendor" else which


def _inputs(
    asked: BookEntry, edition: str, constants: str, given: Mapping[str, InputValue]
) -> dict[str, Input]:
    for name in given:
        if name not in asked.inputs:
            raise unknown(f"input of '{asked.id}'", name, asked.inputs)
    found = {}
    for name, one in asked.inputs.items():
        value = one.value
        if edition == "first" and name in asked.first_inputs:
            value = asked.first_inputs[name]
        elif one.constant and constants == "seed":
            value = _seed_value(one)
        if name in given:
            value = _same_kind(one, given[name])
        found[name] = Input(name=name, value=value, unit=one.unit, constant=one.constant)
    return found


def _seed_value(one: Input) -> Any:
    chip, _, path = one.constant.partition(".")
    return seed_numbers().get(chip, {}).get(path, one.value)


def _same_kind(one: Input, value: Any) -> Any:
    """A value given in place of an input's: a number for a number, a text for a text."""
    if isinstance(one.value, bool) or not one.numeric:
        if type(value) is not type(one.value):
            raise BadRequest(f"{one.name} is {shown(value)}; it is a {one.unit}, as {one.value!r}")
        return value
    if not _numeric(value):
        raise BadRequest(f"{one.name} is {shown(value)}; it is a number in {one.unit}")
    if isinstance(one.value, list) and not isinstance(value, list):
        return [value]
    return value


def _numeric(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_numeric, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read(one: Input, constants: str) -> Any:
    """An input as its steps take it: a chip or a slice for its name."""
    if one.unit == "chip":
        return book_chip(one.value, constants)
    if one.unit == "slice":
        return book_slice(one.value, constants)
    return one.value


def _resolved(value: Any, known: Known) -> Any:
    if isinstance(value, str) and value.startswith("$"):
        name, *parts = value[1:].split(".")
        found = known[name]
        for part in parts:
            found = _part(found, part)
        return found
    if isinstance(value, list):
        return [_resolved(item, known) for item in value]
    if isinstance(value, Mapping):
        return {key: _resolved(item, known) for key, item in value.items()}
    return value


def _part(whole: Any, part: str) -> Any:
    """A place, a key or a public field of a value. Raises BadRequest for one that is not there."""
    try:
        if part.isdigit():
            return whole[int(part)]
        if isinstance(whole, Mapping):
            return whole[part]
    except (IndexError, KeyError, TypeError):
        raise BadRequest(f"{shown(whole)} has no part '{part}'; give as many values") from None
    assert not part.startswith("_"), part
    return getattr(whole, part)


def _numbers(value: Any) -> list[float]:
    """The numbers of an answer in their order; whole ones as integers."""
    if isinstance(value, np.ndarray | list | tuple):
        return [n for item in value for n in _numbers(item)]
    number = float(value)
    return [int(number) if number.is_integer() and isinstance(value, int) else number]


def _snippet(found: BookAnswer) -> list[str]:
    lines = ["from shardwise.book import book_chip, book_slice, rule", ""]
    for one in found.inputs.values():
        lines.append(f"{one.name} = {_literal(one, found)}")
    known: dict[str, object] = {
        name: _read(one, _own(found.entry, found.constants)) for name, one in found.inputs.items()
    }
    for worked in found.steps:
        given = ", ".join(f"{n}={_written(v, known)}" for n, v in worked.step.arguments.items())
        lines.append(f'{worked.step.name} = rule("{worked.step.rule}")({given})')
        known[worked.step.name] = worked.value
    answers = ", ".join(_written(ref, known) for ref in found.entry.answer)
    return [*lines, f"answer = [{answers}]"]


def _literal(one: Input, found: BookAnswer) -> str:
    reader = {"chip": "book_chip", "slice": "book_slice"}.get(one.unit)
    if reader is None:
        return repr(one.value)
    which = _own(found.entry, found.constants)
    return f"{reader}({one.value!r}, {which!r})"


def _written(value: Any, known: Known) -> str:
    """An argument as Python: a reference becomes the field, key or place that it names."""
    if isinstance(value, str) and value.startswith("$"):
        name, *parts = value[1:].split(".")
        text, whole = name, known[name]
        for part in parts:
            text += _accessor(whole, part)
            whole = _part(whole, part)
        return text
    if isinstance(value, list):
        return f"[{', '.join(_written(item, known) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k!r}: {_written(v, known)}' for k, v in value.items())}}}"
    return repr(value)


def _accessor(whole: Any, part: str) -> str:
    if part.isdigit():
        return f"[{part}]"
    return f"[{part!r}]" if isinstance(whole, Mapping) else f".{part}"


def plain(value: Any) -> Any:
    """A value of a step for a document: numbers, texts, lists; other values by what they are."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Chip):
        return value.id
    if isinstance(value, Slice):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, int | float | str | bool) or value is None:
        return value
    fields = getattr(value, "__dataclass_fields__", None)
    if fields and type(value).__name__ != "ModelConfig":
        return {name: plain(getattr(value, name)) for name in fields}
    return str(getattr(value, "name", value))
