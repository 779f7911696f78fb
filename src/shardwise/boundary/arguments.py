"""The words of a command line: text in UTF-8, as long as a person or a program writes."""

from collections.abc import Sequence

from shardwise.errors import BadRequest, shown

LONGEST_ARGUMENT = 100_000
"""Characters; notation, --set values and lists of sizes have a few hundred."""


def check_arguments(words: Sequence[str]) -> None:
    """Raise BadRequest for a word with bytes that are no UTF-8 (Python keeps them as halves of
    surrogate pairs, which cannot be printed), with a NUL, or of more than `LONGEST_ARGUMENT`."""
    for word in words:
        if len(word) > LONGEST_ARGUMENT:
            raise BadRequest(
                f"the argument {shown(word)} has {len(word):,} characters; "
                f"at most {LONGEST_ARGUMENT:,} are read"
            )
        if "\0" in word or not (word.isascii() or _is_text(word)):
            raise BadRequest(f"the argument {shown(word)} is not text in UTF-8; rename the file")


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True
