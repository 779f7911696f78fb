"""Controls as data: what a reader can turn, which values they take, how a URL's words are read.

The state of a view is a frozen dataclass (`ViewState`); each of its fields is a control. A slider
has positions, and takes every number between its ends as the command line spells it: 240, 4Mi,
1GiB, 500ms; 1024seq of a control that counts in another one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from shardwise.boundary.numbers import shown
from shardwise.boundary.records import Record
from shardwise.errors import BadRequest, ShardwiseError, unknown
from shardwise.units import parse_bytes, parse_count, parse_seconds

_CONTROL = "control"
PASTE = "A name, or a config.json pasted or dropped here."
"""What a control for a model takes."""
MOST_SAID = 20
"""Values of a control up to which an error lists them; of more it names the nearest."""
LONGEST, LONGEST_NAME = 400, 4100
"""Characters of a text, and of a model that is written out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownControl(Record):
    """What the page needs to draw a control. Values and default as they stand in a URL."""

    name: str
    label: str
    kind: str
    default: str
    values: Sequence[str]
    words: Sequence[str]
    under: Sequence[str]
    free: bool
    unit: str
    about: str
    group: str
    counts: str
    gives: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One thing to turn. `kind` is slider (its `values` are the positions), choice (its `values`
    are the names), name (a word, of which `values` are those known: a model), text, entry (a text
    that counts once it is entered) or flag. `about` says what it means, `name` is that of its
    field, and controls of one `group` fold together. Where it `counts` another control, a word
    such as 1024seq is so many times the value of that, whose name is `seq`. What it names may be
    given in the page where it `gives` a "file" or a "folder" (`given.py`). Of a choice `words` say
    what each value means, and `under` which heading it stands below."""

    name: str = ""
    label: str
    kind: str
    default: Any
    values: tuple[Any, ...] = ()
    words: tuple[str, ...] = ()
    under: tuple[str, ...] = ()
    unit: str = ""
    about: str = ""
    group: str = ""
    counts: str = ""
    gives: str = ""

    def counted(self, word: str, words: Mapping[str, str], usual: Any) -> str:
        """A word that counts another control as a number: 4seq where seq is 4096 as 16384."""
        if not self.counts or not word.strip().endswith(self.counts):
            return word
        try:
            each = parse_count(words.get(self.counts, written(usual)))
            return written(parse_count(word.strip().removesuffix(self.counts)) * each)
        except ShardwiseError:
            return word

    def read(self, word: str) -> Any:
        """The value of a word of the URL. Raises BadRequest that names control, rule and remedy."""
        if self.kind in ("slider", "choice"):
            return self._one_of(word)
        if self.kind == "flag":
            return self._flag(word)
        most = LONGEST_NAME if self.kind == "name" and "(" in word[:80] else LONGEST
        if len(word) > most:
            raise self._refused(word, f"it has at most {most} characters; shorten it")
        return word

    @property
    def free(self) -> bool:
        """Whether it is a slider of numbers, which takes those between its positions too."""
        numbers = all(type(value) in (int, float) for value in self.values)
        return self.kind == "slider" and numbers and len(self.values) > 1

    def _one_of(self, word: str) -> Any:
        for value in self.values:
            if word == written(value):
                return value
        if self.free:
            return self._between(word)
        names = [written(value) for value in self.values]
        if len(names) > MOST_SAID:
            raise self._refused(word, _one_of_many(word, names))
        said = ", ".join(names)
        raise self._refused(word, f"it is one of {said}; choose one of those")

    def _between(self, word: str) -> float | int:
        """A number between the ends; whole where all positions are."""
        least, most = min(self.values), max(self.values)
        rule = f"it is a number from {written(least)} to {written(most)}; write one such as"
        try:
            value = _sized(word, self.unit)
        except ShardwiseError:
            raise self._refused(word, f"{rule} {written(self.default)}") from None
        whole = all(type(one) is int for one in self.values)
        if not least <= value <= most or (whole and value != int(value)):
            raise self._refused(word, f"{rule} {written(self.default)}")
        return int(value) if whole else value

    def _flag(self, word: str) -> bool:
        if word not in ("yes", "no"):
            raise self._refused(word, "it is yes or no; write one of them")
        return word == "yes"

    def _refused(self, word: str, rule: str) -> BadRequest:
        return BadRequest(f"control '{self.name}' is {shown(word)}; {rule}")

    def shown(self) -> ShownControl:
        """What the page needs to draw it."""
        values = [written(value) for value in self.values]
        return ShownControl.part_of(self, default=written(self.default), values=values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """The value of every control of a view; each field is one (`slider`, `choice` and the like)."""


S = TypeVar("S", bound=ViewState)


def controls_of(state: type[ViewState]) -> tuple[Control, ...]:
    """The controls, in the order in which they are drawn."""
    return tuple(replace(one.metadata[_CONTROL], name=one.name) for one in fields(state))


def state_of(kind: type[S], words: Mapping[str, str]) -> S:
    """The state that the words of a URL say, with defaults for the others. Raises BadRequest."""
    known = {control.name: control for control in controls_of(kind)}
    for name in words:
        if name not in known:
            raise unknown("control", name, known)
    read = {}
    for name, word in words.items():
        control = known[name]
        usual = known[control.counts].default if control.counts else None
        read[name] = control.read(control.counted(word, words, usual))
    return kind(**read)


def words_of(state: ViewState) -> dict[str, str]:
    """Every value as it stands in a URL."""
    return {one.name: written(getattr(state, one.name)) for one in fields(state)}


def slider(label: str, values: Sequence[Any], default: Any, **more: Any) -> Any:
    """A control with positions in a row."""
    return _field("slider", label, default, values=tuple(values), **more)


def choice(label: str, values: Sequence[str], default: str, **more: Any) -> Any:
    """A control with names to choose from; `words` and `under` are as long as its values."""
    return _field("choice", label, default, values=tuple(values), **more)


def known(label: str, names: Sequence[str], default: str, **more: Any) -> Any:
    """A control for a name, of which some are known."""
    return _field("name", label, default, values=tuple(names), **more)


def entry(label: str, default: str = "", **more: Any) -> Any:
    """A control for words that count once they are entered."""
    return _field("entry", label, default, **more)


def text(label: str, default: str = "", **more: Any) -> Any:
    """A control for words."""
    return _field("text", label, default, **more)


def flag(label: str, default: bool = False, **more: Any) -> Any:
    """A control that is on or off."""
    return _field("flag", label, default, **more)


def _one_of_many(word: str, names: Sequence[str]) -> str:
    """The rule of a long list, and the nearest that are in it."""
    near = get_close_matches(word, names, n=3, cutoff=0.55)
    if not near:
        return f"it is one of {len(names)} names; choose one in the control's list"
    return f"it is one of {len(names)} names, nearest {', '.join(near)}; choose one of those"


def _sized(word: str, unit: str) -> float:
    """A number in a unit, alone or with the unit that the command line takes; 8,960 as the page
    writes it."""
    if re.fullmatch(r"\d{1,3}(,\d{3})+", word.strip()):
        word = word.replace(",", "")
    if re.fullmatch(r"[\d.,e+]+", word.strip()):
        return parse_count(word)
    if unit in ("bytes", "bytes/s"):
        size = word.strip().removesuffix("/s") if unit == "bytes/s" else word.strip()
        return parse_bytes(size) if size.endswith("B") else parse_count(size)
    if unit in _SECONDS_OF:
        return parse_seconds(word) / _SECONDS_OF[unit]
    return parse_count(word)


_SECONDS_OF = {"s": 1.0, "ms": 1e-3}
"""Seconds of a unit of time."""


def _field(kind: str, label: str, default: Any, **more: Any) -> Any:
    control = Control(kind=kind, label=label, default=default, **more)
    return field(default=default, metadata={_CONTROL: control})


def powers(first: int, last: int) -> tuple[int, ...]:
    """Powers of two from 2^first to 2^last."""
    return tuple(1 << k for k in range(first, last + 1))


def written(value: Any) -> str:
    """A value as it stands in a URL."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value)
