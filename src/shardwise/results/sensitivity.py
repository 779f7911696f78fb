"""What is told of an answer whose inputs are changed one at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record
from shardwise.planner.sensitivity import MovedInput
from shardwise.units import sig


@dataclass(frozen=True, kw_only=True)
class ChangedInput(Record):
    """The answer's plan with one input changed."""

    name: str
    """The input."""
    by: float
    """The changed input over the answer's."""
    time: float | None
    """Seconds per token over the answer's; null where an answer has targets for its times."""
    cost: float
    """Chip-seconds, of a token or a request, over the answer's."""
    weight: float
    """How strongly the answer follows: ln(time or cost) / ln(by), the larger of the two; 1 in
    proportion, 0 not at all."""
    text: str
    """The same in words."""


def changed_inputs(found: Iterable[MovedInput]) -> list[ChangedInput]:
    """The fields of changed inputs, that which weighs most first."""
    return [ChangedInput.part_of(one, text=_text(one)) for one in found]


def _text(one: MovedInput) -> str:
    """What a change does, in words.

    >>> _text(MovedInput(name="chips", by=2, time=0.5, cost=1.0006))
    'twice the chips: 50 % less time, cost within 0.1 %'
    >>> _text(MovedInput(name="prompt", by=1.1, time=None, cost=1.052))
    '10 % more prompt: 5.2 % more cost'
    """
    more = "twice the" if one.by == 2 else f"{_percent(one.by)} more"
    if one.time is None or one.time == one.cost:
        alike = "" if one.time is None else "time and "
        return f"{more} {one.name}: {_change(one.cost, f'{alike}cost')}"
    return f"{more} {one.name}: {_change(one.time, 'time')}, {_change(one.cost, 'cost')}"


def _change(times: float, what: str) -> str:
    if abs(times - 1) < 1e-3:
        return f"{what} within 0.1 %"
    return f"{_percent(times)} {'more' if times > 1 else 'less'} {what}"


def _percent(times: float) -> str:
    return f"{sig(100 * abs(times - 1), 2)} %"


def strongest(found: Sequence[ChangedInput]) -> str:
    """The sentence that says which two inputs weigh most, beside those in proportion."""
    said = "; ".join(one.text for one in found[:2])
    timed = any(one.time is not None for one in found)
    rest = "dollars are proportional to the price of a chip-hour"
    rest += ", days and dollars to the tokens of a run" if timed else ""
    return f"Largest effects: {said}; {rest}."
