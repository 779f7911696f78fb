"""Flags of an exported command: the words of a text, and the values that flags stand for."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.errors import BadRequest
from shardwise.planner.export.notes import meant, number


@dataclass(frozen=True, slots=True)
class Flags:
    """Values by flag, "" for a switch, and the target whose errors name them."""

    target: str
    given: Mapping[str, str]

    def __contains__(self, flag: str) -> bool:
        return flag in self.given

    def get(self, flag: str, default: str = "") -> str:
        """The text of a flag."""
        return self.given.get(flag, default)

    def word(self, flag: str, words: Mapping[Any, str], default: str = "") -> Any:
        """What a flag's word stands for; BadRequest where it is none of `words`."""
        return meant(self.target, flag, self.get(flag, default), words)

    def number(self, flag: str, default: str = "", kind: type[int] | type[float] = int) -> Any:
        """A flag's number; BadRequest where it is none."""
        return number(self.target, flag, self.get(flag, default), kind)

    def count(self, flag: str, default: str = "", rule: str = "write a whole number from 1") -> int:
        """A flag's number, 1 or more; BadRequest says the `rule` where it is less."""
        value = self.number(flag, default)
        if value < 1:
            raise BadRequest(f"{self.target}: {flag} is {value}; {rule}")
        return value


def words_of(target: str, text: str) -> list[str]:
    """The words of a script of one command, comment lines left out, as a shell splits them."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    try:
        return shlex.split(lines.replace("\\\n", " "))
    except ValueError as error:
        raise BadRequest(f"{target}: the command cannot be split into words: {error}") from None
