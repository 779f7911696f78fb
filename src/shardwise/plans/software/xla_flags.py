"""Sets of compiler flags that may make a step on TPUs faster, each with its source.

`shardwise train` compiles its step with those that pay on a generation (`trainer_flags`), and `plan
train --compile N --tune` tries each of the others on the best plan; the flags of MaxText's rows in
docs/lab/maxtext.md are those of its scripts (`of_maxtext`), by what they are for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardwise.boundary import read_toml
from shardwise.hardware.names import aliases

_RINGS_FROM = "xla_jf_spmd_threshold_for_windowed_einsum_mib"
_FILE = Path(__file__).parents[1] / "data" / "software" / "xla_flags.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSet:
    """Flags that belong together; MaxText runs with those `of_maxtext`. `chips` are those they are
    for, all TPUs where none is named, `trainer` those on which our trainer has them on."""

    name: str
    about: str
    options: Mapping[str, str]
    source: str
    of_maxtext: bool = False
    chips: Sequence[str] = ()
    trainer: Sequence[str] = ()


@cache
def _table() -> tuple[FlagSet, ...]:
    table = read_toml(_FILE, "the table of compiler flags")
    return tuple(FlagSet(name=name, **row) for name, row in table.items())


def flag_sets(chip: str) -> tuple[FlagSet, ...]:
    """The sets for a TPU, by the catalogue's name of it.

    >>> [one.name for one in flag_sets("v5e")]
    ['async gathers', 'sums of gradients', 'pipelined backward', 'whole einsums']
    >>> [one.name for one in flag_sets("v5p") if not one.of_maxtext]
    ['most of VMEM']
    """
    return tuple(one for one in _table() if not one.chips or chip in one.chips)


def tried_sets(chip: str) -> tuple[FlagSet, ...]:
    """The sets for a TPU that our trainer has not on."""
    return tuple(one for one in flag_sets(chip) if chip not in one.trainer)


def trained_flags(chip: str) -> dict[str, str]:
    """The flags that our trainer has on for a TPU."""
    return together([one for one in flag_sets(chip) if chip in one.trainer])


def rings_of_matmuls(chip: str, *, trained: bool) -> bool:
    """Whether libtpu takes matmuls apart into rings of permutes, as it does by default: with the
    flags of our trainer it does not everywhere.

    >>> rings_of_matmuls("tpu7x", trained=True), rings_of_matmuls("tpu7x", trained=False)
    (False, True)
    """
    return not (trained and _RINGS_FROM in trained_flags(chip))


def trainer_flags(kind: str) -> dict[str, str]:
    """Those of our trainer's step on such a device, by its name in JAX.

    >>> trainer_flags("TPU v5")["xla_tpu_scoped_vmem_limit_kib"], trainer_flags("TPU v5 lite")
    ('49152', {})
    """
    return trained_flags(aliases().get(kind.lower(), ""))


def together(sets: Sequence[FlagSet]) -> dict[str, str]:
    """The flags of several sets."""
    return {name: value for one in sets for name, value in one.options.items()}
