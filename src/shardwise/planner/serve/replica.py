"""A serving plan as the simulator sees it: the cost of its steps, and the cache of one replica."""

from math import prod

import numpy as np

from shardwise.hardware import Chip, Slice
from shardwise.models import ModelConfig
from shardwise.planner.serve.cost import EngineCost, engine_cost
from shardwise.planner.serve.count import ServeShape
from shardwise.planner.serve.memory import kv_bytes_per_device, serve_memory
from shardwise.planner.serve.search import compute_of, counts_scales, place_mesh, usable_bytes
from shardwise.planner.simulate.cost import ReplicaModel
from shardwise.plans import ServePlan
from shardwise.roofline.engines import load_engine
from shardwise.work import Quantity


def replica_of(
    plan: ServePlan, cfg: ModelConfig, piece: Slice, *, memory_share: float = 1.0
) -> ReplicaModel:
    """One replica of a plan. `memory_share` is the share of the usable memory that weights, cache
    and working memory may take (engines leave a tenth: vLLM's `gpu_memory_utilization`).

    The cache is counted at the plan's longest sequence: windows then hold less than their tokens.
    """
    chip = piece.chip
    tokens = float(np.max(cache_tokens(cfg, shape_of(plan, chip), piece, memory_share)))
    chips = prod(plan.box) * piece.count
    hosts = -(-chips // chip.chips_per_host)
    cost = cost_of(plan, cfg, piece)
    dram = hosts * (chip.host_dram_bytes or 0.0)
    return ReplicaModel(
        cost=cost,
        kv_tokens=int(tokens),
        host_kv_tokens=int(dram / cost.kv_bytes_per_token) if cost.kv_bytes_per_token else 0,
        chips=chips,
        usd_per_hour=None if chip.price is None else chips * chip.price.usd_per_chip_hour,
    )


def cache_tokens(
    cfg: ModelConfig, shape: ServeShape, piece: Slice, memory_share: float
) -> Quantity:
    """Tokens that the cache of one replica holds beside weights and working memory: 0
    where those do not fit. Broadcasts over servers."""
    held: Quantity = 0.0
    for _, point in serve_memory(cfg, shape).points:
        held = np.maximum(held, point["weights"] + point["activations"])
    free = np.maximum(memory_share * usable_bytes(piece) - held, 0.0)
    one = kv_bytes_per_device(cfg, shape) / shape.sequences
    return free / one * shape.longest * shape.splits


def cost_of(plan: ServePlan, cfg: ModelConfig, piece: Slice) -> EngineCost:
    """The step cost of a plan with its engine's constants. BadRequest for an unknown engine."""
    placement = place_mesh(piece, plan.mesh, plan.box)
    return engine_cost(
        cfg, shape_of(plan, piece.chip), piece.chip, placement, load_engine(plan.engine)
    )


def shape_of(plan: ServePlan, chip: Chip) -> ServeShape:
    """What the plan's server is, as counting needs it."""
    return ServeShape(
        degrees={axis: float(d) for axis, d in plan.mesh.items() if d > 1},
        batch=float(plan.batch),
        input_length=plan.input_length,
        output_length=plan.output_length,
        prefill_chunk=plan.prefill_chunk,
        kv_sharding=plan.kv_sharding,
        dtypes=plan.dtypes,
        compute_of=compute_of(plan.dtypes, chip),
        kv_scales=counts_scales(plan.constants),
    )
