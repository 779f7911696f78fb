"""Where the expected seconds of a step go: parts that add up to them.

    math at peak       FLOPs of the ops that math bounds, over the dense peak
    math below peak    what their kernels take longer: rates below peak, tiles filled up, ramps
    memory             ops that memory bounds, whole
    waiting            what compute waits for collectives over each mesh axis, or the host's link
    host               starts of kernels, and what an engine does per sequence
    bubble             what stages of a pipeline wait for one another
    optimizer          the update of the parameters, whole
    own runs           what a step takes longer (or less, below 0) as runs of one's own took; where
                       they lost it is not known, and math at peak cannot move

A body's time is its chain's and what its sides show beside it (`bodies.py`): the ops of the chain
are told apart one by one, and of the sides only the busiest stream has seconds that show, of which
each of its ops has a share. For one plan: seconds are numbers here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwise.roofline.bodies import COPIES, OpTime, body_time, is_chain, sides_of
from shardwise.roofline.price import HBM, HOST, MATH, Estimate
from shardwise.roofline.stacks import Stack
from shardwise.work import Op, Quantity, grouped

Degrees = Mapping[str, int]
"""Mesh axes and their degrees."""


def waiting_on(axes: str) -> str:
    """What a table calls the seconds that compute waits for collectives over mesh axes."""
    return f"waiting on {axes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParts:
    """Seconds of a step by where they go; `waiting` by mesh axes."""

    math_at_peak: float = 0.0
    math_below_peak: float = 0.0
    memory: float = 0.0
    waiting: Mapping[str, float] = field(default_factory=dict)
    host: float = 0.0
    bubble: float = 0.0
    optimizer: float = 0.0
    own_runs: float = 0.0

    @property
    def seconds(self) -> float:
        """All parts together."""
        return sum(self.named().values())

    def named(self) -> dict[str, float]:
        """Seconds by part as an answer's table calls them, those that are there."""
        waits = {waiting_on(axes): seconds for axes, seconds in self.waiting.items()}
        parts = {name: getattr(self, f) for f, name in _BEFORE.items()}
        parts |= waits | {name: getattr(self, f) for f, name in _AFTER.items()}
        return {name: seconds for name, seconds in parts.items() if seconds}

    def __add__(self, other: "TimeParts") -> "TimeParts":
        axes = dict.fromkeys((*self.waiting, *other.waiting))
        numbers = {f: getattr(self, f) + getattr(other, f) for f in (*_BEFORE, *_AFTER)}
        waits = {a: self.waiting.get(a, 0.0) + other.waiting.get(a, 0.0) for a in axes}
        return TimeParts(waiting=waits, **numbers)

    def __mul__(self, times: float) -> "TimeParts":
        waits = {axes: seconds * times for axes, seconds in self.waiting.items()}
        return TimeParts(
            waiting=waits, **{f: getattr(self, f) * times for f in (*_BEFORE, *_AFTER)}
        )


_BEFORE = {
    "math_at_peak": "math at peak",
    "math_below_peak": "math below peak",
    "memory": "memory-bound ops",
}
_AFTER = {
    "bubble": "pipeline bubble",
    "host": "kernel starts",
    "optimizer": "optimizer",
    "own_runs": "as in your runs",
}
"""Fields and what a table calls them, before and after what is waited for."""


@dataclass(frozen=True, slots=True)
class RoundParts:
    """One round of a body: its chain, collectives within it included, and each stream beside it."""

    chain: TimeParts
    sides: Mapping[str, TimeParts]

    def shown(self, stack: Stack) -> tuple[TimeParts, TimeParts]:
        """The parts of a round in the long run, and those of what its first round shows besides:
        `bodies.round_form` told apart."""
        sides = (parts for stream, parts in self.sides.items() if stream != COPIES)
        side = max(sides, key=lambda parts: parts.seconds, default=TimeParts())
        copies = self.sides.get(COPIES, TimeParts())
        hidden = float(stack.overlap) * _share(self.chain, side)
        shown = self.chain + side * (1 - hidden)
        behind = _share(shown, copies)
        return shown + copies * (1 - behind), side * hidden + copies * behind


def _share(longer: TimeParts, side: TimeParts) -> float:
    """The share of `side` that fits beside `longer`."""
    return min(1.0, longer.seconds / side.seconds) if side.seconds else 1.0


def round_parts(items: Iterable[tuple[OpTime, float, bool]], degrees: Degrees) -> RoundParts:
    """A round from its ops, each with how often it comes and whether it runs beside the chain."""
    chain, sides = TimeParts(), {}
    for t, times, beside in items:
        parts = op_parts(t, degrees) * times
        if beside:
            sides[t.op.stream] = sides.get(t.op.stream, TimeParts()) + parts
        else:
            chain = chain + parts
    return RoundParts(chain, sides)


def op_parts(t: OpTime, degrees: Degrees) -> TimeParts:
    """All runs of one op: its expected seconds per step by part."""
    count, launch = _number(t.op.count), _number(t.launch)
    whole = (_number(t.derated) - launch) * count
    if t.op.stream != "compute":
        return TimeParts(waiting={_waited_for(t.op, degrees): whole}, host=launch * count)
    math = _number(t.rated.get(MATH, 0.0))
    if not math or math < _number(t.rated.get(HBM, 0.0)):
        return TimeParts(memory=whole, host=launch * count)
    peak = _number(t.peak[MATH]) * count
    return TimeParts(math_at_peak=peak, math_below_peak=whole - peak, host=launch * count)


def _waited_for(op: Op, degrees: Degrees) -> str:
    """The mesh axes of a collective that are in use, or the link to the host."""
    if op.collective is None:
        return HOST if op.stream == "host" else op.stream
    used = [axis for axis in op.collective.axes if degrees.get(axis, 1) > 1]
    return "+".join(used) or op.collective.axes[0]


def body_parts(ops: Sequence[OpTime], stack: Stack, degrees: Degrees) -> TimeParts:
    """A body that runs alone, as `bodies.body_time` prices it."""
    sides, whole = sides_of(tuple(ops)), body_time(tuple(ops), stack)
    if is_chain(tuple(ops), sides):
        count = max(_number(whole.count), 1e-300)
        found = round_parts(((t, 1 / count, t.op.id in sides) for t in ops), degrees)
        period, once = found.shown(stack)
        return period * count + once * min(count, 1.0)
    return _laid_out(ops, _number(whole.expected), degrees)


def _laid_out(ops: Sequence[OpTime], expected: float, degrees: Degrees) -> TimeParts:
    """A body that is laid out on its streams: compute whole, and what is longer than that shared by
    the other streams."""
    own, others = TimeParts(), TimeParts()
    for t in ops:
        parts = op_parts(t, degrees)
        own, others = (own + parts, others) if t.op.stream == "compute" else (own, others + parts)
    if not others.seconds:
        return scaled_to(own, expected)
    return own + others * ((expected - own.seconds) / others.seconds)


def estimate_parts(found: Estimate, stack: Stack, degrees: Degrees) -> TimeParts:
    """The expected seconds of one priced piece of Work (`price.price`)."""
    bodies = grouped(found.ops, lambda t: t.op.body)
    parts = TimeParts()
    for ops in bodies.values():
        parts = parts + body_parts(ops, stack, degrees)
    return scaled_to(parts, _number(found.expected))


def scaled_to(parts: TimeParts, seconds: float) -> TimeParts:
    """The parts of another total: that which a bound of the estimate moved."""
    whole = parts.seconds
    return parts * (seconds / whole) if whole else parts


def _number(value: Quantity) -> float:
    return float(np.reshape(value, ()))
