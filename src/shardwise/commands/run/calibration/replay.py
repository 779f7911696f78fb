"""Per-request records of a live server: replay their arrivals, and calibrate on them.

A record is one request as a server's client or log saw it: when it came, its tokens, when its first
and last token left. `replay` serves the same arrivals in the simulator, `calibrate` moves the few
numbers that a machine has of its own until the simulated requests take the measured times: the
chip's shares of bandwidth, of peak and of its links, and the engine's seconds per kernel and per
sequence and its share of the links' latency. They
are drawn towards their priors (the catalogue's and the engine's values), against which few requests
weigh little.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from shardwise.boundary import number, parse_json, read_lines, whole
from shardwise.boundary.records import Record
from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Slice
from shardwise.hardware.chip import EFFICIENCY
from shardwise.models import ModelConfig
from shardwise.planner.serve.replica import replica_of
from shardwise.planner.serve.server import server_of
from shardwise.planner.simulate.clock import seconds
from shardwise.planner.simulate.cost import ReplicaModel
from shardwise.planner.simulate.run import Pool, SimulatedFleet, simulate
from shardwise.plans import ServePlan
from shardwise.roofline.engines import ENGINE_BOUNDS, EngineConstants
from shardwise.scheduling import Request, SchedulerConfig

SIGMA = 0.1
"""Log error of one request that counts as one sigma, as in the fits of the constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """One served request; times in seconds on the server's clock. `keys` names the content of its
    prompt page by page, as `scheduling.Request` has it."""

    id: int
    arrival: float
    prompt: int
    output: int
    first_token: float
    last_token: float
    keys: tuple[Any, ...] = ()

    @property
    def ttft(self) -> float:
        return self.first_token - self.arrival

    @property
    def e2e(self) -> float:
        return self.last_token - self.arrival

    @property
    def tpot(self) -> float:
        """Seconds between its tokens; 0 for a single one."""
        return (self.last_token - self.first_token) / max(self.output - 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLatencies(Record):
    """What a run of requests took."""

    itl: float
    """Mean seconds between tokens."""
    e2e: float
    """Mean seconds of a whole request."""
    e2e_p90: float
    """Seconds that 9 of 10 requests do not exceed."""
    ttft: float
    """Mean seconds to the first token."""

    def errors(self, measured: "RequestLatencies") -> dict[str, float]:
        """Each over its measured value, less one."""
        return {
            name: getattr(self, name) / getattr(measured, name) - 1
            for name in ("itl", "e2e", "e2e_p90", "ttft")
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A server that was measured: what it ran on, the model, and how it scheduled.

    `kv_tokens` is the size of its cache where its log states it; 0 counts it, with `memory_share`
    of the usable memory taken.
    """

    plan: ServePlan
    cfg: ModelConfig
    piece: Slice
    engine: EngineConstants
    batch: int
    budget: int
    page_size: int = 16
    kv_tokens: int = 0
    memory_share: float = 0.9

    @property
    def chip(self) -> Chip:
        return self.piece.chip

    def replica(self) -> ReplicaModel:
        """The machine as the simulator sees it."""
        server = server_of(self.plan, self.cfg, self.piece, engine=self.engine)
        counted = replica_of(server, memory_share=self.memory_share)
        return replace(counted, kv_tokens=self.kv_tokens or counted.kv_tokens)


_NEEDED = (
    "a record is a JSON object on a line of its own, with request_id (ends in -NUMBER), input_toks "
    "and output_toks (tokens), queued_ts, first_token_ts and last_token_ts (seconds on one clock)"
)


def read_records(path: Path) -> list[ServedRequest]:
    """The records of a JSONL file of vLLM's events (request_id, input_toks, output_toks, queued_ts,
    first_token_ts, last_token_ts), by number."""
    found: list[ServedRequest] = []
    for place, line in enumerate(read_lines(path, "the records"), 1):
        try:
            found.append(_record(parse_json(line, "it")))
        except BadRequest as error:
            raise BadRequest(
                f"'{path}', line {place} is not a record of a request: {error}; {_NEEDED}"
            ) from None
    if not found:
        raise BadRequest(f"'{path}' holds no record; {_NEEDED}")
    _check_ids(found, path)
    return sorted(found, key=lambda r: r.id)


def _check_ids(records: Sequence[ServedRequest], path: Path) -> None:
    seen: set[int] = set()
    for record in records:
        if record.id in seen:
            raise BadRequest(f"'{path}' holds two records of request {record.id}; keep one")
        seen.add(record.id)


_MOST_SECONDS = 1e10
"""On a server's clock, which may count from 1970."""


def _record(row: Any) -> ServedRequest:
    """One record, its times in order."""
    if not isinstance(row, dict):
        raise BadRequest("it is not a JSON object")
    missing = [key for key in _KEYS if key not in row]
    if missing:
        raise BadRequest(f"no key '{missing[0]}'")
    index = whole(str(row["request_id"]).rpartition("-")[2], "the number of request_id")
    queued, first, last = (
        number(row[key], key, least=-_MOST_SECONDS, most=_MOST_SECONDS)
        for key in ("queued_ts", "first_token_ts", "last_token_ts")
    )
    if not queued <= first <= last:
        raise BadRequest(
            f"queued_ts, first_token_ts and last_token_ts are {queued:g}, {first:g} and {last:g}; "
            "no time may lie before the one before it"
        )
    return ServedRequest(
        id=index,
        arrival=queued,
        prompt=whole(row["input_toks"], "input_toks", least=1, most=_MOST_TOKENS),
        output=whole(row["output_toks"], "output_toks", least=1, most=_MOST_TOKENS),
        first_token=first,
        last_token=last,
    )


_KEYS = (
    *("request_id", "input_toks", "output_toks"),
    *("queued_ts", "first_token_ts", "last_token_ts"),
)
_MOST_TOKENS = 2**31
"""Tokens that a prompt or an answer of a record may have."""


def latencies(records: Sequence[ServedRequest]) -> RequestLatencies:
    """Means over requests, and over all tokens between two tokens."""
    answers = [r for r in records if r.output > 1]
    return RequestLatencies(
        itl=sum(r.last_token - r.first_token for r in answers) / sum(r.output - 1 for r in answers),
        e2e=float(np.mean([r.e2e for r in records])),
        e2e_p90=float(np.quantile([r.e2e for r in records], 0.9)),
        ttft=float(np.mean([r.ttft for r in records])),
    )


def replay(records: Sequence[ServedRequest], machine: Machine) -> list[ServedRequest]:
    """The same arrivals, served by the simulator: the records as it would have them."""
    model = machine.replica()
    config = SchedulerConfig(
        pages=model.kv_tokens // machine.page_size,
        page_size=machine.page_size,
        batch=machine.batch,
        budget=machine.budget,
        prefix_cache=any(r.keys for r in records),
    )
    start = min(r.arrival for r in records)
    requests = [
        Request(id=r.id, arrival=r.arrival - start, prompt=r.prompt, output=r.output, keys=r.keys)
        for r in records
    ]
    outcome = simulate(requests, SimulatedFleet(pool=Pool(model=model, config=config)))
    jobs = {job.request.id: job for job in outcome.jobs}
    refused = [job for job in outcome.jobs if job.finished is None or job.first_token is None]
    if refused:
        raise BadRequest(
            f"request {refused[0].request.id} of {refused[0].request.prompt} prompt tokens cannot "
            f"be served here: {refused[0].refusal}"
        )
    return [
        replace(
            r,
            arrival=r.arrival - start,
            first_token=seconds(jobs[r.id].first_token or 0.0),
            last_token=seconds(jobs[r.id].finished or 0.0),
        )
        for r in records
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A number that calibration moves: its bounds, and how far it may leave its prior for one
    sigma: `share` of it, or `apart` in its own unit."""

    bounds: tuple[float, float]
    share: float = 0.0
    apart: float = 0.0

    def sigma(self, prior: float) -> float:
        """One sigma. Where the prior is 0 by definition, and so says nothing of a machine, it is a
        tenth of what any machine may have."""
        return self.apart or self.share * prior or 0.1 * self.bounds[1]


_OF_CHIP = {"hbm": 0.1, "sustained": 0.1, "network": 0.2}
_OF_ENGINE, _OF_WIRES = {"kernel_seconds": 1.0, "sequence_seconds": 2.0}, {"hops": 0.5}
_SHARE = (EFFICIENCY.least, EFFICIENCY.most)
KNOBS: Mapping[str, Knob] = {
    **{name: Knob(bounds=_SHARE, apart=apart) for name, apart in _OF_CHIP.items()},
    **{n: Knob(bounds=ENGINE_BOUNDS[n], share=share) for n, share in _OF_ENGINE.items()},
    **{n: Knob(bounds=ENGINE_BOUNDS[n], apart=apart) for n, apart in _OF_WIRES.items()},
}
"""Three of the chip, three of the engine, within what their files may hold; those of links move
only where a mesh uses them. A number of no record's run stays at its prior."""


def calibrate(
    records: Sequence[ServedRequest],
    machine: Machine,
    progress: Callable[[int], None] | None = None,
) -> Machine:
    """The machine with the values of `KNOBS` under which the replay takes the measured times.

    Least squares of the log errors of every request's time between tokens and from end to end
    (one sigma is `SIGMA`), and of the sigmas by which the values leave their priors.
    """
    knobs = knobs_of(machine)
    priors = values_of(machine)
    sigmas = {name: knob.sigma(priors[name]) for name, knob in knobs.items()}
    measured = np.array([[r.tpot, r.e2e] for r in records])
    calls = 0

    def at(moves: np.ndarray) -> Machine:
        return moved(
            machine,
            {n: priors[n] + float(m - 1) * sigmas[n] for n, m in zip(knobs, moves, strict=True)},
        )

    def loss(moves: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if progress is not None:
            progress(calls)
        found = np.array([[r.tpot, r.e2e] for r in replay(records, at(moves))])
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.log(found / measured)
        # A single token has no time between tokens.
        return np.concatenate([np.nan_to_num(errors).ravel() / SIGMA, moves - 1])

    low, high = (
        np.array([1 + (k.bounds[end] - priors[n]) / sigmas[n] for n, k in knobs.items()])
        for end in (0, 1)
    )
    start = np.clip(np.ones(len(knobs)), low + 1e-6, high - 1e-6)
    # A simulation jumps where a batch changes: slopes are taken over a twentieth of a sigma, which
    # is a share of the moves, so these are counted from 1.
    found = least_squares(
        loss,
        start,
        bounds=(low, high),
        loss="soft_l1",
        diff_step=0.05,
        max_nfev=_ROUNDS if len(knobs) < len(KNOBS) else _LINKED_ROUNDS,
    )
    return at(found.x)


_ROUNDS, _LINKED_ROUNDS = 10, 25
"""Links trade against kernels, which takes more rounds to tell apart."""


_OF_LINKS = ("network", "hops")


def knobs_of(machine: Machine) -> dict[str, Knob]:
    """The numbers that a machine's records can tell."""
    linked = any(degree > 1 for degree in machine.plan.mesh.values())
    return {name: knob for name, knob in KNOBS.items() if linked or name not in _OF_LINKS}


def values_of(machine: Machine) -> dict[str, float]:
    """What the machine has for `KNOBS`."""
    own = {n: machine.chip.efficiency if n in _OF_CHIP else machine.engine for n in KNOBS}
    return {name: float(getattr(where, name)) for name, where in own.items()}


def moved(machine: Machine, values: Mapping[str, float]) -> Machine:
    """The machine with some of `KNOBS` at other values."""
    of_chip = {n: v for n, v in values.items() if n in _OF_CHIP}
    of_engine = {n: v for n, v in values.items() if n not in of_chip}
    chip = replace(machine.chip, efficiency=replace(machine.chip.efficiency, **of_chip))
    return replace(
        machine,
        piece=replace(machine.piece, chip=chip),
        engine=replace(machine.engine, **of_engine),
    )
