"""What to type next: after a training plan was found, write it, export it, run it; after one was
read or shown, hold it against the best."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from shardwise.verbs.layout import next_step

if TYPE_CHECKING:
    from shardwise.planner.training import TrainAnswer
    from shardwise.plans import ServePlan, TrainPlan


def next_lines(path: Path | None, answer: "TrainAnswer", whose: str = "") -> tuple[str, ...]:
    """With a plan that was written, or to have it written; `whose` says of which slice it is. A
    plan that no program runs is shown again."""
    from shardwise.planner.export import target_for  # slow to load, for --help

    file = "plan.yaml" if path is None else quote(str(path))
    target = target_for(answer.plan, answer.cfg, answer.piece)
    steps = [f"shardwise export {file} --to {target}" if target else f"shardwise plan show {file}"]
    if path is None:
        return ("", next_step(f"next: the same with -o plan.yaml{whose}, then:", *steps))
    if target == "jax":
        steps += [f"shardwise compile {file}", f"shardwise train {file}"]
    return ("", next_step(f"{path} written{whose}; next:", *steps))


def against_lines(path: Path | str, plan: "TrainPlan | ServePlan") -> tuple[str, ...]:
    """The search that says what would be faster than a plan in a file; none for a server, or where
    it would take options of its own to be of the same job, as for a published plan."""
    from shardwise.plans import ServePlan  # slow to load, for --help

    if isinstance(plan, ServePlan) or plan.lora_rank or plan.frozen or plan.packed_lengths:
        return ()
    if str(path).startswith("audit:"):  # its model lies beside it, in the package
        return ()
    job = f"--model {quote(plan.model)} --on {quote(plan.slice)}"
    job += f" --batch {plan.global_batch_sequences}seq --seq {plan.sequence_length}"
    asked = f"shardwise plan train {job} --against {quote(str(path))}"
    return (next_step("next: what would be faster:", asked),)


def read_lines(path: Path, plan: "TrainPlan | ServePlan") -> tuple[str, ...]:
    """With a plan that was read from another program's file and written."""
    shown = next_step("next:", f"shardwise plan show {quote(str(path))}")
    return (shown, *against_lines(path, plan))
