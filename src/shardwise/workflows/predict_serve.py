"""One priced serving plan, shaped as a document's `result` (the design fixes its names)."""

from collections.abc import Iterable, Mapping
from typing import Any

from shardwise.hardware import Chip, describe
from shardwise.models import ModelConfig
from shardwise.models.specs import Attention, SoftmaxMixer
from shardwise.planner.serve.answer import ServeAnswer
from shardwise.planner.serve.server import Phase
from shardwise.planner.serve.shape import SPLIT_AXES, cached_heads
from shardwise.roofline.engines import load_engine

_SHOWN_OPS = 6


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


def price_of(chip: Chip) -> dict[str, Any] | None:
    """The price behind the dollars, with date and source; None where the catalogue has none."""
    if chip.price is None:
        return None
    found = _named(chip.price, ("usd_per_chip_hour", "as_of", "source", "kind"))
    return {**found, "stale": chip.price.stale()}


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
