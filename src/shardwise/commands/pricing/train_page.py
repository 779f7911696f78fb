"""One priced training plan as a page: the plan, its time and memory, and where the step goes.

`train_page` is the page, `train_detail` what --detail adds: placement, arrays, bounds, memory by
kind, ops.
"""

from collections.abc import Iterable, Mapping, Sequence

from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.base.layout import Fact, Facts, Part, memory_fact, percent, wrapped
from shardwise.commands.pricing.predict import compared_text
from shardwise.commands.pricing.whole_run import MEASURE, own_text
from shardwise.evidence.measured import MeasuredRun
from shardwise.models.parameters import first_matmuls
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.expected import ExpectedRange
from shardwise.planner.export import target_for
from shardwise.plans import TrainPlan
from shardwise.plans.libraries import TRANSFORMERS
from shardwise.plans.software import software_row
from shardwise.plans.train import USUAL, mesh_text
from shardwise.results.train import AdaptersTrained, MathDtype, PricedPlan, StageMemory, TrainOp
from shardwise.roofline.rests import PEAK
from shardwise.units import (
    dtype_bytes,
    format_count,
    format_gib,
    format_rate,
    format_seconds,
    format_seconds_between,
    many,
    sig,
)

_LEAST, _NOTHING = 0.005, 1e-9
"""Shares of the step below which its parts are added up as one, or are a rounding error."""


def train_page(
    answer: TrainAnswer,
    result: PricedPlan,
    runs_in: str,
    *,
    measured: MeasuredRun | None = None,
    beside: bool = False,
    more: Sequence[Fact] = (),
    between: Iterable[Part] = (),
) -> Page:
    """One priced plan: what it is, what `runs_in` it, how fast, whether it fits, and where the step
    goes; `measured` is its published run. `more` are further facts below the first ones, `between`
    what stands before where the step goes; with another plan `beside` it, whose lines the page
    needs, --detail alone says why its range is wide."""
    plan = answer.plan
    seen = [Fact("measured", measured_text(measured))] if measured else []
    wide = [] if beside else _wide(result.expected_80)
    yield wrapped(
        f"{answer.cfg.name} on {result.slice} ({answer.piece.chips_text}), "
        f"{format_count(plan.tokens)} tokens a step, seq {plan.sequence_length:,}",
        hanging=2,
    )
    yield wrapped(plan_text(plan, result), 2, 4)
    ran = [*_trains(result.adapters), _runs_in(answer, result, runs_in), _step(result)]
    yield Facts([*ran, *wide, _memory(result), *_load(plan), *seen, *more])
    yield from between
    yield ""
    yield where_table(result.where_it_goes, "where the step goes")


def plan_text(plan: TrainPlan, result: PricedPlan) -> str:
    """The plan's mesh and choices in a line."""
    idle = ""
    if result.chips_idle:
        stay = "stays" if result.chips_idle == 1 else "stay"
        idle = f"; {many(result.chips_idle, 'chip')} {stay} idle"
    count = many(plan.microbatches, "microbatch").replace("hs", "hes")
    remat = f"remat {plan.remat}{_kinds_text(plan)}"
    return f"{mesh_text(result.mesh)}, {count}, {remat}{_choices_text(plan)}{idle}"


def _kinds_text(plan: TrainPlan) -> str:
    """Where kinds of activations go that the policy does not decide."""
    at: dict[str, list[str]] = {}
    for kind, place in plan.remat_kinds.items():
        at.setdefault(place, []).append(kind)
    said = [f"{place} {' '.join(kinds)}" for place, kinds in at.items()]
    return f" ({', '.join(said)})" if said else ""


def _runs_in(answer: TrainAnswer, result: PricedPlan, runs_in: str) -> Fact:
    none = "no program in particular (--for any)"
    if result.adapters and answer.plan.library == TRANSFORMERS:
        taken = target_for(answer.plan, answer.cfg, answer.piece)
        written = f" (export --to {taken})" if taken else ", but no export can write this plan"
        none = f"PEFT and what builds on it{written}"
    if result.software != "any":
        none = f"nothing: the plan is for {software_row(result.software).title}, which refuses it"
    return Fact("runs in", runs_in or none)


def _trains(found: AdaptersTrained | None) -> list[Fact]:
    """The adapters, and how the weights beside them lie in memory."""
    if found is None:
        return []
    stored = "" if found.quantize == "none" else f", stored in {found.quantize}"
    said = f"LoRA of rank {found.rank} on {', '.join(found.matrices)}"
    many_trained = f"({format_count(found.trained_params)} parameters)"
    return [Fact("trains", f"{said} {many_trained}; the weights are frozen{stored}")]


def _step(result: PricedPlan) -> Fact:
    return Fact(
        "step",
        f"{_step_text(result)}; {format_count(result.tokens_per_second)} tokens/s, "
        f"MFU {100 * result.mfu:.1f} % of the {result.mfu_dtype} peak",
    )


def _memory(result: PricedPlan) -> Fact:
    return memory_fact(result.peak_bytes_per_chip, result.usable_bytes_per_chip)


def _load(plan: TrainPlan) -> list[Fact]:
    """How evenly experts are counted as loaded, where a device could have more than another."""
    if not plan.ragged or (plan.degree("expert") == 1 and not plan.expert_over_tensor):
        return []
    if plan.expert_imbalance == 1:
        return [Fact("experts", "balanced load, as in benchmarks (expert_imbalance 1)")]
    apart = plan.degree("expert") * (plan.degree("tensor") if plan.expert_over_tensor else 1)
    said = f"the busiest device has {min(plan.expert_imbalance, apart):g} times the mean load"
    most = ", the maximum" if plan.expert_imbalance > apart else ""
    return [Fact("experts", said + most)]


def _wide(found: ExpectedRange | None) -> list[Fact]:
    """What is not known of such runs, or most widens their range."""
    if not found:
        return []
    own, why = found.evidence, found.why[:1]
    if not own:
        return [Fact("range", f"{line}; {MEASURE}") for line in why]
    facts = [Fact("evidence", own_text(found))]
    return facts if own.like else [*facts, *(Fact("range", line) for line in why)]


def _step_text(result: PricedPlan) -> str:
    """The expected step time, and how far such predictions were off."""
    expected, found = format_seconds(result.step_seconds.expected), result.expected_80
    if found:
        return f"{expected} (8 of 10 runs: {format_seconds_between(found.low, found.high)})"
    return f"{expected} (at the book's rates, without derating)"


def measured_text(run: MeasuredRun) -> str:
    """What a published run took, beside what was predicted of it."""
    said = []
    if run.step_seconds is not None and run.times_predicted is not None:
        beside = compared_text(run.times_predicted, "predicted")
        said.append(f"{format_seconds(run.step_seconds)}, {beside}")
    if run.mfu is not None:
        said.append(f"MFU {100 * run.mfu:.1f} % of the {run.mfu_dtype} peak")
    published = run.published
    if run.published_mfu is not None:
        published += f", MFU {run.published_mfu:.0%} of {run.published_mfu_dtype}"
    said.append(f"published as {published} ({run.source})")
    return "; ".join(said)


def where_table(parts: Mapping[str, float], title: str) -> TextTable:
    """Seconds and shares of the parts of a step, which add up to it; small ones as one row."""
    whole = sum(parts.values())
    parts = {name: value for name, value in parts.items() if abs(value) > _NOTHING * whole}
    shown = {name: value for name, value in parts.items() if abs(value) >= _LEAST * whole}
    small = {name: value for name, value in parts.items() if name not in shown}
    if len(small) > 1:
        small = {f"other ({', '.join(small)})": sum(small.values())}
    return TextTable(
        [title, "time", "share"],
        [
            [_EXPLAINED.get(name, name), format_seconds(value), percent(value / whole)]
            for name, value in (shown | small).items()
        ],
        ruled=False,
    )


_EXPLAINED = {
    "math below peak": "math below peak (kernel inefficiency)",
}
"""What a name of a part means, where it is not plain."""


def train_detail(
    answer: TrainAnswer, result: PricedPlan, measured: MeasuredRun | None = None
) -> Page:
    """Where the mesh lies, how arrays are cut, the bounds of the time, memory and ops."""
    yield wrapped(result.slice_means, 0, 2)
    for line in result.placement:
        yield f"  {line}"
    yield f"  {many(result.chips_used, 'chip')} used, {result.chips_idle:,} idle"
    for name in (*first_matmuls(answer.cfg), "activations"):
        yield f"  {name}: {result.layouts[name]}"
    yield from _sends(answer)
    yield ""
    yield from _bounds(answer, result)
    if measured:
        yield wrapped(f"measured: {measured.note}", 2)
    yield ""
    yield memory_table(result.memory_by_kind, result.memory_peak_at, result.usable_bytes_per_chip)
    yield from _stages(result.memory_by_stage)
    yield ""
    yield from _ops(result)


def _sends(answer: TrainAnswer) -> Page:
    """How tokens reach experts that lie apart, as it is counted."""
    plan, sender = answer.plan, answer.plan.sent_by(answer.piece.chip.vendor)
    if not answer.cfg.has_experts or plan.degree("expert") == 1:
        return
    how = "once to each device that has one of their experts"
    if sender == "alltoall" or not plan.ragged:
        how = "once to each of their experts" if plan.ragged else "into slots of a fixed number"
    by = sender or f"{plan.stack}'s own exchange"
    named = "" if plan.dispatcher else " (the plan names no dispatcher)"
    yield wrapped(f"tokens are sent to experts by {by}{named}, {how}", 2)


def _bounds(answer: TrainAnswer, result: PricedPlan) -> Page:
    """The three bounds, the class of the range, and utilisation counted in other ways."""
    step, plan = result.step_seconds, answer.plan
    bounds = step.lower, step.expected, step.upper
    yield TextTable(
        ["predicted step", "lower", "expected", "upper"],
        [
            ["seconds per step", *(format_seconds(v) for v in bounds)],
            ["tokens/s", *(format_count(plan.tokens / v) for v in bounds)],
        ],
    )
    yield wrapped(
        "lower: only the busiest resource, at its peak rate; upper: nothing overlaps. The range of "
        "8 of 10 runs is another one: it shows the error of predictions",
        2,
    )
    found = result.expected_80
    if found:
        yield wrapped(
            f"8 of 10: from the errors on {found.runs} published runs in {found.groups} groups "
            "(publisher and software), each predicted without its own group; the range is scaled "
            "by the errors on runs that share features with this plan (docs/lab/fit.md)",
            2,
        )
        if found.why:
            yield wrapped(f"the range: {'; '.join(found.why)}", 2)
    yield wrapped(
        f"MFU {result.mfu:.1%} (by 6*N*D {result.mfu_6nd:.1%}) of dense "
        f"{format_rate(answer.piece.chip.peak(plan.dtypes.compute), 'FLOP/s')} in "
        f"{plan.dtypes.compute} per chip, over "
        f"{answer.piece.chips_text}; limited by {result.bound_by}",
        2,
    )
    yield from _widths(result.math_dtypes, plan)
    if result.tokens_per_joule_upper:
        yield wrapped(
            f"at most {sig(result.tokens_per_joule_upper)} tokens per joule: all chips at "
            "their rated power (hosts, networks and cooling draw more)",
            2,
        )


def _widths(math: Sequence[MathDtype], plan: TrainPlan) -> Page:
    """Of a plan that computes in fewer than 16 bits, what does not."""
    narrow = plan.dtypes.compute
    rest = [row for row in math if row.dtype != narrow]
    if dtype_bytes(narrow) >= 2 or not rest:
        return
    share = sum(row.share for row in math if row.dtype == narrow)
    stays = (f"in {r.dtype}: {', '.join(r.components)} ({r.share:.1%})" for r in rest)
    yield wrapped(
        f"{share:.1%} of the FLOPs run in {narrow}; {'; '.join(stays)}, norms and activations; "
        f"parameters are stored in {plan.dtypes.param}, gradients in {plan.dtypes.grad}",
        2,
    )


def _ops(result: PricedPlan) -> Page:
    """The longest ops: of the step, of their roofline, and what the rates behind them are."""
    expected = result.step_seconds.expected
    yield TextTable(
        ["op (all runs)", "stream", "seconds", "of step", "of roofline", "rate"],
        [
            [f"{t.name} ({t.phase})", t.stream, format_seconds(t.seconds),
             f"{t.seconds / expected:.0%}", f"{t.roofline_share:.0%}", _basis(t)]
            for t in result.top_ops
        ],
        left=2,
    )  # fmt: skip
    known = {rest.constant: rest for t in result.top_ops for rest in t.rests_on}
    rates = (f"{path} {sig(rest.value)} {rest.basis}" for path, rest in known.items())
    if known:
        yield wrapped(
            f"of roofline: time at the peak over expected time; rates: {', '.join(rates)}", 2
        )


def _basis(op: TrainOp) -> str:
    """What kinds of numbers the rate of an op rests on, each once."""
    return " x ".join(dict.fromkeys(rest.basis for rest in op.rests_on)) or PEAK


def _stages(stages: Sequence[StageMemory]) -> Page:
    """The peaks of a pipeline's stages in one line."""
    if len(stages) < 2:
        return
    peaks = [stage.peak_bytes_per_chip for stage in stages]
    fullest = max(stages, key=lambda stage: stage.peak_bytes_per_chip)
    yield wrapped(
        f"peak memory of the {len(stages)} stages: {format_gib(min(peaks))} to "
        f"{format_gib(max(peaks))}; stage {fullest.stage} has the most, with {fullest.layers} "
        f"layers ({fullest.at})",
        2,
    )


def _choices_text(plan: TrainPlan) -> str:
    """The choices that make a difference on the plan's mesh."""
    said = []
    replicas = plan.degree("replica") * plan.degree("data")
    if replicas > 1:
        said.append(f"ZeRO-{plan.zero} over {replicas} replicas")
    if plan.degree("stage") > 1:
        chunks = f" with {plan.virtual_stages} chunks" if plan.virtual_stages > 1 else ""
        said.append(f"schedule {plan.pipeline_schedule}{chunks}")
    if plan.degree("context") > 1:
        said.append(f"context by {plan.context_method}")
    if plan.degree("context") * plan.degree("expert") > 1:
        stored = [axis for axis in plan.storage_axes if plan.degree(axis) > 1]
        said.append(f"parameters stored over {'+'.join(stored)}" if stored else "")
    if plan.weight_gather != "per_pass":
        said.append(f"parameters gathered once per {plan.weight_gather.removeprefix('per_')}")
    if plan.gradient_reduce == "per_step":
        said.append("gradients reduced once per step")
    said += _kernels(plan)
    return "".join(f", {text}" for text in said if text)


def _kernels(plan: TrainPlan) -> list[str]:
    """What the plan says of the program's kernels where it is not what the software does anyway."""
    said = []
    if plan.attention_kernel != USUAL.attention_kernel:
        said.append(f"attention by {plan.attention_kernel}")
    if plan.compiled is not None:
        said.append("compiled" if plan.compiled else "not compiled")
    if plan.fused_loss is not None:
        said.append("loss fused" if plan.fused_loss else "loss in float32")
    if plan.cuda_graph:
        said.append(f"CUDA graphs of {'+'.join(plan.cuda_graph)}")
    if plan.dispatcher is not None:
        said.append(f"tokens sent by {plan.dispatcher}")
    if plan.grouped_kernel != USUAL.grouped_kernel:
        said.append("experts' matmuls in one kernel")
    if plan.wide:
        said.append(f"{'+'.join(plan.wide)} in 16 bits")
    return said


def memory_table(kinds: Mapping[str, float], at: str, usable: float) -> TextTable:
    """Bytes per chip by kind at the peak, which is at the point `at`, and what there is."""
    kinds = {kind: size for kind, size in kinds.items() if size}
    rows = kinds | {"total": sum(kinds.values()), "usable": usable}
    return TextTable(
        [f"HBM per chip at the peak ({at})", "predicted"],
        [[kind, format_gib(size)] for kind, size in rows.items()],
    )
