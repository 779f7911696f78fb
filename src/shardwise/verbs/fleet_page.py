"""The cheapest servers under a load as an answer: why these, what limits them, what else costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.models.describe import context_warning, unpriced
from shardwise.planner.serve.answer import mesh_text
from shardwise.planner.serve.fleet import Fleet, ranked
from shardwise.planner.serve.limits import Verdict, breakdown, limits, verdicts
from shardwise.planner.serve.planning import FleetPlanning
from shardwise.plans.serve import CHECKPOINT
from shardwise.roofline.engines import engine_warning
from shardwise.scheduling import Request
from shardwise.units import format_seconds, format_usd, many, sig
from shardwise.verbs.answer import Answer, Page, Row, TextTable
from shardwise.verbs.request import Progress
from shardwise.verbs.serve_page import usd_text
from shardwise.workflows.confirm_fleet import (
    Confirmation,
    confirm,
    confirmation_lines,
    confirmation_result,
    too_long,
)
from shardwise.workflows.predict_serve import fleet_front, fleet_result

_CONFIRMED = 3
"""Plans of the front that are simulated."""

_CURVE = (0.25, 0.5, 1.0, 1.5, 2.0)
DEFINITIONS = {
    "ttft_seconds": "from arrival to the first token, queueing included, at the percentile",
    "tpot_seconds": "(E2E - TTFT) / (output tokens - 1), at the percentile over requests",
    "e2e_seconds": "TTFT and TPOT both at the percentile, so an upper end",
    "running": "sequences that decode on one replica at the mean",
    "usd_per_million_tokens": "all chips of the fleet over all tokens; input and output split by "
    "what prompts lengthen a step, or by the chips of each pool",
    "breakdown": "seconds of a decode step: memory traffic of matmuls (weights and activations), "
    "of the KV cache and of others, FLOPs, network, each alone at peak rates; engine: what its "
    "kernels, sequences and latency add to the chip's own times",
    "limits": "share by which a tenth more of a resource makes tokens cheaper on the same mesh",
}


_COLUMNS = (
    *("slice", "mesh", "layout", "replicas"),
    *("prefill_slice", "prefill_mesh", "prefill_replicas", "weights", "kv", "running"),
    *("ttft_seconds", "tpot_seconds", "e2e_seconds", "chip_hours_per_million_tokens"),
    "usd_per_million_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FleetPlanned(Answer):
    """The cheapest fleet on the cheapest chip, simulated where `confirmation` is not None."""

    planning: FleetPlanning
    verdicts: Sequence[Verdict]
    confirmation: Confirmation | None

    @property
    def best(self) -> Fleet:
        """The cheapest fleet."""
        return self.planning.best

    def table(self) -> list[Row]:
        """The front."""
        rows = []
        for p in self.result["front"]:
            other = p["prefill_mesh"]
            values = {
                **p,
                "mesh": mesh_text(p["mesh"]),
                "prefill_mesh": "" if other is None else mesh_text(other),
                "usd_per_million_tokens": p["usd_per_million_tokens"]["all"],
                "chip_hours_per_million_tokens": p["chip_hours_per_million_tokens"]["all"],
            }
            rows.append({name: values[name] for name in _COLUMNS})
        return rows

    def page(self) -> Page:
        """The fleet, what limits it, what would not help, and what else there was."""
        result, request = self.result, self.planning.request
        yield (
            f"{request.cfg.name}, prompts of {request.input_length:,} and answers of "
            f"{request.output_length:,} tokens, {sig(result['requests_per_second'])} requests/s at "
            f"random, engine {request.engine.name}: the cheapest plan\n"
        )
        yield from _fleet(result)
        if len(result["chips_compared"]) > 1:
            yield from _points("per chip", result["chips_compared"])
        yield from _breakdown(result)
        yield "\nWhat limits me: a tenth more makes tokens cheaper by"
        yield from (f"  {name:13} {gain:.1%}" for name, gain in result["limits"].items())
        yield "\nWould it help?"
        yield from (f"  - {_verdict_text(v)}" for v in self.verdicts)
        yield from _points("front of time per token and cost", result["front"])
        if self.confirmation is not None:
            yield "\nSimulated"
            yield from (f"  - {line}" for line in confirmation_lines(self.confirmation))
        yield f"\n{many(result['columns'], 'server')} (mesh x number in flight x chunk) priced"


def fleet_planned(
    plannings: Sequence[FleetPlanning],
    trace: Sequence[Request],
    confirmed: bool,
    progress: Progress | None = None,
) -> FleetPlanned:
    """The cheapest of the chips beside the others, its best fleets simulated where asked."""
    ordered = sorted(plannings, key=_dearness)
    planning = ordered[0]
    best, request = planning.best, planning.request
    found, unsure = None, too_long(request)
    if confirmed and not unsure:
        fleets = _contenders(planning)
        found = confirm(request, fleets, request.goal, trace=trace, progress=progress)
    running = np.unique(np.maximum(np.round(best.running * np.array(_CURVE)), 1.0))
    parts = breakdown(request, best, running)
    judged = verdicts(planning.searched, request.goal, best)
    return FleetPlanned(
        planning=planning,
        verdicts=judged,
        confirmation=found,
        result={
            **fleet_result(planning),
            "chips_compared": [fleet_result(p) for p in ordered],
            "front": fleet_front(planning),
            "breakdown_seconds": parts.at(int(np.argmin(np.abs(running - best.running)))),
            "breakdown_curve": [parts.at(i) for i in range(len(running))],
            "limits": limits(request, best, request.goal),
            "verdicts": [v.as_dict() for v in judged],
            "confirmation": found and confirmation_result(found),
        },
        warnings=[*filter(None, [unsure]), *_cautions(plannings, planning)],
        provenance={
            "efficiency": best.piece.chip.efficiency.source,
            "engine": dict(request.engine.sources),
            "definitions": DEFINITIONS,
        },
    )


def _dearness(planning: FleetPlanning) -> tuple[bool, float]:
    """Dollars per million tokens; chips without a price come last, by chip-hours."""
    usd = planning.best.usd_per_million["all"]
    return usd is None, planning.best.chip_hours_per_million["all"] if usd is None else usd


def _contenders(planning: FleetPlanning) -> list[Fleet]:
    """The best plan, and the cheapest that differ in slice or layout."""
    kept = {(str(planning.best.piece), planning.best.layout): planning.best}
    for fleet in ranked(planning.searched, planning.request.goal):
        kept.setdefault((str(fleet.piece), fleet.layout), fleet)
    return sorted(list(kept.values())[:_CONFIRMED], key=lambda f: f.chip_seconds)


def _cautions(plannings: Sequence[FleetPlanning], best: FleetPlanning) -> list[str]:
    said = [
        f"no public price for {p.best.piece.chip.id} in the catalogue: chip-hours only"
        for p in plannings
        if p.best.piece.chip.price is None
    ]
    longest = best.request.input_length + best.request.output_length
    if best.best.server.dtypes.weights != CHECKPOINT or best.best.server.dtypes.kv != "bf16":
        said.append("fewer bits change a model's answers; fix them with --weights and --kv")
    said += engine_warning(best.request.engine.name)
    return [*said, *context_warning(best.request.cfg, longest), *unpriced(best.request.cfg)]


def _fleet(result: Mapping[str, Any]) -> Page:
    servers = many(result["replicas"], "replica")
    if result["prefill_replicas"]:
        servers += f" to decode and {result['prefill_replicas']} to prefill"
    weights = "as stored" if result["weights"] == CHECKPOINT else result["weights"]
    yield f"  {servers} of {': '.join(_places(result))}"
    yield (
        f"  weights {weights}, KV {result['kv']} ({result['kv_sharding']}), steps of at most "
        f"{result['prefill_chunk']:,} tokens; {result['running']:,.0f} sequences in flight on each,"
        f" room for {result['batch']:,}"
    )
    times = ", ".join(
        f"{name.upper()} {format_seconds(result[f'{name}_seconds'])}"
        for name in ("ttft", "tpot", "e2e")
    )
    yield f"  {result['percentile']:.0%} of requests within {times}"
    hours = result["chip_hours_per_million_tokens"]
    yield (
        f"  per million tokens: {sig(hours['input'])} chip-hours of input and "
        f"{sig(hours['output'])} of output{_dollars(result)}"
    )


def _dollars(result: Mapping[str, Any]) -> str:
    usd = result["usd_per_million_tokens"]
    if usd["all"] is None:
        return ", dollars unknown (no price)"
    return (
        f": {format_usd(usd['input'])} and {format_usd(usd['output'])} at "
        f"${result['usd_per_chip_hour']:.2f} per chip-hour"
    )


def _points(title: str, points: Sequence[Mapping[str, Any]]) -> Page:
    rows = [
        [
            *_places(p),
            f"{p['replicas']}+{p['prefill_replicas']}",
            p["weights"],
            p["kv"],
            format_seconds(p["ttft_seconds"]),
            format_seconds(p["tpot_seconds"]),
            sig(p["chip_hours_per_million_tokens"]["all"]),
            usd_text(p["usd_per_million_tokens"]["all"]),
        ]
        for p in points
    ]
    yield ""
    header = ["slice", "mesh", "servers", "weights", "KV", "TTFT", "TPOT", "chip-h/M", "$/M"]
    yield TextTable(header, rows, title, left=5)


def _places(p: Mapping[str, Any]) -> tuple[str, str]:
    """Slice and mesh, with those of the prefill pool where they are others."""
    slices, meshes = [p["slice"]], [mesh_text(p["mesh"])]
    if p["prefill_replicas"] and (p["prefill_slice"], p["prefill_mesh"]) != (p["slice"], p["mesh"]):
        slices.append(p["prefill_slice"])
        meshes.append(mesh_text(p["prefill_mesh"]))
    return " + ".join(slices), " + ".join(meshes)


def _breakdown(result: Mapping[str, Any]) -> Page:
    parts = ("matmuls", "kv", "flops", "network", "other", "engine", "expected")
    rows = [
        [f"{p['running']:,.0f}", *(format_seconds(p[name]) for name in parts)]
        for p in result["breakdown_curve"]
    ]
    yield ""
    header = ["in flight", "matmuls", "KV", "FLOPs", "network", "other", "engine", "expected"]
    yield TextTable(header, rows, "A decode step, each part alone at peak rates (book, 8.2)")
    yield "  matmuls, KV, other: memory traffic (matmuls: of weights and activations)"


def _verdict_text(v: Verdict) -> str:
    said = "helps" if v.helps else "does not help"
    factor = "" if v.factor is None else f" (tokens {sig(v.factor)}x cheaper)"
    if v.factor is not None and v.factor < 1:
        factor = f" (tokens {sig(1 / v.factor)}x dearer)"
    return f"{v.what} {said}{factor}: {v.why}"
