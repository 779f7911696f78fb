"""What the model of a step is held against: one constant MFU per compute dtype.

It is fitted and left out as the constants are: Huber's loss, an effect per group, a dtype's drawn
from a common one. A step then takes the model's FLOPs over the chips' peak, over the MFU.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fit.cases import Case
from fit.folds import alike
from fit.hierarchy import Levels, Penalty
from fit.kin import left_with, shares
from fit.solve import Linear, solved

SPREAD = 0.5
"""One sigma, in log, of a dtype's MFU around the common one."""
_WIDE = 10.0


def constant_mfu(cases: Sequence[Case]) -> dict[str, float]:
    """The MFU of every compute dtype."""
    linear = _linear([c for c in cases if c.run.fitted])
    return dict(zip(linear.names, np.exp(_solved(linear)), strict=True))


def baseline_logs(cases: Sequence[Case]) -> np.ndarray:
    """log(predicted / measured) of every run at the MFU that those of the other folds have that
    constants are fitted on."""
    linear = _linear(cases)
    fitted = np.array([c.run.fitted for c in cases])
    logs = np.empty(len(cases))
    for rows in alike(cases):
        first = cases[rows[0]].run
        left = np.array([left_with(first, c.run) for c in cases])
        chosen = np.zeros(len(cases), bool)
        chosen[rows] = True
        logs[rows] = linear.rows(chosen).at(_solved(linear.rows(fitted & ~left)))
    return logs


def _linear(cases: Sequence[Case]) -> Linear:
    names = tuple(dict.fromkeys(c.run.plan.dtypes.compute for c in cases))
    order = {g: i for i, g in enumerate(dict.fromkeys(c.run.group for c in cases))}
    at = [names.index(c.run.plan.dtypes.compute) for c in cases]
    slopes = np.zeros((len(cases), len(names)))
    slopes[range(len(cases)), at] = -1.0
    return Linear(
        names=names,
        point=np.zeros(len(names)),
        residuals=np.log([c.full_rate / c.run.measured_seconds for c in cases]),
        slopes=slopes,
        groups=np.array([order[c.run.group] for c in cases]),
        shares=shares([c.run for c in cases]),
    )


def _solved(linear: Linear) -> np.ndarray:
    n = len(linear.names)
    rows = np.hstack([np.eye(n), -np.ones((n, 1))]) / SPREAD
    matrix = rows.T @ rows
    matrix[n, n] += _WIDE**-2
    penalty = Penalty(columns=(*linear.names, "common"), matrix=matrix, target=np.zeros(n + 1))
    bounds = (np.full(n, -_WIDE), np.zeros(n))
    return solved(linear, penalty, Levels(), bounds).values


def mfus_text(found: Mapping[str, float]) -> str:
    """bf16 44.1 %, fp8 35.0 %."""
    return ", ".join(f"{dtype} {100 * mfu:.1f} %" for dtype, mfu in found.items())
