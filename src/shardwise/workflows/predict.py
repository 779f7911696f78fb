"""Plan and price, and shape the answer as a document's `result` (the design fixes its names)."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from math import inf, prod
from pathlib import Path
from typing import Any

from shardwise.errors import NoFeasiblePlan, Remark
from shardwise.hardware import Chip, Slice, Spelling, describe, slices_of
from shardwise.models import load_model, params_total
from shardwise.models.describe import context_warning
from shardwise.planner.beside import MESH, Beside, decisive
from shardwise.planner.choosing import plan_for
from shardwise.planner.expected import expected_range, shift_of
from shardwise.planner.export import refusal
from shardwise.planner.price.goodput import Overheads, goodput
from shardwise.planner.price.memory import stage_memory
from shardwise.planner.price.plan import stack_for
from shardwise.planner.search.choices import AS_FAST
from shardwise.planner.search.request import SEARCHED, TrainRequest
from shardwise.planner.training import (
    TrainAnswer,
    TrainPlanning,
    better_batches,
    plan_shape,
    plan_train,
    run_of,
    tokens_per_second_at,
)
from shardwise.plans import TrainPlan, layout_table
from shardwise.plans.batch_words import parse_batch, parse_length
from shardwise.plans.layouts import TILE_ROWS
from shardwise.plans.software import JAX, SOFTWARE
from shardwise.roofline.bodies import OpTime
from shardwise.roofline.rests import Rest, limit, rests_on, roofline_share
from shardwise.units import format_seconds, sig
from shardwise.workflows.inputs import own_evidence, whole_number
from shardwise.workflows.train_choices import TrainChoices

_SHOWN_OPS = 8
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
) -> TrainPlanning:
    """The best training plan that fits, of what a program runs.

    `model` is a zoo name, a config.json or a folder with one; `on` a slice, or a bare chip for the
    smallest of its slices that a plan fits; `batch` tokens (4194304, "4Mi") or sequences
    ("1024seq"); `seq` tokens per sequence. There is a plan only where one ranks before
    `better_than` (seconds, where time is the objective); beyond the program is looked at only with
    `outside`. Raises BadRequest, or NoFeasiblePlan with the nearest miss.
    """
    choices = (choices or TrainChoices()).checked()
    evidence = own_evidence(choices.evidence, choices.constants)
    better_than = inf if evidence else better_than  # the search ranks plans as they are priced
    length = parse_length(seq, "--seq")
    cfg, sequences = load_model(model), parse_batch(batch, length)
    shown = whole_number(top, "--top", most=_MOST_SHOWN)

    def searched(request: TrainRequest, top: int) -> TrainPlanning:
        return plan_train(request, top=top, progress=progress, exhaustive=choices.exhaustive)

    def planned(piece: Slice) -> TrainPlanning:
        asked = [
            [
                replace(
                    choices.request(cfg, model, piece, sequences, length, row),
                    better_than=better_than,
                )
                for row in group
            ]
            for group in choices.programs(piece.chip)
        ]
        return plan_for(asked, searched, shown, outside)

    target = choices.hardware.target(on)
    spelt = isinstance(target, Spelling)
    found = planned(target.slice) if spelt else _smallest(target, planned)
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
    raise NoFeasiblePlan(f"no slice of {chip.id} is large enough; of the largest: {miss}")


def batch_hints(planning: TrainPlanning) -> list[str]:
    """Offers of nearby batches that split better, as one line each; only where speed is asked."""
    if planning.request.objective != "time":
        return []
    request, usual = planning.request, planning.best.tokens_per_second
    return [
        Remark(
            f"a batch of {n} sequences would train {rate / usual - 1:.0%} more tokens per second: "
            f"{request.sequences} splits badly over {request.piece} (--batch {n}seq)"
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
        said.append("memory is within 2 % of usable HBM: nothing is left for fragmentation")
    return said


def tight(planning: TrainPlanning) -> list[str]:
    """That no plan that fits leaves the margin free."""
    if planning.margin_kept:
        return []
    share = f"{100 * planning.request.margin:.3g} %"
    return [f"no plan leaves {share} of usable memory free (--margin); this one only fits"]


def _part_tiles(answer: TrainAnswer) -> list[str]:
    """Weights stored in pieces whose rows fill no tile of a TPU, which the price does not know:
    libtpu 0.0.42 sums such gradients whole and copies what it gathers (docs/log.md). Our trainer
    gathers over inner axes first, so that only the outermost counts there."""
    plan, width = answer.plan, answer.cfg.d_model
    storing = [axis for axis in plan.storage_axes if plan.degree(axis) > 1]
    apart = prod(map(plan.degree, storing[:1] if plan.software == JAX.name else storing))
    if answer.piece.chip.vendor != "google" or width % apart or width // apart % TILE_ROWS == 0:
        return []
    fsdp = plan.degree("fsdp")
    less = [n for n in range(1, fsdp) if fsdp % n == 0]
    fitting = [n for n in less if width % (apart // fsdp * n * TILE_ROWS) == 0]
    pins = {"fsdp": fitting[-1] if fitting else 1}
    pins |= {a: plan.degree(a) for a in plan.storage_axes if a != "fsdp" and plan.degree(a) > 1}
    flags = " ".join(f"--pin {axis}={n}" for axis, n in pins.items())
    said = (
        f"D={width:,} is stored in pieces of {width // apart} rows, and a TPU's tile has "
        f"{TILE_ROWS}: XLA then sums whole gradients and copies gathered weights, which the "
        "predicted time leaves out (`shardwise compile` shows it)"
    )
    return [f"{said}; {flags} makes them whole" if fitting else said]


def days_between(answer: TrainAnswer, days: float | None) -> dict[str, float] | None:
    """The days that 8 of 10 such runs take, of one that is expected to take so many."""
    found = expected_range(answer)
    if found is None or days is None:
        return None
    return {end: days * found[end] / answer.step_seconds["expected"] for end in ("low", "high")}


_TIGHT = 0.98


def train_result(answer: TrainAnswer) -> dict[str, Any]:
    """One priced training plan under the stable names of the design."""
    piece, plan = answer.piece, answer.plan
    return {
        "slice": str(piece),
        "slice_means": describe(piece),
        "software": plan.software,
        "stack": plan.stack,
        "mesh": dict(plan.mesh),
        "slices_used": plan.slices,
        "box": list(plan.box),
        "placement": answer.placement.describe(),
        "microbatches": plan.microbatches,
        "layers_per_stage": list(plan.layers_per_stage),
        **_searched(plan),
        "layouts": layouts(answer),
        "chips_used": answer.chips_used,
        "chips_idle": answer.chips_idle,
        "step_seconds": answer.step_seconds,
        "expected_80": expected_range(answer),
        "tokens_per_second": answer.tokens_per_second,
        "mfu": answer.mfu,
        "mfu_dtype": plan.dtypes.compute,
        "mfu_6nd": answer.mfu_6nd,
        "tokens_per_joule_upper": tokens_per_joule(answer),
        "peak_bytes_per_chip": answer.peak_bytes_per_chip,
        "usable_bytes_per_chip": piece.chip.require("hbm_usable_bytes"),
        "memory_by_kind": answer.memory_by_kind,
        "memory_peak_at": answer.memory.peak_point()[0],
        "memory_over_step": memory_over_step(answer),
        "memory_by_stage": memory_by_stage(answer),
        "bound_by": answer.estimate.bound_by(),
        "resource_seconds": {k: float(v) for k, v in answer.estimate.resources.items()},
        "exposed_seconds": answer.exposed_seconds,
        "where_it_goes": answer.time_parts.named(),
        "math_dtypes": math_dtypes(answer),
        "top_ops": [_op_row(t, answer) for t in answer.estimate.top(_SHOWN_OPS)],
    }


def _searched(plan: TrainPlan) -> dict[str, Any]:
    """The choices of a plan that a search tries, tuples as lists."""
    values = {name: getattr(plan, name) for name in (*SEARCHED, "virtual_stages")}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


def memory_over_step(answer: TrainAnswer) -> list[dict[str, Any]]:
    """Bytes per chip by kind at each point of the step, in order, on the fullest stage."""
    devices = answer.piece.chip.jax_devices_per_chip
    return [
        {"point": name, **{kind: float(size) * devices for kind, size in held.items()}}
        for name, held in answer.memory.points
    ]


def memory_by_stage(answer: TrainAnswer) -> list[dict[str, Any]]:
    """Of each pipeline stage its layers, peak bytes per chip, and when; one row without stages."""
    devices, layers = answer.piece.chip.jax_devices_per_chip, answer.plan.layers_per_stage
    stages = stage_memory(
        answer.cfg, plan_shape(answer.plan, answer.cfg, answer.piece.chip), layers
    )
    return [
        {
            "stage": i,
            "layers": layers[i],
            "peak_bytes_per_chip": float(line.peak()) * devices,
            "at": line.peak_point()[0],
        }
        for i, line in enumerate(stages)
    ]


def tokens_per_joule(answer: TrainAnswer) -> float | None:
    """Tokens per joule of the chips alone at their rated power, used and idle ones: an upper bound,
    as hosts, networks and cooling draw more. None where the catalogue has no power."""
    watts = answer.piece.chip.power_watts
    return None if watts is None else answer.tokens_per_second / (watts * answer.piece.chips)


def _op_row(t: OpTime, answer: TrainAnswer) -> dict[str, Any]:
    """One op; a collective's stream names the axes that it really goes over."""
    op, stream = t.op, t.op.stream
    if op.collective is not None:
        used = [axis for axis in op.collective.axes if answer.plan.degree(axis) > 1]
        stream = f"net:{'+'.join(used)}" if used else stream
    return {
        "name": op.name,
        "phase": op.phase,
        "component": op.component,
        "stream": stream,
        "count": float(op.count),
        "seconds": float(t.total),
        "limited_by": limit(t),
        "roofline_share": roofline_share(t, answer.piece.chip),
        "rests_on": [asdict(rest) for rest in _rests(t, answer)],
    }


def _rests(t: OpTime, answer: TrainAnswer) -> tuple[Rest, ...]:
    chip = answer.piece.chip
    return rests_on(t, chip, answer.placement, stack_for(answer.plan, chip))


def math_dtypes(answer: TrainAnswer) -> list[dict[str, Any]]:
    """The dtypes that the step's FLOPs are in, most first: each one's share and the components
    whose FLOPs they are."""
    flops: dict[str, dict[str, float]] = {}
    for op in answer.work.ops:
        for dtype, count in op.flops.items():
            of = flops.setdefault(dtype, {})
            of[op.component] = of.get(op.component, 0.0) + float(count) * float(op.count)
    sums = {dtype: sum(of.values()) for dtype, of in flops.items()}
    return [
        {
            "dtype": dtype,
            "share": sums[dtype] / sum(sums.values()),
            "components": sorted(name for name, count in flops[dtype].items() if count),
        }
        for dtype in sorted(sums, key=lambda name: -sums[name])
        if sums[dtype]
    ]


def layouts(answer: TrainAnswer) -> dict[str, str]:
    """How the trainer lays out every parameter and activation, in notation."""
    return {name: str(layout) for name, layout in layout_table(answer.plan, answer.cfg).items()}


def planning_result(planning: TrainPlanning, choices: Iterable[Beside] = ()) -> dict[str, Any]:
    """The best plan, what runs it, its runners-up, what another value of each choice would cost,
    and how much was searched."""
    best, outside = planning.best, planning.outside
    report = planning.search
    return {
        **train_result(best),
        "runs_in": runs_in(best),
        "faster_outside": runner_up(outside, best) if outside else None,
        "runners_up": [runner_up(a, best) for a in planning.runners_up],
        "strategies": [runner_up(a, best) for a in planning.strategies],
        "as_fast": [runner_up(a, best) for a in planning.tied],
        "fastest": None if planning.fastest is best else runner_up(planning.fastest, best),
        "told_apart": planning.request.apart,
        "margin": {"share": planning.request.margin, "kept": planning.margin_kept},
        "choices": [_choice(row, best) for row in choices],
        "search": {
            "enumerated": report.enumerated,
            "legal": report.legal,
            "candidates": report.candidates,
            "seconds": report.seconds,
        },
    }


def runs_in(answer: TrainAnswer) -> str:
    """What runs a plan, as a person calls it; "" where it is for no program in particular, or its
    program refuses it (`refused_by`)."""
    software = answer.plan.software
    return SOFTWARE[software].title if software in SOFTWARE and not refused_by(answer) else ""


def refused_by(answer: TrainAnswer) -> str:
    """Why the program that a plan names does not run it; "" where it does, or none is named."""
    plan = answer.plan
    return refusal(plan, answer.cfg, answer.piece, plan.software) if plan.software != "any" else ""


def _choice(row: Beside, best: TrainAnswer) -> dict[str, Any]:
    """A choice of the best plan, and the best that was priced with another value of it."""
    found: dict[str, Any] = {"choice": row.choice, "chosen": _plain(row.choice, best.plan)}
    if row.other is None:
        return found | {"next": None, "plan": None, "grows": None, "grows_seconds": None}
    part, seconds = decisive(row.other, best)
    return found | {
        "next": _plain(row.choice, row.other.plan),
        "plan": runner_up(row.other, best),
        "grows": part,
        "grows_seconds": seconds,
    }


def _plain(choice: str, plan: TrainPlan) -> Any:
    value = getattr(plan, choice)
    return dict(value) if choice == MESH else list(value) if isinstance(value, tuple) else value


def runner_up(answer: TrainAnswer, best: TrainAnswer) -> dict[str, Any]:
    """Another plan beside the best, as a document has it."""
    expected = answer.step_seconds["expected"]
    return {
        "mesh": dict(answer.plan.mesh),
        "box": list(answer.plan.box),
        "microbatches": answer.plan.microbatches,
        **_searched(answer.plan),
        "chips_used": answer.chips_used,
        "step_seconds": answer.step_seconds,
        "times_slower": expected / best.step_seconds["expected"],
        "mfu": answer.mfu,
        "mfu_dtype": answer.plan.dtypes.compute,
        "peak_bytes_per_chip": answer.peak_bytes_per_chip,
        "bound_by": answer.estimate.bound_by(),
        "exposed_seconds": answer.exposed_seconds,
    }


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
    """How much slower one step is than another, and than which.

    >>> compared_text(1.0, "theirs"), compared_text(1.055, "theirs")
    ('as fast (within 0.1 %) as theirs', '5.5 % slower than theirs')
    """
    return f"{slower_text(ratio)} {'as' if abs(ratio - 1) <= AS_FAST else 'than'} {other}"


def waiting(answer: TrainAnswer) -> str:
    """How long compute waits for networks and the host."""
    waits, expected = answer.exposed_seconds, answer.step_seconds["expected"]
    if waits < 1e-3 * expected:
        return "compute hardly waits for networks and the host"
    return f"compute waits {format_seconds(waits)} per step for networks and the host"


AT_EXPECTED = "expected step time"


def run_result(
    answer: TrainAnswer,
    tokens: float,
    mfu: float | None,
    params: float | None,
    overheads: Overheads | None = None,
    days: float | None = None,
) -> dict[str, Any]:
    """Days and dollars of a whole run: at the expected step time, or at a given utilisation of
    6*N*tokens (the book's arithmetic), times the goodput that `overheads` leave. The price is per
    chip of the slice, used or idle. With `days` it says whether it keeps that deadline."""
    piece = answer.piece
    if mfu is None:
        rate, basis = answer.tokens_per_second, AT_EXPECTED
    else:
        n = params or params_total(answer.cfg)
        rate = tokens_per_second_at(mfu, n, piece, answer.plan.dtypes.compute)
        basis = (
            f"{100 * mfu:.6g}% MFU of 6*N*tokens with N = {n:,.0f}, of the "
            f"{answer.plan.dtypes.compute} peak"
        )
    lost: dict[str, Any] = {}
    if overheads is not None and not overheads.none:
        good = goodput(overheads, piece.chips)
        lost = {"goodput": asdict(good)}
        rate, basis = rate * good.share, f"{basis}, goodput {good.share:.1%}"
    run: dict[str, Any] = {**run_of(tokens, rate, piece)}
    run["days_80"] = days_between(answer, run["days"]) if mfu is None else None
    if days is not None:
        run |= {"deadline_days": days, "keeps_deadline": run["days"] <= days}
    price = piece.chip.price
    cost: dict[str, Any] = {"usd": None, "usd_per_chip_hour": None}
    if price is not None:
        cost = {
            "usd": run["chip_hours"] * price.usd_per_chip_hour,
            "usd_idle": run["chip_hours"]
            * price.usd_per_chip_hour
            * answer.chips_idle
            / piece.chips,
            "usd_per_chip_hour": price.usd_per_chip_hour,
            "price": str(price),
            "price_as_of": price.as_of,
            "price_source": price.source,
        }
    return {"tokens": tokens, "basis": basis, "tokens_per_second": rate, **run, **cost, **lost}
