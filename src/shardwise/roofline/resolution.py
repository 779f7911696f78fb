"""What predictions of training plans cannot know: memory beyond the predicted peak, and which of
two steps is shorter.

`data/resolution.toml` says it per class, which is the stack of software and the vendor of the chip
("megatron/nvidia"). A class with fewer than `LEAST` runs of its own takes what all classes of its
vendor say ("google": every program for TPUs is compiled by XLA, which places its buffers once and
for all), and where those are too few what all published runs say.

- `margin` is the share of usable memory that a plan has to leave free to fit in 19 of 20 cases: the
  95 % quantile of 1 - predicted / measured peak. A plan of predicted bytes m fits by it where
  m <= usable x (1 - margin).
- `apart` is by how much predicted times of two plans must differ, as a share, for a prediction to
  tell them apart: the median difference of the errors of two plans of one job. Of pairs that are
  predicted so far apart or further, at least three in four run in that order.

`scripts/fit_efficiency.py` makes the table, `scripts/fit/resolution.py` says how.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from shardwise.boundary import read_toml
from shardwise.errors import BadRequest

DATA = Path(__file__).parent / "data" / "resolution.toml"
LEAST = 20
"""Runs, or pairs of runs, from which a class has its own figure: 1 of 20 is the 5 % of a margin."""
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShare:
    """A share that `count` runs (or pairs of runs) of `groups` groups say of a class."""

    value: float
    count: int
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolutionTable:
    """Margins and resolutions by class, `ALL` among them."""

    margins: Mapping[str, ClassShare]
    apart: Mapping[str, ClassShare]
    source: str

    def margin(self, stack: str, vendor: str) -> ClassShare:
        """What is to be left free of a chip's usable memory."""
        return _of(self.margins, stack, vendor)

    def told_apart(self, stack: str, vendor: str) -> ClassShare:
        """From which difference on two predicted times are told apart."""
        return _of(self.apart, stack, vendor)


def _of(figures: Mapping[str, ClassShare], stack: str, vendor: str) -> ClassShare:
    """That of the narrowest class there is."""
    names = (class_of(stack, vendor), vendor, ALL)
    return next(figures[name] for name in names if name in figures)


def class_of(stack: str, vendor: str) -> str:
    """The class of plans of a stack on chips of a vendor.

    >>> class_of("megatron", "nvidia")
    'megatron/nvidia'
    """
    return f"{stack}/{vendor}"


@lru_cache(maxsize=8)
def read_resolution(path: Path = DATA) -> ResolutionTable:
    """The table in a file. Raises BadRequest for a file that holds none."""
    held = read_toml(path, "the table of what predictions can tell")
    try:
        margins, apart = _figures(held["margin"]), _figures(held["apart"])
        return ResolutionTable(margins=margins, apart=apart, source=held["source"])
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"{path}: no table of what predictions can tell ({error})") from None


def _figures(held: Mapping) -> dict[str, ClassShare]:
    """Of every class; the one of all is there."""
    found = {name: ClassShare(**one) for name, one in held.items()}
    return {ALL: found[ALL], **found}
