"""Why a slice does not serve a model, in words: by how much, and what would change it."""

from collections.abc import Sequence
from math import ceil, inf

from shardwise.hardware import enough
from shardwise.planner.serve.memory import serve_memory
from shardwise.planner.serve.search import Point, ServeRequest, SliceFound, serve_shape
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
    kinds = _kinds(request, largest)
    most = max(kinds, key=lambda k: kinds[k])
    copies = largest.leanest.get("data", 1) if most == "weights" else 1
    limit = (
        f" (tensor={largest.leanest.get('tensor', 1)} divides the heads, more does not, so "
        f"{copies} copies of the weights lie on the slice)"
    )
    return (
        f"{request.cfg.name} does not fit {tried}; on {largest.piece}, {misfit(request, largest)}; "
        f"most of it is {most} ({format_bytes(kinds[most])} per device)"
        f"{limit if copies > 1 else ''}: {_remedy(request, largest, most, copies == 1)}"
    )


def targets_missed(request: ServeRequest, searched: Sequence[SliceFound]) -> str:
    """The message where the model fits but no slice meets the targets: the nearest miss."""
    nearest = min(
        (p for found in searched for p in found.points), key=lambda p: _excess(request, p)
    )
    flags = []
    if float(nearest.tpot.expected) > request.max_tpot:
        flags.append(f"--tpot {format_target(float(nearest.tpot.expected))}")
    if float(nearest.ttft.expected) > request.max_ttft:
        flags.append(f"--ttft {format_target(float(nearest.ttft.expected))}")
    smaller = "" if request.batch == 0 else "a smaller --batch, "
    return (
        f"no plan for {request.cfg.name} meets {_targets(request)}; the nearest, on "
        f"{nearest.piece} ({_mesh(nearest)}, batch {nearest.batch}), has {_reached(nearest)}: "
        f"ask for {' '.join(flags)}, or use {smaller}smaller dtypes (--weights int8, --kv int8), "
        "shorter prompts or another chip"
    )


def format_target(seconds: float) -> str:
    """A duration a little above `seconds`, as an option takes it."""
    return format_seconds(seconds * _MARGIN).replace(" ", "")


def _excess(request: ServeRequest, p: Point) -> float:
    """By which factor a point misses its worst target."""
    return max(float(p.tpot.expected) / request.max_tpot, float(p.ttft.expected) / request.max_ttft)


def _times_missed(request: ServeRequest, points: Sequence[Point]) -> str:
    nearest = min(points, key=lambda p: _excess(request, p))
    return (
        f"it fits, but misses {_targets(request, nearest)}: at best {_reached(nearest)} "
        f"({_mesh(nearest)}, batch {nearest.batch})"
    )


def _targets(request: ServeRequest, missed_by: Point | None = None) -> str:
    """The targets in words: all that are set, or those that a point misses."""
    p = missed_by
    words = []
    if request.max_tpot < (inf if p is None else float(p.tpot.expected)):
        words.append(f"TPOT {format_seconds(request.max_tpot)}")
    if request.max_ttft < (inf if p is None else float(p.ttft.expected)):
        words.append(f"TTFT {format_seconds(request.max_ttft)}")
    return " and ".join(words)


def _reached(p: Point) -> str:
    return (
        f"expected TPOT {format_seconds(float(p.tpot.expected))} and "
        f"TTFT {format_seconds(float(p.ttft.expected))}"
    )


def _mesh(p: Point) -> str:
    return " x ".join(f"{a}={d}" for a, d in p.mesh.items()) or "one device"


def _need(request: ServeRequest) -> str:
    weights = "stored" if request.dtypes.weights == CHECKPOINT else request.dtypes.weights
    return (
        f"{weights} weights and {many(max(request.batch, 1), 'sequence')} of "
        f"{request.input_length + request.output_length:,} tokens"
    )


def _kinds(request: ServeRequest, found: SliceFound) -> dict[str, float]:
    """Memory by kind of the leanest mesh."""
    degrees = {a: float(d) for a, d in found.leanest.items()}
    shape = serve_shape(request, degrees, float(max(request.batch, 1)), "heads_then_batch")
    return {k: float(v) for k, v in serve_memory(request.cfg, shape).peak_point()[1].items()}


def _remedy(request: ServeRequest, found: SliceFound, most: str, chips_help: bool) -> str:
    """What would make it fit; more chips do not where they only take more copies of the weights."""
    offers = []
    if most == "weights":
        stored = [dtype_bytes(d) for d in request.cfg.weight_dtypes.values()]
        now = request.dtypes.weights
        offers += _smaller("--weights", min(stored) if now == CHECKPOINT else dtype_bytes(now))
    elif most == "kv":
        offers += ["a smaller --batch"] if request.batch > 1 else []
        offers += ["shorter sequences", *_smaller("--kv", dtype_bytes(request.dtypes.kv))]
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
