"""Lengths and other counts in the options of both `plan serve` commands."""

from math import inf
from typing import Any

import click

from shardwise.errors import BadRequest
from shardwise.units import parse_count
from shardwise.workflows.inputs import whole

MOST_LENGTH = 2**24
"""Tokens of a prompt or answer: above the longest context that a known config states, Llama 4
Scout's 10,485,760 (ours)."""


def count_of(options: dict[str, Any], key: str, flag: str, most: float = inf) -> int:
    if not options[key]:
        raise click.UsageError(f"Missing option '{flag}'.")
    value = whole(parse_count(options[key], flag), flag)
    if value > most:
        raise BadRequest(f"{flag} is {value:,}; at most {most:,} makes sense")
    return value
