"""Least squares on log(predicted / measured), with priors, over all runs at once.

Every run is counted once; pricing broadcasts over trial values of the constants, so that one call
gives a run's seconds and all its derivatives. A pipeline is laid out as an event timeline; as its
idle factors hardly move with the constants, that is done once per `fit`, not at every trial.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import lsq_linear

from fit.constants import (
    Values,
    chip_with,
    ideal_chip,
    kind_of,
    stack_with,
)
from shardwise.evidence.training.runs import PublishedRun
from shardwise.hardware import Chip, Placement
from shardwise.planner.price.plan import (
    COMPILED,
    EAGER,
    PricedStep,
    fused,
    price_step,
    timeline_factor,
)
from shardwise.planner.step.work import Counted, count_parts
from shardwise.planner.training import evaluate_train, plan_shape
from shardwise.roofline.stacks import IDEAL, Stack

ROBUST = 0.15
"""Residuals beyond this (in log) count linearly: a run with a mistake must not drag the rest."""
NOISE = 0.10
"""What one run's log residual is worth against the priors: about a tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run, counted and placed; `idle` is what its pipeline takes over a device's own work."""

    run: PublishedRun
    counted: Counted
    placement: Placement
    idle: float

    @property
    def owners(self) -> tuple[str, str]:
        """Generation and stack."""
        return self.run.piece.chip.generation, self.run.stack

    @property
    def felt(self) -> tuple[str, ...]:
        """The owners, and whose constants else the run feels: those of another kind of software
        where a compiler was switched on or off."""
        plan = self.run.plan
        if plan.fuses_elementwise == plan.software.compiled:
            return self.owners
        return *self.owners, COMPILED if plan.fuses_elementwise else EAGER


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What a constant is expected to be, how sure that is (one sigma), and why."""

    value: float
    sigma: float
    source: str


def case_of(run: PublishedRun) -> Case:
    """The run as `evaluate_train` counts and places it."""
    answer = evaluate_train(run.plan, run.cfg, run.piece)
    counted = count_parts(run.cfg, plan_shape(run.plan, run.cfg))
    return Case(run=run, counted=counted, placement=answer.placement, idle=1.0)


def laid_out(cases: Sequence[Case], values: Values) -> list[Case]:
    """The cases with their pipelines laid out in time at these values."""
    found = []
    for case in cases:
        idle = timeline_factor(case.run.plan, case.run.cfg, _priced(case, values))
        found.append(replace(case, idle=idle))
    return found


def seconds(case: Case, values: Values) -> np.ndarray:
    """Expected seconds per step of a run at one or many values of the constants."""
    return np.asarray(_priced(case, values).seconds(case.idle).expected)


def _priced(case: Case, values: Values) -> PricedStep:
    def load(name: str) -> Stack:
        return stack_with(name, values)

    chip = chip_with(case.run.piece.chip, values)
    return _on(case, chip, fused(load(case.run.stack), case.run.plan, load))


def _on(case: Case, chip: Chip, stack: Stack) -> PricedStep:
    shape = plan_shape(case.run.plan, case.run.cfg)
    return price_step(case.run.cfg, shape, case.counted, chip, case.placement, stack)


def roofline_logs(cases: Sequence[Case]) -> np.ndarray:
    """log(predicted / measured) of every run at peak rates with an ideal stack."""
    found = []
    for case in cases:
        run = case.run
        priced = _on(case, ideal_chip(run.piece.chip), IDEAL)
        expected = priced.seconds(timeline_factor(run.plan, run.cfg, priced)).expected
        found.append(float(np.log(expected / run.measured_seconds)))
    return np.array(found)


def linearised(case: Case, values: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """log(predicted / measured) and its derivatives per scale of each constant that it feels."""
    mine = [n for n in values if n.rpartition(".")[0] in case.felt]
    columns: dict[str, np.ndarray] = {}
    steps = {}
    for i, name in enumerate(mine):
        kind = kind_of(name)
        step = 0.02 * kind.scale * (1 if values[name] + 0.02 * kind.scale <= kind.most else -1)
        columns[name] = np.full(len(mine) + 1, float(values[name]))
        columns[name][i + 1] += step
        steps[name] = step / kind.scale
    predicted = np.broadcast_to(seconds(case, columns), len(mine) + 1)
    logs = np.log(predicted / case.run.measured_seconds)
    slopes = {n: float(logs[i + 1] - logs[0]) / steps[n] for i, n in enumerate(mine)}
    return float(logs[0]), slopes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Values, log residuals per run, their derivatives per scale of each constant, and the loss."""

    values: Mapping[str, float]
    residuals: np.ndarray
    slopes: tuple[Mapping[str, float], ...]
    loss: float


def loss_of(
    residuals: np.ndarray, values: Mapping[str, float], priors: Mapping[str, Prior]
) -> float:
    """Huber's loss of residuals in units of `NOISE`, and half the squared sigmas from priors."""
    r = np.abs(residuals) / NOISE
    d = ROBUST / NOISE
    huber = np.where(r <= d, 0.5 * r**2, d * (r - 0.5 * d))
    prior = sum(0.5 * ((values[n] - p.value) / p.sigma) ** 2 for n, p in priors.items())
    return float(huber.sum() + prior)


def solve(
    cases: Sequence[Case],
    priors: Mapping[str, Prior],
    start: Mapping[str, float] | None = None,
    *,
    rounds: int = 12,
) -> Fit:
    """Gauss-Newton with Huber weights, bounds and a trust region; deterministic."""
    values = dict(start or {n: p.value for n, p in priors.items()})
    order = list(values)
    radius = 1.0
    fit = at(cases, values, priors)
    for _ in range(rounds):
        matrix, target, low, high = _system(fit, order, priors, radius)
        step = lsq_linear(matrix, target, bounds=(low, high)).x
        moved = zip(order, step, strict=True)
        trial = {n: _clip(n, values[n] + s * kind_of(n).scale) for n, s in moved}
        tried = at(cases, trial, priors)
        if tried.loss < fit.loss:
            done = fit.loss - tried.loss < 1e-4 * fit.loss
            values, fit = trial, tried
            if done:
                break
        else:
            radius /= 3
            if radius < 1e-2:
                break
    return fit


def fit_all(
    cases: Sequence[Case], priors: Mapping[str, Prior], start: Mapping[str, float] | None = None
) -> tuple[Fit, list[Case]]:
    """Solve, lay pipelines out at the result, solve again; the cases as they stand at the end."""
    values = dict(start or {n: p.value for n, p in priors.items()})
    for rounds in (12, 6):
        cases = laid_out(cases, values)
        values = dict(solve(cases, priors, values, rounds=rounds).values)
    cases = laid_out(cases, values)
    return at(cases, values, priors), cases


def at(cases: Sequence[Case], values: Mapping[str, float], priors: Mapping[str, Prior]) -> Fit:
    """Residuals, derivatives and loss at given values."""
    found = [linearised(case, values) for case in cases]
    residuals = np.array([r for r, _ in found])
    return Fit(
        values=dict(values),
        residuals=residuals,
        slopes=tuple(s for _, s in found),
        loss=loss_of(residuals, values, priors),
    )


def _system(
    fit: Fit, order: Sequence[str], priors: Mapping[str, Prior], radius: float
) -> tuple[np.ndarray, ...]:
    """The weighted linear problem in steps of each constant's scale, with its bounds."""
    index = {n: i for i, n in enumerate(order)}
    rows = len(fit.residuals)
    matrix = np.zeros((rows + len(order), len(order)))
    target = np.zeros(rows + len(order))
    weight = np.sqrt(np.minimum(1.0, ROBUST / np.maximum(np.abs(fit.residuals), 1e-12))) / NOISE
    for i, slopes in enumerate(fit.slopes):
        for name, slope in slopes.items():
            matrix[i, index[name]] = slope * weight[i]
        target[i] = -fit.residuals[i] * weight[i]
    for name, i in index.items():
        scale = kind_of(name).scale
        matrix[rows + i, i] = scale / priors[name].sigma
        target[rows + i] = (priors[name].value - fit.values[name]) / priors[name].sigma
    kinds = [kind_of(n) for n in order]
    here = np.array([fit.values[n] for n in order])
    scale = np.array([k.scale for k in kinds])
    low = np.maximum((np.array([k.least for k in kinds]) - here) / scale, -radius)
    high = np.minimum((np.array([k.most for k in kinds]) - here) / scale, radius)
    return matrix, target, np.minimum(low, 0.0) - 1e-9, np.maximum(high, 0.0) + 1e-9


def _clip(name: str, value: float) -> float:
    kind = kind_of(name)
    return float(np.clip(value, kind.least, kind.most))
