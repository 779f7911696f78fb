"""What no file of a framework says of a plan, and how far a plan that is read back differs.

An export says it in comment lines; a file whose comments are gone, or that somebody else wrote,
leaves it at what stands here.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export.notes import folded, plan_fields
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.software import candidates_of_plan, matters

_PRICED = "what the plan is priced by, not what is run"
_ALL: Mapping[str, str] = {
    "model": "a known model of the same shape stands for it, or --model",
    "placement": "the framework lays its ranks itself",
    "constants": _PRICED,
    "expert_imbalance": _PRICED,
    "packed_lengths": "the lengths of documents are the data's",
    "gradient_accumulation": "the program's own where it stands open",
    "overlap": "the program's own where it stands open",
    "compiled": "the program's own where it stands open",
}
UNSAID: Mapping[str, Mapping[str, str]] = {
    "maxtext": _ALL | {"slice": "said by Cloud's name where that means one shape, else --on"},
    "megatron": _ALL | {"slice": "said is how many GPUs, not which: --on"},
    "torchtitan": _ALL | {"slice": "said are degrees, not which GPUs: --on"},
}
"""By target and field, what becomes of it in a file without comments."""


SERVING_UNSAID: Mapping[str, str] = {
    "model": "--model",
    "slice": "--on",
    "box": "what --on says",
    "constants": _PRICED,
    "replicas": "so many as are started",
    "prefill_replicas": "so many as are started",
    "prefill": "of a pool of prompts the fewest chips that its mesh fills",
    "routing": "where there is one server",
    "batch": "rounded up to a multiple of the data-parallel ranks",
    "prefill_chunk": "rounded up to a multiple of the data-parallel ranks",
    "scheduling.acceptance": "it is measured, not chosen",
    "workload.trace": "the check draws lengths at random",
}
"""By field, what becomes of it in a server's script without comments."""


def lost_by_a_server(plan: ServePlan, again: ServePlan) -> dict[str, tuple[Any, Any]]:
    """Fields that differ in a serving plan that was read back without comments, as (was, is), but
    for those that no script says."""
    before, after = plan_fields(plan), plan_fields(again)
    ranks = plan.degree("data") * plan.degree("expert")
    rounded = {"batch", "prefill_chunk"} if ranks > 1 else set()
    lost = {}
    for field in before:
        was, found = before[field], after.get(field)
        if field in rounded and -(-was // ranks) * ranks == found:
            continue
        if was != found and (field in ("batch", "prefill_chunk") or field not in SERVING_UNSAID):
            lost[field] = (was, found)
    return lost


def lost_on_the_way(
    plan: TrainPlan, again: TrainPlan, cfg: ModelConfig, piece: Slice, target: str
) -> dict[str, tuple[Any, Any]]:
    """Fields that differ in a plan that was read back without comments, as (was, is), but for those
    that no file says, and for choices that make no difference."""
    before, after = plan_fields(plan), plan_fields(again)
    columns = candidates_of_plan(plan, cfg, piece)
    return {
        field: (before[field], after[field])
        for field in before
        if before[field] != after[field]
        and field not in UNSAID[target]
        and matters(field, columns).any()
        and not (field == "mesh" and folded(before[field]) == folded(after[field]))
        and not (field == "dispatcher" and before[field] is None)
    }
