"""One priced serving plan as a page: its times, cost and memory, and where a decode step goes.

`serve_page` is the page, `serve_detail` what --detail adds.
"""

from collections.abc import Mapping

from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.base.layout import Fact, Facts, memory_fact, wrapped
from shardwise.commands.pricing.served_page import cache_line
from shardwise.commands.pricing.train_page import memory_table, where_table
from shardwise.planner.serve.answer import ServeAnswer, mesh_text
from shardwise.plans.serve import CHECKPOINT
from shardwise.results.server import PricedServer
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.engines import load_engine
from shardwise.units import (
    format_count,
    format_gib,
    format_seconds,
    format_seconds_between,
    format_usd,
    many,
    sig,
)


def serve_page(answer: ServeAnswer, result: PricedServer) -> Page:
    """One priced serving plan: what it is, its times, its cost, its memory, and where a decode step
    goes."""
    plan, cfg = answer.plan, answer.cfg
    yield wrapped(
        f"{cfg.name} on {result.slice} ({answer.piece.chips_text}), "
        f"{plan.input_length:,} in, {plan.output_length:,} out, {plan.engine}, "
        f"weights {_weights(answer)}, KV cache {plan.dtypes.kv}",
        hanging=2,
    )
    idle = f"; {many(answer.chips_idle, 'chip')} idle" if answer.chips_idle else ""
    yield wrapped(f"{mesh_text(plan.mesh)}, {plan.batch:,} sequences at once{idle}", 2, 4)
    yield Facts(_facts(answer, result))
    yield ""
    yield where_table(result.where_it_goes, "where a decode step goes")


def _facts(answer: ServeAnswer, result: PricedServer) -> list[Fact]:
    need, usable = result.peak_bytes_per_chip, result.usable_bytes_per_chip
    rate = result.tokens_per_second_per_chip
    return [
        Fact(
            "TPOT",
            f"{format_seconds(result.tpot_seconds.expected)}{_range_text(answer, result)}, "
            "one decode step of all sequences",
        ),
        Fact(
            "TTFT",
            f"{format_seconds(result.ttft_seconds.expected)}{_first_text(result)} on an idle "
            f"server; prefill takes {format_seconds(result.prefill_seconds.expected)}",
        ),
        Fact(
            "speed",
            f"{format_count(rate * answer.piece.chips)} tokens/s ({sig(rate)} per chip) while it "
            f"decodes; its prompts keep {sig(result.prefill_servers_per_decode_server)} more "
            f"servers busy: {sig(result.tokens_per_second_per_chip_with_prefill)} per chip over "
            "all of them",
        ),
        Fact("cost", _cost(result)),
        memory_fact(need, usable),
        Fact(
            "cache",
            cache_line(
                result, result.input_length + result.output_length, result.mesh, result.engine
            ),
        ),
        *([Fact("a sequence", f"keeps {result.sequence}")] if result.sequence else []),
    ]


def _first_text(result: PricedServer) -> str:
    """How far times to the first token of such servers were off."""
    if result.ttft_interval is None:
        return ""
    between = format_seconds_between(*result.ttft_interval)
    return f" (8 of 10 servers of this kind: {between})"


def _range_text(answer: ServeAnswer, result: PricedServer) -> str:
    """How far the engine's times per token were off."""
    if result.tpot_interval is None:
        return ""
    between = format_seconds_between(*result.tpot_interval)
    chip = answer.piece.chip.id
    if not load_engine(result.engine).knows(chip):
        return f" ({between}: no published run on {chip})"
    return f" (8 of 10 runs of {result.engine}: {between})"


def serve_detail(answer: ServeAnswer, result: PricedServer) -> Page:
    """Where the mesh lies, how the cache is cut, the bounds of the times, memory and ops."""
    d = answer.plan.dtypes
    yield wrapped(result.slice_means, 0, 2)
    yield wrapped(result.kv_layout, 2, 4)
    for line in result.placement:
        yield f"  {line}"
    yield f"  activations {d.activations}, compute {d.compute}"
    yield ""
    yield TextTable(
        ["predicted", "lower", "expected", "upper"],
        [
            ["prefill of one prompt", *_times(result.prefill_seconds)],
            ["TTFT (on an idle server)", *_times(result.ttft_seconds)],
            ["TPOT (one step of the batch)", *_times(result.tpot_seconds)],
        ],
    )
    bound = result.bound_by
    yield f"  limited by {bound.prefill} in prefill, by {bound.decode} in decode"
    if result.price is not None:
        yield wrapped(f"price: {result.price.source}", 2, 4)
    yield ""
    usable = result.usable_bytes_per_chip
    kinds, asked = held_kinds(result.memory_by_kind, usable)
    yield memory_table(kinds, result.memory_peak_at, usable)
    if asked:
        yield wrapped(
            f"a cache for all {result.batch:,} sequences at full length would take "
            f"{format_gib(asked)}; sequences that do not fit wait",
            2,
            4,
        )
    yield ""
    yield _ops(answer, result)


def held_kinds(kinds: Mapping[str, float], usable: float) -> tuple[Mapping[str, float], float]:
    """The bytes of each kind with the cache that there is room for, and those of all of it
    where that is less; else 0."""
    beyond = sum(kinds.values()) - usable
    cache = kinds.get("kv", 0.0)
    if not 0 < beyond < cache:  # what does not fit without a cache is said as it is
        return kinds, 0.0
    return {**kinds, "kv": cache - beyond}, cache


def _weights(answer: ServeAnswer) -> str:
    """The dtype of the weights; where they are as stored, which those are."""
    if answer.plan.dtypes.weights != CHECKPOINT:
        return answer.plan.dtypes.weights
    stored = sorted(set(answer.cfg.weight_dtypes.values())) or ["bf16"]
    return f"as stored ({', '.join(stored)})"


def _times(bounds: Bounds) -> list[str]:
    return [format_seconds(one) for one in (bounds.lower, bounds.expected, bounds.upper)]


def _cost(result: PricedServer) -> str:
    price, usd = result.price, result.usd_per_million_tokens
    if price is None or usd.input is None or usd.output is None:
        return "unknown: no price in the catalogue (give --price CHIP=USD)"
    return (
        f"per million tokens {format_usd(usd.input)} in, {format_usd(usd.output)} out, at "
        f"{price.text}"
    )


def _ops(answer: ServeAnswer, result: PricedServer) -> TextTable:
    wholes = {
        "prefill": float(answer.prefill.estimate.expected),
        "decode": float(answer.decode.estimate.expected),
    }
    rows = [
        [f"{t.name} ({phase})", t.stream, format_seconds(t.seconds),
         f"{t.seconds / wholes[phase]:.0%}"]
        for phase, ops in (("prefill", result.top_ops.prefill), ("decode", result.top_ops.decode))
        for t in ops[:4]
    ]  # fmt: skip
    return TextTable(["op (all runs)", "stream", "seconds", "of phase"], rows, left=2)
