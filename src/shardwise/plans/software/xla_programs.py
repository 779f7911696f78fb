"""What our trainer writes differently for the compilers of some chips, each with its source."""

from functools import cache
from math import inf
from pathlib import Path

from shardwise.boundary import read_toml
from shardwise.hardware.names import aliases

_FILE = Path(__file__).parents[1] / "data" / "software" / "xla_programs.toml"


def apart_from(kind: str) -> float:
    """The least D of a gated MLP whose activation is a pass of its own on such a device, by its
    name in JAX; infinite where none is.

    >>> apart_from("TPU v5"), apart_from("TPU v5 lite")
    (4096, inf)
    """
    widths: dict[str, float] = _table()["activation_apart"]["least_width"]
    return widths.get(aliases().get(kind.lower(), ""), inf)


@cache
def _table() -> dict[str, dict[str, dict[str, float]]]:
    return read_toml(_FILE, "the table of programs for XLA")
