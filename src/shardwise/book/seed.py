"""The book's chips, with the constants of its latest tables, its first edition's, or vendors'."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from shardwise.boundary import read_json
from shardwise.errors import check_known
from shardwise.hardware import Chip, Slice, load_chip, parse_slice

CONSTANTS = ("book", "seed", "vendor")
"""The book's latest tables, its first edition's, the vendors' sheets."""
_SEED = Path(__file__).parent / "data" / "constants" / "seed.json"


@cache
def seed_numbers() -> Mapping[str, Mapping[str, float]]:
    """Numbers of the first edition that the latest changed, by chip and path."""
    return read_json(_SEED, "the first edition's constants")


@cache
def book_chip(name: str, constants: str = "book") -> Chip:
    """A chip with the book's latest constants, its first edition's ("seed") or its vendor's.

    Raises BadRequest for another chip or other constants.
    """
    check_known("constants", constants, CONSTANTS)
    if constants != "seed":
        return load_chip(name, constants=constants)
    chip = load_chip(name, constants="book")
    changed = seed_numbers().get(chip.id, {})
    numbers = chip.numbers()
    texts = [f"{path}={value}" for path, value in changed.items() if numbers.get(path) != value]
    return load_chip(name, constants="book", set_=texts) if texts else chip


def book_slice(text: str, constants: str = "book") -> Slice:
    """A slice of such chips, such as v5e:4x4."""
    return parse_slice(text, lambda name: book_chip(name, constants))
