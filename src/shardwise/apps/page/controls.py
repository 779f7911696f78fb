"""Controls as data: what a reader can turn, which values they take, how a URL's words are read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.boundary.numbers import shown
from shardwise.errors import BadRequest, unknown

State = Mapping[str, Any]
"""The value of every control of a view."""
LONGEST = 400
"""Characters of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One thing to turn. `kind` is slider (its `values` are the positions), choice (its `values`
    are the names), number (from `least` to `most`), text or flag. `about` says what it means."""

    name: str
    label: str
    kind: str
    default: Any
    values: tuple[Any, ...] = ()
    least: float = 0.0
    most: float = math.inf
    unit: str = ""
    about: str = ""

    def read(self, word: str) -> Any:
        """The value of a word of the URL. Raises BadRequest that names control, rule and remedy."""
        if self.kind in ("slider", "choice"):
            return self._one_of(word)
        if self.kind == "number":
            return self._number(word)
        if self.kind == "flag":
            return self._flag(word)
        if len(word) > LONGEST:
            raise self._refused(word, f"it has at most {LONGEST} characters; shorten it")
        return word

    def _one_of(self, word: str) -> Any:
        for value in self.values:
            if word == written(value):
                return value
        said = ", ".join(map(written, self.values))
        raise self._refused(word, f"it is one of {said}; choose one of those")

    def _number(self, word: str) -> float | int:
        try:
            value = float(word)
        except ValueError:
            raise self._refused(word, "it is a number; write one such as 4096") from None
        if not self.least <= value <= self.most:
            rule = f"it lies from {written(self.least)} to {written(self.most)}"
            raise self._refused(word, f"{rule}; choose a number there")
        return int(value) if value == int(value) else value

    def _flag(self, word: str) -> bool:
        if word not in ("yes", "no"):
            raise self._refused(word, "it is yes or no; write one of them")
        return word == "yes"

    def _refused(self, word: str, rule: str) -> BadRequest:
        return BadRequest(f"control '{self.name}' is {shown(word)}; {rule}")

    def document(self) -> dict[str, Any]:
        """What the page needs to draw it. Values and default as they stand in a URL."""
        return {
            "name": self.name,
            "label": self.label,
            "kind": self.kind,
            "default": written(self.default),
            "values": [written(value) for value in self.values],
            "unit": self.unit,
            "about": self.about,
        }


def slider(name: str, label: str, values: Sequence[Any], default: Any, **more: Any) -> Control:
    """A control with positions in a row."""
    return Control(
        name=name, label=label, kind="slider", default=default, values=tuple(values), **more
    )


def choice(name: str, label: str, values: Sequence[str], default: str, **more: Any) -> Control:
    """A control with names to choose from."""
    return Control(
        name=name, label=label, kind="choice", default=default, values=tuple(values), **more
    )


def text(name: str, label: str, default: str, **more: Any) -> Control:
    """A control for words."""
    return Control(name=name, label=label, kind="text", default=default, **more)


def number(
    name: str, label: str, default: float, least: float, most: float, **more: Any
) -> Control:
    """A control for any number of a range."""
    return Control(
        name=name, label=label, kind="number", default=default, least=least, most=most, **more
    )


def flag(name: str, label: str, default: bool = False, **more: Any) -> Control:
    """A control that is on or off."""
    return Control(name=name, label=label, kind="flag", default=default, **more)


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


def state_of(controls: Sequence[Control], words: Mapping[str, str]) -> dict[str, Any]:
    """The value of every control: of the URL's words, else its default. Raises BadRequest."""
    known = {control.name: control for control in controls}
    for name in words:
        if name not in known:
            raise unknown("control", name, known)
    return {
        name: control.read(words[name]) if name in words else control.default
        for name, control in known.items()
    }
