"""What `plan serve` answers, shaped as a document's `result` (the design fixes its names)."""

from collections.abc import Iterable, Mapping
from typing import Any

from shardwise.hardware import Chip, describe
from shardwise.models import ModelConfig
from shardwise.models.specs import Attention, SoftmaxMixer
from shardwise.planner.serve.answer import ServeAnswer, costs
from shardwise.planner.serve.fleet import Fleet, trade_off
from shardwise.planner.serve.planning import FleetPlanning
from shardwise.planner.serve.search import Point
from shardwise.planner.serve.server import Phase
from shardwise.planner.serve.shape import SPLIT_AXES, cached_heads
from shardwise.planner.serve.smallest import ServerPlanning
from shardwise.roofline.engines import load_engine
from shardwise.units import format_seconds, many, sig

_SHOWN_OPS = 6
_WORTH_SAYING = 1.1


def _named(of: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names}


_RATES = (
    "tokens_per_second_per_chip",
    "tokens_per_second_per_chip_with_prefill",
    "requests_per_second_per_chip",
    "prefill_servers_per_decode_server",
    "usd_per_million_tokens",
    "peak_bytes_per_chip",
)


def serve_result(answer: ServeAnswer) -> dict[str, Any]:
    """One priced serving plan under the stable names of the design."""
    piece, plan = answer.piece, answer.plan
    phases = {"prefill": answer.prefill, "decode": answer.decode}
    return {
        "slice": str(piece),
        "slice_means": describe(piece),
        "mesh": dict(plan.mesh),
        "box": list(plan.box),
        "placement": answer.placement.describe(),
        **_named(plan, ("kv_sharding", "engine", "batch", "input_length", "output_length")),
        "kv_layout": cache_text(answer.cfg, plan.mesh, plan.kv_sharding),
        **_named(answer, ("chips_used", "chips_idle")),
        **_named(answer, ("prefill_seconds", "ttft_seconds", "tpot_seconds")),
        "tpot_interval": _interval(answer),
        **_named(answer, _RATES),
        "price": price_of(piece.chip),
        "usable_bytes_per_chip": piece.chip.require("hbm_usable_bytes"),
        "memory_by_kind": answer.memory_by_kind,
        "memory_peak_at": answer.memory.peak_point()[0],
        "bound_by": {name: phase.estimate.bound_by() for name, phase in phases.items()},
        "resource_seconds": {name: _resources(phase) for name, phase in phases.items()},
        "where_it_goes": answer.time_parts.named(),
        "top_ops": {name: _top(phase) for name, phase in phases.items()},
    }


def cache_text(cfg: ModelConfig, mesh: Mapping[str, int], kv_sharding: str) -> str:
    """How the KV cache is cut over the mesh: by sequences, by heads, along tokens."""
    mixers = [layer.mixer for layer in cfg.groups if isinstance(layer.mixer, SoftmaxMixer)]
    if not mixers:
        return "no KV cache, only recurrent states"
    tensor, split = mesh.get("tensor", 1), [a for a in SPLIT_AXES if mesh.get(a, 1) > 1]
    parts = [f"cut by sequences over {' and '.join(split)}"] if split else []
    heads = min(cached_heads(m) for m in mixers)
    if tensor > 1 and heads > 1:
        parts.append("cut by heads over tensor")
    if tensor > heads:
        parts.append(_beyond_heads(heads, tensor // heads, _BEYOND[kv_sharding]))
    latent = not any(isinstance(m, Attention) for m in mixers)
    return f"{'latent ' if latent else ''}KV cache {', '.join(parts) or 'on one device'}"


def _interval(answer: ServeAnswer) -> list[float] | None:
    """The 80 % range of the time per output token, where the engine's was measured."""
    found, expected = load_engine(answer.plan.engine).range, answer.tpot_seconds["expected"]
    return found and [expected * share for share in found]


_BEYOND = {
    "heads": "",
    "heads_then_batch": "by sequences",
    "heads_then_batch_then_sequence": "by sequences, then along their tokens,",
}


def _beyond_heads(heads: int, devices: int, cut: str) -> str:
    """How `devices` of tensor share a KV head, or the one entry that serves all heads."""
    over = f"cut {cut} over" if cut else "replicated on"
    if heads == 1:
        return f"{over if cut else 'replicated over'} tensor"
    return f"each head {over} {devices} devices"


_FULL = 0.98


def full_warning(result: Mapping[str, Any]) -> list[str]:
    """A line where so little of the usable HBM is left that an allocator may not find it."""
    share = result["peak_bytes_per_chip"] / result["usable_bytes_per_chip"]
    if share <= _FULL:
        return []
    said = f"{share:.1%} of the usable HBM is taken: nothing is left for fragmentation"
    batch = result["batch"]
    return [f"{said}; a --batch below {batch:,} leaves some" if batch > 1 else said]


def price_of(chip: Chip) -> dict[str, Any] | None:
    """The price behind the dollars, with date and source; None where the catalogue has none."""
    if chip.price is None:
        return None
    return _named(chip.price, ("usd_per_chip_hour", "as_of", "source", "kind"))


def _resources(phase: Phase) -> dict[str, float]:
    """Seconds of each resource at peak rates."""
    return {name: float(seconds) for name, seconds in phase.estimate.resources.items()}


def _top(phase: Phase) -> list[dict[str, Any]]:
    return [
        {
            **_named(t.op, ("name", "component", "stream")),
            "count": float(t.op.count),
            "seconds": float(t.total),
        }
        for t in phase.estimate.top(_SHOWN_OPS)
        if float(t.total) > 0
    ]


def serving_result(planning: ServerPlanning) -> dict[str, Any]:
    """The best plan, the front, the runners-up and the slices that were too small."""
    return {
        **serve_result(planning.best),
        "why": serving_reasons(planning),
        "front": [_point(p) for p in planning.front],
        "runners_up": [_runner_up(a) for a in planning.runners_up],
        "too_small": [{"slice": str(t.piece), "why": t.why} for t in planning.too_small],
        "search": {"candidates": planning.candidates},
    }


def _point(p: Point) -> dict[str, Any]:
    server, request, (ttft, tpot) = p.server, p.server.request, p.times
    usd = costs(server.piece, prefill=(ttft - tpot) / request.input_length, decode=tpot / p.batch)
    return {
        "slice": str(server.piece),
        "mesh": server.mesh,
        "kv_sharding": server.kv_sharding,
        "ttft_seconds": p.ttft.as_dict(),
        "tpot_seconds": p.tpot.as_dict(),
        **_named(p, ("batch", "tokens_per_second_per_chip")),
        "usd_per_million_tokens": usd,
        "meets_targets": request.goal.met(ttft, tpot),
    }


def _runner_up(answer: ServeAnswer) -> dict[str, Any]:
    found = serve_result(answer)
    return {name: found[name] for name in _RUNNER_UP}


_RUNNER_UP = (
    *("slice", "mesh", "kv_sharding", "batch", "ttft_seconds", "tpot_seconds"),
    *("tokens_per_second_per_chip", "peak_bytes_per_chip", "bound_by"),
)


def serving_reasons(planning: ServerPlanning) -> list[str]:
    """What bounds both phases, why no smaller slice, and where tokens would be cheaper."""
    best, densest = planning.best, planning.densest
    said = [_bound_text("prefill", best.prefill), _bound_text("decode", best.decode)]
    if planning.too_small:
        last = planning.too_small[-1]
        said.append(f"{last.piece} is too small: {last.why}")
    gain = densest.tokens_per_second_per_chip / best.tokens_per_second_per_chip
    if gain > _WORTH_SAYING:
        step = format_seconds(densest.times[1])
        said.append(
            f"{densest.server.piece} at batch {densest.batch} has {sig(gain)}x the tokens/s per "
            f"chip within the same targets (expected TPOT {step})"
        )
    if best.chips_idle:
        said.append(
            f"{many(best.chips_idle, 'chip')} idle: no legal mesh that fits uses all of them"
        )
    return said


def _bound_text(name: str, phase: Phase) -> str:
    bound = phase.estimate.bound_by()
    alone, expected = phase.estimate.resources[bound], phase.bounds.expected
    return (
        f"{bound} binds {name}: at peak rates it alone takes {format_seconds(float(alone))} of the "
        f"expected {format_seconds(float(expected))}"
    )


def fleet_result(planning: FleetPlanning, fleet: Fleet | None = None) -> dict[str, Any]:
    """One fleet under stable names, the best unless told."""
    fleet = fleet or planning.best
    server, price = fleet.server, fleet.piece.chip.price
    prefill = fleet.prefill_server if fleet.prefill_replicas else None
    return {
        "chip": server.piece.chip.id,
        "slice": str(server.piece),
        "mesh": server.mesh,
        "kv_sharding": server.kv_sharding,
        **_named(fleet, ("layout", "replicas", "prefill_replicas", "chips", "running")),
        "prefill_slice": prefill and str(prefill.piece),
        "prefill_mesh": prefill and prefill.mesh,
        **_named(server.dtypes, ("weights", "kv")),
        "prefill_chunk": fleet.chunk,
        "batch": fleet.slots,
        "requests_per_second": fleet.rate,
        "percentile": planning.request.percentile,
        "ttft_seconds": fleet.ttft,
        "tpot_seconds": fleet.tpot,
        "e2e_seconds": fleet.e2e,
        "chip_hours_per_million_tokens": fleet.chip_hours_per_million,
        "usd_per_million_tokens": fleet.usd_per_million,
        "usd_per_chip_hour": price and price.usd_per_chip_hour,
        "columns": planning.searched.columns,
    }


def fleet_front(planning: FleetPlanning) -> list[dict[str, Any]]:
    """The front of time per output token and cost, TTFT within its objective."""
    fleets = trade_off(planning.searched, planning.request.goal)
    return [fleet_result(planning, fleet) for fleet in fleets]
