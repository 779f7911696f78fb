"""`shardwise plan train`: the simplest training plan as fast as predictions can tell, and why; and
what to type next: after a plan was found, write it, export it, run it; after one was read or shown,
hold it against the best.

Every command to type is made of a request (`command_of`), so that it says all that decided the
answer.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwise.apps.cli.command import command, given, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import progress_line, show_answer, stage_line
from shardwise.boundary.commands import command_of, spelt
from shardwise.commands.base.layout import next_step

if TYPE_CHECKING:
    from shardwise.commands.plan_file.show import PlanShowRequest
    from shardwise.commands.plan_train.sweep import SweepRequest
    from shardwise.commands.plan_train.train import TrainPlanRequest
    from shardwise.planner.evaluate import TrainAnswer
    from shardwise.plans import ServePlan, TrainPlan


@command(
    "plan train",
    "plot_path trace_path plan_path show_detail show_why show_book csv_path as_json",
    plot_path="Pipeline chart, PNG or SVG.",
)
def train(out: Outputs) -> None:
    """Choose mesh, microbatches, schedule, storage and remat so that a step fits and is best.

    docs/legality.md lists the plans that are tried; docs/site/concepts.md explains axes, remat and
    ZeRO. An event timeline of the pipeline stages prices the best plans again.
    """
    from shardwise.commands.plan_train.train import TrainPlanRequest
    from shardwise.plans import save_plan

    asked = request_of(TrainPlanRequest)
    with stage_line() as watch:
        answer = asked.answer(progress_line("searching"), watch)
    if out.plan_path:
        save_plan(answer.best.plan, out.plan_path)
    more = next_lines(asked, out.plan_path, answer.best)
    show_answer(answer, out, given(asked, out), more=more)
    if out.plot_path or out.trace_path:
        from shardwise.apps.cli.timeline import write_timeline

        write_timeline(answer.best, out)


# What to type next --------------------------------------------------------------------------------

FILE = "plan.yaml"
"""The plan's file where none is named yet."""


def next_lines(
    asked: "TrainPlanRequest | SweepRequest",
    path: Path | None,
    best: "TrainAnswer",
    whose: str = "",
) -> tuple[str, ...]:
    """With a plan that was written, or the command that writes it; `whose` says of which slice it
    is."""
    if path is None:
        return ("", next_step(f"next{whose}:", command_of(asked, "-o", FILE)))
    return ("", next_step(f"{path} written{whose}; next:", *_with_file(asked, path, best)))


def _with_file(
    asked: "TrainPlanRequest | SweepRequest", path: Path, best: "TrainAnswer"
) -> list[str]:
    """What to do with a plan's file: show it with the run that was asked for, export it to a
    program that runs it, run it here."""
    from shardwise.commands.plan_file.show import PlanShowRequest
    from shardwise.commands.pricing.whole_run import RUN_WORDS
    from shardwise.planner.export import target_for  # slow to load, for --help

    run: dict[str, Any] = {name: getattr(asked, name, None) for name in RUN_WORDS}
    own = asked.evidence
    asked_for = asked.tokens or own
    steps = [command_of(PlanShowRequest(path, evidence=own, **run))] if asked_for else []
    target = target_for(best.plan, best.cfg, best.piece)
    if target:
        steps.append(spelt("export", [path], {"--to": target}))
    if target == "jax":
        steps += [spelt("compile", [path], {}), f"{spelt('train', [path], {})} {FILLED_IN}"]
    return steps or [command_of(PlanShowRequest(path))]


FILLED_IN = "--data FILE --steps N"
"""What a person says of a training run."""


def shown_lines(
    asked: "PlanShowRequest", plan: "TrainPlan | ServePlan", written: Path | None
) -> tuple[str, ...]:
    """After a plan was shown: the search that says what would be faster. A plan that options
    changed is written first, as the search reads a file."""
    from shardwise.commands.base.inputs import plan_changes
    from shardwise.commands.pricing.whole_run import RUN_WORDS

    if written is not None or not (plan_changes(asked.sets)[0] or asked.as_):
        return against_lines(written or asked.path, plan, own=asked.evidence)
    writing = command_of(asked, "-o", FILE, resolve=True, **dict.fromkeys(RUN_WORDS))
    then = against_lines(FILE, plan, "then: what would be faster:", asked.evidence)
    return (next_step("next:", writing), *then) if then else ()


def against_lines(
    path: Any,
    plan: "TrainPlan | ServePlan",
    said: str = "next: what would be faster:",
    own: Any = None,
) -> tuple[str, ...]:
    """The search that says what would be faster than a plan in a file; none for a server, or where
    it would take options of its own to be of the same job, as for a published plan."""
    from shardwise.plans import ServePlan  # slow to load, for --help

    if isinstance(plan, ServePlan) or _is_another_job(plan) or str(path).startswith("audit:"):
        return ()  # the model of a published plan lies beside it, in the package
    return (next_step(said, command_of(replace(search_of(plan), against=str(path), evidence=own))),)


def _is_another_job(plan: "TrainPlan") -> bool:
    """Whether a plan does what no search can be asked for."""
    tuned = plan.frozen or plan.packed_lengths
    return bool(tuned or plan.mtp_layers or plan.expert_imbalance != 1)


def search_of(plan: "TrainPlan") -> "TrainPlanRequest":
    """The search for the job of a plan: model, slice, batch, length, dtypes, optimizer and chips;
    and the program, where that runs the job."""
    asked = _job_of(plan)
    return asked if _runs(asked, plan) else _job_of(replace(plan, software="any"))


def _runs(asked: "TrainPlanRequest", plan: "TrainPlan") -> bool:
    """Whether the program of a search can run its job at all."""
    from shardwise.errors import BadRequest
    from shardwise.models import load_model
    from shardwise.planner.choosing import obstacles_of

    try:
        piece = asked.hardware.slice(plan.slice).slice
        job = (load_model(plan.model), plan.model, piece)
        job += (plan.global_batch_sequences, plan.sequence_length)
        rows = [row for group in asked.checked().programs(piece.chip) for row in group]
        return any(not obstacles_of(asked.request(*job, row)) for row in rows)
    except BadRequest:
        return False


def _job_of(plan: "TrainPlan") -> "TrainPlanRequest":
    from shardwise.commands.base.inputs import Hardware
    from shardwise.commands.plan_train.train import TrainPlanRequest
    from shardwise.models.zoo import split_family
    from shardwise.plans.software import SOFTWARE, usual_stack
    from shardwise.plans.software.usual import usual_dtypes

    model, family = split_family(plan.model)
    row, dtypes, chips = SOFTWARE.get(plan.software), plan.dtypes, plan.chips
    usual = usual_dtypes(row, dtypes.compute, dtypes.param)
    own = {f.name: getattr(dtypes, f.name) for f in fields(dtypes) if f.name != "compute"}
    own = {name: value for name, value in own.items() if value != getattr(usual, name)}
    chip = Hardware(constants=plan.constants).of_plan(plan).slice(plan.slice).slice.chip
    sets = chips.numbers_of(chip.id)
    if row is None and plan.stack != usual_stack(chip, plan.lora_rank):
        sets |= {"stack": plan.stack}
    return TrainPlanRequest(
        model,
        plan.slice,
        as_=family or None,
        batch=f"{plan.global_batch_sequences}seq",
        seq=plan.sequence_length,
        software=plan.software,
        optimizer=plan.optimizer,
        offload="optimizer" if plan.offload_optimizer else None,
        lora=plan.lora_rank or None,
        targets=",".join(plan.lora_targets) or None,
        quantize=None if plan.quantize == "none" else plan.quantize,
        dtype=dtypes.compute,
        **{_KEYWORDS.get(name, name): value for name, value in own.items()},
        constants=plan.constants,
        hw_files=chips.files,
        sets=sets,
        prices=chips.prices,
        provider=chips.provider or None,
        spot=chips.spot,
    )


_KEYWORDS = {"param": "param_dtype", "grad": "grad_dtype"}
"""Keywords of a search whose dtype has another name in a plan."""
