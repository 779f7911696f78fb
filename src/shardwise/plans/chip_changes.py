"""What a plan's chips have that the catalogue's have not: what --hw, --set, --price, --provider and
--spot said when it was made, without which its file would give other figures."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from shardwise.hardware.prices import price_override


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipChanges:
    """By which chips a plan is priced, beside those of the catalogue.

    `files` add or change chips (--hw), later ones win; a plan's file names them as seen from its
    folder. `numbers` change a chip's ({"h100.hbm_bandwidth": "4e12"}, --set), `prices` are dollars
    per chip-hour by chip (--price). Without a price of its own a chip has that of the `provider`,
    or with `spot` one of the spot market; else that of its file.
    """

    files: tuple[str, ...] = ()
    numbers: Mapping[str, float | str] = field(default_factory=dict, hash=False)
    prices: Mapping[str, float] = field(default_factory=dict, hash=False)
    provider: str = ""
    spot: bool = False

    def __post_init__(self) -> None:
        for chip, dollars in self.prices.items():
            price_override(dollars, f"chips.prices.{chip}")

    def numbers_of(self, chip: str) -> dict[str, str]:
        """The changed numbers of a chip, by their path within it."""
        found = (path.partition(".") for path in self.numbers)
        return {
            f"chip.{rest}": str(self.numbers[f"{name}.{rest}"])
            for name, _, rest in found
            if name == chip and rest
        }

    def seen_from(self, folder: Path) -> Self:
        """The same for a plan's file in a folder."""
        return replace(self, files=tuple(os.path.relpath(name, folder) for name in self.files))

    @property
    def given(self) -> dict[str, Any]:
        """What there is, as plain values; nothing where the catalogue's chips are meant."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v}
        return {k: dict(v) if isinstance(v, Mapping) else v for k, v in plain.items()}


AS_LISTED = ChipChanges()
"""The catalogue's chips as they are."""
