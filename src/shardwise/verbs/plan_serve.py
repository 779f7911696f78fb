"""`plan serve`: the smallest slice that serves within the targets, or the cheapest fleet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import Spelling
from shardwise.models.describe import context_warning, unpriced
from shardwise.planner.serve.answer import ServeAnswer, mesh_text
from shardwise.planner.serve.planning import plan_serve as search
from shardwise.planner.serve.smallest import ServerPlanning
from shardwise.plans import ServePlan
from shardwise.roofline.engines import load_engine
from shardwise.units import format_seconds, many, sig
from shardwise.verbs.answer import Answer, Page, Row, TextTable
from shardwise.verbs.fleet_page import FleetPlanned, fleet_planned
from shardwise.verbs.request import Progress, verb
from shardwise.verbs.serve_page import serve_detail, serve_page, usd_text
from shardwise.workflows.confirm_fleet import traced
from shardwise.workflows.inputs import parse_pins, whole_number
from shardwise.workflows.predict_serve import full_warning, serving_result
from shardwise.workflows.serve_words import ServeWords

_SHOWN_FRONT = 14
_MOST_SHOWN = 50
"""Runner-up meshes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlanRequest(ServeWords):
    """The best way to serve a model.

    The words are those of ServeWords; with objective "cost" `on` takes several chips, "v5e,h100".
    `top` is how many runner-up meshes to show. `trace` is a file of requests, for `rate`, `input`
    and `output`; with `confirm` the best fleets are simulated (None: they are). Raises BadRequest,
    or NoFeasiblePlan with the nearest miss.
    """

    trace: Path | str | None = None
    confirm: bool | None = None
    top: int | str = 3

    def answer(self, progress: Progress | None = None) -> "ServerPlanned | FleetPlanned":
        """Search, and simulate the best fleets."""
        return self._fleet(progress) if self.objective == "cost" else self._one_server()

    def _one_server(self) -> "ServerPlanned":
        for name in ("trace", "confirm"):
            if getattr(self, name) is not None:
                raise BadRequest(f"--{name} belongs to --objective cost; give that too")
        top = whole_number(self.top, "--top", most=_MOST_SHOWN)
        planning = search(self.request(), top=top)
        assert isinstance(planning, ServerPlanning)
        result = serving_result(planning)
        return ServerPlanned(
            planning=planning,
            result=result,
            resolved=self._resolved(planning.best),
            warnings=[*self._notes(), *_cautions(planning, result)],
            provenance=_provenance(planning.best, DEFINITIONS),
        )

    def _notes(self) -> Sequence[str]:
        found = self.hardware.target(self.on)
        return found.notes if isinstance(found, Spelling) else ()

    def _fleet(self, progress: Progress | None) -> FleetPlanned:
        """The cheapest on every chip, and the cheapest of those."""
        asked, trace = self, ()
        if self.trace is not None:
            for name in ("input", "output", "rate"):
                if getattr(self, name) is not None:
                    raise BadRequest(f"--{name} takes no effect with --trace, which says it")
            trace, rate, prompt, output = traced(Path(self.trace))
            asked = replace(self, input=prompt, output=output, rate=rate)
        found, missed = [], []
        chips = [name.strip() for name in self.on.split(",")]
        for name in chips:
            try:
                found.append(search(replace(asked, on=name).request(), progress=progress))
            except NoFeasiblePlan as miss:
                if len(chips) == 1:
                    raise
                missed.append(f"{name}: {miss}")
        if not found:
            raise NoFeasiblePlan("; ".join(missed))
        answer = fleet_planned(found, trace, self.confirm is not False, progress)
        return replace(
            answer,
            resolved=self._resolved_fleet(answer.planning.plan),
            warnings=[*missed, *answer.warnings],
        )

    def _given(self, name: str, other: str) -> str:
        return other if getattr(self, name) is None else "flag"

    def _resolved(self, best: ServeAnswer) -> dict[str, Any]:
        """Every choice with its value and where it came from."""
        plan, pinned = best.plan, parse_pins(self.pins)
        origins = {
            "slice": "flag" if str(best.piece) == self.on else "computed",
            "batch": self._given("batch", "computed"),
            "kv_sharding": "computed",
            "input_length": "flag",
            "output_length": "flag",
            **{name: self._given(name, "default") for name in _WORDS},
        }
        found = {
            name: {"value": _chosen(plan, name), "origin": origin}
            for name, origin in origins.items()
        }
        for axis, degree in plan.mesh.items():
            origin = "flag" if axis in pinned else "computed"
            found[f"mesh.{axis}"] = {"value": degree, "origin": origin}
        return found

    def _resolved_fleet(self, plan: ServePlan) -> dict[str, Any]:
        given = ("weights", "kv", "compute", "prefill_chunk", "engine")
        origins = {name: self._given(name, "computed") for name in given}
        origins |= {"slice": "computed", "batch": "computed"}
        return {n: {"value": _chosen(plan, n), "origin": o} for n, o in origins.items()}


_WORDS = ("weights", "kv", "activations", "compute", "prefill_chunk", "engine")


def _chosen(plan: ServePlan, name: str) -> Any:
    return getattr(plan.dtypes, name, None) or getattr(plan, name)


DEFINITIONS = {
    "tpot_seconds": "one decode step of the batch, with the prompt and half of the answer cached",
    "ttft_seconds": "prefill of one prompt on an idle server plus one decode step; no queueing",
    "tokens_per_second_per_chip": "answer tokens over all chips of the slice, at expected TPOT, "
    "prompts being prefilled on other servers",
    "tokens_per_second_per_chip_with_prefill": "answer tokens over the chips of the decoding "
    "server and of the servers of the same kind that prefill for it",
    "usd_per_million_tokens": "chip-seconds of prefill per input token, of decode per output token",
}


def _provenance(best: ServeAnswer, definitions: Mapping[str, str]) -> dict[str, Any]:
    return {
        "efficiency": best.piece.chip.efficiency.source,
        "engine": dict(load_engine(best.plan.engine).sources),
        "definitions": definitions,
    }


def _cautions(planning: ServerPlanning, result: Mapping[str, Any]) -> list[str]:
    """What a reader of the answer should know before trusting it."""
    best, chip, said = planning.best, planning.best.piece.chip, []
    if chip.price is None:
        remedy = f"give one with --price {chip.id}=USD per chip-hour"
        said = [
            f"no public price for {chip.id} in the catalogue: tokens only, no dollars ({remedy})"
        ]
    longest = best.plan.input_length + best.plan.output_length
    return [
        *said,
        *context_warning(best.cfg, longest),
        *full_warning(result),
        *unpriced(best.cfg),
    ]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerPlanned(Answer):
    """A search of servers: the best, the front, and why."""

    planning: ServerPlanning

    @property
    def best(self) -> ServeAnswer:
        """The best plan, priced."""
        return self.planning.best

    def apart(self, path: Path) -> str:
        """That a plan's file holds the decoding server alone, and how to simulate it with the
        others."""
        ratio = self.best.prefill_servers_per_decode_server
        decode, prefill = (1, ceil(ratio)) if ratio >= 1 else (int(1 / max(ratio, 1e-3)), 1)
        return (
            "TPOT is that of a server that decodes alone, and the file holds no prefill servers; "
            "one that prefills too answers slower: simulate it with: shardwise simulate "
            f"{path} --rate RATE --set replicas={decode} --set prefill_replicas={prefill}"
        )

    def table(self) -> list[Row]:
        """The front."""
        return [
            {
                "slice": p["slice"],
                "mesh": mesh_text(p["mesh"]),
                "kv_sharding": p["kv_sharding"],
                "batch": p["batch"],
                **{
                    f"{time}_{bound}_seconds": seconds
                    for time in ("tpot", "ttft")
                    for bound, seconds in p[f"{time}_seconds"].items()
                },
                "tokens_per_second_per_chip": p["tokens_per_second_per_chip"],
                "usd_per_million_input_tokens": p["usd_per_million_tokens"]["input"],
                "usd_per_million_output_tokens": p["usd_per_million_tokens"]["output"],
                "meets_targets": p["meets_targets"],
            }
            for p in self.result["front"]
        ]

    def page(self) -> Page:
        """The server, why this one, the front, and what else there was."""
        yield from serve_page(self.best, self.result)
        yield ""
        yield from serve_detail(self.best, self.result)
        yield "\nWhy"
        yield from (f"  - {reason}" for reason in self.result["why"])
        yield from _front(self.result["front"])
        if self.result["runners_up"]:
            yield ""
            yield _runners_up(self.result)
        if self.result["too_small"]:
            yield "\nToo small"
            yield from (f"  - {t['slice']}: {t['why']}" for t in self.result["too_small"])
        yield f"\n{many(self.planning.candidates, 'server')} (mesh x batch) priced"


plan_serve = verb("plan_serve", ServePlanRequest)


def _times(p: Mapping[str, Any]) -> list[str]:
    return [
        mesh_text(p["mesh"]),
        f"{p['batch']:,}",
        format_seconds(p["tpot_seconds"]["expected"]),
        format_seconds(p["ttft_seconds"]["expected"]),
        sig(p["tokens_per_second_per_chip"]),
    ]


_TIMES = ("batch", "TPOT", "TTFT", "tokens/s/chip")


def _front(rows: Sequence[Mapping[str, Any]]) -> Page:
    step = max(1, -(-len(rows) // _SHOWN_FRONT))
    shown = sorted({*range(0, len(rows), step), len(rows) - 1})
    yield ""
    yield TextTable(
        ["slice", "mesh", *_TIMES, "$/M out", "in target"],
        [
            [
                p["slice"],
                *_times(p),
                usd_text(p["usd_per_million_tokens"]["output"]),
                "yes" if p["meets_targets"] else "no",
            ]
            for p in (rows[i] for i in shown)
        ],
        "Pareto front: no other point has a faster step and more tokens/s per chip",
        left=2,
    )
    yield f"  expected times; {len(shown)} of {len(rows)} points (--json or --csv has all)"


def _runners_up(result: Mapping[str, Any]) -> TextTable:
    return TextTable(
        ["runner-up", *_TIMES, "HBM per chip", "bound by"],
        [
            [*_times(r), f"{sig(r['peak_bytes_per_chip'] / 2**30)} GiB", r["bound_by"]["decode"]]
            for r in result["runners_up"]
        ],
    )
