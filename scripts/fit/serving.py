"""Fit the constants of serving engines: four per family, on the runs of its newest releases."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from shardwise.evidence.serving.runs import ServingRun, gating
from shardwise.evidence.serving.times import RunFeatures
from shardwise.roofline.engines import ENGINE_BOUNDS, ENGINE_CONSTANTS, IDEAL_ENGINE, Engine
from shardwise.work import Quantity

NAMES = tuple(ENGINE_CONSTANTS)
SIGMA = 0.1
"""Log error that counts as one sigma; Huber's loss beyond."""
TTFT_WEIGHT = 0.3
"""What an error of TTFT counts beside one of TPOT: its mean depends on how a benchmark starts."""

_NOTHING = 1e-6
"""Sigmas from its lower bound, 0, at which a constant is that."""

Keep = Callable[[ServingRun], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What a constant of an engine is expected to be, how sure that is (one sigma), and why."""

    value: float
    sigma: float
    source: str


PRIORS: Mapping[str, Prior] = {
    "kernel_seconds": Prior(
        value=4e-6,
        sigma=4e-6,
        source="assumed: matmul_ramp of docs/fit.md, 3 to 5 us, for the gap after a kernel too",
    ),
    "sequence_seconds": Prior(
        value=1.5e-5, sigma=1.5e-5, source="assumed: 4 ms of Python for a batch of 256"
    ),
    "hops": Prior(
        value=0.5,
        sigma=0.5,
        source="assumed: an engine's own all-reduce takes fewer steps than the library's ring",
    ),
    "prefill_wait": Prior(
        value=0.25,
        sigma=0.25,
        source="assumed: between prompts that trickle in (0) and waves (1/2)",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The runs of one count that a fit uses."""

    group: RunFeatures
    used: np.ndarray
    tpot: np.ndarray
    ttft: np.ndarray

    def errors(self, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
        """Log errors of TPOT and TTFT; 0 where a run states no TTFT."""
        times = self.group.times(engine)
        tpot = np.log(np.asarray(times.tpot)[self.used] / self.tpot)
        ttft = np.log(np.asarray(times.ttft)[self.used] / self.ttft)
        return tpot, np.nan_to_num(ttft)


def fit_families(
    groups: Sequence[RunFeatures], runs: Sequence[ServingRun], keep: Keep = lambda run: True
) -> dict[str, Engine]:
    """The constants of every family, on its gating runs that `keep` holds for."""
    ids = {run.id for run in gating(runs)}
    families = sorted({run.family for run in runs})

    def parts(family: str) -> list[_Part]:
        def used(run: ServingRun) -> bool:
            return run.family == family and run.id in ids and keep(run)

        return [part for group in groups if (part := _part(group, used)) is not None]

    return {family: _fit(family, parts(family)) for family in families}


def _part(group: RunFeatures, used: Keep) -> _Part | None:
    mask = np.array([used(run) for run in group.runs])
    if not mask.any():
        return None
    mine = [run for run, taken in zip(group.runs, mask, strict=True) if taken]
    ttft = np.array([np.nan if run.ttft is None else run.ttft for run in mine])
    return _Part(group=group, used=mask, tpot=np.array([r.tpot for r in mine]), ttft=ttft)


def _fit(family: str, parts: Sequence[_Part]) -> Engine:
    """The constants nearest to the times: Huber's loss of the log errors, and the priors'."""
    priors = [PRIORS[name] for name in NAMES]
    start = np.array([p.value for p in priors])
    sigma = np.array([p.sigma for p in priors])
    low, high = (np.array(b) for b in zip(*(ENGINE_BOUNDS[n] for n in NAMES), strict=True))

    def loss(scaled: np.ndarray) -> np.ndarray:
        engine = engine_at(family, start + scaled * sigma)
        errors = [part.errors(engine) for part in parts]
        tpot = [_huber(tpot / SIGMA) for tpot, _ in errors]
        ttft = [_huber(ttft / SIGMA) * TTFT_WEIGHT for _, ttft in errors]
        return np.concatenate([*tpot, *ttft, scaled])

    bounds = ((low - start) / sigma, (high - start) / sigma)
    found = least_squares(loss, np.zeros(len(NAMES)), bounds=bounds)
    values = start + found.x * sigma
    return engine_at(family, np.where(values < _NOTHING * sigma, 0.0, values))


def _huber(z: np.ndarray) -> np.ndarray:
    """A residual whose square is Huber's loss with its corner at one sigma."""
    size = np.abs(z)
    return np.sign(z) * np.where(size <= 1, size, np.sqrt(np.maximum(2 * size - 1, 1)))


def engine_at(family: str, values: Sequence[Quantity] | np.ndarray) -> Engine:
    """An engine with some values of its constants."""
    return replace(IDEAL_ENGINE, name=family, **dict(zip(NAMES, map(float, values), strict=True)))
