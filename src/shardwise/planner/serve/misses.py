"""Why a slice does not serve a model, in words: by how much, and what would change it."""

from collections.abc import Sequence
from math import ceil, inf

from shardwise.hardware import enough
from shardwise.planner.serve.answer import mesh_text
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.search import Point, SliceFound
from shardwise.plans.serve import CHECKPOINT
from shardwise.units import dtype_bytes, format_bytes, format_gib, format_seconds, many

_MARGIN = 1.02


def misfit(request: ServeRequest, found: SliceFound) -> str:
    """Why one slice was passed over: memory by so many GB, or the times that it reaches."""
    if found.points:
        return _times_missed(request, found.points)
    if found.need == inf:
        return "no mesh divides the model's heads and experts over it" + _pins(request)
    devices = found.piece.devices
    over = (found.need - found.usable) * devices
    spread = f" over {devices} devices" if devices > 1 else ""
    return (
        f"{_need(request)} do not fit: {format_gib(found.need)} per device at best, "
        f"{format_gib(found.usable)} usable, {format_bytes(over)} too much{spread}"
    )


def no_slice_fits(request: ServeRequest, searched: Sequence[SliceFound]) -> str:
    """The message where no slice holds the model: by how much the largest misses, and remedies."""
    largest = searched[-1]
    tried = f"{largest.piece}" if len(searched) == 1 else f"any of {len(searched)} slices"
    if largest.need == inf:
        return f"{request.cfg.name} cannot be served on {tried}: {misfit(request, largest)}"
    assert largest.leanest is not None
    mesh, memory = largest.leanest.mesh, largest.leanest.memory(float(max(request.batch, 1)))
    kinds = {kind: float(size) for kind, size in memory.peak_point()[1].items()}
    most = max(kinds, key=lambda k: kinds[k])
    copies = mesh.get("data", 1) if most == "weights" else 1
    limit = (
        f" (tensor={mesh.get('tensor', 1)} divides the heads, more does not, so "
        f"{copies} copies of the weights lie on the slice)"
    )
    return (
        f"{request.cfg.name} does not fit {tried}; on {largest.piece}, {misfit(request, largest)}; "
        f"most of it is {most} ({format_bytes(kinds[most])} per device)"
        f"{limit if copies > 1 else ''}: {_remedy(request, largest, most, copies == 1)}"
    )


def targets_missed(request: ServeRequest, searched: Sequence[SliceFound]) -> str:
    """The message where the model fits but no slice meets the targets: the nearest miss."""
    nearest = _nearest(request, [p for found in searched for p in found.points])
    flags = [
        f"--{name.lower()} {format_target(time)}"
        for name, time, target in _beside(request, nearest)
        if time > target
    ]
    smaller = "" if request.batch == 0 else "a smaller --batch, "
    return (
        f"no plan for {request.cfg.name} meets {_targets(request)}; the nearest, on "
        f"{nearest.server.piece} ({mesh_text(nearest.server.mesh)}, batch {nearest.batch}), has "
        f"{_reached(nearest)}: "
        f"ask for {' '.join(flags)}, or use {smaller}smaller dtypes (--weights int8, --kv int8), "
        "shorter prompts or another chip"
    )


def format_target(seconds: float) -> str:
    """A duration a little above `seconds`, as an option takes it."""
    return format_seconds(seconds * _MARGIN).replace(" ", "")


def _nearest(request: ServeRequest, points: Sequence[Point]) -> Point:
    """The point that misses its worst target by the smallest factor."""
    return min(points, key=lambda p: request.goal.excess(*p.times))


def _beside(request: ServeRequest, p: Point) -> list[tuple[str, float, float]]:
    """Name, time and target of both; TPOT first."""
    ttft, tpot = p.times
    return [("TPOT", tpot, request.goal.tpot), ("TTFT", ttft, request.goal.ttft)]


def _times_missed(request: ServeRequest, points: Sequence[Point]) -> str:
    nearest = _nearest(request, points)
    missed = [
        f"{name} {format_seconds(target)}"
        for name, time, target in _beside(request, nearest)
        if time > target
    ]
    return (
        f"it fits, but misses {' and '.join(missed)}: at best {_reached(nearest)} "
        f"({mesh_text(nearest.server.mesh)}, batch {nearest.batch})"
    )


def _targets(request: ServeRequest) -> str:
    """The targets that are set, in words."""
    pairs = (("TPOT", request.goal.tpot), ("TTFT", request.goal.ttft))
    return " and ".join(f"{name} {format_seconds(t)}" for name, t in pairs if t < inf)


def _reached(p: Point) -> str:
    ttft, tpot = p.times
    return f"expected TPOT {format_seconds(tpot)} and TTFT {format_seconds(ttft)}"


def _need(request: ServeRequest) -> str:
    weights = "stored" if request.dtypes[0].weights == CHECKPOINT else request.dtypes[0].weights
    return (
        f"{weights} weights and {many(max(request.batch, 1), 'sequence')} of "
        f"{request.input_length + request.output_length:,} tokens"
    )


def _remedy(request: ServeRequest, found: SliceFound, most: str, chips_help: bool) -> str:
    """What would make it fit; more chips do not where they only take more copies of the weights."""
    offers = []
    if most == "weights":
        stored = [dtype_bytes(d) for d in request.cfg.weight_dtypes.values()]
        now = request.dtypes[0].weights
        offers += _smaller("--weights", min(stored) if now == CHECKPOINT else dtype_bytes(now))
    elif most == "kv":
        offers += ["a smaller --batch"] if request.batch > 1 else []
        offers += ["shorter sequences", *_smaller("--kv", dtype_bytes(request.dtypes[0].kv))]
    else:
        offers += ["a smaller --prefill-chunk"]
    last = f"{'or ' if offers else ''}chips with more HBM"
    said = f"use {', '.join([*offers, last])}"
    if not chips_help:
        return said
    chips = ceil(found.piece.chips * found.need / found.usable)
    return f"{said}; more chips: {enough(found.piece.chip, chips)}"


def _smaller(flag: str, now: float) -> list[str]:
    """An option with the dtypes of fewer bytes per element than now, if there are any."""
    smaller = [f"{flag} {d}" for d in ("int8", "int4") if dtype_bytes(d) < now]
    return [" or ".join(smaller)] if smaller else []


def _pins(request: ServeRequest) -> str:
    if not request.pins:
        return ""
    return " with " + ", ".join(f"{a}={d}" for a, d in request.pins.items()) + " pinned"
