"""What the simulator asks of a replica: how long a step takes, and how much cache there is.

A step runs a batch once through the model: every decoding sequence puts in one token (more where it
speculates), and chunks of prompts may ride along. `StepCost` turns such a batch into seconds. The
step model makes one from Work and roofline; tests make one from four numbers.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shardwise.scheduling.step import StepShape
from shardwise.work import Quantity

__all__ = ["DecodeLine", "Lag", "ReplicaModel", "StepCost", "StepShape"]


class DecodeLine(NamedTuple):
    """Seconds of steps that only decode, of one number of sequences: base + per_token * context.

    `context` is the cached tokens of all sequences together, before the step. The line holds while
    the context is below `until` (never below the context it was asked for): a cost that is no
    straight line is given piece by piece.
    """

    base: float
    per_token: float
    until: float = float("inf")


class StepCost(Protocol):
    """Seconds of what a replica does; host overhead, collectives and sampling included."""

    def seconds(self, shape: StepShape) -> float:
        """One step of any batch. Where the step only decodes, the same as `decode_line` says."""
        ...

    def decode_line(self, decodes: int, context: int) -> DecodeLine:
        """Steps that only decode `decodes` >= 1 sequences, one token each."""
        ...

    def transfer_seconds(self, tokens: int) -> float:
        """Moving the cache of so many tokens from a prefill replica to a decode replica."""
        ...

    def host_seconds(self, tokens: int) -> float:
        """Copying the cache of so many tokens between HBM and the host's memory, one way."""
        ...


class Lag(NamedTuple):
    """By what a first token comes later than the steps of a server say, as its software was
    measured to: seconds, more for each token of the prompt, and steps in which a request is not
    looked at."""

    seconds: float = 0.0
    per_token: float = 0.0
    steps: float = 0.0

    def of(self, prompt: Quantity, step: Quantity) -> Quantity:
        """Seconds for a prompt, beside steps of `step` seconds."""
        waited = self.steps * step if self.steps else 0.0  # steps may be infinite
        return self.seconds + self.per_token * prompt + waited


NO_LAG = Lag()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaModel:
    """One replica as the simulator sees it.

    `kv_tokens` fit into the cache of the whole replica beside weights and working memory;
    `host_kv_tokens` into the memory of its hosts (0: unknown or unused). `usd_per_hour` is that of
    all its chips, None where the catalogue has no price. `lag` is what its software adds to the
    time to the first token of a request.
    """

    cost: StepCost
    kv_tokens: int
    host_kv_tokens: int = 0
    chips: int = 1
    usd_per_hour: float | None = None
    lag: Lag = NO_LAG
