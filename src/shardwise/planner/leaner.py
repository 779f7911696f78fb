"""What makes a training plan that does not fit need less, as options to type: dtypes and optimizers
whose state is smaller, state in the host's memory, and adapters. Each with the bytes per device
that the leanest plan needs then; of the first kind those with the fewest changes that fit.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.plans import TrainPlan
from shardwise.plans.optimizers import optimizer_row
from shardwise.plans.software import SOFTWARE, candidates_of_plan, usual_library, usual_stack
from shardwise.units import dtype_bytes, format_seconds

Needs = Callable[[TrainPlan], float]
"""Peak bytes per device of a plan."""
Change = tuple[str, TrainPlan]
"""The options that make a change, and the plan with it."""
SHOWN = 3
"""Changes that are named of one kind."""


def leaner(
    plan: TrainPlan,
    cfg: ModelConfig,
    piece: Slice,
    room: float,
    needs: Needs,
    state: float,
    hosts: bool = True,
) -> str:
    """What makes the plan fit into the room of a device, in words; "" where nothing does. `state`
    are the bytes of its optimizer, of which an offload says the time; no offload is one without
    `hosts`. What the plan's program does not run is for no program in particular, and counted
    so."""

    def counted(changed: TrainPlan) -> float:
        return needs(changed if _runs(changed, cfg, piece) else _for_any(changed, piece))

    found = [*_fewest(plan, room, counted)][:SHOWN]
    moved = _on_host(plan, piece, room, counted) if hosts else None
    others = moved, _adapted(plan, piece, room, counted)
    found += [one for one in others if one]

    def said(options: str, changed: TrainPlan) -> str:
        other = "" if _runs(changed, cfg, piece) else " --for any"
        moved = changed.offload_optimizer and not plan.offload_optimizer
        more = f", {_both_ways(state, piece)} a step over the host link" if moved else ""
        return f"{options}{other} ({counted(changed) / 2**30:.3g} GiB{more})"

    return ", or ".join(said(*one) for one in found)


def _both_ways(state: float, piece: Slice) -> str:
    """Seconds of an optimizer's state from host memory and back."""
    chip = piece.chip
    bytes_per_chip = 2 * state * chip.jax_devices_per_chip
    return format_seconds(bytes_per_chip / chip.require("host_link_oneway"))


def _runs(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> bool:
    """Whether the program of a plan runs it, as one for no program in particular always is."""
    row = SOFTWARE.get(plan.software)
    return row is None or not row.obstacles(candidates_of_plan(plan, cfg, piece))


def _for_any(plan: TrainPlan, piece: Slice) -> TrainPlan:
    return replace(plan, software="any", stack=usual_stack(piece.chip, plan.lora_rank))


def _fewest(plan: TrainPlan, room: float, needs: Needs) -> Iterator[Change]:
    """The smallest sets of changes of the state with which the plan fits, least bytes first."""
    if plan.lora_rank:
        return
    changes = [*_of_state(plan)]
    for many in range(1, len(changes) + 1):
        fitting = []
        for some in combinations(changes, many):
            if len({what for what, _, _ in some}) < many:
                continue
            changed = plan
            for _, _, apply in some:
                changed = apply(changed)
            if (size := needs(changed)) <= room:
                fitting.append((size, " ".join(options for _, options, _ in some), changed))
        if fitting:
            yield from ((said, one) for _, said, one in sorted(fitting, key=lambda one: one[0]))
            return


def _of_state(plan: TrainPlan) -> Iterator[tuple[str, str, Callable[[TrainPlan], TrainPlan]]]:
    """Single changes: what they change, the option, and the plan with it."""
    dtypes = plan.dtypes
    if dtype_bytes(dtypes.grad) > 2:
        yield "gradients", "--grad-dtype bf16", lambda p: _stored(p, grad="bf16")
    if dtypes.master != "none":
        yield "master", "--master none", lambda p: _stored(p, master="none")
    elif dtype_bytes(dtypes.param) > 2:
        yield "master", "--param-dtype bf16 --master none", lambda p: _stored(p, param="bf16")
    if not optimizer_row(plan.optimizer).own_dtypes and dtype_bytes(dtypes.moments) > 2:
        yield "moments", "--moments bf16", lambda p: _stored(p, moments="bf16")
    if narrow := optimizer_row(plan.optimizer).narrow:
        yield "moments", f"--optimizer {narrow}", lambda p: replace(p, optimizer=narrow)


def _stored(plan: TrainPlan, **dtypes: str) -> TrainPlan:
    return replace(plan, dtypes=replace(plan.dtypes, **dtypes))


def _on_host(plan: TrainPlan, piece: Slice, room: float, needs: Needs) -> Change | None:
    """The optimizer's state in host memory, where the plan fits with that."""
    if plan.lora_rank or plan.offload_optimizer or piece.chip.host_link_oneway is None:
        return None
    changed = replace(plan, offload_optimizer=True)
    return ("--offload optimizer", changed) if needs(changed) <= room else None


def _adapted(plan: TrainPlan, piece: Slice, room: float, needs: Needs) -> Change | None:
    """Adapters, beside quantised weights where it takes that."""
    rank = plan.lora_rank or 16
    options = "" if plan.lora_rank else f"--lora {rank}"
    for quantize in ("none", "nf4"):
        if quantize == plan.quantize and plan.lora_rank:
            continue
        library = usual_library(usual_stack(piece.chip, rank), rank)
        changed = replace(plan, lora_rank=rank, quantize=quantize, library=library)
        said = options if quantize == "none" else f"{options} --quantize {quantize}".strip()
        if needs(changed) <= room:
            return said, changed
    return None
