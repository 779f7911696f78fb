"""How long a loop of ops takes: a body laid out on its streams, or its closed form.

A body is a CHAIN of ops, each after the one before, and SIDE ops off it: collectives and host
copies that wait for nothing (gathers that run ahead) or that nobody waits for (scatters), none of
them for another side op. Its closed form is

    round   = max(chain, side) + (1 - overlap) min(chain, side)
    period  = max(round, copies)
    seconds = count x period + overlap x min(chain, side) + min(round, copies)

where `side` is the busiest stream of collectives, `overlap` the stack's, and `copies` the stream to
host memory: a copy engine moves them, which neither computes nor waits for a link between chips, so
all of them hide but what is longer than a round (MaxText's HOST_OFFLOAD_FLAGS let 24 be under way,
xla_tpu_host_transfer_overlap_limit). The last two terms are what one round's side
cannot hide behind (the first gather, the last scatter, the first copy). A body that is no such
chain is laid out round by round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shardwise.roofline.stacks import IDEAL, Stack
from shardwise.work import Op, Quantity, largest, total

COPIES = "host"
"""The stream of copies to host memory and back."""

_ROUNDS = 3  # the third round of a body no longer feels how the pipeline of streams was filled


@dataclass(frozen=True, kw_only=True)
class OpTime:
    """Seconds of one run of one op.

    `derated` is the slowest of its math, memory and network at derated rates, `serial` their sum,
    both with ramp and launch; `peak` what it takes of each resource at peak rates, `rated` at
    derated ones (a network is "net"), `launch` what the host or the kernel's start adds to both,
    `host` the seconds that the host works for it, ahead of the device.
    """

    op: Op
    derated: Quantity
    serial: Quantity
    peak: Mapping[str, Quantity]
    rated: Mapping[str, Quantity] = field(default_factory=dict)
    launch: Quantity = 0.0
    host: Quantity = 0.0

    @property
    def total(self) -> Quantity:
        """Derated seconds per step: all runs of the op, one after the other."""
        return self.derated * self.op.count


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyTime:
    """Seconds of a body that runs `count` rounds: `expected` = count x `period` + `fill`, what it
    takes once beyond its rounds."""

    count: Quantity
    period: Quantity
    fill: Quantity
    expected: Quantity


def body_time(ops: tuple[OpTime, ...], stack: Stack = IDEAL) -> BodyTime:
    """Seconds of one body of ops in program order; closed form where it is a chain."""
    sides = sides_of(ops)
    if not is_chain(ops, sides):
        return _laid_out(ops, stack)
    count = largest(t.op.count for t in ops)
    # An op that runs less often than its body (one in four layers) adds its average.
    scale = 1.0 / np.maximum(count, 1e-300)
    chain: Quantity = 0.0
    wire: Quantity = 0.0
    streams: dict[str, Quantity] = {}
    for t in ops:
        seconds = t.derated * (t.op.count * scale)
        if t.op.id in sides:
            streams[t.op.stream] = streams.get(t.op.stream, 0.0) + seconds
        elif t.op.collective is not None:
            wire = wire + seconds
        else:
            chain = chain + seconds
    return closed_form(chain, wire, streams, count, stack)


def closed_form(
    chain: Quantity,
    wire: Quantity,
    sides: Mapping[str, Quantity],
    count: Quantity,
    stack: Stack,
) -> BodyTime:
    """A body from the seconds of one round: of the chain on the chip, of the collectives within it
    (`wire`), and of each stream of side ops: the formulas at the top of this file."""
    period, hidden = round_form(chain, wire, sides, stack)
    fill = hidden * np.minimum(count, 1.0)
    return BodyTime(count=count, period=period, fill=fill, expected=count * period + fill)


def round_form(
    chain: Quantity, wire: Quantity, sides: Mapping[str, Quantity], stack: Stack
) -> tuple[Quantity, Quantity]:
    """The period of a body, and what one round hides: overlap x min(chain, side), and copies."""
    along, copies = chain + wire, sides.get(COPIES, 0.0)
    side = largest(seconds for stream, seconds in sides.items() if stream != COPIES)
    hidden = stack.overlap * np.minimum(along, side)
    shown = along + side - hidden
    return np.maximum(shown, copies), hidden + np.minimum(shown, copies)


def sides_of(ops: tuple[OpTime, ...]) -> frozenset[str]:
    """Ids of the ops off the chain: not on the compute stream, and they wait for nothing or nobody
    waits for them."""
    awaited = {i for t in ops for i in t.op.after}
    return frozenset(
        t.op.id
        for t in ops
        if t.op.stream != "compute" and (not t.op.after or t.op.id not in awaited)
    )


def is_chain(ops: tuple[OpTime, ...], sides: frozenset[str]) -> bool:
    """Whether all other ops stand one after the other and no side op waits for another one.

    Sides are taken to run side by side, which two that wait for each other do not.
    """
    if any(i in sides for t in ops if t.op.id in sides for i in t.op.after):
        return False
    chain = [t.op for t in ops if t.op.id not in sides]
    for number, op in enumerate(chain):
        # The first may wait for the last, which then is that of the round before.
        before = chain[number - 1].id
        waits = {i for i in op.after if i not in sides}
        if waits != {before} and (number or waits):
            return False
    looped = bool(chain) and chain[-1].id in chain[0].after
    # Run once, a gather before the chain and a scatter after it never run side by side.
    awaited = {i for op in chain for i in op.after if i in sides}
    return looped or not awaited or awaited == sides


def _laid_out(ops: tuple[OpTime, ...], stack: Stack) -> BodyTime:
    """Any body: the timeline of its streams, and the part of its overlap that the stack reaches.

    expected = overlap x timeline + (1 - overlap) x all ops one after the other
    """
    count = largest(t.op.count for t in ops)
    laid, period = overlap(ops), _period(ops)
    serial = total(t.total for t in ops)
    expected = stack.overlap * laid + (1 - stack.overlap) * serial
    period = stack.overlap * period + (1 - stack.overlap) * serial / np.maximum(count, 1e-300)
    fill = np.maximum(expected - count * period, 0.0)
    return BodyTime(count=count, period=period, fill=fill, expected=expected)


def _period(ops: tuple[OpTime, ...]) -> Quantity:
    ends = _schedule(ops)
    return ends[-1] - ends[-2]


def overlap(body: tuple[OpTime, ...]) -> Quantity:
    """Seconds of a repeated body: each stream runs its ops in order, an op waits for its inputs.

    The body is laid out for a few rounds; the last round's length is the period of all further
    ones: first rounds + (count - rounds) x period. A stream that falls further behind in every
    round than its first ones show is caught by its own total.
    """
    count = largest(t.op.count for t in body)
    ends = _schedule(body)
    period = ends[-1] - ends[-2]
    laid = np.stack([np.zeros_like(ends[0]), *ends])
    whole = np.clip(np.floor(count), 0, _ROUNDS).astype(int)
    start = np.take_along_axis(laid, np.broadcast_to(whole, laid.shape[1:])[None], axis=0)[0]
    busiest = largest(stream_totals(body).values())
    return np.maximum(start + (count - whole) * period, busiest)


def _schedule(body: tuple[OpTime, ...]) -> list[np.ndarray]:
    """When each of the first rounds is finished."""
    shape = np.broadcast_shapes(*(np.shape(t.derated) for t in body))
    share = largest(t.op.count for t in body)
    free: dict[str, Quantity] = {}
    done: dict[str, Quantity] = {}
    finished: Quantity = np.zeros(shape)
    ends = []
    for _ in range(_ROUNDS):
        for t in body:
            # An op that runs less often than its body (one in four layers) adds its average.
            seconds = t.derated * (t.op.count / np.maximum(share, 1e-300))
            waits = [done[i] for i in t.op.after if i in done]
            start = largest([free.get(t.op.stream, 0.0), *waits])
            free[t.op.stream] = done[t.op.id] = start + seconds
            finished = np.maximum(finished, done[t.op.id])
        ends.append(np.broadcast_to(finished, np.broadcast_shapes(shape, np.shape(finished))))
    return ends


def stream_totals(body: tuple[OpTime, ...]) -> dict[str, Quantity]:
    """Seconds on each stream."""
    totals: dict[str, Quantity] = {}
    for t in body:
        totals[t.op.stream] = totals.get(t.op.stream, 0.0) + t.total
    return totals
