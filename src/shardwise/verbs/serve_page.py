"""One priced serving plan as a page: headline, times, cost, memory, what takes the time."""

from collections.abc import Mapping
from typing import Any

from shardwise.planner.serve.answer import ServeAnswer, mesh_text
from shardwise.plans.serve import CHECKPOINT
from shardwise.units import format_seconds, format_usd, many, sig
from shardwise.verbs.answer import Page, TextTable
from shardwise.verbs.train_page import memory_table


def serve_page(answer: ServeAnswer, result: Mapping[str, Any]) -> Page:
    """One priced serving plan: headline, times, cost, memory, what takes the time."""
    plan, cfg = answer.plan, answer.cfg
    yield (
        f"{cfg.name} on {result['slice']}: batch {plan.batch:,}, prompts of "
        f"{plan.input_length:,} and answers of {plan.output_length:,} tokens, engine {plan.engine}"
    )
    yield f"  {result['slice_means']}\n"
    yield f"Plan: {mesh_text(plan.mesh)}; {result['kv_layout']}"
    for line in result["placement"]:
        yield f"  {line}"
    d = plan.dtypes
    yield (
        f"  weights {_weights(answer)}, KV {d.kv}, activations {d.activations}, "
        f"compute {d.compute}; {many(answer.chips_used, 'chip')} used, {answer.chips_idle:,} idle\n"
    )
    yield TextTable(
        ["predicted", "lower", "expected", "upper"],
        [
            ["prefill of one prompt", *_times(result["prefill_seconds"])],
            ["TTFT (prefill + one step)", *_times(result["ttft_seconds"])],
            ["TPOT (one step of the batch)", *_times(result["tpot_seconds"])],
        ],
    )
    yield (
        f"  expected {sig(result['tokens_per_second_per_chip'])} tokens/s per chip; {_cost(result)}"
    )
    if result["tpot_interval"] is not None:
        low, high = map(format_seconds, result["tpot_interval"])
        yield f"  TPOT of 4 runs in 5 with {result['engine']}: {low} to {high}"
    yield f"  {_both_text(result)}"
    bound = result["bound_by"]
    yield f"  bound by {bound['prefill']} in prefill, {bound['decode']} in decode\n"
    yield memory_table(result)
    yield ""
    yield _ops(answer, result)


def _both_text(result: Mapping[str, Any]) -> str:
    return (
        "of the decoding server only; prompts are prefilled on servers of the same kind, "
        f"{sig(result['prefill_servers_per_decode_server'])} to one: over the chips of both "
        f"{sig(result['tokens_per_second_per_chip_with_prefill'])} tokens/s per chip"
    )


def _weights(answer: ServeAnswer) -> str:
    """The dtype of the weights; where they are as stored, which those are."""
    if answer.plan.dtypes.weights != CHECKPOINT:
        return answer.plan.dtypes.weights
    stored = sorted(set(answer.cfg.weight_dtypes.values())) or ["bf16"]
    return f"as stored ({', '.join(stored)})"


def _times(bounds: Mapping[str, float]) -> list[str]:
    return [format_seconds(bounds[k]) for k in ("lower", "expected", "upper")]


def _cost(result: Mapping[str, Any]) -> str:
    price, usd = result["price"], result["usd_per_million_tokens"]
    if price is None:
        return "dollars unknown (the catalogue has no price)"
    return (
        f"{format_usd(usd['input'])} per million input and {format_usd(usd['output'])} per million "
        f"output tokens at ${price['usd_per_chip_hour']:.2f} per chip-hour "
        f"({price['as_of']}, {price['source']})"
    )


def _ops(answer: ServeAnswer, result: Mapping[str, Any]) -> TextTable:
    wholes = {
        "prefill": float(answer.prefill.estimate.expected),
        "decode": float(answer.decode.estimate.expected),
    }
    rows = [
        [f"{t['name']} ({phase})", t["stream"], format_seconds(t["seconds"]),
         f"{t['seconds'] / wholes[phase]:.0%}"]
        for phase in ("prefill", "decode")
        for t in result["top_ops"][phase][:4]
    ]  # fmt: skip
    return TextTable(["op (derated seconds)", "stream", "seconds", "of phase"], rows, left=2)


def usd_text(value: float | None) -> str:
    """Dollars, where there is a price."""
    return "unknown" if value is None else format_usd(value)
