"""One priced training plan as a page: headline, placement, times, memory, top ops."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.models.parameters import first_matmuls
from shardwise.planner.training import TrainAnswer
from shardwise.plans import TrainPlan
from shardwise.plans.train import mesh_text
from shardwise.units import format_count, format_gib, format_rate, format_seconds, sig
from shardwise.verbs.answer import Page, TextTable


def train_page(answer: TrainAnswer, result: Mapping[str, Any]) -> Page:
    """One priced plan: headline, placement, times, memory, top ops."""
    plan, cfg = answer.plan, answer.cfg
    yield (
        f"{cfg.name} on {result['slice']}: {plan.global_batch_sequences:,} sequences x "
        f"{plan.sequence_length:,} tokens = {format_count(plan.tokens)} tokens per step"
    )
    yield f"  {result['slice_means']}\n"
    yield f"Plan: {mesh_text(result['mesh'])}"
    for line in result["placement"]:
        yield f"  {line}"
    yield (
        f"  microbatches {plan.microbatches}, remat {plan.remat}{_choices_text(plan)}; "
        f"{result['chips_used']:,} chips used, {result['chips_idle']:,} idle"
    )
    for name in (*first_matmuls(cfg), "activations"):
        yield f"  {name}: {result['layouts'][name]}"
    step = result["step_seconds"]
    yield ""
    yield TextTable(
        ["predicted step", "lower", "expected", "upper"],
        [
            ["seconds per step", *(format_seconds(v) for v in step.values())],
            ["tokens/s", *(format_count(plan.tokens / v) for v in step.values())],
        ],
    )
    if plan.constants == "book":
        yield "  book constants: nothing is derated, so `expected` is what peak rates allow"
    found = result["expected_80"]
    if found:
        yield (
            f"  80 % range of the expected step: {format_seconds(found['low'])} to "
            f"{format_seconds(found['high'])} (as {found['runs']} published runs of class "
            f"'{found['class']}' were missed, left out of the fit; docs/fit.md)"
        )
    yield (
        f"  expected MFU {result['mfu']:.1%} (6*N*D counting: {result['mfu_6nd']:.1%}) of dense "
        f"{format_rate(answer.piece.chip.peak(plan.dtypes.compute), 'FLOP/s')} per chip, "
        f"all {answer.piece.chips:,} chips; bound by {result['bound_by']}"
    )
    if result["tokens_per_joule_upper"]:
        yield (
            f"  at most {sig(result['tokens_per_joule_upper'])} tokens per joule of the chips at "
            f"their rated power (hosts, networks and cooling draw more)"
        )
    yield ""
    yield memory_table(result)
    yield from _stages(result["memory_by_stage"])
    yield ""
    expected = step["expected"]
    yield TextTable(
        ["op (derated seconds per step)", "stream", "seconds", "of step"],
        [
            [f"{t['name']} ({t['phase']})", t["stream"], format_seconds(t["seconds"]),
             f"{t['seconds'] / expected:.0%}"]
            for t in result["top_ops"]
        ],
        left=2,
    )  # fmt: skip


def _stages(stages: Sequence[Mapping[str, Any]]) -> Page:
    """The peaks of a pipeline's stages in one line."""
    if len(stages) < 2:
        return
    peaks = [stage["peak_bytes_per_chip"] for stage in stages]
    fullest = max(stages, key=lambda stage: stage["peak_bytes_per_chip"])
    yield (
        f"  peaks of the {len(stages)} stages: {format_gib(min(peaks))} to "
        f"{format_gib(max(peaks))}, stage {fullest['stage']} with {fullest['layers']} layers the "
        f"fullest ({fullest['at']})"
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
        said.append(f"parameters stored over {'+'.join(plan.storage_axes)}")
    if plan.weight_gather != "per_pass":
        said.append(f"parameters gathered once a {plan.weight_gather.removeprefix('per_')}")
    if plan.gradient_reduce == "per_step":
        said.append("gradients reduced once a step")
    return "".join(f", {text}" for text in said)


def memory_table(result: Mapping[str, Any]) -> TextTable:
    """Bytes per chip by kind at the peak, and what there is."""
    kinds = {kind: size for kind, size in result["memory_by_kind"].items() if size}
    kinds |= {"total": result["peak_bytes_per_chip"], "usable": result["usable_bytes_per_chip"]}
    return TextTable(
        [f"HBM per chip at the peak ({result['memory_peak_at']})", "predicted"],
        [[kind, format_gib(size)] for kind, size in kinds.items()],
    )
