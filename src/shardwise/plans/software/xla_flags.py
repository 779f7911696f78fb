"""Sets of compiler flags that may make a step on TPUs faster, each with its source.

`plan train --compile N --tune` compiles the best plan with each and says which pay; the flags of
MaxText's rows in docs/maxtext.md are those of its scripts (`of_maxtext`), by what they are for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardwise.boundary import read_toml

_FILE = Path(__file__).parents[1] / "data" / "software" / "xla_flags.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSet:
    """Flags that belong together; `chips` are those they are for, all TPUs where none is named."""

    name: str
    about: str
    options: Mapping[str, str]
    source: str
    chips: Sequence[str] = ()

    @property
    def of_maxtext(self) -> bool:
        """Whether MaxText runs with them: its repository or one of its constants is the source."""
        return "maxtext" in self.source.lower()


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


def together(sets: Sequence[FlagSet]) -> dict[str, str]:
    """The flags of several sets."""
    return {name: value for one in sets for name, value in one.options.items()}
