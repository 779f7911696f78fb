"""The choices of a plan, the best plan that a search priced for each value of each of them, and
which of two plans is simpler.

A row is a choice: its field, what a person calls it, and where it makes a difference. An answer
says what another value would cost, so the search remembers the best plan of every value among those
that it prices anyway. A plan that its floors leave out is slower than the answers, but another plan
with the same value may be a little faster than the one that was priced; `--exhaustive` prices all.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.hardware import Chip
from shardwise.models.remat import remat_row
from shardwise.planner.search.legality import replicas
from shardwise.plans.software import SOFTWARE
from shardwise.plans.train import USUAL, Structure, TrainPlan

if TYPE_CHECKING:
    from shardwise.planner.search.rows import PricedRows

Degrees = Mapping[str, Any]
Key = tuple[str, Hashable]
"""A choice and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice of a structure, and on which degrees it makes a difference."""

    field: str
    title: str
    matters: Callable[[Degrees, Structure], Any]


def _stored(d: Degrees, s: Structure) -> Any:
    stored: Any = 1
    for axis in s.storage_axes:
        stored = stored * d[axis]
    return stored > 1


CHOICES = (
    Choice(field="remat", title="remat", matters=lambda d, s: d["tensor"] >= 1),
    Choice(field="pipeline_schedule", title="schedule", matters=lambda d, s: d["stage"] > 1),
    Choice(field="zero", title="ZeRO stage", matters=lambda d, s: replicas(d, s.storage_axes) > 1),
    Choice(field="context_method", title="context by", matters=lambda d, s: d["context"] > 1),
    Choice(
        field="storage_axes",
        title="stored over",
        matters=lambda d, s: d["context"] * d["expert"] > 1,
    ),
    Choice(field="weight_gather", title="gathered", matters=_stored),
)
MICROBATCHES = "microbatches"
AS_FAST = 1e-3
"""Two steps closer than this are printed as equal, and told apart by no measurement (ours)."""


def choices_of(plan: TrainPlan) -> dict[str, Hashable]:
    """The value of every choice that makes a difference to a plan, by field."""
    made = {c.field: getattr(plan, c.field) for c in CHOICES if c.matters(plan.degrees, plan)}
    return {MICROBATCHES: plan.microbatches, **made}


def axes_in_use(degrees: Degrees) -> Any:
    """How many axes a mesh has."""
    return sum((np.asarray(d) > 1).astype(int) for d in degrees.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Simpler:
    """A rule of what is simpler: of the mesh, structure, microbatches, bytes beyond the margin of
    memory and rank of a plan, what is less for the simpler plan; `title` says it."""

    title: str
    of: Callable[[Degrees, Structure, int, float, float], Any]


def strategies(degrees: Degrees, structure: Structure) -> int:
    """How many strategies a plan combines: the axes of its mesh, and offloading."""
    return int(axes_in_use(degrees)) + remat_row(structure.remat).offloads


def _schedule(degrees: Degrees, structure: Structure) -> tuple[int, int]:
    """Programs that lack the pipeline's schedule, and the chunks of a stage; zeros without one."""
    if degrees.get("stage", 1) == 1:
        return 0, 0
    kind, words = structure.pipeline_schedule, [row.words.get(_KIND) for row in SOFTWARE.values()]
    return sum(w is not None and kind not in w for w in words), structure.virtual_stages


_KIND = "pipeline_schedule"
Simplicity = tuple[Any, ...]
"""What the rules of `SIMPLER` say of a plan, in their order: less is simpler."""
SIMPLER = (
    Simpler(title="fewest strategies", of=lambda d, s, m, beyond, rank: strategies(d, s)),
    Simpler(
        title="a schedule that most programs have, in fewest chunks",
        of=lambda d, s, m, beyond, rank: _schedule(d, s),
    ),
    Simpler(title="fewest microbatches", of=lambda d, s, m, beyond, rank: m),
    Simpler(title="most memory left up to the margin", of=lambda d, s, m, beyond, rank: beyond),
    Simpler(title="the fastest", of=lambda d, s, m, beyond, rank: rank),
)
"""Of plans that predictions cannot tell apart the answer is the first by these rules; a rule
decides where those before it do not."""


def simplicity(
    degrees: Degrees, structure: Structure, microbatches: int, beyond: float, rank: float
) -> Simplicity:
    """What the rules say of a plan: less is simpler."""
    return tuple(rule.of(degrees, structure, microbatches, beyond, rank) for rule in SIMPLER)


def among_cards(simplicity: Simplicity, chip: Chip, degrees: Degrees) -> Simplicity:
    """A plan's simplicity, with the rule of `THROUGH_HOST` behind that of strategies where the
    chips are cards without peer-to-peer."""
    used, *rest = simplicity
    inner = sum(degrees.get(axis, 1) > 1 for axis in _IN_LAYERS) if chip.through_host else 0
    return used, inner, *rest


THROUGH_HOST = "fewest axes that layers wait for through the host's memory"
_IN_LAYERS = ("expert", "context", "tensor")


def simple_weights(axes: Any) -> Any:
    """By what seconds are multiplied to be compared: an axis more has to be worth `AS_FAST`."""
    return 1 + AS_FAST * axes


@dataclass(frozen=True, slots=True)
class Seen:
    """The best candidate of a value: its place among the columns, structure, bytes, and its seconds
    as they are and as they are compared."""

    at: int
    structure: Structure
    seconds: float
    compared: float
    memory: float


class Rivals:
    """The best candidate of every value of the choices of structure, among some columns. `weights`
    are those of `simple_weights`, so that the simplest of those as fast is the best."""

    def __init__(self, degrees: Degrees, searched: Mapping[str, tuple]) -> None:
        self.degrees = degrees
        self.weights = simple_weights(axes_in_use(degrees))
        self.choices = [c for c in CHOICES if len(searched[c.field]) > 1]
        self.best: dict[Key, Seen] = {}
        self._masks: dict[tuple[str, tuple[str, ...]], np.ndarray] = {}

    def see(self, rows: "PricedRows", seconds: np.ndarray) -> None:
        """Remember the best entries of rows; infinite seconds are no plan. The
        first of equals stays."""
        compared = seconds * self.weights[rows.index][:, None]
        low = float(np.min(compared))
        for choice in self.choices:
            where = None
            for value, entries in rows.by_value(choice.field).items():
                known = self.best.get((choice.field, value))
                if known and known.compared <= low:
                    continue
                if where is None:
                    where = self._matters(choice, rows)
                mine = np.where(where[:, None] & entries[rows.which], compared, inf)
                least = float(mine.min())
                if least < (known.compared if known else inf):
                    at = rows.first(mine == least)
                    figures = float(seconds[at]), least, float(rows.memory[at])
                    place = int(rows.index[at[0]])
                    self.best[choice.field, value] = Seen(place, rows.structure(*at), *figures)

    def _matters(self, choice: Choice, rows: "PricedRows") -> np.ndarray:
        """For which rows a choice makes a difference."""
        found = np.zeros(len(rows.index), bool)
        for storage, numbers in rows.by_value("storage_axes").items():
            mine = np.asarray(numbers.any(axis=1))[rows.which]
            found[mine] = self._where(choice, storage)[rows.index[mine]]
        return found

    def _where(self, choice: Choice, storage_axes: tuple[str, ...]) -> np.ndarray:
        """The columns on which a choice makes a difference."""
        key = choice.field, storage_axes
        if key not in self._masks:
            structure = replace(USUAL, storage_axes=storage_axes)
            self._masks[key] = np.asarray(choice.matters(self.degrees, structure))
        return self._masks[key]
