"""Batches and lengths in words: tokens (4Mi) or sequences (512seq) of so many tokens."""

from shardwise.errors import BadRequest
from shardwise.units import parse_count

MOST = 1e12
"""The largest batch in sequences, and the longest sequence, that make sense; both fit an int64."""


def parse_batch(text: str | int, sequence_length: int) -> int:
    """A batch in sequences: `4Mi` or a number counts tokens, `1024seq` (or `seqs`) sequences.

    >>> parse_batch("4Mi", 4096), parse_batch("64seq", 4096), parse_batch("64seqs", 4096)
    (1024, 64, 64)
    """
    text = str(text)
    words = text.strip().lower().removesuffix("s")
    if words.endswith("seq"):
        return whole(parse_count(text.strip()[: len(words) - 3], "batch"), f"batch '{text}'")
    tokens = parse_count(text, "batch", "such as 1024, 4Mi or 16e6, of tokens, or 64seq")
    if tokens < sequence_length:
        many = max(int(tokens), 1)
        raise BadRequest(
            f"batch '{text}' is {tokens:,.0f} tokens, less than one sequence of "
            f"{sequence_length:,}; to mean sequences write --batch {many}seq, which is "
            f"{many * sequence_length:,} tokens"
        )
    if tokens % sequence_length:
        lower = whole(tokens // sequence_length, f"batch '{text}' in sequences")
        options = " or ".join(
            f"--batch {n}seq ({n * sequence_length:,} tokens)" for n in (lower, lower + 1) if n
        )
        raise BadRequest(
            f"batch '{text}' is {tokens:,.0f} tokens, no whole number of sequences of "
            f"{sequence_length} tokens; the nearest are {options}"
        )
    return whole(tokens // sequence_length, f"batch '{text}' in sequences")


def whole(value: float, what: str) -> int:
    """A count that must be a whole number, and no larger than makes sense."""
    if value > MOST:
        raise BadRequest(f"{what} is {value:g}; at most {MOST:g} makes sense")
    if value != int(value):
        raise BadRequest(f"{what} is {value:g}; it must be a whole number")
    return int(value)


def parse_length(text: str | float, flag: str) -> int:
    """A whole number of tokens, of at least one."""
    return whole(parse_count(text, flag), flag)
