"""What `plan serve` answers, and `plan show` of a serving plan, as a result (the design fixes its
names): servers under a load, and one server's step priced by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from shardwise.boundary.records import plain
from shardwise.errors import Remark
from shardwise.hardware import Chip, Switched
from shardwise.hardware.prices import range_beside
from shardwise.models.describe import context_warning, unpriced
from shardwise.planner.serve.answer import evaluate_serve
from shardwise.planner.serve.instead import Alternative
from shardwise.planner.serve.replica import replica_of
from shardwise.planner.serve.served import Served
from shardwise.planner.serve.server import server_of
from shardwise.planner.simulate.steady import COUNTED, RUNS
from shardwise.plans import ServePlan
from shardwise.plans.serve import CHECKPOINT
from shardwise.plans.servers import SERVING_SOFTWARE, ServingSoftware
from shardwise.roofline.engines import load_engine, serving_error
from shardwise.workflows.serve_result import price_of

Result = dict[str, Any]


def software_of(plan: ServePlan) -> ServingSoftware | None:
    """The software that a plan is priced for; None of constants that no software has."""
    return next((row for row in SERVING_SOFTWARE.values() if row.is_priced_by(plan.engine)), None)


def served_result(served: Served) -> Result:
    """A plan under its load, under stable names: the same from a search and from a file."""
    plan, held, chip = served.plan, served.held, served.piece.chip
    software = software_of(plan)
    ttft, tpot, e2e = held.times
    return {
        "model": served.cfg.name,
        "slice": plan.slice,
        "mesh": dict(plan.mesh),
        "batch": plan.batch,
        "replicas": plan.replicas,
        "prefill_slice": plan.prefill_plan.slice if plan.prefill_replicas else None,
        "prefill_mesh": dict(plan.prefill_plan.mesh) if plan.prefill_replicas else None,
        "prefill_replicas": plan.prefill_replicas,
        "prefill_chunk": plan.prefill_chunk,
        "kv_sharding": plan.kv_sharding,
        "weights": plan.dtypes.weights,
        "kv": plan.dtypes.kv,
        "software": software.name if software else plan.engine,
        "chips": served.chips,
        "chip": chip.id,
        "input_tokens": served.demand.prompt,
        "output_tokens": served.demand.output,
        "targets": asdict(plan.workload) if plan.workload else {},
        "holds": held.kept,
        "why_not": held.why,
        "requests_per_second": served.rate,
        "output_tokens_per_second": served.tokens_per_second,
        "tokens_per_second_per_chip": served.tokens_per_second / served.chips,
        "in_target": held.good,
        "answered": held.answered,
        "running": held.running,
        **_times(served, {"ttft": ttft, "tpot": tpot, "e2e": e2e}),
        "memory": memory_of(served),
        **decode_step(served),
        "usd_per_hour": served.usd_per_hour,
        "whole_boxes": boxes_of(served),
        "usd_per_million_tokens": served.usd_per_million,
        "chip_hours_per_million_tokens": served.per_million(float(served.chips)),
        "price": plain(price_of(chip)),
        "price_range": range_of(chip),
        "simulated": {"runs": len(held.runs), "requests": COUNTED, "servers": held.replicas},
    }


def _times(served: Served, times: Mapping[str, float]) -> Result:
    """The 90th percentiles with what they were measured to be: TPOT in 4 of 5 published runs, TTFT
    in half of them; and the typical errors."""
    engine = load_engine(served.plan.engine)
    known = measured(served.plan, served.piece.chip)
    error = serving_error(mixture=served.cfg.has_experts)
    low, high = (engine.range or (1.0, 1.0)) if known else (1.0, 1.0)
    first = error.ttft if known else 0.0
    ranges = {"ttft": (1 - first, 1 + first), "tpot": (low, high), "e2e": (low, high)}
    found: Result = {
        f"{name}_seconds": {
            "lower": times[name] * a,
            "expected": times[name],
            "upper": times[name] * b,
        }
        for name, (a, b) in ranges.items()
    }
    found["typical_error"] = {"ttft": error.ttft, "tpot": error.tpot} if known else None
    return found


def measured(plan: ServePlan, chip: Chip) -> bool:
    """Whether the software's times were measured on chips of this vendor."""
    software = software_of(plan)
    return software is not None and chip.vendor in software.measured


def decode_step(served: Served) -> Result:
    """A decode step of the sequences that run at the mean, and where it goes."""
    plan = replace(served.plan, batch=max(1, round(served.held.running)))
    alone = replace(plan, prefill=None, prefill_replicas=0)
    answer = evaluate_serve(alone, served.cfg, served.piece)
    return {
        "decode_step_seconds": answer.tpot_seconds,
        "where_it_goes": answer.time_parts.named(),
    }


def memory_of(served: Served) -> Result:
    """Bytes of a device: weights, activations, what is left for the cache, and what is usable."""
    plan, piece = served.plan, served.piece
    server = server_of(plan, served.cfg, piece)
    share = plan.scheduling.memory_share
    model = replica_of(server, memory_share=share)
    peak = max(
        (point for _, point in server.memory(float(plan.batch)).points),
        key=lambda point: float(point["weights"] + point["activations"]),
    )
    held = float(peak["weights"]), float(peak["activations"])
    return {
        "weights": held[0],
        "activations": held[1],
        "cache": max(share * server.usable_bytes - sum(held), 0.0),
        "cache_tokens": model.kv_tokens,
        "usable": server.usable_bytes,
        "share": share,
    }


def boxes_of(served: Served) -> Result | None:
    """The fleet in whole boxes (hosts), where its chips fill none: what clouds bill that rent
    nothing smaller. None where they do, and for chips that are rented as slices."""
    chip = served.piece.chip
    each = chip.chips_per_host
    if not isinstance(chip.network, Switched) or served.chips % each == 0:
        return None
    chips = -(-served.chips // each) * each
    usd = None if chip.price is None else chips * chip.price.usd_per_chip_hour
    return {"chips_per_box": each, "chips": chips, "usd_per_hour": usd}


def range_of(chip: Chip) -> Result | None:
    """What providers ask, the cheapest and the dearest."""
    found = range_beside(chip.id, chip.price)
    if found is None:
        return None
    return {
        "low": found.low.usd_per_chip_hour,
        "high": found.high.usd_per_chip_hour,
        "low_offer": found.low.source.partition(":")[0],
        "high_offer": found.high.source.partition(":")[0],
        "providers": found.providers,
        "text": str(found),
    }


def rows_result(rows: Sequence[Alternative]) -> list[Result]:
    """Alternatives, or a front, as plain values."""
    return [
        {
            "name": row.name,
            "note": row.note,
            "option": row.option,
            "servers": row.servers,
            "chips": row.chips,
            "requests_per_second": row.rate,
            "usd_per_hour": row.usd_per_hour,
            "usd_per_million_tokens": row.usd_per_million,
            "provider": row.provider,
            "ttft_seconds": row.ttft,
            "tpot_seconds": row.tpot,
        }
        for row in rows
    ]


def served_cautions(served: Served) -> list[str]:
    """What a reader should know before trusting the figures."""
    plan, chip, software = served.plan, served.piece.chip, software_of(served.plan)
    said = []
    if software is not None and software.note:
        said.append(f"--for {software.name}: {software.note}")
    elif not measured(plan, chip) and not plan.engine.endswith(".toml"):  # measured by its file
        said.append(
            f"{software.title if software else plan.engine} was not measured on {chip.id}: its "
            "times are the chip's, with what the software adds on GPUs"
        )
    if chip.price is None:
        said.append(
            Remark(f"no public price for {chip.id}: chip-hours only; give --price {chip.id}=USD")
        )
    elif chip.price.stale():
        said.append(
            f"the price of {chip.id} is of {chip.price.as_of}: older than half a year; choose "
            "another with --provider, or give one with --price"
        )
    if plan.dtypes.weights != CHECKPOINT or plan.dtypes.kv != "bf16":
        said.append("fewer bits change a model's answers")
    if served.plan.workload and served.plan.workload.trace:
        said.append(
            "lengths are drawn from the trace and requests come at random: what prompts share, and "
            "bursts, are left out; simulate the plan with --trace to see them"
        )
    longest = plan.input_length + plan.output_length
    return [*said, *context_warning(served.cfg, longest), *unpriced(served.cfg)]


DEFINITIONS = {
    "holds": f"in {RUNS} runs of {COUNTED:,} requests: at least 95 % within all targets, with 5 % "
    "of them to spare; at least 99 % of what comes answered; no growing wait",
    "ttft_seconds": "from arrival to the first token, queueing included: what 90 % of requests "
    "keep in a slow run, which 98 of 100 stay below; lower and upper hold half of published runs",
    "tpot_seconds": "(E2E - TTFT) / (output tokens - 1), likewise; lower and upper hold 4 of 5 "
    "published runs",
    "usd_per_million_tokens": "all chips for an hour over the tokens of an hour at the rate; input "
    "and output split by what prompts lengthen a step, or by the chips of each pool",
    "instead": "closed forms, corrected by what the simulation made of the answer's own; `option` "
    "is what to type for a row, which simulates it",
    "front": "the answer, and closed forms of faster plans within the targets that cost more",
}
