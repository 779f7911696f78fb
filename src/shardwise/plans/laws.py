"""Laws of division that a mesh must keep: which degrees divide which counts, each said once.

The search reads a law as a mask over columns of degrees (`planner/search/legality.py`), pins and
plans, when they are made (`train.py`), priced or run, read it as a sentence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

import numpy as np

from shardwise.models import ModelConfig
from shardwise.models.specs import Moe
from shardwise.plans.context_methods import CONTEXT_METHODS, context_row
from shardwise.work import Quantity

BATCH_AXES = ("replica", "data", "fsdp", "expert")
"""Mesh axes that cut the sequences of the batch."""

MICROBATCHES = "microbatches"
"""Stands among the degrees where a law is about them too."""

Subject = TypeVar("Subject")


@dataclass(frozen=True, slots=True, kw_only=True)
class Law(Generic[Subject]):
    """The product of the degrees of `axes` divides every one of `sizes(subject)`; the subject is a
    model, or the tokens of a sequence or the sequences of a batch.

    `rule` and `reason` are its line in docs/legality.md, `source` the paper that has it, if one
    does. `refusal` says of a size of a subject and of degrees that break it what would keep it.
    """

    name: str
    rule: str
    reason: str
    axes: tuple[str, ...]
    sizes: Callable[[Subject], tuple[int, ...]]
    refusal: Callable[[Subject, int, Mapping[str, int]], str]
    source: str = ""

    def holds(self, subject: Subject, degrees: Mapping[str, Quantity]) -> np.ndarray:
        """For which degrees it holds; they broadcast."""
        cut = prod((degrees.get(axis, 1) for axis in self.axes), start=np.asarray(1))
        kept = np.ones(np.shape(cut), bool)
        for size in set(self.sizes(subject)):
            kept = kept & (size % cut == 0)
        return kept

    def problem(self, subject: Subject, degrees: Mapping[str, int]) -> str | None:
        """Why degrees are refused; None where they keep the law."""
        cut = prod(degrees.get(axis, 1) for axis in self.axes)
        broken = (size for size in self.sizes(subject) if size % cut)
        return next((self.refusal(subject, size, degrees) for size in broken), None)


def _heads(cfg: ModelConfig) -> tuple[int, ...]:
    parts = (part for layer in cfg.groups for part in layer.by_mixer)
    heads = (getattr(part.mixer, "heads", 0) for part in parts)
    return tuple(number for number in heads if number)


def _experts(cfg: ModelConfig) -> tuple[int, ...]:
    return tuple(layer.mlp.experts for layer in cfg.groups if isinstance(layer.mlp, Moe))


_COUNTED = {"N": " query heads", "K": " KV heads", "E": " experts"}
"""What a dim that is counted has so many of."""


def uneven(letter: str, size: int, axis: str, degree: int) -> str:
    """The sentence for a degree that does not divide a dim."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    near = [max(d for d in divisors if d < degree), *[d for d in divisors if d > degree][:1]]
    counted = f"{letter}={size}{_COUNTED.get(letter, '')}"
    return (
        f"mesh axis '{axis}' of {degree} does not divide {counted}; the nearest that do: "
        + " or ".join(map(str, near))
    )


def _uneven_experts(cfg: ModelConfig, size: int, degrees: Mapping[str, int]) -> str:
    if _experts(cfg):
        return uneven("E", size, "expert", degrees["expert"])
    return (
        f"mesh axis 'expert' has degree {degrees['expert']}, but {cfg.name} has no routed "
        "experts, so it cannot take effect; give those devices to fsdp"
    )


def _uneven_exchange(cfg: ModelConfig, size: int, degrees: Mapping[str, int]) -> str:
    others = [name for name in CONTEXT_METHODS if not context_row(name).cuts_heads]
    return (
        f"context_method 'ulysses' cuts N={size} query heads over "
        f"tensor={degrees.get('tensor', 1)} x context={degrees.get('context', 1)}, which does not "
        f"divide them; use degrees whose product divides {size}, or context_method "
        + " or ".join(f"'{name}'" for name in others)
    )


def _uneven_batch(sequences: int, size: int, degrees: Mapping[str, int]) -> str:
    rounds = degrees[MICROBATCHES]
    shards = prod(degrees.get(axis, 1) for axis in BATCH_AXES)
    nearest = max(1, round(size / (shards * rounds))) * shards * rounds
    return (
        f"global_batch_sequences {size} does not divide into {shards} batch shards x {rounds} "
        f"microbatches; the nearest legal batch is {nearest} sequences, or let microbatches divide "
        "it"
    )


def _uneven_spread(cfg: ModelConfig, size: int, degrees: Mapping[str, int]) -> str:
    return (
        f"expert_over_tensor spreads E={size} experts over expert={degrees.get('expert', 1)} x "
        f"tensor={degrees.get('tensor', 1)}, which does not divide them; use degrees whose product "
        "does"
    )


SEQUENCE: Law[int] = Law(
    name="sequence",
    rule="context divides the tokens of a sequence",
    reason="every device of the axis holds an equal piece of the sequence",
    axes=("context",),
    sizes=lambda tokens: (tokens,),
    refusal=lambda tokens, size, degrees: (
        f"sequence_length {size} does not divide over context={degrees['context']}; use a degree "
        "that divides it"
    ),
)
BATCH: Law[int] = Law(
    name="batch",
    rule="replica x data x fsdp x expert x microbatches divides the sequences of the batch",
    reason="every device has the same whole number of sequences in every microbatch",
    axes=(*BATCH_AXES, MICROBATCHES),
    sizes=lambda sequences: (sequences,),
    refusal=_uneven_batch,
)
HEADS = Law(
    name="heads",
    rule="tensor divides the query heads N of every attention layer",
    reason="a head is computed whole; KV heads may be replicated, d_ff and vocabulary padded",
    source="Megatron-LM, arXiv 1909.08053, section 3",
    axes=("tensor",),
    sizes=_heads,
    refusal=lambda cfg, size, degrees: uneven("N", size, "tensor", degrees["tensor"]),
)
EXPERTS = Law(
    name="experts",
    rule="expert divides the routed experts E of every MoE layer, and is 1 without any",
    reason="every device of the axis holds the same number of whole experts",
    source="GShard, arXiv 2006.16668, section 3",
    axes=("expert",),
    sizes=lambda cfg: _experts(cfg) or (1,),
    refusal=_uneven_experts,
)
ULYSSES = Law(
    name="ulysses",
    rule="with the context method ulysses, tensor x context divides the query heads",
    reason="it exchanges pieces of the sequence for whole heads",
    source="DeepSpeed-Ulysses, arXiv 2309.14509, section 3",
    axes=("tensor", "context"),
    sizes=_heads,
    refusal=_uneven_exchange,
)
SPREAD_EXPERTS = Law(
    name="spread_experts",
    rule="with expert_over_tensor, expert x tensor divides the routed experts",
    reason="every device of both axes holds the same number of whole experts",
    source="GShard, arXiv 2006.16668, section 3",
    axes=("expert", "tensor"),
    sizes=_experts,
    refusal=_uneven_spread,
)
