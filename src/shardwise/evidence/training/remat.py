"""What a published run recomputes: from the text of its column `recompute` to a TrainPlan's words.

- "full" and "rematerialization": the block's input is kept. "none": everything is kept.
- "selective(PARTS)": everything but the parts (`PARTS`); the attention core, norms, what the
  attention's matmuls make of a latent, the MLP's activation, or the MLP's inner values.
- "maxtext:minimal": matmul outputs; "minimal_flash" also those of attention. "maxtext:custom
  save(..) offload(..)": the block's input and the tensors named (`TENSORS`); "maxtext:
  save_dot_with_context_except_mlp": the outputs of all matmuls and of the core, except the MLP's.
- "full for n layers" counts as whichever more layers do. "cpu offload of n layers activations" has
  no word in a plan, which treats all layers alike: of every layer the kinds nearest to that share
  of its bytes are offloaded, a gated MLP's activation (about 2 of 9 parts) up to a third of the
  layers, its inputs (4 of 9) up to two thirds, all above.
- Where the catalogue has no host link for the chip, what is offloaded counts as kept: its copies
  as hidden. The memory of such a plan is too high.
- Not stated: none in Megatron-Bridge's tables, whose recipes recompute only where they say so
  (NVIDIA-NeMo/Megatron-Bridge@0013c9a llama31_workload_base_configs.py); else the cheapest of
  none, matmul outputs and block whose peak fits usable HBM by this version's own count; on xla not
  none, as its training code always sets a policy (Pax: matmul outputs for GPT 5B, nothing for
  175B, google/paxml@04516ac contrib/gpu/scripts_gpu/configs.py).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwise.errors import BadRequest
from shardwise.evidence.training.models import Row, whole
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.remat import RematPolicy, Saved, SavedKind, remat_row
from shardwise.planner.price.memory import train_memory
from shardwise.planner.training import plan_shape
from shardwise.plans import TrainPlan
from shardwise.plans.stacks import stack_row

Kinds = Mapping[SavedKind, Saved]

UNSTATED_IS_NONE = ("nemo-megatron-bridge",)
"""Sources whose recipes name every recompute."""

PARTS: Mapping[str, tuple[SavedKind, ...]] = {
    "attention core": ("attention",),
    "core_attn": ("attention",),
    "layernorm": ("norm",),
    "rmsnorm": ("norm",),
    "moe_act": ("activation",),
    "mla_up_proj": ("qkv",),
    "mla up-projection": ("qkv",),
    "mlp": ("mlp_in", "activation"),
}
"""Parts that selective recomputation names, as kinds of activations."""

TENSORS: Mapping[str, SavedKind] = {
    "layer input": "block_input",
    "context": "attention",
    "qkv": "qkv",
    "k": "qkv",
    "v": "qkv",
    "mlpwo": "mlp_out",
    "mlpwi": "mlp_in",
    "out_proj": "attention_out",
}
"""Tensors that MaxText's custom policies name, as kinds of activations."""


def with_remat(row: Row, plans: Sequence[TrainPlan], cfg: ModelConfig, piece: Slice) -> TrainPlan:
    """The first of the plans with the recompute that is stated; where none is, the first of them,
    by policy and then by plan, that fits. Raises BadRequest for a text of no known form."""
    text = (row.get("recompute") or "").strip().lower()
    if not text and not row["source"].startswith(UNSTATED_IS_NONE):
        return _fitting(plans, cfg, piece)
    remat, kinds = _stated(text, row)
    if piece.chip.host_link_oneway is None:
        remat = "block" if remat_row(remat).offloads else remat
        kinds = {kind: "keep" if how == "offload" else how for kind, how in kinds.items()}
    return replace(plans[0], remat=remat, remat_kinds=kinds)


def _stated(text: str, row: Row) -> tuple[RematPolicy, Kinds]:
    """Policy and exceptions that a text names; "" is none."""
    if text.startswith("maxtext:"):
        return _maxtext(text.removeprefix("maxtext:").strip())
    if text.startswith("selective"):
        return "none", _selective(text)
    offloaded = re.search(r"offload of (\d{1,6}) layers", text)
    if offloaded:
        return "none", _offloaded(int(offloaded[1]) / whole(row, "layers"))
    some = re.search(r"full for (\d{1,6}) layers", text)
    if some:
        return ("block" if 2 * int(some[1]) >= whole(row, "layers") else "none"), {}
    if text.startswith(("full", "rematerialization")):
        return "block", {}
    if not text or text.startswith("none"):
        return "none", {}
    raise BadRequest(f"recompute '{text}' is of no known form")


def _selective(text: str) -> Kinds:
    named = [part.strip() for part in text.partition("(")[2].rstrip(")").split(",")]
    unknown = [part for part in named if part not in PARTS]
    if unknown:
        raise BadRequest(f"recompute '{text}' names '{unknown[0]}', which is of no known kind")
    return {kind: "recompute" for part in named for kind in PARTS[part]}


def _maxtext(text: str) -> tuple[RematPolicy, Kinds]:
    policy = text.split(" ")[0]
    if policy == "minimal":
        return "matmul_outputs", {}
    if policy == "minimal_flash":
        return "matmul_outputs", {"attention": "keep"}
    if policy == "save_dot_with_context_except_mlp":
        return "block", {"qkv": "keep", "attention": "keep", "attention_out": "keep"}
    if policy == "full":
        return "block", {}
    if policy != "custom":
        raise BadRequest(f"recompute 'maxtext:{text}' is of no known form")
    kinds: dict[SavedKind, Saved] = {}
    for how, names in re.findall(r"(save|offload)\(([^)]*)\)", text):
        for name in names.split(","):
            if name.strip() not in TENSORS:
                raise BadRequest(f"recompute 'maxtext:{text}' names the unknown '{name.strip()}'")
            kinds[TENSORS[name.strip()]] = "offload" if how == "offload" else "keep"
    # The policy itself says where the block's input goes.
    whole_input = kinds.pop("block_input", "keep")
    return ("offload" if whole_input == "offload" else "block"), kinds


def _offloaded(share: float) -> Kinds:
    if share <= 1 / 3:
        return {"activation": "offload"}
    if share <= 2 / 3:
        return {"mlp_in": "offload"}
    return {"block_input": "offload", "mlp_in": "offload", "activation": "offload"}


def _fitting(plans: Sequence[TrainPlan], cfg: ModelConfig, piece: Slice) -> TrainPlan:
    """The plan that recomputes least among those that fit; else the last with all recomputed."""
    room = piece.chip.require("hbm_usable_bytes") / piece.chip.jax_devices_per_chip
    least: tuple[RematPolicy, ...] = ("none", "matmul_outputs", "block")
    for remat in least[not stack_row(plans[0].stack).eager :]:
        for plan in plans:
            made = replace(plan, remat=remat)
            if float(train_memory(cfg, plan_shape(made, cfg)).peak()) <= room:
                return made
    return replace(plans[-1], remat="block")
