"""How JAX calls the chips of the catalogue."""

from shardwise.hardware import Chip

TPU_KINDS = {"v5e": "tpu v5 lite", "v6e": "tpu v6 lite", "v5p": "tpu v5", "tpu7x": "tpu7x"}
"""How JAX calls TPUs whose names say it differently."""


def is_chip(kind: str, chip: Chip) -> bool:
    """Whether JAX's name of a device is a chip of the catalogue."""
    kind = kind.lower()
    if chip.id in TPU_KINDS:
        return kind in (TPU_KINDS[chip.id], f"tpu {chip.id}")
    return chip.id.partition("-")[0] in kind.replace("-", " ").split()
