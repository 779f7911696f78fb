"""Plan a server and shape the answer as a document's `result` (the design fixes its names)."""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from shardwise.hardware import Chip, Slice, Spelling, describe, slices_of
from shardwise.models import ModelConfig, load_model, params_total
from shardwise.models.specs import Attention, SoftmaxMixer
from shardwise.planner.serve.answer import ServeAnswer, ServePlanning, costs, plan_serve
from shardwise.planner.serve.count import SPLIT_AXES, cached_heads
from shardwise.planner.serve.search import Point, ServeRequest, Utilisation
from shardwise.plans.serve import ServeDtypes
from shardwise.roofline import Estimate
from shardwise.roofline.engines import load_engine
from shardwise.units import format_seconds, many, sig
from shardwise.workflows.inputs import Hardware

MOST_CHIPS = 512
"""A bare chip is searched up to slices of so many chips; larger replicas only copy the weights."""

_SHOWN_OPS = 6
_WORTH_SAYING = 1.1


def plan_serving(
    model: str | Path,
    on: str,
    *,
    input: int,
    output: int,
    tpot: float = inf,
    ttft: float = inf,
    batch: int = 0,
    dtypes: ServeDtypes | None = None,
    prefill_chunk: int = 8192,
    pins: Mapping[str, int] | None = None,
    mfu: float | None = None,
    params: float | None = None,
    top: int = 3,
    engine: str = "ideal",
    hardware: Hardware | None = None,
) -> ServePlanning:
    """The smallest slice that serves within the targets, and the mesh and batch with most tokens
    per second and chip on it.

    `model` is a zoo name, a config.json or a folder with one; `on` a slice, or a bare chip for the
    smallest of its slices; `input` and `output` tokens per request; `tpot` and `ttft` seconds that
    the expected times must not exceed; `batch` fixes the batch where it is not 0; `mfu` prefills at
    that share of the peak by 2 * `params` * tokens; `engine` is the software that serves. Raises
    BadRequest, or NoFeasiblePlan with the nearest miss.
    """
    hardware = hardware or Hardware()
    cfg, target = load_model(model), hardware.target(on)
    pieces = (target.slice,) if isinstance(target, Spelling) else candidate_slices(target)
    utilisation = None
    if mfu is not None:
        utilisation = Utilisation(share=mfu, params=params or params_total(cfg))
    request = ServeRequest(
        cfg=cfg,
        model=str(model),
        pieces=pieces,
        input_length=input,
        output_length=output,
        dtypes=dtypes or ServeDtypes(compute=default_compute(pieces[0].chip)),
        prefill_chunk=prefill_chunk,
        batch=batch,
        max_tpot=tpot,
        max_ttft=ttft,
        pins=pins or {},
        utilisation=utilisation,
        engine=load_engine(engine),
    )
    return plan_serve(request, top=top, constants=hardware.constants)


def candidate_slices(chip: Chip) -> tuple[Slice, ...]:
    """The slices of a chip that a server may take, smallest first; several domains where the chip
    has a data-centre network."""
    domains = MOST_CHIPS if chip.data_centre is not None else 1
    return tuple(p for p in slices_of(chip, domains=domains) if p.chips <= MOST_CHIPS)


def default_compute(chip: Chip) -> str:
    """bf16 where the chip has it, else the first dtype of its peaks."""
    return "bf16" if "bf16" in chip.peak_flops else next(iter(chip.peak_flops))


def serve_result(answer: ServeAnswer) -> dict[str, Any]:
    """One priced serving plan under the stable names of the design."""
    piece, plan = answer.piece, answer.plan
    return {
        "slice": str(piece),
        "slice_means": describe(piece),
        "mesh": dict(plan.mesh),
        "box": list(plan.box),
        "placement": answer.placement.describe(),
        "kv_sharding": plan.kv_sharding,
        "engine": plan.engine,
        "kv_layout": cache_text(answer.cfg, plan.mesh, plan.kv_sharding),
        "batch": plan.batch,
        "input_length": plan.input_length,
        "output_length": plan.output_length,
        "chips_used": answer.chips_used,
        "chips_idle": answer.chips_idle,
        "prefill_seconds": answer.prefill_seconds,
        "ttft_seconds": answer.ttft_seconds,
        "tpot_seconds": answer.tpot_seconds,
        "tpot_interval": _interval(answer),
        "tokens_per_second_per_chip": answer.tokens_per_second_per_chip,
        "tokens_per_second_per_chip_with_prefill": answer.tokens_per_second_per_chip_with_prefill,
        "requests_per_second_per_chip": answer.requests_per_second_per_chip,
        "prefill_servers_per_decode_server": answer.prefill_servers_per_decode_server,
        "usd_per_million_tokens": answer.usd_per_million_tokens,
        "price": price_of(piece.chip),
        "peak_bytes_per_chip": answer.peak_bytes_per_chip,
        "usable_bytes_per_chip": piece.chip.require("hbm_usable_bytes"),
        "memory_by_kind": answer.memory_by_kind,
        "memory_peak_at": answer.memory.peak_point()[0],
        "bound_by": {"prefill": answer.prefill.bound_by(), "decode": answer.decode.bound_by()},
        "resource_seconds": {
            "prefill": _resources(answer.prefill),
            "decode": _resources(answer.decode),
        },
        "top_ops": {"prefill": _top(answer.prefill), "decode": _top(answer.decode)},
    }


def cache_text(cfg: ModelConfig, mesh: Mapping[str, int], kv_sharding: str) -> str:
    """How the KV cache lies on the mesh: who holds which sequences, and which heads of them."""
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
    found = load_engine(answer.plan.engine).range
    expected = answer.tpot_seconds["expected"]
    return None if found is None else [expected * found[0], expected * found[1]]


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
    return {
        "usd_per_chip_hour": chip.price.usd_per_chip_hour,
        "as_of": chip.price.as_of,
        "source": chip.price.source,
        "kind": chip.price.kind,
    }


def _resources(estimate: Estimate) -> dict[str, float]:
    """Seconds of each resource at peak rates."""
    return {name: float(seconds) for name, seconds in estimate.resources.items()}


def _top(estimate: Estimate) -> list[dict[str, Any]]:
    return [
        {
            "name": t.op.name,
            "component": t.op.component,
            "stream": t.op.stream,
            "count": float(t.op.count),
            "seconds": float(t.total),
        }
        for t in estimate.top(_SHOWN_OPS)
        if float(t.total) > 0
    ]


def serving_result(planning: ServePlanning) -> dict[str, Any]:
    """The best plan, the front, the runners-up and the slices that were too small."""
    best = planning.best
    return {
        **serve_result(best),
        "why": serving_reasons(planning),
        "front": [_point(p, planning.request) for p in planning.front],
        "runners_up": [_runner_up(a) for a in planning.runners_up],
        "too_small": [{"slice": str(t.piece), "why": t.why} for t in planning.too_small],
        "search": {"candidates": planning.candidates},
    }


def _point(p: Point, request: ServeRequest) -> dict[str, Any]:
    price = p.piece.chip.price
    usd = {"input": None, "output": None}
    prefill = float(p.ttft.expected) - float(p.tpot.expected)
    if price is not None:
        usd = costs(
            usd_per_chip_hour=price.usd_per_chip_hour,
            chips=p.piece.chips,
            prefill=prefill / request.input_length,
            decode=float(p.tpot.expected) / p.batch,
        )
    return {
        "slice": str(p.piece),
        "mesh": dict(p.mesh),
        "kv_sharding": p.kv_sharding,
        "batch": p.batch,
        "ttft_seconds": p.ttft.as_dict(),
        "tpot_seconds": p.tpot.as_dict(),
        "tokens_per_second_per_chip": p.tokens_per_second_per_chip,
        "usd_per_million_tokens": usd,
        "meets_targets": p.meets(request),
    }


def _runner_up(answer: ServeAnswer) -> dict[str, Any]:
    return {
        "slice": str(answer.piece),
        "mesh": dict(answer.plan.mesh),
        "kv_sharding": answer.plan.kv_sharding,
        "batch": answer.plan.batch,
        "ttft_seconds": answer.ttft_seconds,
        "tpot_seconds": answer.tpot_seconds,
        "tokens_per_second_per_chip": answer.tokens_per_second_per_chip,
        "peak_bytes_per_chip": answer.peak_bytes_per_chip,
        "bound_by": {"prefill": answer.prefill.bound_by(), "decode": answer.decode.bound_by()},
    }


def serving_reasons(planning: ServePlanning) -> list[str]:
    """What bounds both phases, why no smaller slice, and where tokens would be cheaper."""
    best, densest = planning.best, planning.densest
    said = [
        _bound_text("prefill", best.prefill, best.prefill_seconds["expected"]),
        _bound_text("decode", best.decode, best.tpot_seconds["expected"]),
    ]
    if planning.too_small:
        last = planning.too_small[-1]
        said.append(f"{last.piece} is too small: {last.why}")
    gain = densest.tokens_per_second_per_chip / best.tokens_per_second_per_chip
    if gain > _WORTH_SAYING:
        step = format_seconds(float(densest.tpot.expected))
        said.append(
            f"{densest.piece} at batch {densest.batch} has {sig(gain)}x the tokens/s per chip "
            f"within the same targets (expected TPOT {step})"
        )
    if best.chips_idle:
        said.append(
            f"{many(best.chips_idle, 'chip')} idle: no legal mesh that fits uses all of them"
        )
    return said


def _bound_text(phase: str, estimate: Estimate, expected: float) -> str:
    bound = estimate.bound_by()
    alone = float(estimate.resources[bound])
    return (
        f"{bound} binds {phase}: at peak rates it alone takes {format_seconds(alone)} of the "
        f"expected {format_seconds(expected)}"
    )
