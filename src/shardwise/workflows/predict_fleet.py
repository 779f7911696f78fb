"""The cheapest way to serve a load on some chips: from words to a request, and the answer's names.

`plan_fleet` looks at one chip; chips are compared by dollars per million tokens, or by chip-hours
where a chip has no price.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import Chip, Spelling
from shardwise.models import ModelConfig, load_model, params_text, weight_bytes
from shardwise.planner.serve.answer import mesh_text
from shardwise.planner.serve.fleet import Fleet, Looked, cheapest, look, plan_of, trade_off
from shardwise.planner.serve.grid import FleetRequest, grids
from shardwise.planner.simulate.metrics import Objectives
from shardwise.plans import ServePlan
from shardwise.plans.serve import CHECKPOINT, MOST_REPLICAS, ServeDtypes
from shardwise.roofline.engines import load_engine
from shardwise.units import format_seconds
from shardwise.workflows.inputs import Hardware
from shardwise.workflows.predict_serve import candidate_slices, default_compute

_WIDE = 1.5
"""Bytes per parameter above which 8-bit weights are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlanning:
    """The cheapest fleet on one chip within its objectives, and all that was looked at."""

    looked: Looked
    goal: Objectives
    best: Fleet
    constants: str

    @property
    def request(self) -> FleetRequest:
        return self.looked.request

    @property
    def plan(self) -> ServePlan:
        """The plan to save, to simulate or to export."""
        return plan_of(self.request, self.best, self.constants)


def fleet_request(
    model: str,
    on: str,
    *,
    input: int,
    output: int,
    rate: float = 0.0,
    percentile: float = 0.9,
    slowest: float = inf,
    weights: Sequence[str] = (),
    kv: Sequence[str] = (),
    compute: str = "",
    chunks: Sequence[int] = (),
    pins: Mapping[str, int] | None = None,
    engine: str = "ideal",
    hardware: Hardware | None = None,
) -> FleetRequest:
    """A request from words: `on` is a bare chip or a slice, `weights` and `kv` the dtypes to choose
    from (none: as stored and 8 bits; bf16 and 8 bits), `chunks` sizes of steps (none: three)."""
    hardware = hardware or Hardware()
    cfg, target = load_model(model), hardware.target(on)
    pieces = (target.slice,) if isinstance(target, Spelling) else candidate_slices(target)
    if not 0.5 <= percentile < 1:
        raise BadRequest(f"the percentile is {percentile:g}; give one from 50% to below 100%")
    if rate < 0:
        raise BadRequest(f"the rate is {rate:g} requests per second; it cannot be negative")
    request = FleetRequest(
        cfg=cfg,
        model=model,
        pieces=pieces,
        input_length=input,
        output_length=output,
        dtypes=dtypes_for(cfg, pieces[0].chip, weights, kv, compute),
        rate=rate,
        percentile=percentile,
        slowest=slowest,
        pins=pins or {},
        engine=load_engine(engine),
    )
    return replace(request, chunks=tuple(chunks)) if chunks else request


def dtypes_for(
    cfg: ModelConfig,
    chip: Chip,
    weights: Sequence[str] = (),
    kv: Sequence[str] = (),
    compute: str = "",
) -> tuple[ServeDtypes, ...]:
    """The dtypes to choose from on a chip. 8-bit weights are offered where most parameters are
    stored in more; fp8 where the chip multiplies it, else int8."""
    small = "fp8" if "fp8" in chip.peak_flops else "int8"
    if not weights:
        wide = weight_bytes(cfg) > _WIDE * params_text(cfg)
        weights = (CHECKPOINT, small) if wide else (CHECKPOINT,)
    return tuple(
        ServeDtypes(weights=w, kv=k, compute=compute or default_compute(chip), matmuls="stored")
        for w in weights
        for k in kv or ("bf16", small)
    )


def plan_fleet(
    request: FleetRequest,
    goal: Objectives,
    *,
    looked: Looked | None = None,
    constants: str = "vendor",
    progress: Callable[[int, int], None] | None = None,
) -> FleetPlanning:
    """The cheapest fleet on the request's chip; `looked` saves looking twice for other objectives.
    Raises NoFeasiblePlan with the nearest miss."""
    looked = looked or look(replace(request, slowest=goal.tpot), progress)
    chip = request.pieces[0].chip.id
    if not looked.grids:
        raise NoFeasiblePlan(_nowhere(request, goal))
    best = cheapest(looked, goal)
    replicas = max(best.replicas, best.prefill_replicas)
    if replicas > MOST_REPLICAS:
        raise BadRequest(
            f"{request.rate:g} requests per second take {replicas:,} replicas of {best.piece}; at "
            f"most {MOST_REPLICAS:,} can be planned, so lower the rate (--rate) or shorten the "
            "requests"
        )
    if not best.meets(goal):
        raise NoFeasiblePlan(
            f"no servers of {chip} meet the objectives for {request.cfg.name}; the nearest, on "
            f"{best.piece} ({mesh_text(best.mesh)}), {_missed(best, goal)}: allow more time, or "
            "use shorter prompts or another chip"
        )
    return FleetPlanning(looked=looked, goal=goal, best=best, constants=constants)


def _nowhere(request: FleetRequest, goal: Objectives) -> str:
    """Why no server was found: the model is too large, or every step too long."""
    chip, last = request.pieces[0].chip.id, max(request.pieces, key=lambda p: p.chips)
    free = replace(request, slowest=inf)
    if not any(grids(free, last, dtypes) for dtypes in request.dtypes):
        return (
            f"{request.cfg.name} fits no slice of {chip} that was looked at (up to {last}): its "
            "weights and the cache of one request need more memory; use a larger slice, another "
            "chip, shorter requests or smaller dtypes (--weights, --kv)"
        )
    return (
        f"no slice of {chip} that was looked at (up to {last}) has a step of {request.cfg.name} "
        f"within TPOT {format_seconds(goal.tpot)}: allow a longer --tpot, use another chip, or "
        "smaller dtypes (--weights, --kv)"
    )


def _missed(fleet: Fleet, goal: Objectives) -> str:
    """The objectives that a fleet misses, in words."""
    pairs = (
        ("TTFT", fleet.ttft, goal.ttft),
        ("TPOT", fleet.tpot, goal.tpot),
        ("E2E", fleet.e2e, goal.e2el),
    )
    missed = [
        f"has {name} {format_seconds(got)} for {format_seconds(limit)}"
        for name, got, limit in pairs
        if got > limit
    ]
    return " and ".join(missed)


def fleet_result(planning: FleetPlanning) -> dict[str, Any]:
    """One fleet under stable names."""
    fleet, other = planning.best, planning.best.prefiller
    price = fleet.piece.chip.price
    return {
        "chip": fleet.piece.chip.id,
        "slice": str(fleet.piece),
        "mesh": dict(fleet.mesh),
        "kv_sharding": fleet.kv_sharding,
        "layout": fleet.layout,
        "replicas": fleet.replicas,
        "prefill_replicas": fleet.prefill_replicas,
        "prefill_slice": str((other or fleet).piece) if fleet.prefill_replicas else None,
        "prefill_mesh": dict((other or fleet).mesh) if fleet.prefill_replicas else None,
        "chips": fleet.chips,
        "weights": fleet.dtypes.weights,
        "kv": fleet.dtypes.kv,
        "prefill_chunk": fleet.chunk,
        "running": fleet.running,
        "batch": fleet.slots,
        "requests_per_second": fleet.rate,
        "percentile": planning.request.percentile,
        "ttft_seconds": fleet.ttft,
        "tpot_seconds": fleet.tpot,
        "e2e_seconds": fleet.e2e,
        "chip_hours_per_million_tokens": fleet.chip_hours_per_million,
        "usd_per_million_tokens": fleet.usd_per_million,
        "usd_per_chip_hour": None if price is None else price.usd_per_chip_hour,
        "columns": planning.looked.columns,
    }


def fleet_front(planning: FleetPlanning) -> list[dict[str, Any]]:
    """The front of time per output token and cost, TTFT within its objective."""
    return [
        fleet_result(replace(planning, best=fleet))
        for fleet in trade_off(planning.looked, planning.goal)
    ]
