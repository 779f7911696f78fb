"""Published runs as cases of the fit: counted once, priced at any values of the constants.

Pricing broadcasts over trial values, so that one call gives a run's seconds and all its
derivatives. A pipeline is laid out as an event timeline; as its idle factors hardly move with the
constants, that is done a few times per fit, not at every trial.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fit.constants import Values, chip_with, ideal_chip, kind_of, parts_of, stack_with
from shardwise.evidence.training.runs import PublishedRun
from shardwise.hardware import Chip, Placement
from shardwise.planner.evaluate import evaluate_train, plan_shape
from shardwise.planner.features import NOW, features_of
from shardwise.planner.price.plan import (
    COMPILED,
    EAGER,
    PricedStep,
    as_chosen,
    fused,
    price_step,
    timeline_factor,
)
from shardwise.planner.step.work import Counted, count_parts
from shardwise.roofline.stacks import IDEAL, Stack

STEP = 0.02
"""Share of its scale by which a constant is moved for a derivative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run, counted and placed.

    `idle` is what its pipeline takes over a device's own work, `full_rate` the seconds of a step
    at the peak of all chips: model FLOPs over peak, so that seconds at a constant MFU are
    `full_rate` / MFU. `features` say what kind of run it is.
    """

    run: PublishedRun
    counted: Counted
    placement: Placement
    idle: float
    full_rate: float
    features: Mapping[str, str]

    @property
    def owners(self) -> tuple[str, str]:
        """Generation and stack."""
        return self.run.piece.chip.generation, self.run.stack

    @property
    def felt(self) -> tuple[str, ...]:
        """The owners, and whose constants else the run feels: those of another kind of software
        where a compiler was switched on or off."""
        plan = self.run.plan
        if plan.fuses_elementwise == plan.stack_row.compiled:
            return self.owners
        return *self.owners, COMPILED if plan.fuses_elementwise else EAGER

    @property
    def pair(self) -> str:
        """Generation and stack as one word."""
        return "/".join(self.owners)


def case_of(run: PublishedRun) -> Case:
    """The run as `evaluate_train` counts and places it."""
    answer = evaluate_train(run.plan, run.cfg, run.piece)
    return Case(
        run=run,
        counted=count_parts(run.cfg, plan_shape(run.plan, run.cfg)),
        placement=answer.placement,
        idle=1.0,
        full_rate=answer.mfu * answer.step_seconds.expected,
        features=features_of(answer, run.release[:4] or NOW),
    )


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


def logs_at(cases: Sequence[Case], values: Values) -> np.ndarray:
    """log(predicted / measured) of runs whose pipelines are laid out at these values."""
    pairs = [(float(seconds(c, values)), c.run.measured_seconds) for c in laid_out(cases, values)]
    return np.array([np.log(predicted / measured) for predicted, measured in pairs])


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
    mine = [n for n in values if parts_of(n)[0] in case.felt]
    columns: dict[str, np.ndarray] = {}
    steps = {}
    for i, name in enumerate(mine):
        kind = kind_of(name)
        step = STEP * kind.scale * (1 if values[name] + STEP * kind.scale <= kind.most else -1)
        columns[name] = np.full(len(mine) + 1, float(values[name]))
        columns[name][i + 1] += step
        steps[name] = step / kind.scale
    predicted = np.broadcast_to(seconds(case, columns), len(mine) + 1)
    logs = np.log(predicted / case.run.measured_seconds)
    slopes = {n: float(logs[i + 1] - logs[0]) / steps[n] for i, n in enumerate(mine)}
    return float(logs[0]), slopes


def _priced(case: Case, values: Values) -> PricedStep:
    def load(name: str) -> Stack:
        return stack_with(name, values)

    chip = chip_with(case.run.piece.chip, values)
    stack = fused(load(case.run.stack), case.run.plan, load)
    return _on(case, chip, as_chosen(stack, case.run.plan, case.run.piece.chip))


def _on(case: Case, chip: Chip, stack: Stack) -> PricedStep:
    shape = plan_shape(case.run.plan, case.run.cfg)
    return price_step(case.run.cfg, shape, case.counted, chip, case.placement, stack)
