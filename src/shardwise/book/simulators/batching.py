"""Continuous batching: slots that requests fill and leave, by the scheduler that serves (ch. 7.4).

The requests go through `planner.simulate` with the scheduler of `scheduling/`, step by step; a
step's seconds are the book's rule of ch. 7.1.7 with the prompts of the step beside the answers:

    B KV / W + max(2 (B + prompt tokens) P / C, bytes of weights / W)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardwise.book.rules.serving import step_seconds
from shardwise.book.seed import book_chip
from shardwise.book.simulators.simulation import (
    MOST_FRAMES,
    Animation,
    Cell,
    Curve,
    Frame,
    check_size,
    check_whole,
)
from shardwise.errors import BadRequest, check_known
from shardwise.planner.simulate.clock import TICKS
from shardwise.planner.simulate.cost import DecodeLine, ReplicaModel
from shardwise.planner.simulate.replica import StepRun
from shardwise.planner.simulate.run import Outcome, Pool, SimulatedFleet, simulate
from shardwise.scheduling import Request, SchedulerConfig
from shardwise.scheduling.policies import POLICIES
from shardwise.scheduling.requests import Sequence as Job
from shardwise.scheduling.step import StepShape

SERVED = tuple(name for name in POLICIES if name != "prefill")
"""Policies of replicas that answer."""
MOST_REQUESTS, MOST_SLOTS, MOST_TOKENS = 500, 64, 131_072
MOST_ANSWERED = 40_000
"""Tokens that are answered in all, a step for each of a slot."""
PAGE = 16
MOST_SHOWN = 16
"""Waiting requests that a frame shows; its label counts all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleCost:
    """Seconds of a step by the book's rule: bytes of all weights and of a cached token, parameters,
    bytes/s and FLOP/s of all chips."""

    weight_bytes: float
    token_bytes: float
    params: float
    bandwidth: float
    peak: float

    def seconds(self, shape: StepShape) -> float:
        """One step of any batch."""
        tokens = shape.decode_tokens + shape.prefill_tokens
        cached = shape.decode_context + shape.prefill_context
        return float(
            cached * self.token_bytes / self.bandwidth
            + max(2 * tokens * self.params / self.peak, self.weight_bytes / self.bandwidth)
        )

    def decode_line(self, decodes: int, context: int) -> DecodeLine:
        """Steps that only decode: the weights or the FLOPs, and the caches."""
        base = step_seconds(
            decodes,
            param_bytes=self.weight_bytes,
            kv_bytes=0.0,
            bandwidth=self.bandwidth,
            params=self.params,
            peak=self.peak,
        )
        return DecodeLine(float(base), self.token_bytes / self.bandwidth)

    def transfer_seconds(self, tokens: int) -> float:
        """No cache moves between replicas here."""
        return 0.0

    def host_seconds(self, tokens: int) -> float:
        """No cache goes to the host here."""
        return 0.0


def batching(
    policy: str = "chunked",
    slots: int = 4,
    requests: int = 12,
    rate: float = 0.0,
    prompt: int = 512,
    answer: int = 16,
    chunk: int = 512,
    chip: str = "v5e",
    chips: int = 16,
    params: float = 70e9,
    kv_bytes: float = 163840.0,
    seed: int = 0,
) -> Animation:
    """`requests` of `prompt` tokens, with answers from half to one and a half of `answer` drawn by
    `seed`, `rate` a second (0: all at once), through `slots` slots.

    Weights and cache are int8 as in ch. 8: `params` bytes, and `kv_bytes` per token (160 KiB of
    LLaMA 3 70B). Policies: "interleaved" prefills a prompt at a time in pieces of `chunk` while
    decoding waits, "chunked" fills each step of `chunk` tokens with pieces of prompts beside the
    answers, "static" fills all slots and waits for the last.
    """
    check_known("policy", policy, SERVED)
    for name, value, most in (
        ("slots", slots, MOST_SLOTS), ("requests", requests, MOST_REQUESTS),
        ("prompt", prompt, MOST_TOKENS), ("answer", answer, MOST_TOKENS),
        ("chunk", chunk, MOST_TOKENS), ("chips", chips, 2**20),
    ):  # fmt: skip
        check_whole(name, value, 1, most)
    if requests * answer > MOST_ANSWERED:
        raise BadRequest(
            f"{requests} requests of {answer} tokens are {requests * answer:,} to answer; at most "
            f"{MOST_ANSWERED:,} are simulated here, so give fewer, or use shardwise simulate"
        )
    found = book_chip(chip)
    cost = RuleCost(
        weight_bytes=check_size("params", params, 1.0),
        token_bytes=check_size("kv_bytes", kv_bytes),
        params=params,
        bandwidth=chips * found.require("hbm_bandwidth"),
        peak=chips * found.peak("bf16"),
    )
    coming = _requests(requests, check_size("rate", rate), prompt, answer, seed)
    outcome = _run(policy, slots, chunk, coming, cost)
    steps, slot = outcome.replicas[0].record.steps, _slots(outcome)
    kept = steps[:MOST_FRAMES]
    frames = tuple(_frame(number, run, outcome, slot) for number, run in enumerate(kept))
    first = np.array([job.first_token for job in outcome.jobs], float)
    waits = (first - [job.request.arrival for job in outcome.jobs]) / TICKS
    span = (outcome.end - outcome.start) / TICKS
    held = sum(_length(job) for job in outcome.jobs) / TICKS
    tokens = sum(job.emitted for job in outcome.jobs)
    return Animation(
        id="batching",
        chapter="7",
        title=f"{policy} batching: {requests} requests through {slots} slots",
        source="ch. 7.4.1, animation of continuous batching",
        settings={
            "policy": policy, "slots": slots, "requests": requests, "rate": rate, "prompt": prompt,
            "answer": answer, "chunk": chunk, "chip": found.id, "chips": chips, "params": params,
            "kv_bytes": kv_bytes, "seed": seed,
        },
        readings={
            "seconds": span,
            "steps": len(steps),
            "tokens_per_second": tokens / span,
            "slots_in_use": held / (slots * span),
            "mean_ttft": float(waits.mean()),
            "largest_ttft": float(waits.max()),
            "mean_tpot": float(np.mean([_tpot(job) for job in outcome.jobs])),
        },
        units={
            "rate": "1/s", "prompt": "tokens", "answer": "tokens", "chunk": "tokens",
            "chips": "chips", "params": "params", "kv_bytes": "bytes/token",
            "tokens_per_second": "tokens/s",
            **dict.fromkeys(("seconds", "mean_ttft", "largest_ttft", "mean_tpot"), "s"),
        },
        x_label="time",
        x_unit="s",
        rows=tuple(f"slot {number}" for number in range(slots)),
        bars=tuple(bar for job in outcome.jobs for bar in _bars(job, slot, outcome.start)),
        frames=frames,
        frames_left_out=len(steps) - len(kept),
        curves=_curves(steps, outcome),
        curve_axes=("time [s]", "requests"),
    )  # fmt: skip


def _requests(count: int, rate: float, prompt: int, answer: int, seed: int) -> list[Request]:
    draw = np.random.default_rng(check_whole("seed", seed, 0, 2**32 - 1))
    outputs = draw.integers(max(answer // 2, 1), answer + answer // 2 + 1, count)
    gaps = draw.exponential(1 / rate, count) if rate else np.zeros(count)
    return [
        Request(id=number, arrival=float(at), prompt=prompt, output=int(output))
        for number, (at, output) in enumerate(zip(np.cumsum(gaps), outputs, strict=True))
    ]


def _run(policy: str, slots: int, chunk: int, coming: list[Request], cost: RuleCost) -> Outcome:
    """The requests through one replica, each step kept; the cache holds all slots at their
    longest, so that nobody is preempted."""
    longest = max(request.prompt + request.output for request in coming)
    pages = slots * (longest // PAGE + 1)
    config = SchedulerConfig(
        pages=pages,
        page_size=PAGE,
        batch=slots,
        budget=chunk if policy != "chunked" else max(chunk, slots + 1),
        policy=policy,  # type: ignore[arg-type]
        prefix_cache=False,
        admission="reserve",
    )
    model = ReplicaModel(cost=cost, kv_tokens=pages * PAGE)
    fleet = SimulatedFleet(pool=Pool(model=model, config=config))
    return simulate(coming, fleet, single_steps=True, keep_steps=True)


def _slots(outcome: Outcome) -> dict[int, int]:
    """The slot that each request had, as the scheduler's own changes say."""
    replica = outcome.replicas[0]
    changes = [run.plan.changes for run in replica.record.steps]
    changes.append(replica.scheduler.cache.changes())
    return {
        job.request.id: slot
        for changed in changes
        if changed is not None
        for job, slot in changed.left
    }


def _length(job: Job) -> float:
    """Ticks in a slot."""
    return (job.finished or 0) - (job.started or 0)


def _tpot(job: Job) -> float:
    later = max(job.emitted - 1, 1)
    return ((job.last_token or 0) - (job.first_token or 0)) / TICKS / later


def _bars(job: Job, slot: dict[int, int], begun: int) -> Iterator[Cell]:
    """The prompt of a request, then its answer."""
    first = job.first_token or 0
    spans = (("prefill", job.started or 0, first), ("decode", first, job.finished or 0))
    for kind, start, end in spans:
        if end > start:
            yield Cell(
                x=(start - begun) / TICKS,
                y=slot[job.request.id],
                width=(end - start) / TICKS,
                text=str(job.request.id),
                kind=kind,
                values={"request": job.request.id, "end": (end - begun) / TICKS,
                        "arrival": (job.request.arrival - begun) / TICKS},
            )  # fmt: skip


def _frame(number: int, run: StepRun, outcome: Outcome, slot: dict[int, int]) -> Frame:
    """Who is in which slot during a step, and who waits."""
    at = run.start
    chunks = {chunk.sequence.request.id: chunk.tokens for chunk in run.plan.chunks}
    cells, waiting = [], 0
    for job in outcome.jobs:
        name = job.request.id
        if job.started is not None and job.started <= at < (job.finished or 0):
            kind = "prefill" if name in chunks else "decode"
            if kind == "decode" and (not run.plan.shape.decodes or (job.first_token or 0) > at):
                kind = "waits"
            cells.append(
                Cell(x=0, y=slot[name], text=str(name), kind=kind,
                     values={"request": name, "tokens": chunks.get(name, kind == "decode")})
            )  # fmt: skip
        elif job.request.arrival <= at and (job.started is None or job.started > at):
            waiting += 1
            if waiting <= MOST_SHOWN:
                cells.append(Cell(x=2, y=waiting - 1, text=str(name), kind="queue"))
    label = f"step {number}: {run.plan.shape.decodes} decode, {len(chunks)} prefill, {waiting} wait"
    return Frame(at=(at - outcome.start) / TICKS, label=label, cells=tuple(cells))


def _curves(steps: list[StepRun], outcome: Outcome) -> tuple[Curve, ...]:
    """Requests in slots and waiting at the start of each step."""
    at = np.array([run.start for run in steps])
    jobs = outcome.jobs
    moments = ([j.request.arrival for j in jobs], [j.started or 0 for j in jobs],
               [j.finished or 0 for j in jobs])  # fmt: skip
    arrived, started, ended = (np.searchsorted(np.sort(m), at, "right") for m in moments)
    x = tuple(((at - outcome.start) / TICKS).tolist())
    counts = {"in slots": started - ended, "waiting": arrived - started}
    return tuple(
        Curve(label=label, x=x, y=tuple(count.astype(float).tolist()))
        for label, count in counts.items()
    )
