"""A server as the simulator sees it: the cost of its steps, and the cache of one replica."""

import numpy as np

from shardwise.planner.serve.cost import engine_cost
from shardwise.planner.serve.server import Server
from shardwise.planner.simulate.cost import ReplicaModel


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
        cost=cost,
        kv_tokens=int(tokens),
        host_kv_tokens=int(dram / cost.kv_bytes_per_token) if cost.kv_bytes_per_token else 0,
        chips=server.chips,
        usd_per_hour=None if chip.price is None else server.chips * chip.price.usd_per_chip_hour,
    )
