"""What the simulator asks of a replica: how long a step takes, and how much cache there is.

A step runs a batch once through the model: every decoding sequence puts in one token (more where it
speculates), and chunks of prompts may ride along. `StepCost` turns such a batch into seconds. The
step model makes one from Work and roofline; tests make one from four numbers.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shardwise.scheduling.step import StepShape
from shardwise.work import Quantity

__all__ = [
    "DecodeLine",
    "GuessingCost",
    "Lag",
    "ReplicaModel",
    "ScaledCost",
    "StepCost",
    "StepShape",
]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledCost:
    """The steps of a `cost` where decoding takes `decode` times as long, and what prompts add to a
    step `prefill` times: seconds = decode * d + prefill * (s - d), s of the whole step and d of
    its decoding sequences alone (0 where none decode). Copies take what they took."""

    cost: StepCost
    decode: float
    prefill: float

    def seconds(self, shape: StepShape) -> float:
        """One step of any batch."""
        alone = 0.0
        if shape.decodes:
            alone = self.cost.seconds(
                StepShape(
                    decodes=shape.decodes,
                    decode_tokens=shape.decode_tokens,
                    decode_context=shape.decode_context,
                    samples=min(shape.samples, shape.decode_tokens),
                )
            )
            if not shape.prefill_tokens:
                return self.decode * alone
        return self.decode * alone + self.prefill * (self.cost.seconds(shape) - alone)

    def decode_line(self, decodes: int, context: int) -> DecodeLine:
        """Steps that only decode."""
        line = self.cost.decode_line(decodes, context)
        return DecodeLine(self.decode * line.base, self.decode * line.per_token, line.until)

    def transfer_seconds(self, tokens: int) -> float:
        """As of the cost below."""
        return self.cost.transfer_seconds(tokens)

    def host_seconds(self, tokens: int) -> float:
        """As of the cost below."""
        return self.cost.host_seconds(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessingCost:
    """The steps of a `cost` in which each sequence checks `queries` tokens and keeps `yields` of
    them in the mean, told for each token that is kept; making the guesses takes `guessing` times a
    step that only decodes. What prompts add to a step is theirs alone."""

    cost: StepCost
    queries: int
    yields: float
    guessing: float

    def seconds(self, shape: StepShape) -> float:
        """One step of any batch, over the tokens that a sequence keeps of it."""
        if not shape.decodes:
            return self.cost.seconds(shape)
        decodes, context = shape.decodes, shape.decode_context
        each = self._alone(decodes, context)
        if not shape.prefill_tokens:
            return each
        more = decodes * (self.queries - 1)
        whole = shape._replace(
            decode_tokens=shape.decode_tokens + more, samples=shape.samples + more
        )
        return each + self.cost.seconds(whole) - self._step(decodes, context, self.queries)

    def decode_line(self, decodes: int, context: int) -> DecodeLine:
        """Steps that only decode: a line from this context to one a quarter longer."""
        far = context + max(context // 4, decodes)
        first, last = self._alone(decodes, context), self._alone(decodes, far)
        slope = (last - first) / (far - context)
        return DecodeLine(first - slope * context, slope, far)

    def _alone(self, decodes: int, context: int) -> float:
        checked = self._step(decodes, context, self.queries)
        drafts = self.guessing * self._step(decodes, context, 1) if self.guessing else 0.0
        return (checked + drafts) / self.yields

    def _step(self, decodes: int, context: int, queries: int) -> float:
        tokens = decodes * queries
        return self.cost.seconds(
            StepShape(decodes=decodes, decode_tokens=tokens, decode_context=context, samples=tokens)
        )

    def transfer_seconds(self, tokens: int) -> float:
        """As of the cost below."""
        return self.cost.transfer_seconds(tokens)

    def host_seconds(self, tokens: int) -> float:
        """As of the cost below."""
        return self.cost.host_seconds(tokens)


class Lag(NamedTuple):
    """By what a first token comes later than the steps of a server say, as its software was
    measured to: seconds, more for each token of the prompt, and while the server answers others
    further ones (`beside`) and steps in which a request is not looked at. A prompt takes `start`
    seconds longer than its device, as the host starts its kernels."""

    seconds: float = 0.0
    per_token: float = 0.0
    steps: float = 0.0
    beside: Quantity = 0.0
    start: Quantity = 0.0

    def of(self, prompt: Quantity, step: Quantity, busy: Quantity) -> Quantity:
        """Seconds for a prompt; `busy` is whether, or how likely, the server answers others in
        steps of `step` seconds."""
        waited = self.beside * busy
        if self.steps:  # steps may be infinite
            waited = waited + self.steps * step * busy
        return self.seconds + self.per_token * prompt + waited + self.start


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
