"""Plan for training: the best plan that fits, and what else is said of it."""

from collections.abc import Callable
from dataclasses import fields, replace
from math import inf, prod
from pathlib import Path

from shardwise.commands.base.inputs import own_evidence, whole_number
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.errors import BadRequest, NoFeasiblePlan, Remark
from shardwise.hardware import Chip, Slice, Spelling, slices_of
from shardwise.models import load_model
from shardwise.models.describe import context_warning
from shardwise.planner.choosing import plan_for
from shardwise.planner.evaluate import TrainAnswer, evaluate_train
from shardwise.planner.expected import shift_of
from shardwise.planner.kept_plans import searched_once
from shardwise.planner.search.choices import AS_FAST
from shardwise.planner.search.request import TrainRequest
from shardwise.planner.training import TrainPlanning, better_batches, plan_train
from shardwise.plans import MESH_AXES
from shardwise.plans.batch_words import parse_batch, parse_length
from shardwise.plans.layouts import TILE_ROWS
from shardwise.plans.software import JAX
from shardwise.units import format_seconds, sig

_MOST_SHOWN = 50
"""Next best meshes."""


def plan_training(
    model: str | Path,
    on: str,
    *,
    batch: str | int,
    seq: str | int,
    top: str | int = 3,
    choices: TrainChoices | None = None,
    progress: Callable[[int, int], None] | None = None,
    better_than: float = inf,
    outside: bool = True,
    may_offload: bool = False,
) -> TrainPlanning:
    """The best training plan that fits, of what a program runs.

    `model` is a zoo name, a config.json or a folder with one; `on` a slice, or a bare chip for the
    smallest of its slices that a plan fits; `batch` tokens (4194304, "4Mi") or sequences
    ("1024seq"); `seq` tokens per sequence. There is a plan only where one ranks before
    `better_than` (seconds, where time is the objective); beyond the program is looked at only with
    `outside`. On a slice on which nothing fits the optimizer's state goes to the hosts' memory, if
    it `may_offload`. Raises BadRequest, or NoFeasiblePlan with the nearest miss.
    """
    choices = (choices or TrainChoices()).checked()
    evidence = own_evidence(choices.evidence, choices.constants)
    better_than = inf if evidence else better_than  # the search ranks plans as they are priced
    length = parse_length(seq, "--seq")
    cfg, sequences = load_model(model), parse_batch(batch, length)
    shown = whole_number(top, "--top", most=_MOST_SHOWN)

    def searched(request: TrainRequest, top: int) -> TrainPlanning:
        return plan_train(request, top=top, progress=progress, exhaustive=choices.exhaustive)

    target = choices.hardware.target(on)
    spelt = isinstance(target, Spelling)

    def planned(piece: Slice) -> TrainPlanning:
        asked = [
            [
                replace(
                    choices.request(cfg, model, piece, sequences, length, row),
                    better_than=better_than,
                    may_offload=may_offload and choices.offload is None and spelt,
                )
                for row in group
            ]
            for group in choices.programs(piece.chip)
        ]
        return plan_for(asked, searched, shown, outside)

    def made() -> TrainPlanning:
        return planned(target.slice) if isinstance(target, Spelling) else _smallest(target, planned)

    same = (str(model), on, sequences, length, shown, better_than, outside, may_offload)
    chosen = tuple(getattr(choices, one.name) for one in fields(TrainChoices))
    found = searched_once((same, chosen), made)
    shift = shift_of(found.best, evidence)
    return found.at(shift) if shift else found


def unused_choices(planning: TrainPlanning, schedule: str | None, method: str | None) -> list[str]:
    """Choices that were fixed and that the best plan has no use for, as one line each."""
    plan, said = planning.best.plan, list[str]()
    if schedule is not None and plan.degree("stage") == 1:
        said.append(
            Remark(f"--schedule {schedule} changes nothing: the best plan has no pipeline stages")
        )
    if method is not None and plan.degree("context") == 1:
        said.append(
            Remark(f"--context-method {method} changes nothing: the best plan cuts no sequence")
        )
    return said


def _smallest(chip: Chip, planned: Callable[[Slice], TrainPlanning]) -> TrainPlanning:
    """The smallest slice on which a plan keeps the margin, or where none does, fits."""
    miss, tight = "", None
    for piece in slices_of(chip, domains=1024):
        try:
            found = planned(piece)
        except NoFeasiblePlan as error:
            miss = str(error)
            continue
        if found.margin_kept:
            return found
        tight = tight or found
    if tight is not None:
        return tight
    raise NoFeasiblePlan(f"no slice of {chip.id} is large enough; the largest: {miss}")


def batch_hints(planning: TrainPlanning) -> list[str]:
    """Offers of nearby batches that split better, as one line each; only where speed is asked."""
    if planning.request.objective != "time":
        return []
    request, usual = planning.request, planning.best.tokens_per_second
    return [
        Remark(
            f"a batch of {n} sequences would train {rate / usual - 1:.0%} more tokens per second: "
            f"{request.sequences} sequences split badly over {request.piece} (--batch {n}seq)"
        )
        for n, rate in better_batches(request, planning.best)
    ]


def caveats(answer: TrainAnswer) -> list[str]:
    """What the figures leave open: a context beyond the model's, pieces of weights that fill no
    tile, and a memory margin too thin for fragmentation. How sure the time is says its range."""
    chip = answer.piece.chip
    said = context_warning(answer.cfg, answer.plan.sequence_length)
    said += _part_tiles(answer)
    if answer.peak_bytes_per_chip > _TIGHT * chip.require("hbm_usable_bytes"):
        said.append("memory is within 2 % of usable HBM: no room is left for fragmentation")
    return said


def tight(planning: TrainPlanning) -> list[str]:
    """That no plan that fits leaves the margin free."""
    if planning.margin_kept:
        return []
    share = f"{100 * planning.request.margin:.3g} %"
    return [f"no plan leaves {share} of usable memory free (--margin); this one fits with less"]


def _part_tiles(answer: TrainAnswer) -> list[str]:
    """Weights stored in pieces whose rows fill no tile of a TPU, which the price does not know:
    libtpu 0.0.42 sums such gradients whole and copies what it gathers (docs/lab/log.md). Our
    trainer gathers over inner axes first, so that only the outermost counts there."""
    plan, width = answer.plan, answer.cfg.d_model
    storing = [axis for axis in plan.storage_axes if plan.degree(axis) > 1]
    apart = prod(map(plan.degree, storing[:1] if plan.software == JAX.name else storing))
    if answer.piece.chip.vendor != "google" or width % apart or width // apart % TILE_ROWS == 0:
        return []
    said = (
        f"shards of D={width:,} have {width // apart} rows, no multiple of {TILE_ROWS}, the rows "
        "of a TPU's tile: XLA then sums whole gradients and copies gathered weights. The "
        "predicted time leaves this out (`shardwise compile` shows it)"
    )
    pins = _pins_of_tiles(answer, apart)
    return [f"{said}; {pins} makes whole tiles" if pins else said]


def _pins_of_tiles(answer: TrainAnswer, apart: int) -> str:
    """Degrees under which shards fill their tiles, where such a plan fits; empty where none is
    known. `data` takes the devices that fsdp leaves, else a search gives them to an axis that
    stores, too."""
    plan, fsdp = answer.plan, answer.plan.degree("fsdp")
    whole = max(apart // fsdp, 1) * TILE_ROWS
    less = (n for n in range(fsdp - 1, 0, -1) if fsdp % n == 0)
    fewer = next((n for n in less if answer.cfg.d_model % (n * whole) == 0), None)
    if fewer is None:
        return ""
    pins = {"fsdp": fewer, "data": plan.degree("data") * fsdp // fewer}
    pins |= {a: plan.degree(a) for a in plan.storage_axes if a != "fsdp" and plan.degree(a) > 1}
    mesh = {axis: pins.get(axis, plan.degree(axis)) for axis in MESH_AXES}
    mesh = {axis: degree for axis, degree in mesh.items() if degree > 1}
    try:
        other = evaluate_train(replace(plan, mesh=mesh), answer.cfg, answer.piece)
    except BadRequest:
        return ""  # no box has such a mesh
    if other.peak_bytes_per_chip > answer.piece.chip.require("hbm_usable_bytes"):
        return ""
    return " ".join(f"--pin {axis}={n}" for axis, n in pins.items())


_TIGHT = 0.98


def slower_text(ratio: float) -> str:
    """How much slower one step is than another; closer than `AS_FAST` nobody can tell.

    >>> slower_text(1.0004), slower_text(1.055), slower_text(1.5), slower_text(0.9)
    ('as fast (within 0.1 %)', '5.5 % slower', '1.5x slower', '10.0 % faster')
    """
    if abs(ratio - 1) <= AS_FAST:
        return f"as fast (within {100 * AS_FAST:g} %)"
    if ratio < 1:
        return f"{100 * (1 - ratio):.1f} % faster"
    return f"{100 * (ratio - 1):.1f} % slower" if ratio < 1.2 else f"{sig(ratio)}x slower"


def compared_text(ratio: float, other: str) -> str:
    """How much slower one step is than another, which it names.

    >>> compared_text(1.0, "theirs"), compared_text(1.055, "theirs")
    ('as fast (within 0.1 %) as theirs', '5.5 % slower than theirs')
    """
    return f"{slower_text(ratio)} {'as' if abs(ratio - 1) <= AS_FAST else 'than'} {other}"


def waiting(answer: TrainAnswer) -> str:
    """How long compute waits for networks and the host."""
    waits, expected = answer.exposed_seconds, answer.step_seconds.expected
    if waits < 1e-3 * expected:
        return "compute hardly waits for networks and the host"
    return f"compute waits {format_seconds(waits)} per step for networks and the host"
