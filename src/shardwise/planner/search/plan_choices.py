"""Choices of a training plan that its model or mesh cannot follow: each a BadRequest."""

from collections.abc import Iterator

from shardwise.errors import BadRequest, unknown
from shardwise.models import ModelConfig
from shardwise.models.parameters import parameters
from shardwise.models.remat import SAVED_KINDS, TREATMENTS
from shardwise.models.specs import Moe
from shardwise.planner.step.strategies.mtp import mtp_rows
from shardwise.plans import TrainPlan
from shardwise.plans.train import broken_laws


def check_choices(plan: TrainPlan, cfg: ModelConfig) -> None:
    """Raise BadRequest for the first choice that contradicts the model or cannot take effect."""
    _check_remat(plan)
    _check_frozen(plan, cfg)
    for problem in (*_attention(plan, cfg), *_experts(plan, cfg), *broken_laws(plan, cfg)):
        raise BadRequest(problem)


def _check_remat(plan: TrainPlan) -> None:
    for kind, saved in plan.remat_kinds.items():
        if kind not in SAVED_KINDS:
            raise unknown("kind of activation", kind, SAVED_KINDS)
        if saved not in TREATMENTS:
            raise unknown("treatment of an activation", saved, TREATMENTS)
    if plan.remat_kinds.get("block_input") == "recompute":
        raise BadRequest(
            "remat_kinds recomputes 'block_input'; nothing is left to compute it from, so keep it "
            "or offload it"
        )


def _check_frozen(plan: TrainPlan, cfg: ModelConfig) -> None:
    rows = [r for r in (*parameters(cfg), *mtp_rows(cfg, plan.mtp_layers)) if r.role != "tower"]
    components = sorted({r.component for r in rows})
    for name in plan.frozen:
        if name not in components:
            raise unknown("component to freeze", name, components, f"{cfg.name} has these")
    if plan.frozen and plan.lora_rank:
        raise BadRequest(
            f"frozen names {', '.join(plan.frozen)} with lora_rank {plan.lora_rank}; adapters "
            "freeze all parameters already, so leave `frozen` out"
        )
    if set(plan.frozen) >= set(components):
        raise BadRequest("frozen names every component, so nothing is trained; leave one out")


def _attention(plan: TrainPlan, cfg: ModelConfig) -> Iterator[str]:
    attending = [layer.attention for layer in cfg.groups if layer.attention is not None]
    if plan.attention_kernel == "scores" and not attending:
        yield (
            f"attention_kernel is 'scores', but {cfg.name} has no softmax attention; leave it at "
            "'flash'"
        )


def _experts(plan: TrainPlan, cfg: ModelConfig) -> Iterator[str]:
    mixtures = [layer.mlp for layer in cfg.groups if isinstance(layer.mlp, Moe)]
    capacity, imbalance = plan.expert_capacity, plan.expert_imbalance
    if not mixtures:
        for name, changed in [
            ("expert_capacity", capacity != 1),
            ("expert_imbalance", imbalance != 1),
            ("expert_over_tensor", plan.expert_over_tensor),
        ]:
            if changed:
                yield (
                    f"{name} is {getattr(plan, name)}, but {cfg.name} has no routed experts, so it "
                    "cannot take effect; leave it out"
                )
        return
    if capacity != 1 and plan.expert_dispatch == "ragged":
        yield (
            f"expert_capacity is {capacity}, but a ragged dispatch has no slots to fill; use "
            "expert_dispatch 'dense', or expert_imbalance for the busiest device's load"
        )
    if imbalance != 1 and plan.expert_dispatch == "dense":
        yield (
            f"expert_imbalance is {imbalance}, but a dense dispatch gives every expert the same "
            "slots; use expert_dispatch 'ragged', or expert_capacity for the slots"
        )
    if plan.expert_over_tensor and plan.degree("tensor") == 1:
        yield (
            "expert_over_tensor is set, but the mesh has no axis 'tensor' to spread experts over; "
            "leave it out"
        )
