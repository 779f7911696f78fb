"""What a measured run recomputes: from the column `remat` to a TrainPlan's words.

A policy by name, or what becomes of kinds of activations: `keep:qkv,attention` recomputes all
others, `offload:block_input;keep:qkv` too, `recompute:norm` keeps them;
`matmul_outputs;keep:attention` changes a policy. Kinds have the names of `models/remat.py`, or
those of MaxText's policies (`TENSORS`); a policy may have its name in MaxText, too (`MAXTEXT`).

- A policy for some of the layers has no word in a plan, which treats all layers alike: recompute
  counts where more layers do it than not; of what is offloaded, the kinds whose bytes are nearest
  to that share of a layer's.
- Where the catalogue has no host link for the chip, what is offloaded counts as kept: its copies
  as hidden. The memory of such a plan is too high.
- Not stated: the cheapest of none, matmul outputs and block whose peak fits usable HBM by this
  version's own count; where a compiler lays the step out not none, as training code on XLA always
  sets a policy (Pax: matmul outputs for GPT 5B, nothing for 175B, google/paxml@04516ac
  contrib/gpu/scripts_gpu/configs.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from shardwise.boundary.tables import WrongCell, of_column
from shardwise.errors import entry_of
from shardwise.evidence.training.table import RunRow
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.remat import (
    PART_OF,
    REMAT_KINDS,
    REMAT_POLICIES,
    SAVED_KINDS,
    TREATMENTS,
    RematKind,
    RematPolicy,
    Saved,
    remat_row,
)
from shardwise.planner.evaluate import plan_shape
from shardwise.planner.price.memory import train_memory
from shardwise.planner.step.strategies.remat import bytes_of, kept_activations
from shardwise.plans import TrainPlan
from shardwise.plans.software.maxtext import KEPT, OFFLOADED
from shardwise.plans.stacks import stack_row

Kinds = Mapping[RematKind, Saved]

TENSORS: Mapping[str, RematKind] = {
    "decoder_layer_input": "block_input",
    "context": "attention",
    "qkv_proj": "qkv",
    "out_proj": "attention_out",
    "mlpwi": "mlp_in",
    "mlpwi_0": "mlp_gate",
    "mlpwo": "mlp_out",
}
"""Tensors as MaxText's configuration names them, as kinds of activations."""
MAXTEXT: Mapping[str, str] = {
    "minimal": "matmul_outputs",
    **{name: f"keep:{','.join(kinds)}" for name, kinds in KEPT.items()},
    **{name: f"offload:{','.join(kinds)}" for name, kinds in OFFLOADED.items()},
}
"""MaxText's policies as the texts of this column."""


def with_remat(
    row: RunRow, plans: Sequence[TrainPlan], cfg: ModelConfig, piece: Slice
) -> TrainPlan:
    """The first of the plans that fits with the recompute that is stated, else the last; where none
    is stated, the first by policy and then by plan. Raises BadRequest for a text of no known form.
    """
    if not row.remat:
        return _fitting(plans, cfg, piece)
    remat, kinds = _in_part(row, plans[0], cfg, *stated(row.remat))
    if piece.chip.host_link_oneway is None:
        remat = "block" if remat_row(remat).offloads else remat
        kinds = {kind: "keep" if how == "offload" else how for kind, how in kinds.items()}
    made = [replace(plan, remat=remat, remat_kinds=kinds) for plan in plans]
    return next((plan for plan in made[:-1] if _fits(plan, cfg, piece)), made[-1])


def stated(text: str) -> tuple[RematPolicy, Kinds]:
    """The policy that a cell names, and by kind what differs from it.

    >>> stated("offload:block_input,mlp_out")
    ('offload', {'mlp_out': 'offload'})
    >>> stated("save_qkv_proj")
    ('block', {'qkv': 'keep'})
    """
    policy, *parts = (part.strip() for part in MAXTEXT.get(text, text).split(";"))
    if policy not in REMAT_POLICIES:
        policy, parts = "", [policy, *parts]
    kinds: dict[RematKind, Saved] = {}
    for part in parts:
        how, colon, names = part.partition(":")
        if not colon or how not in TREATMENTS:
            raise WrongCell(
                "remat",
                text,
                f"it must be {', '.join(REMAT_POLICIES)}, or keep:, offload: or recompute: with "
                f"kinds of {', '.join(REMAT_KINDS)}, or both with `;` between",
            )
        kinds |= {_kind(name.strip()): how for name in names.split(",")}  # type: ignore[misc]
    if policy:
        return policy, kinds  # type: ignore[return-value]
    if set(kinds.values()) == {"recompute"}:
        return "none", kinds
    whole_input = kinds.pop("block_input", "keep")  # the policy itself says where it goes
    return ("offload" if whole_input == "offload" else "block"), kinds


def _kind(name: str) -> RematKind:
    if name in TENSORS:
        return TENSORS[name]
    with of_column("remat"):
        return entry_of("kind of activations", name, {kind: kind for kind in REMAT_KINDS})


def _in_part(
    row: RunRow, plan: TrainPlan, cfg: ModelConfig, remat: RematPolicy, kinds: Kinds
) -> tuple[RematPolicy, Kinds]:
    """The policy that stands for one of some of the layers."""
    share = min(1.0, (row.remat_layers or cfg.layers) / cfg.layers)
    if share == 1:
        return remat, kinds
    if offloads(remat, kinds):
        return "none", _offloaded(share, plan, cfg)
    return (remat, kinds) if 2 * share >= 1 else ("none", {})


def offloads(remat: RematPolicy, kinds: Kinds) -> bool:
    """Whether some kind goes to host memory."""
    return remat_row(remat).offloads or "offload" in kinds.values()


def _offloaded(share: float, plan: TrainPlan, cfg: ModelConfig) -> Kinds:
    """The kinds whose bytes are nearest to a share of what a layer keeps, the fewest of those."""
    shape = plan_shape(plan, cfg)
    saved = [a for layer in cfg.groups for a in kept_activations(cfg, layer, shape) if a.tape]
    sizes = {
        kind: float(bytes_of([a for a in saved if PART_OF.get(a.kind, a.kind) == kind], shape))
        for kind in SAVED_KINDS
    }
    goal = share * sum(sizes.values())
    some = (c for n in range(len(sizes)) for c in combinations(SAVED_KINDS, n + 1))
    best = min(some, key=lambda c: (abs(sum(sizes[k] for k in c) - goal), len(c)))
    return dict.fromkeys(best, "offload")


def _fitting(plans: Sequence[TrainPlan], cfg: ModelConfig, piece: Slice) -> TrainPlan:
    """The plan that recomputes least among those that fit; else the last with all recomputed."""
    least: tuple[RematPolicy, ...] = ("none", "matmul_outputs", "block")
    for remat in least[not stack_row(plans[0].stack).eager :]:
        for plan in plans:
            made = replace(plan, remat=remat)
            if _fits(made, cfg, piece):
                return made
    return replace(plans[-1], remat="block")


def _fits(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> bool:
    room = piece.chip.usable_bytes_per_device
    return float(train_memory(cfg, plan_shape(plan, cfg)).peak()) <= room
