"""Servers as the simulator sees them: the cost of their steps, the cache of one, and the fleet of a
plan: its pools, each under the scheduler that the plan says."""

from dataclasses import replace

import numpy as np

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.kv import cache_groups
from shardwise.planner.serve.answer import check_serve_plan
from shardwise.planner.serve.cost import engine_cost
from shardwise.planner.serve.server import Server, server_of
from shardwise.planner.simulate.clock import TICKS
from shardwise.planner.simulate.cost import GuessingCost, ReplicaModel, ScaledCost
from shardwise.planner.simulate.run import Pool, SimulatedFleet
from shardwise.plans import ServePlan
from shardwise.plans.serve import ServeScheduling
from shardwise.scheduling import SchedulerConfig, Speculation
from shardwise.scheduling.kept import KeptGroup, least_pages


def replica_of(server: Server, *, memory_share: float = 1.0) -> ReplicaModel:
    """One replica of a plan's server. `memory_share` is the share of the usable memory that
    weights, cache and working memory may take (engines leave a tenth: vLLM's
    `gpu_memory_utilization`).

    The cache is counted at the plan's longest sequence: windows then hold less than their tokens.
    """
    chip, batch = server.piece.chip, float(server.request.batch)
    tokens = float(np.max(server.cache_tokens(server.shape(batch), memory_share)))
    hosts = -(-server.chips // chip.chips_per_host)
    cost = engine_cost(server)
    dram = hosts * (chip.host_dram_bytes or 0.0)
    return ReplicaModel(
        lag=server.lag(),
        cost=cost,
        kv_tokens=int(tokens),
        host_kv_tokens=int(dram / cost.kv_bytes_per_token) if cost.kv_bytes_per_token else 0,
        chips=server.chips,
        usd_per_hour=None if chip.price is None else server.chips * chip.price.usd_per_chip_hour,
    )


def fleet_of(
    plan: ServePlan, cfg: ModelConfig, piece: Slice, prefill_piece: Slice | None = None
) -> SimulatedFleet:
    """The replicas of a plan; `prefill_piece` is the slice of its prefill pool, where it has one of
    its own."""
    speculation = speculation_of(plan.scheduling)
    pool, prefill = _pool(plan, cfg, _replica(plan, cfg, piece), plan.replicas), None
    if plan.prefill_replicas:
        source = pool.model
        lag = server_of(plan, cfg, piece).lag(pools=True)
        pool = replace(pool, model=replace(pool.model, lag=lag))
        if plan.prefill is not None:
            source = _replica(plan.prefill_plan, cfg, prefill_piece or piece)
        prefill = _pool(plan, cfg, source, plan.prefill_replicas, prefill=True)
    return SimulatedFleet(pool=pool, prefill=prefill, speculation=speculation)


def speculation_of(wanted: ServeScheduling) -> Speculation | None:
    """The guesses of a plan's steps, where it makes some."""
    if not wanted.guesses:
        return None
    return Speculation(
        method="draft" if wanted.guess_cost else "ngram",
        tokens=wanted.guesses,
        acceptance=wanted.acceptance,
        cost=wanted.guess_cost,
        positions=tuple(wanted.acceptances or ()),
    )


def scaled(fleet: SimulatedFleet, decode: float, prefill: float) -> SimulatedFleet:
    """The fleet with the steps of its servers so many times as long (`ScaledCost`)."""

    def of(pool: Pool) -> Pool:
        cost = ScaledCost(cost=pool.model.cost, decode=decode, prefill=prefill)
        return replace(pool, model=replace(pool.model, cost=cost))

    return replace(fleet, pool=of(fleet.pool), prefill=fleet.prefill and of(fleet.prefill))


def averaged(fleet: SimulatedFleet) -> SimulatedFleet:
    """The fleet with as many guesses right in each step as in the mean: several times as fast, and
    the chances of a request even out over the steps of its answer."""
    guess = fleet.speculation
    if guess is None:
        return fleet
    model, config = fleet.pool.model, replace(fleet.pool.config, lookahead=0)
    cost = GuessingCost(
        cost=model.cost,
        queries=guess.tokens + 1,
        yields=guess.tokens_per_step,
        guessing=guess.tokens * guess.cost,
    )
    pool = replace(fleet.pool, model=replace(model, cost=cost), config=config)
    return replace(fleet, pool=pool, speculation=None)


def _pool(
    plan: ServePlan, cfg: ModelConfig, model: ReplicaModel, replicas: int, *, prefill: bool = False
) -> Pool:
    return Pool(
        model=model,
        config=_config(plan, cfg, model, prefill=prefill),
        replicas=replicas,
        routing=plan.routing,
        affinity=max(1, AFFINITY_TOKENS // plan.scheduling.page_size),
    )


def _replica(plan: ServePlan, cfg: ModelConfig, piece: Slice) -> ReplicaModel:
    check_serve_plan(plan, cfg, piece)
    model = replica_of(server_of(plan, cfg, piece), memory_share=plan.scheduling.memory_share)
    if model.kv_tokens < plan.scheduling.page_size:
        raise NoFeasiblePlan(
            f"{plan.model} leaves no room for a cache on {piece}: {model.kv_tokens:,} tokens fit "
            f"beside the weights in {plan.scheduling.memory_share:.0%} of the usable memory, and a "
            f"page has {plan.scheduling.page_size}; use more chips or smaller weights, or raise "
            "scheduling.memory_share"
        )
    return model


AFFINITY_TOKENS = 1024
"""Tokens of a prompt that routing by hash goes by: longer than the system prompt that all share,
shorter than a conversation (two of Mooncake's blocks; ours)."""


def _config(
    plan: ServePlan, cfg: ModelConfig, model: ReplicaModel, *, prefill: bool
) -> SchedulerConfig:
    wanted, size = plan.scheduling, plan.scheduling.page_size
    host = model.host_kv_tokens // size
    kept = int(host * wanted.host_cache_share)
    swaps = wanted.swap and not prefill
    if (wanted.host_cache_share or swaps) and not host:
        raise BadRequest(
            f"the hosts of {plan.slice} have no 'host_dram_bytes' in the catalogue, so nothing can "
            "be kept there; set scheduling.host_cache_share to 0 and scheduling.swap to false, or "
            "give it with --set chip.host_dram_bytes=NUMBER"
        )
    return SchedulerConfig(
        pages=model.kv_tokens // size,
        page_size=size,
        batch=plan.batch,
        budget=plan.prefill_chunk,
        policy="prefill" if prefill else wanted.policy,
        prefix_cache=wanted.prefix_cache,
        host_pages=kept,
        admission=wanted.admission,
        margin=wanted.margin,
        preemption="swap" if swaps else "recompute",
        swap_pages=host - kept if swaps else 0,
        order=wanted.order,
        age=int(wanted.age_seconds * TICKS),
        max_waiting=wanted.max_waiting,
        refuse_late=wanted.refuse_late,
        lookahead=0 if prefill else wanted.guesses,
        kept=_kept(plan, cfg, model.kv_tokens // size) if wanted.prefix_cache else (),
    )


def _kept(plan: ServePlan, cfg: ModelConfig, pages: int) -> tuple[KeptGroup, ...]:
    """What limits hits of the prefix cache: the last window of a prefix, or its state, must be
    there, too. The cache is counted in tokens of the longest sequence, so these groups have the
    share of its pages that such a sequence needs of them."""
    size, longest = plan.scheduling.page_size, plan.input_length + plan.output_length
    kept = []
    for group in cache_groups(cfg, longest)[1:]:
        reach = group.reach(size)
        least = least_pages(reach, plan.batch, plan.prefill_chunk, size)
        share = (group.window or size) / longest
        kept.append(KeptGroup(reach=reach, pages=max(least, int(pages * share)), state=group.state))
    return tuple(kept)
