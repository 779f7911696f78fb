"""Chips to choose from, and slices of so many chips."""

from math import prod

from shardwise.apps.page.view import refused
from shardwise.hardware import Torus, chip_ids, load_chip

CHIPS = tuple(chip_ids())
"""Every chip of the catalogue."""
TORI = tuple(
    name
    for name in CHIPS
    if isinstance(load_chip(name).network, Torus) and load_chip(name).compiler_clock_hz
)
"""Chips in a torus that JAX's compiler knows, for which the figures of ch. 5 are drawn."""
NONE = "none"


def slice_name(chip: str, chips: int) -> str:
    """The slice of so many chips whose sides differ least; GPUs are counted.

    Raises BadRequest where the chip has none.
    """
    if chip not in TORI:
        return f"{chip}:{chips}"
    shapes = [tuple(map(int, one.partition(":")[2].split("x"))) for one in _slices(chip)]
    fitting = [shape for shape in shapes if prod(shape) == chips]
    if not fitting:
        known = ", ".join(
            map(str, sorted({prod(shape) for shape in shapes if _power(prod(shape))}))
        )
        raise refused("chips", chips, f"slices of {chip} have {known}", "choose one of those")
    return f"{chip}:{'x'.join(map(str, min(fitting, key=lambda s: (sum(s), s))))}"


def _slices(chip: str) -> list[str]:
    import shardwise

    load_chip(chip)
    return list(shardwise.hw_show(chip).slices)


def _power(number: int) -> bool:
    return number & (number - 1) == 0
