"""Laws of the model that a mesh must keep: which degrees divide which counts, each said once.

The search reads a law as a mask over columns of degrees (`planner/search/legality.py`), plans that
are priced or run read it as a sentence.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.models.specs import Moe
from shardwise.plans.context_methods import context_row
from shardwise.plans.layouts import uneven_error
from shardwise.plans.train import TrainPlan
from shardwise.work import Quantity

Refusal = Callable[[ModelConfig, int, Mapping[str, int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """The product of the degrees of `axes` divides every one of `sizes(cfg)`.

    `rule` and `reason` are its line in docs/legality.md, `source` where it is from. `refusal` says
    of a size of a model and of degrees that break it what would keep it.
    """

    name: str
    rule: str
    reason: str
    source: str
    axes: tuple[str, ...]
    sizes: Callable[[ModelConfig], tuple[int, ...]]
    refusal: Refusal

    def holds(self, cfg: ModelConfig, degrees: Mapping[str, Quantity]) -> np.ndarray:
        """For which degrees it holds; they broadcast."""
        cut = prod((degrees.get(axis, 1) for axis in self.axes), start=np.asarray(1))
        kept = np.ones(np.shape(cut), bool)
        for size in set(self.sizes(cfg)):
            kept = kept & (size % cut == 0)
        return kept

    def problem(self, cfg: ModelConfig, degrees: Mapping[str, int]) -> str | None:
        """Why degrees are refused; None where they keep the law."""
        cut = prod(degrees.get(axis, 1) for axis in self.axes)
        broken = (size for size in self.sizes(cfg) if size % cut)
        return next((self.refusal(cfg, size, degrees) for size in broken), None)


def _heads(cfg: ModelConfig) -> tuple[int, ...]:
    heads = (getattr(layer.mixer, "heads", 0) for layer in cfg.groups)
    return tuple(number for number in heads if number)


def _experts(cfg: ModelConfig) -> tuple[int, ...]:
    return tuple(layer.mlp.experts for layer in cfg.groups if isinstance(layer.mlp, Moe))


def _uneven(letter: str, axis: str) -> Refusal:
    def refusal(cfg: ModelConfig, size: int, degrees: Mapping[str, int]) -> str:
        return uneven_error(letter, size, axis, degrees[axis]) or ""

    return refusal


def _uneven_experts(cfg: ModelConfig, size: int, degrees: Mapping[str, int]) -> str:
    if _experts(cfg):
        return _uneven("E", "expert")(cfg, size, degrees)
    return (
        f"mesh axis 'expert' has degree {degrees['expert']}, but {cfg.name} has no routed "
        "experts, so it cannot take effect; give those devices to fsdp"
    )


def _uneven_exchange(cfg: ModelConfig, size: int, degrees: Mapping[str, int]) -> str:
    return (
        f"context_method 'ulysses' cuts N={size} query heads over "
        f"tensor={degrees.get('tensor', 1)} x context={degrees.get('context', 1)}, which does not "
        f"divide them; use degrees whose product divides {size}, or context_method 'ring' or "
        "'all_gather'"
    )


def _uneven_spread(cfg: ModelConfig, size: int, degrees: Mapping[str, int]) -> str:
    return (
        f"expert_over_tensor spreads E={size} experts over expert={degrees.get('expert', 1)} x "
        f"tensor={degrees.get('tensor', 1)}, which does not divide them; use degrees whose product "
        "does"
    )


HEADS = Law(
    name="heads",
    rule="tensor divides the query heads N of every attention layer",
    reason="a head is computed whole; KV heads may be replicated, d_ff and vocabulary padded",
    source="Megatron-LM, arXiv 1909.08053, section 3",
    axes=("tensor",),
    sizes=_heads,
    refusal=_uneven("N", "tensor"),
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
    source="as `experts`",
    axes=("expert", "tensor"),
    sizes=_experts,
    refusal=_uneven_spread,
)


def broken_laws(plan: TrainPlan, cfg: ModelConfig) -> Iterator[str]:
    """Why a plan's mesh does not suit its model, a sentence for each law that it breaks."""
    laws = [HEADS, EXPERTS]
    if context_row(plan.context_method).cuts_heads and plan.degree("context") > 1:
        laws.append(ULYSSES)
    if plan.expert_over_tensor:
        laws.append(SPREAD_EXPERTS)
    for law in laws:
        problem = law.problem(cfg, plan.mesh)
        if problem:
            yield problem


def check_layers(plan: TrainPlan, cfg: ModelConfig) -> None:
    """Raise BadRequest where the stages do not hold the model's layers."""
    if sum(plan.layers_per_stage) != cfg.layers:
        raise BadRequest(
            f"layers_per_stage {list(plan.layers_per_stage)} adds up to "
            f"{sum(plan.layers_per_stage)} layers; {cfg.name} has {cfg.layers}"
        )
