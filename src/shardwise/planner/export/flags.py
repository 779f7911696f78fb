"""Flags of an exported command: the words of a text, and the values that flags stand for."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.errors import BadRequest
from shardwise.planner.export.notes import meant, number
from shardwise.planner.export.script import Launch, launch_of


@dataclass(frozen=True, slots=True)
class Flags:
    """Values by flag, "" for a switch, and the target whose errors name them; `unset` are names of
    the values that a script leaves to its caller, which stand as $NAME."""

    target: str
    given: Mapping[str, str]
    unset: tuple[str, ...] = ()

    def __contains__(self, flag: str) -> bool:
        return flag in self.given

    def get(self, flag: str, default: str = "") -> str:
        """The text of a flag; BadRequest where it is a variable that the text does not set."""
        value = self.given.get(flag, default)
        if name := next((name for name in self.unset if f"${name}" in value), ""):
            plain = re.fullmatch(r"[A-Za-z_]\w*", name) is not None
            remedy = (
                f"add a line {name}=VALUE above it" if plain else "write its value in its place"
            )
            if name.isdigit():  # an argument of the script
                remedy = f"{remedy}, or ask `shardwise check` with --given {name}=VALUE"
            raise BadRequest(
                f"{self.target}: {flag} is ${name}, which the script does not set; {remedy}"
            )
        return value

    def word(self, flag: str, words: Mapping[Any, str], default: str = "") -> Any:
        """What a flag's word stands for; BadRequest where it is none of `words`."""
        return meant(self.target, flag, self.get(flag, default), words)

    def number(self, flag: str, default: str = "", kind: type[int] | type[float] = int) -> Any:
        """A flag's number; BadRequest where it is none, or nobody gives it."""
        if flag not in self and not default:
            raise BadRequest(f"{self.target}: {flag} is missing; give it")
        return number(self.target, flag, self.get(flag, default), kind)

    def count(self, flag: str, default: str = "", rule: str = "write a whole number from 1") -> int:
        """A flag's number, 1 or more; BadRequest says the `rule` where it is less."""
        value = self.number(flag, default)
        if value < 1:
            raise BadRequest(f"{self.target}: {flag} is {value}; {rule}")
        return value


def arguments_of(target: str, text: str) -> list[str]:
    """The arguments of the program that a script starts, as its shell makes them; of a text that
    starts none, its words. Comments are left out."""
    launch = launched(target, text)
    return list(launch.arguments) if launch else words_of(target, text)


def launched(target: str, text: str) -> Launch | None:
    """The program that a script starts, or None; BadRequest where it is not as bash writes it."""
    try:
        return launch_of(text)
    except BadRequest as error:
        raise BadRequest(f"{target}: {error}") from None


def unset_in(text: str) -> tuple[str, ...]:
    """Names of what a script leaves to its caller; none of a text that is not a script."""
    try:
        launch = launch_of(text)
    except BadRequest:
        return ()
    return launch.unset if launch else ()


def processes_of(text: str) -> int | None:
    """How many processes a script starts; None where it does not say it in numbers."""
    try:
        launch = launch_of(text)
    except BadRequest:
        return None
    if launch is None or not launch.each.isdigit() or not (launch.nodes or "1").isdigit():
        return None
    return int(launch.nodes or "1") * int(launch.each)


def words_of(target: str, text: str) -> list[str]:
    """The words of a text, comment lines left out, as a shell splits them."""
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    try:
        return shlex.split(lines.replace("\\\n", " "))
    except ValueError as error:
        raise BadRequest(f"{target}: the command cannot be split into words: {error}") from None
