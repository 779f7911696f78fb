"""One exception tree. Each class is one exit code of the command line.

A message names the thing, its value, the rule and the remedy. `assert` is for our own mistakes.
"""

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
ELSEWHERE = Path(__file__).with_name("elsewhere.toml")
"""What other programs call things."""
LONGEST = 40
"""Digits and signs of a number that is read; Python refuses integers of over 4,300 with a traceback
and floats have 17."""


class ShardwiseError(Exception):
    """Something failed while running. Exit code 1."""

    exit_code = 1


class BadRequest(ShardwiseError):
    """The request cannot be answered as asked. Exit code 2."""

    exit_code = 2


class WrongField(BadRequest):
    """A field of a request has a value that its rule forbids: `thing`, `value`, `rule`; `field` is
    its name where the thing is a part of it."""

    def __init__(self, thing: str, value: object, rule: str, *, field: str = "") -> None:
        super().__init__(f"{thing} is {value}; {rule}")
        self.thing, self.value, self.rule = thing, value, rule
        self.field = field or thing


class Lacking(BadRequest):
    """A text leaves out what an option gives: `lacks` says what is missing, `remedy` what to do,
    `gives` is the option, `example` a value that it may have, "" where none is nearer than
    others."""

    def __init__(self, lacks: str, remedy: str, gives: "Gives", example: str = "") -> None:
        super().__init__(f"{lacks}; {remedy}")
        self.lacks, self.remedy, self.gives, self.example = lacks, remedy, gives, example


class Gives(Enum):
    """What an option adds to another program's text."""

    SLICE = "--on"
    MODEL = "--model"


class NoFeasiblePlan(ShardwiseError):
    """No plan satisfies the request; the message gives the nearest miss. Exit code 3."""

    exit_code = 3


class ThresholdMissed(ShardwiseError):
    """A threshold given with --check was missed. Exit code 4."""

    exit_code = 4


class MissingPart(ShardwiseError):
    """An optional part or device is missing; the message gives the install command. Exit code 5."""

    exit_code = 5


class Remark(str):
    """A line below an answer that is worth knowing and makes nothing in it wrong or unwise; a line
    that is no Remark is a warning."""


class Caution(str):
    """A line of progress that warns."""


def shown(value: object, longest: int = 60) -> str:
    """A value as a message quotes it: on one line, printable, and not longer than `longest`.

    >>> shown("v5e"), shown("a\\nb"), shown(2.5)
    ("'v5e'", "'a\\\\nb'", '2.5')
    """
    value, _ = _beginning(value, longest)
    text = f"'{value}'" if isinstance(value, str) else _written(value)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= longest else f"{text[: longest - 4]}...{text[-1]}"


def _beginning(value: Any, room: int) -> tuple[Any, int]:
    """As much of a value as `room` characters show, and the room that is left: what is large costs
    no more to quote than what is small."""
    if isinstance(value, str | bytes):
        return value[: room + 1], room - len(value)
    if not isinstance(value, list | dict):
        return value, room - 1
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for name, one in pairs:
        if room < 0:
            break
        part, room = _beginning(one, room - 1)
        found.append((_beginning(name, room)[0], part))
    return (dict(found) if isinstance(value, dict) else [part for _, part in found]), room


def _written(value: object) -> str:
    # Python refuses to write integers of over 4,300 digits.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**LONGEST:
        return f"a number of over {LONGEST} digits"
    try:
        return repr(value)
    except ValueError:  # such an integer within a list
        return f"of type {type(value).__name__}"


def called_here(word: str, known: Collection[str]) -> str | None:
    """The word of a set for what other programs call so; None where none is known.

    >>> called_here("selective", ["none", "block", "matmul_outputs"])
    'matmul_outputs'
    """
    bare = "".join(c for c in word.lower() if c.isalnum())
    return next(
        (name for name, words in _elsewhere().items() if bare in words and name in known), None
    )


@cache
def _elsewhere() -> Mapping[str, Collection[str]]:
    import tomllib  # here: only an error needs it

    return tomllib.loads(ELSEWHERE.read_text(encoding="utf-8"))


def unknown(kind: str, name: str, known: Iterable[str], remedy: str = "") -> BadRequest:
    """The error for a name that is not in a closed set, with the nearest spellings.

    >>> str(unknown("chip", "v5q", ["v5p", "v5e"], "list them with `shardwise hw list`"))
    "unknown chip 'v5q'; did you mean 'v5p' or 'v5e'? (list them with `shardwise hw list`)"

    A word that other programs have for one of the set is answered with the one here.

    >>> str(unknown("mesh axis", "tp", ["data", "tensor"]))
    "unknown mesh axis 'tp'; shardwise calls it 'tensor'"
    """
    names = list(known)
    near = get_close_matches(name, names, n=3, cutoff=0.55)
    here = called_here(name, names)
    if here:
        hint = f"shardwise calls it '{here}'"
    elif near:
        hint = "did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
    elif len(names) <= 12:
        hint = "known: " + ", ".join(names)
    else:
        hint = "no known name is similar"
    return BadRequest(f"unknown {kind} {shown(name)}; {hint}" + (f" ({remedy})" if remedy else ""))


def check_known(kind: str, name: str, known: Collection[str], remedy: str = "") -> None:
    """Raise the error of `unknown` for a name that is not in a closed set."""
    if name not in known:
        raise unknown(kind, name, known, remedy)


def entry_of(kind: str, name: str, table: Mapping[str, T], remedy: str = "") -> T:
    """What a table has under a name; the error of `unknown` for a name that it lacks.

    >>> entry_of("chip", "v5e", {"v5e": 16})
    16
    """
    check_known(kind, name, table, remedy)
    return table[name]
