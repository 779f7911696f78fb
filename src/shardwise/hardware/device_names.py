"""How JAX calls the chips of the catalogue."""

from shardwise.hardware import Chip
from shardwise.hardware.names import aliases


def is_chip(kind: str, chip: Chip) -> bool:
    """Whether JAX's name of a device means the chip.

    A name that is an alias of some chip means that chip ("TPU v5 lite" is the v5e). Any other means
    the chips whose id begins with one of its words ("AMD Instinct MI300X").
    """
    named = aliases().get(kind.lower())
    if named is not None:
        return named == chip.id
    return chip.id.partition("-")[0] in kind.lower().replace("-", " ").split()
