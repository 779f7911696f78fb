"""What differs between two answers of one request: keys, types, words and numbers (1e-9)."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import golden

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """A line for all that is not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        yield from of_mappings(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path}: {len(before)} entries -> {len(after)}"
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, other, f"{path}[{number}]")
    elif isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        yield from of_lines(before, after, path)
    elif type(before) is not type(after) or not same(before, after):
        yield f"{path}: {golden.short(before)} -> {golden.short(after)}"


def same(before: Any, after: Any) -> bool:
    """Equal, numbers to 1e-9, those in a line of text too."""
    if before == after or not isinstance(before, str) or not isinstance(after, str):
        return golden.same(before, after)
    numbers = [map(float, _NUMBER.findall(text)) for text in (before, after)]
    return _NUMBER.sub("#", before) == _NUMBER.sub("#", after) and all(
        golden.same(a, b) for a, b in zip(*numbers, strict=True)
    )


def of_mappings(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[str]:
    """Keys that are gone or new, then what differs below them; their order means nothing."""
    for key in before:
        if key not in after:
            yield f"{path}.{key}: {golden.short(before[key])} -> no such key"
    for key in after:
        if key not in before:
            yield f"{path}.{key}: no such key -> {golden.short(after[key])}"
    for key in (key for key in before if key in after):
        yield from differences(before[key], after[key], f"{path}.{key}")


MOST_LINES = 5
"""Lines of a text that are shown."""


def of_lines(before: str, after: str, path: str) -> Iterator[str]:
    """The first lines of a text that differ, and how many more."""
    old, new = before.splitlines(), after.splitlines()
    if len(old) != len(new):
        yield f"{path}: {len(old)} lines -> {len(new)}"
    differ = [n for n, (a, b) in enumerate(zip(old, new, strict=False)) if not same(a, b)]
    for n in differ[:MOST_LINES]:
        yield f"{path}:{n + 1}: {golden.short(old[n])} -> {golden.short(new[n])}"
    if len(differ) > MOST_LINES:
        yield f"{path}: {len(differ) - MOST_LINES} more lines"
    if before.endswith("\n") != after.endswith("\n"):
        yield f"{path}: the end of its last line"
