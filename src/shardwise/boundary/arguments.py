"""The words of a command line: text in UTF-8, as long as a person or a program writes, and each
thing said once."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from shardwise.errors import BadRequest, shown

T = TypeVar("T")
LONGEST_ARGUMENT = 100_000
"""Characters; notation, --set values and lists of sizes have a few hundred."""


def check_arguments(words: Sequence[str]) -> None:
    """Raise BadRequest for a word with bytes that are no UTF-8 (Python keeps them as halves of
    surrogate pairs, which cannot be printed), with a NUL, or of more than `LONGEST_ARGUMENT`."""
    for word in words:
        if len(word) > LONGEST_ARGUMENT:
            raise BadRequest(
                f"the argument {shown(word)} has {len(word):,} characters, and the limit is "
                f"{LONGEST_ARGUMENT:,}; shorten it"
            )
        if "\0" in word or not (word.isascii() or _is_text(word)):
            raise BadRequest(f"the argument {shown(word)} is not text in UTF-8; rename the file")


def once(pairs: Iterable[tuple[str, T]], flag: str) -> dict[str, T]:
    """Values by name; raises BadRequest for a name that has two different ones.

    >>> once([("h100", 2.5), ("h200", 3.0), ("h100", 2.5)], "--price")
    {'h100': 2.5, 'h200': 3.0}
    """
    found: dict[str, T] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            both = f"{shown(found[name])} and {shown(value)}"
            raise BadRequest(f"{flag} gives '{name}' two values, {both}; leave one of them out")
    return found


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
