"""Reads typed values out of a config.json; every complaint names file, key, value, rule, remedy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from shardwise.errors import BadRequest, shown

LIMITS: Mapping[str, int] = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 65_536,
    "num_key_value_heads": 65_536,
    "vocab_size": 2**27,
    "max_position_embeddings": 2**40,
    "sliding_window": 2**40,
}
"""Largest value believed, by key; other sizes stop at LIMIT. Ten times any model known in 2026."""
LIMIT = 2**24

OUTER_FIRST = frozenset({"tie_word_embeddings"})
"""Keys that the whole model decides, not its text section (which may carry a stale default)."""

CLOSE = 0.9
"""How alike two keys are, one of which is taken for the other misspelt: intermediate_size and
moe_intermediate_size are 0.89."""

_ABSENT: Any = object()
_LEAST = 1e-20
"""The least number of a config; an epsilon has at least 1e-12."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One section of a config.json (`raw`), with the class defaults that fill its gaps.

    A key is looked up under the names that `keys` gives it (dots step into nested sections), first
    in the section, then in `outer` (OUTER_FIRST: the other way), then in `defaults`. An explicit
    null stays null. `defaulted` collects what was filled in, `asked` the names looked up, and
    `missing`, where there is one, the keys that are nowhere: they are read as `stand_in` until
    `lacking` names them all in one complaint.
    """

    file: str
    raw: Mapping[str, Any]
    outer: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    defaults_source: str = ""
    defaulted: dict[str, Any] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    missing: dict[str, str] | None = None
    stand_in: int = 1
    path: str = ""

    def name(self, key: str) -> str:
        """The key as the file spells it."""
        names = self.keys.get(key, (key,))
        spelt = next((n for n in names if _find(self.raw, n) is not _ABSENT), names[0])
        return self.path + spelt

    def error(self, key: str, value: object, rule: str, remedy: str = "") -> BadRequest:
        """The complaint about one value."""
        remedy = remedy or "correct it, or use the config.json published with the model"
        return BadRequest(f"{self.file}: {self.name(key)} is {shown(value)}; {rule}; {remedy}")

    def has(self, key: str) -> bool:
        """Whether the file itself gives the key a value other than null."""
        return self._given(key) not in (_ABSENT, None)

    def get(self, key: str) -> Any:
        """The value, or the class default; raises BadRequest where there is neither."""
        value = self._given(key)
        if value is not _ABSENT:
            return value
        if key not in self.defaults:
            absent = {self.name(key): self.defaults_source}
            if self.missing is None:
                raise self.lacking(absent)
            self.missing.update(absent)
            return self.stand_in
        value = self.defaults[key]
        if value is not None:
            self.defaulted[self.name(key)] = value
        return value

    def lacking(self, missing: Mapping[str, str]) -> BadRequest:
        """The complaint about all keys that are missing, by whose defaults have none."""
        *first, last = missing
        names, source = (", ".join(first) + " and ") * bool(first) + last, missing[last]
        are, defaults, them = ("are", "defaults", "them") if first else ("is", "default", "it")
        return BadRequest(
            f"{self.file}: {names} {are} missing and {'have' if first else 'has'} no {defaults}"
            f" ({source}); add {them}, or use the config.json published with the model"
            f"{self._slips(missing)}"
        )

    def _slips(self, missing: Iterable[str]) -> str:
        """Keys of the section that are nearly spelt as one that is missing."""
        keys = [key for key in self.raw if key not in self.asked]
        found = [(get_close_matches(name, keys, n=1, cutoff=CLOSE), name) for name in missing]
        return "".join(
            f"; if {shown(close[0])} is a typo, correct it to '{name}'"
            for close, name in found
            if close
        )

    def size(self, key: str) -> int:
        """A positive integer."""
        return self._integer(key, self.get(key), low=1)

    def count(self, key: str) -> int:
        """An integer that may be 0; null reads as 0."""
        value = self.get(key)
        return 0 if value is None else self._integer(key, value, low=0)

    def size_or_none(self, key: str) -> int | None:
        """A positive integer, or None where the value is null."""
        value = self.get(key)
        return None if value is None else self._integer(key, value, low=1)

    def number(self, key: str) -> float:
        """A positive number, whose products and inverses are numbers too."""
        value = self.get(key)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not _LEAST <= value < 1e9:
            raise self.error(key, value, f"it must be a positive number, {_LEAST:g} to 1e9")
        return float(value)

    def flag(self, key: str) -> bool:
        """True or false; null reads as false."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, value, "it must be true or false")
        return bool(value)

    def text(self, key: str) -> str:
        """A string; null reads as empty."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, value, "it must be a string")
        return value or ""

    def integers(
        self, key: str, length: int | None = None, longer: bool = False
    ) -> list[int] | None:
        """A list of non-negative integers, or None where the value is null.

        `length` is the number it must have; with `longer` the rest is dropped (the entries of
        multi-token-prediction layers, which are not part of the stack).
        """
        values = self._list(key, length, longer)
        if values is None:
            return None
        return [self._integer(key, v, low=0) for v in values]

    def words(
        self, key: str, known: Mapping[str, str], length: int, longer: bool = False
    ) -> list[str] | None:
        """One word per layer out of `known`, translated by it, or None where it is null."""
        values = self._list(key, length, longer)
        if values is None:
            return None
        for value in values:
            if not isinstance(value, str) or value not in known:
                rule = f"each entry must be one of: {', '.join(known)}"
                raise self.error(key, value, rule)
        return [known[v] for v in values]

    def by_layer(self) -> dict[int, Mapping[str, object]] | None:
        """What `per_layer_config` says of a layer, by its number, or None where it is null."""
        sections = self.get("per_layer_config")
        if sections is None:
            return None
        fits = isinstance(sections, Mapping) and all(
            str(key).isdecimal() and isinstance(value, Mapping) for key, value in sections.items()
        )
        if not fits:
            rule = "it must be an object that has an object by the number of a layer"
            raise self.error("per_layer_config", sections, rule)
        return {int(key): value for key, value in sections.items()}

    def section(self, key: str, defaults: Mapping[str, Any] | None = None) -> "Reader":
        """A nested section as a reader of its own."""
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise self.error(key, value, "it must be an object {...}")
        return self.within(value, f"{self.name(key)}.", defaults or {})

    def within(self, raw: Mapping[str, Any], path: str, defaults: Mapping[str, Any]) -> "Reader":
        """A part of the same file, at a path that ends with a dot, as a reader of its own."""
        return Reader(
            file=self.file,
            raw=raw,
            defaults=defaults,
            defaults_source=self.defaults_source,
            defaulted=self.defaulted,
            missing=self.missing,
            stand_in=self.stand_in,
            path=path,
        )

    def checked(self, key: str, count: int, limit: str) -> int:
        """A count that follows from `key`, within the limit of another key."""
        if not 1 <= count <= LIMITS[limit]:
            raise self.error(key, count, f"it must say 1 to {LIMITS[limit]:,}")
        return count

    def refuse(self, key: str, value: object, why: str) -> None:
        """Raise where the file sets `key` to `value`, an option that is not modelled."""
        if key in self.defaults and self.get(key) == value:
            raise self.error(key, value, why, "this variant of the class is not modelled")

    def _given(self, key: str) -> Any:
        sections = (self.outer, self.raw) if key in OUTER_FIRST else (self.raw, self.outer)
        for section in sections:
            for name in self.keys.get(key, (key,)):
                self.asked.add(name.partition(".")[0])
                value = _find(section, name)
                if value is not _ABSENT:
                    return value
        return _ABSENT

    def _integer(self, key: str, value: object, low: int) -> int:
        high = LIMITS.get(key, LIMIT)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, value, f"it must be an integer from {low} to {high:,}")
        if not low <= value <= high:
            raise self.error(key, value, f"it must lie between {low} and {high:,}")
        return value

    def _list(self, key: str, length: int | None, longer: bool = False) -> list[Any] | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(key, value, "it must be a list with one entry per layer")
        if length is not None and (len(value) < length or (len(value) > length and not longer)):
            rule = f"it has {len(value)} entries for {length} layers"
            raise self.error(key, value, rule, "give one entry per layer")
        return value[:length] if length is not None else value


def _find(section: Mapping[str, Any], name: str) -> Any:
    value: Any = section
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _ABSENT
        value = value[part]
    return value
