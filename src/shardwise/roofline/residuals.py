"""The 80 % range around a predicted step time, by its distance from runs that are known.

A plan has features (`planner/features.py`): its chip, trainer, precision and so on, each with a few
values. `data/train_residuals.toml` says of every value by what factor predictions of such runs are
less sure than of others (`wider`), and how much more they are late than early (`later`); and for a
value that nobody has run the factor `unseen` of its feature, by which runs were missed when all
that shared their value were left out. Features multiply: measured over predicted lies in

    exp(low x product of wider / product of later)  to  exp(high x product of wider x later)

for 8 in 10 runs of a publisher that had no part in the table. The range always holds the prediction
itself. `scripts/fit_efficiency.py` makes the table, `scripts/fit/residuals.py` says how.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from shardwise.boundary import read_toml
from shardwise.errors import BadRequest

DATA = Path(__file__).parent / "data" / "train_residuals.toml"
WIDE = 1.25
"""Times the range of plans with features like most from which a range is wide and says why."""
NAMED = 1.1
"""What a feature widens a range by at least to be named as a reason."""
REASONS = 2
"""At most this many reasons are named for a wide range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What `runs` runs of `groups` groups that share a feature's value do to a range."""

    wider: float
    later: float
    runs: int
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """The values of a feature, what it calls a run that shares one ("on this chip ({})"), and by
    what a value widens that is not among them."""

    about: str
    unseen: float
    values: Mapping[str, Effect]

    def effect(self, value: str) -> Effect:
        """What is known of a value."""
        nobody = Effect(wider=self.unseen, later=1.0, runs=0, groups=0)
        return self.values.get(value, nobody)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """Where 8 of 10 such runs lie, as log(measured / predicted), and a sentence for each thing that
    is not known of them or widens the range, the widest first; none where it is as usual."""

    low: float
    high: float
    why: tuple[str, ...] = ()

    def interval(self, seconds: float) -> tuple[float, float]:
        """The 80 % range around a prediction."""
        return seconds * math.exp(self.low), seconds * math.exp(self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTable:
    """What `runs` runs of `groups` groups say; `low` and `high` are the ends, in log, of a plan
    whose features neither widen nor narrow its range."""

    features: Mapping[str, Feature]
    low: float
    high: float
    runs: int
    groups: int

    def range_of(self, values: Mapping[str, str]) -> LogRange:
        """The range of a plan with these values of the features."""
        effects = {name: one.effect(values[name]) for name, one in self.features.items()}
        wider = math.prod(effect.wider for effect in effects.values())
        later = math.prod(effect.later for effect in effects.values())
        return LogRange(
            low=min(self.low * wider / later, 0.0),
            high=max(self.high * wider * later, 0.0),
            why=self._why(effects, values, wider > WIDE),
        )

    def _why(
        self, effects: Mapping[str, Effect], values: Mapping[str, str], wide: bool
    ) -> tuple[str, ...]:
        """What nobody has run, and of a wide range what else widens it; at most `REASONS`."""
        widest = sorted(effects, key=lambda name: -effects[name].wider)
        named = [name for name in widest if not effects[name].runs]
        if wide:
            known = [name for name in widest if effects[name].runs]
            named += [name for name in known if effects[name].wider >= NAMED]
            named = named or known[:1]
        return tuple(
            reason(effects[name], self.features[name].about.format(values[name]))
            for name in named[:REASONS]
        )


def reason(effect: Effect, about: str) -> str:
    """Why a feature widens a range.

    >>> reason(Effect(wider=1.4, later=1.0, runs=0, groups=0), "on this chip (mi300x)")
    'no published run on this chip (mi300x) is known'
    >>> reason(Effect(wider=1.3, later=1.0, runs=9, groups=1), "with a routed MLP")
    'the 9 runs with a routed MLP are of one publisher'
    """
    if not effect.runs:
        return f"no published run {about} is known"
    if effect.groups == 1:
        return f"the {effect.runs} runs {about} are of one publisher"
    return (
        f"the {effect.runs} runs {about} were missed by {effect.wider:.2g} times as much as others"
    )


@lru_cache(maxsize=8)
def read_residuals(path: Path = DATA) -> RangeTable:
    """The table in a file. Raises BadRequest for a file that holds none."""
    held = read_toml(path, "the table of residuals")
    try:
        features = {name: _feature(one) for name, one in held["features"].items()}
        numbers = {name: held[name] for name in ("low", "high", "runs", "groups")}
        return RangeTable(features=features, **numbers)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"{path}: no table of residuals ({error})") from None


def _feature(held: Mapping) -> Feature:
    values = {value: Effect(**one) for value, one in held["values"].items()}
    return Feature(about=held["about"], unseen=held["unseen"], values=values)
