"""Fit the constants of serving engines: few per family, each drawn from a common value.

A constant is exp(common + the family's own); the common part is drawn from its prior, the family's
own from 0, so a family with few runs, or none, has the common value. What is known of a family's
software beforehand shifts its priors (`SHIFTS`).
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.optimize import least_squares

from shardwise.evidence.serving.loop import ClosedLoop
from shardwise.evidence.serving.runs import EXPLICIT, ServingRun, run_of
from shardwise.evidence.serving.times import RunFeatures, StepFeatures
from shardwise.roofline.engines import ENGINE_CONSTANTS, IDEAL_ENGINE, Arrival, EngineConstants
from shardwise.work import Quantity, grouped

SIGMA, TTFT_SIGMA = 0.12, 0.2
"""Log errors of TPOT and of TTFT that count as one sigma; Huber's loss beyond."""
TTFT_WEIGHT = 0.3
"""What an error of TTFT counts beside one of TPOT: its mean depends on how a benchmark starts."""

SHIFTS: Mapping[str, Mapping[str, float]] = {
    "eager": {"kernel_seconds": 3.5, "hops": 3.5},
    "prefill_first": {"equal_wait": 16.0, "prefill_wait": 1.5},
    "balances": {"balance_steps": 25.0},
}
"""Times by which priors of a family's constants lie higher.

- vLLM in its first year was eager: no CUDA graphs, NCCL's own all-reduce. Such software starts
  kernels one by one: 14 us each (PyTorch's launch and dispatch, 10 to 20 us; DistServe's fit of an
  eager engine on A100, 24 ms for the 40 layers of a 13B whose weights take 14 ms, is 20 us), and
  pays all of the communication library's latency, hops = 1.
- SGLang mixes only with `--enable-mixed-chunk`, vLLM since it chunks prompts. Software that
  prefills before it goes on decoding lets a wave of prompts wait for all of them, so one for half
  of it: 0.5. Software that mixes both in a step has no such wave.
- TensorRT-LLM holds prompts back until all parts of a batch have one, for at most `timeout_iters`
  of `attention_dp_config`, 50 steps, so for half of them; vLLM and SGLang do not.
"""

IDLE_WEIGHT = 6.0
"""What an error of an idle server's first token counts beside others: no other run has it alone."""

IDLE = Path(__file__).parent / "idle.csv"
"""First tokens of idle servers, in ms: of TensorRT-LLM's engine called directly (kind `step`), and
of SGLang's servers with one request at a time (`served`): means of their benchmarks, or medians
where the mean is 1.3 times that, as the first request of all waited for a compiler."""

IDLE_CHIPS = ("a100", "b200", "h100")
"""Chips of which a fit sees the first tokens of idle servers; those of others are left out."""

Keep = Callable[[ServingRun], bool]
Level = Literal["common", "family"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPrior:
    """The common value of a constant, and log sigmas: of the common value, and of a family's own
    about it (0: all families share it)."""

    value: float
    common: float
    own: float
    source: str


PRIORS: Mapping[str, LogPrior] = {
    "kernel_seconds": LogPrior(
        value=4e-6,
        common=0.5,
        own=0.3,
        source="assumed: matmul_ramp of docs/lab/fit.md, 3 to 5 us, for the gap after a kernel too",
    ),
    "sequence_seconds": LogPrior(
        value=1.5e-5, common=1.0, own=0.5, source="assumed: 4 ms of Python for a batch of 256"
    ),
    "hops": LogPrior(
        value=0.3,
        common=0.7,
        own=0.4,
        source="assumed: an engine's own all-reduce takes fewer steps than the library's ring",
    ),
    "prefill_wait": LogPrior(
        value=0.1,
        common=1.0,
        own=1.0,
        source="assumed: ten waves of requests, of which the first waits for half of its prompts",
    ),
    "equal_wait": LogPrior(
        value=0.03, common=0.2, own=0.2, source="assumed: prompts beside decodes hardly wait"
    ),
    "poll_steps": LogPrior(
        value=1.5,
        common=0.3,
        own=0.2,
        source="half of the step that runs, and the one whose result is read while the next runs",
    ),
    "balance_steps": LogPrior(
        value=1.0,
        common=0.7,
        own=0.7,
        source="assumed: parts that step together end the step that runs",
    ),
    "pool_wait": LogPrior(
        value=0.05,
        common=0.7,
        own=0.0,
        source="assumed: the first of ten waves of requests waits for half of its prompts",
    ),
    "start_seconds": LogPrior(
        value=1.5e-5, common=0.7, own=1.0, source="assumed: PyTorch's launch and dispatch"
    ),
    "crowd": LogPrior(value=0.5, common=1.0, own=0.5, source="assumed: half drift apart"),
    "handover_seconds": LogPrior(
        value=0.05, common=1.0, own=0.0, source="assumed: two requests over HTTP and a cache"
    ),
    "request_seconds": LogPrior(
        value=0.008,
        common=0.3,
        own=0.1,
        source="vLLM 0.21 on an idle H100: 14 ms to the first token of an 8B, of which prefill 6.5",
    ),
    "program_seconds": LogPrior(
        value=1.0, common=1.0, own=1.0, source="assumed: some kernels are compiled"
    ),
    "beside_seconds": LogPrior(
        value=0.02, common=1.0, own=1.0, source="assumed: a few steps of Python for others"
    ),
    "miss": LogPrior(
        value=0.25,
        common=0.1,
        own=0.3,
        source="1 - acceptance; DeepSeek-V3 (section 5.4.3) has 85 to 90 % of second tokens right, "
        "and three guesses make DeepSeek-R1 2.16 times as fast on 8 idle B200 (TensorRT-LLM's blog "
        "on MTP), where a step with them takes a quarter longer: 2.7 tokens. A family's own has in "
        "it what its step with guesses takes beyond what is counted",
    ),
}
_STEP = tuple(ENGINE_CONSTANTS)
_MOST_ROUNDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedColumn:
    """Numbers that a fit moves: of one constant, `size` of them; one for all runs, or one for each
    family."""

    name: str
    first: int
    sigma: float
    level: Level
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFit:
    """Moved numbers, and the families they are for; `known` are families by what shifts them."""

    families: tuple[str, ...]
    known: Mapping[str, frozenset[str]]
    moves: np.ndarray

    @property
    def columns(self) -> list[FittedColumn]:
        found, first = [], 0
        for name, prior in PRIORS.items():
            levels: tuple[tuple[Level, float, int], ...] = (
                ("common", prior.common, 1),
                ("family", prior.own, len(self.families)),
            )
            for level, sigma, size in levels:
                if sigma:
                    column = FittedColumn(
                        name=name, first=first, sigma=sigma, level=level, size=size
                    )
                    found.append(column)
                    first += size
        return found

    def values(self) -> dict[str, np.ndarray]:
        """Every constant by family."""
        found = {}
        for name, prior in PRIORS.items():
            found[name] = np.log([prior.value * self._shift(f, name) for f in self.families])
        for column in self.columns:
            move = self.moves[column.first : column.first + column.size]
            found[column.name] += move * column.sigma
        return {name: np.exp(logs) for name, logs in found.items()}

    def _shift(self, family: str, name: str) -> float:
        """Times by which the prior of a family's constant lies higher."""
        return prod(SHIFTS[k].get(name, 1.0) for k, mine in self.known.items() if family in mine)

    def over(self, runs: Sequence[ServingRun]) -> EngineConstants:
        """The constants of each run's family, as arrays."""
        place = {family: i for i, family in enumerate(self.families)}
        index = np.array([place[run.family] for run in runs])
        return _engine("all", {name: v[index] for name, v in self.values().items()})

    def engines(self) -> dict[str, EngineConstants]:
        """The engine of every family."""
        values = self.values()
        return {
            family: _engine(family, {name: float(v[i]) for name, v in values.items()})
            for i, family in enumerate(self.families)
        }


def _engine(name: str, values: Mapping) -> EngineConstants:
    step = {n: values[n] for n in _STEP}
    own = {n: v for n, v in values.items() if n not in step and n != "miss"}
    arrival = Arrival(**own, acceptance=np.maximum(1 - values["miss"], 0.05))
    return replace(IDEAL_ENGINE, name=name, **step, arrival=arrival)


def begin(runs: Sequence[ServingRun]) -> EngineFit:
    """All families at their priors."""
    empty = EngineFit(
        families=tuple(sorted({run.family for run in runs})),
        known={
            "eager": frozenset({"vllm-2023"}),
            "prefill_first": frozenset({"sglang", "sglang-jax", "vllm-2023"}),
            "balances": frozenset({"trtllm"}),
        },
        moves=np.zeros(0),
    )
    last = empty.columns[-1]
    return replace(empty, moves=np.zeros(last.first + last.size))


def fit_engines(
    parts: Sequence[RunFeatures],
    start: EngineFit,
    keep: Keep = lambda run: True,
) -> EngineFit:
    """The constants under which the runs that `keep` holds for take their times: Huber's loss of
    the log errors, and the squared moves from the priors."""
    kept = np.concatenate([[keep(run) for run in part.runs] for part in parts])
    runs = [run for part in parts for run in part.runs]
    idle = np.isnan([run.tpot for run in runs])
    weight = TTFT_WEIGHT * np.where(idle, IDLE_WEIGHT, 1.0)
    timed = kept & ~idle
    tpot = np.log([run.tpot for run in runs])
    ttft = np.log([run.ttft or 1.0 for run in runs])
    told = kept & np.array([run.ttft is not None for run in runs])
    levels = {
        "common": np.zeros(len(runs), int),
        "family": np.array([start.families.index(run.family) for run in runs]),
    }
    columns, number = start.columns, len(runs)

    def loss(moves: np.ndarray) -> np.ndarray:
        found = replace(start, moves=moves)
        times = [part.times(found.over(part.runs)) for part in parts]
        first = np.log(np.concatenate([t.tpot for t in times])) - tpot
        second = np.log(np.concatenate([t.ttft for t in times])) - ttft
        return np.concatenate(
            [
                np.where(timed, _huber(first / SIGMA), 0.0),
                np.where(told, _huber(second / TTFT_SIGMA) * weight, 0.0),
                moves,
            ]
        )

    def slopes(moves: np.ndarray) -> np.ndarray:
        """One shift of a constant for all families at once: no run has two."""
        now, step = loss(moves), 1e-4
        found = np.zeros((len(now), len(moves)))
        found[2 * number :] = np.eye(len(moves))
        changes: dict[str, np.ndarray] = {}
        for column in columns:
            if column.name not in changes:
                moved = moves.copy()
                moved[column.first : column.first + column.size] += step
                slope = (loss(moved) - now)[: 2 * number] / step
                changes[column.name] = slope / column.sigma
            change = changes[column.name] * column.sigma
            for i in range(column.size):
                mine = np.tile(levels[column.level] == i, 2)
                found[: 2 * number, column.first + i] = np.where(mine, change, 0.0)
        return found

    found = least_squares(loss, start.moves, jac=slopes, max_nfev=_MOST_ROUNDS, ftol=1e-5)  # type: ignore[arg-type]
    return replace(start, moves=found.x)


def idle_runs() -> tuple[ServingRun, ...]:
    """The first tokens of idle servers as runs of one request; their time per output token is NaN,
    as none is told."""
    with IDLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    same = dict.fromkeys(EXPLICIT, "")
    same |= {"data": "1", "workers": "0", "concurrency": "1", "tpot_ms": "1"}
    same |= {"source": "idle", "output_length": "128", "shortest": "1"}
    return tuple(replace(run_of(same | row), tpot=np.nan) for row in rows)


def _huber(z: np.ndarray) -> np.ndarray:
    """A residual whose square is Huber's loss with its corner at one sigma."""
    size = np.abs(z)
    return np.sign(z) * np.where(size <= 1, size, np.sqrt(np.maximum(2 * size - 1, 1)))


def stacked(groups: Sequence[RunFeatures]) -> list[RunFeatures]:
    """The groups as two at most: runs of one kind of server, and runs of two pools."""

    def kind(group: RunFeatures) -> bool:
        return group.runs[0].prefill is not None

    return [_joined(parts) for parts in grouped(groups, kind).values()]


def _joined(groups: Sequence[RunFeatures]) -> RunFeatures:
    sizes = [len(g.runs) for g in groups]

    def join(parts: Sequence[Quantity]) -> np.ndarray:
        return np.concatenate(
            [np.broadcast_to(np.asarray(p, float), (n,)) for p, n in zip(parts, sizes, strict=True)]
        )

    def steps(parts: Sequence[StepFeatures]) -> StepFeatures:
        names = ("fixed", "kernels", "latency", "sequences")
        return StepFeatures(**{n: join([getattr(p, n) for p in parts]) for n in names})

    loops = [g.loop for g in groups]
    names = (
        *("concurrency", "input_length", "output_length", "most_running"),
        *("token_budget", "splits", "queue_interval", "waves", "held_steps", "cold"),
    )
    shares = range(len(groups[0].decode))
    return RunFeatures(
        runs=tuple(run for g in groups for run in g.runs),
        loop=ClosedLoop(**{n: join([getattr(loop, n) for loop in loops]) for n in names}),
        running=tuple(join([g.running[i] for g in groups]) for i in shares),
        decode=tuple(steps([g.decode[i] for g in groups]) for i in shares),
        mixed=steps([g.mixed for g in groups]),
        prompt=steps([g.prompt for g in groups]),
        full=steps([g.full for g in groups]),
    )
