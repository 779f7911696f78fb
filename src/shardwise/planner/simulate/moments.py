"""When the requests of a run came and were answered, whoever ran it."""

from dataclasses import dataclass

import numpy as np

from shardwise.planner.simulate.run import SimulatedFleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of each request in the order of arrival, its arrival, first and last token in ticks (infinite
    where it was refused), its prompt and answer, and whether its server was answering others as it
    came there (`met`); and the share of the busy time that prompts took."""

    arrival: np.ndarray
    first: np.ndarray
    last: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    met: np.ndarray
    prompt_share: float


def prompt_share(fleet: SimulatedFleet, prompts: int, busy: int) -> float:
    """Share of the chips' time that prompts take: of servers that answer, `prompts` of the `busy`
    ticks; all of it on servers that only prefill."""
    own, share = fleet.pool.model.chips * fleet.pool.replicas, prompts / busy if busy else 0.0
    if fleet.prefill is None:
        return share
    other = fleet.prefill.model.chips * fleet.prefill.replicas
    return (own * share + other) / (own + other)
