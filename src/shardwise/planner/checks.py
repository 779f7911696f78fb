"""What is refused before anything is priced: plans that their model or slice cannot follow, choices
that cannot take effect, and pins that no mesh can have. Each is a BadRequest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod

from shardwise.errors import BadRequest, check_known
from shardwise.hardware import Slice, every_part
from shardwise.models import ModelConfig
from shardwise.models.parameters import parameters
from shardwise.models.remat import REMAT_KINDS, TREATMENTS
from shardwise.models.specs import Moe, RecurrentMixer
from shardwise.planner.search.request import TrainRequest
from shardwise.planner.step.strategies.mtp import mtp_rows
from shardwise.plans import TrainPlan
from shardwise.plans.adapters import check_targets
from shardwise.plans.laws import EXPERTS, HEADS, SEQUENCE
from shardwise.plans.stacks import GraphScope
from shardwise.plans.train import USUAL, Structure, broken_laws, check_layers, mesh_text


def check_plan(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> None:
    """Raise BadRequest where a plan does not suit its model or slice."""
    check_layers(plan, cfg)
    if plan.slices > piece.count:
        raise BadRequest(f"slices is {plan.slices}; {piece} has {piece.count}, so use at most that")
    devices = prod(plan.box) * plan.slices * piece.chip.jax_devices_per_chip
    check_box(plan.box, piece)
    if plan.devices != devices:
        raise BadRequest(
            f"the mesh {mesh_text(plan.mesh)} has {plan.devices:,} devices; {plan.slices} slice(s) "
            f"x box {'x'.join(map(str, plan.box))} of {piece} have {devices:,}: make them equal by "
            "the mesh, by `slices` (how many are used) or by `box` (chips used per axis)"
        )
    check_choices(plan, cfg)


def check_box(box: Sequence[int], piece: Slice) -> None:
    """Raise BadRequest for a box that does not fit a slice."""
    if len(box) != len(piece.shape) or any(
        not 1 <= used <= size for used, size in zip(box, piece.shape, strict=True)
    ):
        raise BadRequest(
            f"box {'x'.join(map(str, box))} does not fit {piece}; give one size per physical "
            f"axis, at most {'x'.join(map(str, piece.shape))}"
        )


def check_choices(plan: TrainPlan, cfg: ModelConfig) -> None:
    """Raise BadRequest for the first choice that contradicts the model or cannot take effect."""
    _check_remat(plan)
    _check_frozen(plan, cfg)
    check_adapters(plan, cfg)
    problems = (_attention(plan, cfg), _graphs(plan, cfg), _experts(plan, cfg))
    for problem in (*chain.from_iterable(problems), *broken_laws(plan, cfg)):
        raise BadRequest(problem)


def _check_remat(plan: TrainPlan) -> None:
    for kind, saved in plan.remat_kinds.items():
        check_known("kind of activation", kind, REMAT_KINDS)
        check_known("treatment of an activation", saved, TREATMENTS)
    if plan.remat_kinds.get("block_input") == "recompute":
        raise BadRequest(
            "remat_kinds recomputes 'block_input'; nothing is left to compute it from, so keep it "
            "or offload it"
        )


def _check_frozen(plan: TrainPlan, cfg: ModelConfig) -> None:
    modules = mtp_rows(cfg, plan.mtp_layers) if plan.mtp_layers else ()
    rows = [r for r in (*parameters(cfg), *modules) if r.role != "tower"]
    components = sorted({r.component for r in rows})
    for name in plan.frozen:
        check_known("component to freeze", name, components, f"{cfg.name} has these")
    if plan.frozen and plan.lora_rank:
        raise BadRequest(
            f"frozen names {', '.join(plan.frozen)} with lora_rank {plan.lora_rank}; adapters "
            "freeze all parameters already, so leave `frozen` out"
        )
    if set(plan.frozen) >= set(components):
        raise BadRequest("frozen names every component, so nothing is trained; leave one out")


def check_adapters(plan: Structure, cfg: ModelConfig) -> None:
    """Raise BadRequest for targets that the model has not, and for what only adapters have."""
    if plan.lora_rank:
        check_targets(parameters(cfg), plan.lora_targets, cfg.name)
        return
    for name in ("lora_targets", "quantize"):
        if getattr(plan, name) != getattr(USUAL, name):
            value = getattr(plan, name)
            said = value if isinstance(value, str) else ", ".join(value)
            raise BadRequest(
                f"{name} is {said}, but lora_rank is 0, so every parameter is trained; give "
                f"lora_rank (--lora 16), or leave {name} out"
            )


def _attention(plan: TrainPlan, cfg: ModelConfig) -> Iterator[str]:
    attending = [layer.attention for layer in cfg.groups if layer.attention is not None]
    if plan.attention_kernel == "scores" and not attending:
        yield (
            f"attention_kernel is 'scores', but {cfg.name} has no softmax attention; leave it at "
            "'flash'"
        )


def _has_mlp(cfg: ModelConfig) -> bool:
    """Whether some layer has an MLP that every token goes through."""
    mlps = [layer.mlp for layer in cfg.groups if layer.mlp is not None]
    return any(not isinstance(mlp, Moe) or not mlp.routes_all or mlp.latent_dim for mlp in mlps)


_CAPTURES: Mapping[GraphScope, tuple[str, Callable[[ModelConfig], bool]]] = {
    "attn": ("softmax attention", lambda cfg: any(layer.attention for layer in cfg.groups)),
    "mamba": (
        "recurrent layers",
        lambda cfg: any(
            isinstance(part.mixer, RecurrentMixer)
            for layer in cfg.groups
            for part in layer.by_mixer
        ),
    ),
    "mlp": ("MLP that every token goes through", _has_mlp),
    "moe_router": ("routed experts", lambda cfg: cfg.has_experts),
    "moe_preprocess": ("routed experts", lambda cfg: cfg.has_experts),
}
"""By scope of CUDA graphs the layers that it is of, and whether a model has them."""


def _graphs(plan: TrainPlan, cfg: ModelConfig) -> Iterator[str]:
    if "full" in plan.cuda_graph and len(plan.cuda_graph) > 1:
        others = ", ".join(scope for scope in plan.cuda_graph if scope != "full")
        yield f"cuda_graph has 'full', the whole step, and {others}; leave out one or the others"
    for scope in plan.cuda_graph:
        what, has = _CAPTURES.get(scope, ("", lambda cfg: True))
        if not has(cfg):
            yield (
                f"cuda_graph has '{scope}', but {cfg.name} has no {what}, so it cannot take "
                "effect; leave it out"
            )


def _experts(plan: TrainPlan, cfg: ModelConfig) -> Iterator[str]:
    mixtures = [layer.mlp for layer in cfg.groups if isinstance(layer.mlp, Moe)]
    capacity, imbalance = plan.expert_capacity, plan.expert_imbalance
    if not mixtures:
        for name, changed in [
            ("expert_capacity", capacity != 1),
            ("expert_imbalance", imbalance != 1),
            ("expert_over_tensor", plan.expert_over_tensor),
            ("dispatcher", plan.dispatcher is not None),
            ("grouped_kernel", plan.grouped_kernel != USUAL.grouped_kernel),
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


def check_pins(request: TrainRequest) -> None:
    """Raise BadRequest for a pinned degree that no mesh on this slice can have."""
    pins, cfg = request.pins, request.cfg
    for problem in (
        HEADS.problem(cfg, pins),
        EXPERTS.problem(cfg, pins),
        SEQUENCE.problem(request.sequence_length, pins),
    ):
        if problem:
            raise BadRequest(problem)
    if pins.get("stage", 1) > cfg.layers:
        raise BadRequest(
            f"mesh axis 'stage' is pinned to {pins['stage']}, but {cfg.name} has {cfg.layers} "
            f"layers; every stage needs one, so pin at most {cfg.layers}"
        )
    pinned, per_chip = prod(pins.values()), request.piece.chip.jax_devices_per_chip
    devices = [prod(box) * part.count * per_chip for part, box in every_part(request.piece)]
    if all(n % pinned for n in devices):
        raise BadRequest(
            f"{mesh_text(pins)} pinned needs a multiple of {pinned:,} devices; "
            f"no part of {request.piece} ({max(devices):,} devices) has that, so pin degrees whose "
            f"product divides {max(devices):,}"
        )
