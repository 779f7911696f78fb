"""Why no servers are found: what is too large, too slow or too few chips, and what would help."""

from dataclasses import replace
from math import inf, isfinite, prod

import numpy as np

from shardwise.errors import NoFeasiblePlan
from shardwise.hardware import Slice, boxes
from shardwise.planner.serve.answer import mesh_text
from shardwise.planner.serve.choices import candidate_slices
from shardwise.planner.serve.fleet import Fleet, FleetSearch, search_fleets
from shardwise.planner.serve.grid import grids
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.server import experts_of, legal_degrees
from shardwise.planner.simulate.metrics import Objectives
from shardwise.plans.laws import HEADS
from shardwise.units import format_gib, format_seconds, many


def nothing_found(searched: FleetSearch) -> NoFeasiblePlan:
    """The refusal of a search without an answer, with the nearest miss."""
    return NoFeasiblePlan(_beyond_context(searched.request) + _refusal(searched))


def _beyond_context(request: ServeRequest) -> str:
    """What is to be said first where requests are longer than the model says it can read."""
    cfg, tokens = request.cfg, request.input_length + request.output_length
    if cfg.max_context is None or tokens <= cfg.max_context:
        return ""
    return (
        f"requests of {tokens:,} tokens are longer than the context of {cfg.name}, "
        f"{cfg.max_context:,} (max_position_embeddings): use shorter ones; "
    )


def _refusal(searched: FleetSearch) -> str:
    request = searched.request
    if not searched.grids:
        return _nowhere(request)
    if request.max_chips < inf and request.rate:
        free = replace(searched, request=replace(request, max_chips=inf), grids=_free(searched))
        best = free.best
        if best.meets(request.within):
            return _too_few(request, best)
    best = searched.best
    said = (
        _missed(best, request.goal)
        or "keeps them by the closed-form estimate, but not when simulated"
    )
    return (
        f"no servers on {best.piece.chip.id} keep the targets for {request.cfg.name}; the "
        f"nearest, on {best.piece} ({mesh_text(best.server.mesh)}), {said}: "
        "allow more time, or use shorter prompts or another chip"
    )


def _free(searched: FleetSearch):
    """The columns without a bound on chips."""
    request = replace(searched.request, max_chips=inf)
    return tuple(
        replace(grid, server=replace(grid.server, request=request)) for grid in searched.grids
    )


def _too_few(request: ServeRequest, best: Fleet) -> str:
    # Where only the simulation says that the chips are too few, one server more is the least.
    chip, most = best.piece.chip, int(request.max_chips)
    anywhere = search_fleets(replace(request.on(candidate_slices(chip)), max_chips=inf))
    if anywhere.grids and (found := anywhere.best).meets(request.within):
        best = min(best, found, key=lambda fleet: fleet.chips)
    needed = max(best.chips, most + min(best.piece.chips, most))
    are, hold = ("is", "holds") if most == 1 else ("are", "hold")
    return (
        f"{request.rate:g} requests/s need about {many(needed, 'chip')} of {chip.id} within these "
        f"targets, and {many(most, 'chip')} {are} given: plan --on {chip.id} with --max-chips "
        f"{needed} or more, or leave out --rate to see what {many(most, 'chip')} {hold}"
    )


_MORE = tuple(1 << i for i in range(1, 9))
"""Numbers of sequences per server that are tried where a given one holds no load."""


def _nowhere(request: ServeRequest) -> str:
    """Why no server was found: the model is too large, or every step too long."""
    chip, last = request.pieces[0].chip, max(request.pieces, key=lambda p: p.chips)
    free = replace(request, goal=replace(request.goal, tpot=inf), batch=0)
    dtypes = request.dtypes[0]
    if request.pins and (pinned := _pinned_away(free)):
        return pinned
    if not any(grids(free, piece, dtypes) for piece in (request.pieces[0], last)):
        loose = replace(free, pins={})
        if request.pins and any(grids(loose, p, dtypes) for p in (request.pieces[0], last)):
            return (
                f"no server of {request.cfg.name} with {_pins(request)} pinned fits "
                f"{chip.id} (tried up to {last}); without the pin one fits: leave --pin out"
            )
        usable = format_gib(last.chips * chip.require("hbm_usable_bytes"))
        larger = (p for p in candidate_slices(chip) if p.chips > last.chips)
        first = next((p for p in larger if any(grids(loose, p, dtypes))), None)
        remedy = "a larger slice" if first is None else f"{first} or larger, which fits"
        return (
            f"{request.cfg.name} fits no slice of {chip.id} (tried up to {last}, "
            f"{usable} in all): its weights and the cache of one request need more memory; use "
            f"{remedy}, another chip, shorter requests or smaller dtypes (--weights, --kv)"
        )
    enough = (n for n in _MORE if n > request.batch) if request.batch else ()
    for batch in enough:
        wider = replace(request, batch=batch)
        if any(grids(wider, piece, dtypes) for piece in (request.pieces[0], last)):
            return (
                f"{many(request.batch, 'sequence')} per server are too few for a steady load of "
                f"{request.cfg.name} on {chip.id}: arrivals are uneven, so even one running on "
                f"average needs room for more; use --batch {batch} or more"
            )
    tried = (grids(free, piece, dtypes) for piece in request.pieces)
    least = min(float(np.min(grid.decode)) for found in tried for grid in found)
    return (
        f"no slice of {chip.id} (tried up to {last}) has a decode step of "
        f"{request.cfg.name} within TPOT {format_seconds(request.goal.tpot)}; the shortest takes "
        f"{format_seconds(least)} with the constants of {request.engine.name}: allow a longer "
        "--tpot, use another chip, or smaller dtypes (--weights, --kv)"
    )


def _pinned_away(request: ServeRequest) -> str:
    """Why no server has the pinned degrees, whatever its memory; "" where some has."""
    cfg, pins, title = request.cfg, dict(request.pins), request.software.title
    chip, last = request.pieces[0].chip, max(request.pieces, key=lambda p: p.chips)
    if any(_some(request, piece) for piece in request.pieces):
        return ""
    text, devices = _pins(request), last.chips * chip.jax_devices_per_chip
    if "tensor" in pins and (problem := HEADS.problem(cfg, {"tensor": pins["tensor"]})):
        return problem
    if pins.get("expert", 1) > 1 and experts_of(cfg) % pins["expert"]:
        found = experts_of(cfg)
        held = f"{found} routed experts" if found > 1 else "no routed experts"
        return (
            f"--pin expert={pins['expert']}: {cfg.name} has {held}; pin a degree that divides them"
        )
    alone = [
        axis for axis in pins if not any(_some(_with(request, axis), p) for p in request.pieces)
    ]
    if prod(pins.values()) > devices:
        return (
            f"--pin {text} takes {prod(pins.values()):,} devices, and {last}, the largest slice "
            f"tried, has {devices:,}; pin less, or plan on a larger slice"
        )
    if alone:
        return (
            f"--pin {alone[0]}={pins[alone[0]]}: {title} has no server of this degree for "
            f"{cfg.name} on {chip.id}, whatever its memory (tried up to {last}); pin another degree"
        )
    return (
        f"--pin {text}: {title} has no server with this mesh for {cfg.name} on {chip.id} (tried up "
        f"to {last}): it cannot shard so, or no slice has that shape; pin fewer axes"
    )


def _pins(request: ServeRequest) -> str:
    return " x ".join(f"{axis}={degree}" for axis, degree in request.pins.items())


def _with(request: ServeRequest, axis: str) -> ServeRequest:
    return replace(request, pins={axis: request.pins[axis]})


def _some(request: ServeRequest, piece: Slice) -> bool:
    """Whether some mesh can be laid out on a slice, or on a part of it."""
    return any(len(legal_degrees(request, piece, box)["tensor"]) for box in boxes(piece))


def _missed(fleet: Fleet, goal: Objectives) -> str:
    """The targets that a fleet misses, in words."""
    pairs = (
        ("TTFT", fleet.ttft, goal.ttft),
        ("TPOT", fleet.tpot, goal.tpot),
        ("E2E", fleet.e2e, goal.e2el),
        ("E2E per output token", fleet.pace, goal.pace),
    )
    missed = [
        f"has {name} {format_seconds(got)} for {format_seconds(limit)}"
        if isfinite(got)
        else f"has no steady {name}: more requests arrive than it answers"
        for name, got, limit in pairs
        if got > limit
    ]
    return " and ".join(missed)
