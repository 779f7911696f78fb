"""Terms of the model of a step that a plan switches: what each row of a plan would be without.

A term stays in the model only if the left-out error is worse without it (`worth.py`,
docs/lab/fit.md). A further term is a row here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from shardwise.plans import TrainPlan

Without = Callable[[TrainPlan], TrainPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A choice that plans make, and a plan that does not make it."""

    name: str
    without: Without


def _plain(**choices: object) -> Without:
    """A plan with some of its choices as nobody makes them."""
    return lambda plan: replace(plan, **choices)  # type: ignore[arg-type]


def _no_offload(plan: TrainPlan) -> TrainPlan:
    kinds = {kind: "keep" if how == "offload" else how for kind, how in plan.remat_kinds.items()}
    policy = "block" if plan.remat == "offload" else plan.remat
    return replace(plan, remat=policy, remat_kinds=kinds)  # type: ignore[arg-type]


TERMS = (
    Term(
        name="gradients added inside the matmul",
        without=_plain(gradient_accumulation="separate"),
    ),
    Term(name="gradients reduced once a step", without=_plain(gradient_reduce="per_microbatch")),
    Term(name="weights gathered less than per pass", without=_plain(weight_gather="per_pass")),
    Term(name="transfers beside compute", without=_plain(overlap=())),
    Term(name="a compiler on or off", without=_plain(compiled=None)),
    Term(name="documents shorter than the row", without=_plain(packed_lengths=())),
    Term(name="libraries of attention, scores in memory", without=_plain(attention_kernel="flash")),
    Term(name="CUDA graphs", without=_plain(cuda_graph=())),
    Term(name="experts' products as one kernel", without=_plain(grouped_kernel="per_expert")),
    Term(name="dispatchers", without=_plain(dispatcher=None)),
    Term(name="components left in 16 bits", without=_plain(wide=())),
    Term(name="uneven load of experts", without=_plain(expert_capacity=1.0, expert_imbalance=1.0)),
    Term(name="frozen components", without=_plain(frozen=())),
    Term(name="offload of activations", without=_no_offload),
)
