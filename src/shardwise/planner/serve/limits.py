"""What a serving fleet spends its time on, what limits it, and whether guessing tokens would help.

The breakdown is that of the book's figures in 8.2: seconds of a decode step that matmuls' memory
traffic (weights, for the most part), KV cache, FLOPs and network would take alone at peak rates.
"What limits me" prices the same mesh on a chip with a tenth more of one resource, with the number
in flight chosen anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from shardwise.planner.sensitivity import MORE, RESOURCES, MovedInput, heaviest
from shardwise.planner.serve.count import step_work
from shardwise.planner.serve.fleet import Fleet, refined
from shardwise.planner.serve.grid import steady
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.simulate.metrics import Objectives
from shardwise.roofline.engines import IDEAL_ENGINE, EngineConstants
from shardwise.roofline.price import HBM, HOST, MATH
from shardwise.units import sig

GUESSES = 3
"""Tokens guessed per step where speculation is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of a decode step of `running` sequences: `expected`, and what each part takes alone
    at peak rates: `matmuls` is their memory traffic, weights and activations; `engine` what the
    step is longer by for kernels, sequences and latency of the software. Arrays over `running`."""

    running: np.ndarray
    expected: np.ndarray
    matmuls: np.ndarray
    kv: np.ndarray
    flops: np.ndarray
    network: np.ndarray
    other: np.ndarray
    engine: np.ndarray


def breakdown(request: ServeRequest, fleet: Fleet, running: np.ndarray) -> Breakdown:
    """The parts of a decode step at numbers in flight; `other` is memory traffic of neither
    matmuls nor cache (norms, embeddings, sampling)."""
    server, running = replace(fleet.server, request=request), np.asarray(running, float)
    load = steady(request, running, fleet.chunk).decode_step()
    found = server.price(step_work(request.cfg, server.shape(), load))
    parts = {name: np.zeros(len(running)) for name in ("matmuls", "kv", "other", "network")}
    bandwidth = fleet.piece.chip.require("hbm_bandwidth") / fleet.piece.chip.jax_devices_per_chip
    for t in found.ops:
        kind = {"matmul": "matmuls", "attention": "kv", "scan": "kv"}.get(t.op.op_class, "other")
        parts[kind] += np.broadcast_to(t.op.hbm_bytes / bandwidth * t.op.count, len(running))
        for resource, seconds in t.peak.items():
            if resource not in (HBM, MATH, HOST):
                parts["network"] += np.broadcast_to(seconds * t.op.count, len(running))
    bare = replace(server, request=replace(request, engine=_bare(request.engine)))
    expected = server.seconds(load)
    return Breakdown(
        running=running,
        engine=expected - bare.seconds(load),
        expected=expected,
        flops=np.broadcast_to(found.resources.get(MATH, 0.0), len(running)),
        **parts,
    )


def _bare(engine: EngineConstants) -> EngineConstants:
    """The engine without what it adds to the chip's own times."""
    hops = np.minimum(engine.hops, IDEAL_ENGINE.hops)
    return replace(engine, kernel_seconds=0.0, sequence_seconds=0.0, hops=hops)


def limits(request: ServeRequest, fleet: Fleet, goal: Objectives) -> dict[str, float]:
    """By which share a tenth more of each resource makes a token cheaper on the same mesh, the
    number in flight chosen anew; largest first."""
    gains = {one.name: 1 - one.cost for one in _more_of_a_chip(request, fleet, goal)}
    return dict(sorted(gains.items(), key=lambda item: -item[1]))


def serve_sensitivity(request: ServeRequest, fleet: Fleet, goal: Objectives) -> list[MovedInput]:
    """The same mesh with each input a tenth larger, the number in flight chosen anew: resources of
    the chip, lengths of prompts and answers, targets. Those with which no number keeps the targets
    are left out."""
    return heaviest((*_more_of_a_chip(request, fleet, goal), *_more_asked(request, fleet, goal)))


def _more_of_a_chip(request: ServeRequest, fleet: Fleet, goal: Objectives) -> Iterator[MovedInput]:
    now = _cost(request, fleet, goal)
    for name, scaled in RESOURCES.items():
        chip = scaled(fleet.piece.chip, MORE)
        other = fleet.prefiller
        if other is not None:
            other = other.on(scaled(other.server.piece.chip, MORE))
        server = replace(fleet.server, piece=replace(fleet.piece, chip=chip))
        more = replace(fleet, server=server, prefiller=other)
        yield MovedInput(name=name, by=MORE, time=None, cost=_cost(request, more, goal) / now)


def _more_asked(request: ServeRequest, fleet: Fleet, goal: Objectives) -> Iterator[MovedInput]:
    now = _cost(request, fleet, goal)
    for name, field in (("prompt tokens", "input_length"), ("answer tokens", "output_length")):
        length = getattr(request, field)
        longer = replace(request, **{field: max(length + 1, round(MORE * length))})
        if (cost := _cheapest(longer, fleet, goal)) is not None:
            by = getattr(longer, field) / length
            yield MovedInput(name=name, by=by, time=None, cost=cost / now)
    for name, field in (("time to the first token", "ttft"), ("time per token", "tpot")):
        target = getattr(goal, field)
        if target < inf:
            looser = replace(goal, **{field: MORE * target})
            cost = _cost(request, fleet, looser)
            yield MovedInput(name=name, by=MORE, time=None, cost=cost / now)


def _cost(request: ServeRequest, fleet: Fleet, goal: Objectives) -> float:
    """Chip-seconds per request of a mesh as full as it may be, whatever the rate."""
    return _cheapest(request, fleet, goal) or fleet.chip_seconds


def _cheapest(request: ServeRequest, fleet: Fleet, goal: Objectives) -> float | None:
    free = replace(request, rate=0.0)
    found = [f for f in refined(free, fleet, goal) if f.meets(goal)]
    return min((f.chip_seconds for f in found), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether something helps, by which factor tokens get cheaper (below 1: dearer; None where
    there is no such plan), and why."""

    what: str
    helps: bool
    factor: float | None
    why: str


def speculation(request: ServeRequest, fleet: Fleet, guesses: int = GUESSES) -> Verdict:
    """The acceptance above which guessing pays, at the number in flight.

    A step with g guesses of each sequence brings (1 - a^(g+1)) / (1 - a) tokens at acceptance a
    (Leviathan et al. 2023, eq. 1); guesses that cost nothing (n-grams) pay where that is more than
    the step's slowdown.
    """
    step = steady(request, np.array([fleet.running]), fleet.chunk).decode_step()
    server = replace(fleet.server, request=request)
    wide = step._replace(
        decode_tokens=step.decode_tokens * (guesses + 1), samples=step.samples * (guesses + 1)
    )
    slower = float(server.seconds(wide)[0] / server.seconds(step)[0])
    said = (
        f"a step that checks {guesses} guessed tokens of each of {fleet.running:,.0f} sequences "
        f"takes {sig(slower)} times as long as a normal step"
    )
    what = "speculation"
    if slower >= guesses + 1:
        why = f"{said}, and gives {guesses + 1} tokens if all guesses are right"
        return Verdict(what=what, helps=False, factor=(guesses + 1) / slower, why=why)
    rates = np.linspace(0.0, 1.0, 1001)
    tokens = np.sum(rates[:, None] ** np.arange(guesses + 1), axis=1)
    even = float(rates[np.argmax(tokens > slower)])
    return Verdict(
        what=what,
        helps=even <= _LIKELY,
        factor=None,
        why=f"{said}; tokens come faster if more than {even:.0%} of the guesses are right",
    )


_LIKELY = 0.5
"""Break-even acceptance up to which speculation is said to help (ours): n-grams reach it on text
that repeats its prompt, draft models on most text."""
