"""The optimizer of a plan, in optax: schedule, decay, master weights, dtypes of the state.

The inner optimizer always sees f32 (f64 for f64): gradients, parameters and state are widened
before and stored in the plan's dtypes after. With a master copy it works on that one, and the
parameters follow as its rounding; without one they are rounded themselves. All works tensor by
tensor, by the names at the end of the tree's paths, so that it serves the trees of pipeline stages
too; clipping by the global norm does not, and is the step's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from shardwise.errors import BadRequest, check_known
from shardwise.models import ModelConfig, Parameter
from shardwise.plans import TrainPlan
from shardwise.plans.optimizers import Optimizer, optimizer_row
from shardwise.runtime.init import is_buffer, stored_rows
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.trainer.adafactor import Sides, scale_by_adafactor
from shardwise.runtime.trainer.adam8bit import scale_by_adam8bit

Schedule = Literal["cosine", "linear", "constant"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
FLOOR = 0.1
"""Where cosine and linear schedules end, as a share of the peak."""
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Muon's iterations (Jordan 2024, "Muon"), optax's default too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the plan leaves open: the rate, how it runs over `steps`, clipping and decay.

    `clip` bounds the global norm of the gradient, 0 leaves it alone. `decay` is AdamW's, on
    matrices and tables alone.
    """

    steps: int
    lr: float = 1e-3
    warmup: int = 0
    schedule: Schedule = "cosine"
    clip: float = 1.0
    decay: float = 0.1
    b1: float = 0.9
    b2: float = 0.95

    def __post_init__(self) -> None:
        check_known("schedule", self.schedule, SCHEDULES)
        if self.steps < 1:
            raise BadRequest(f"--steps is {self.steps}; it must be at least 1")
        if not 0 <= self.warmup <= self.steps:
            raise BadRequest(f"--warmup {self.warmup} is outside 0..{self.steps}, up to --steps")
        for name in ("lr", "clip", "decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise BadRequest(f"--{name} is {getattr(self, name)}; it must be 0 or more")


def rate_of(s: Settings) -> optax.Schedule:
    """Learning rate by step from 0: linear up over `warmup`, then down to a tenth of the peak.

    >>> rate = rate_of(Settings(steps=110, lr=1.0, warmup=10, schedule="linear"))
    >>> [round(float(rate(step)), 3) for step in (0, 9, 10, 60, 110)]
    [0.1, 1.0, 1.0, 0.55, 0.1]
    """
    after = max(1, s.steps - s.warmup)

    def rate(step: Any) -> Any:
        t = jnp.asarray(step, jnp.float32)
        up = (t + 1) / max(1, s.warmup)
        done = jnp.clip((t - s.warmup) / after, 0, 1)
        if s.schedule == "cosine":
            down = FLOOR + (1 - FLOOR) * (1 + jnp.cos(jnp.pi * done)) / 2
        elif s.schedule == "linear":
            down = 1 - (1 - FLOOR) * done
        else:
            down = jnp.ones_like(t)
        return s.lr * jnp.where(t < s.warmup, jnp.minimum(up, 1), down)

    return rate


def optimizer_of(plan: TrainPlan, cfg: ModelConfig, s: Settings) -> optax.GradientTransformation:
    """The plan's optimizer without clipping: updates for `apply_updates`, state in its dtypes."""
    return stored(_MADE[plan.optimizer](cfg, s), plan)


def _rated(
    scaled: optax.GradientTransformation, cfg: ModelConfig, s: Settings
) -> optax.GradientTransformation:
    decay = optax.add_decayed_weights(s.decay, mask=partial(decayed, cfg))
    return optax.chain(scaled, decay, optax.scale_by_learning_rate(rate_of(s)))


def _muon(cfg: ModelConfig, s: Settings) -> optax.GradientTransformation:
    """optax's, without its coefficients: they are no state to keep, nor to round to its dtype."""
    inner = contrib.muon(
        rate_of(s),
        NEWTON_SCHULZ,
        adam_b1=s.b1,
        adam_b2=s.b2,
        weight_decay=s.decay,
        weight_decay_mask=partial(decayed, cfg),
        adam_weight_decay=s.decay,
        consistent_rms=0.2,  # the rates of Adam serve (Moonlight, arXiv:2502.16982)
        muon_weight_dimension_numbers=partial(matrices, cfg),
    )

    def with_coefficients(state: Any, values: Any) -> Any:
        return jax.tree.map(
            lambda x: x._replace(ns_coeffs=values) if isinstance(x, contrib.MuonState) else x,
            state,
            is_leaf=lambda x: isinstance(x, contrib.MuonState),
        )

    def init(params: Any) -> Any:
        return with_coefficients(inner.init(params), ())

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        state = with_coefficients(state, jnp.asarray(NEWTON_SCHULZ, jnp.float32))
        updates, state = inner.update(grads, state, params)
        return updates, with_coefficients(state, ())

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


_MADE: Mapping[Optimizer, Callable[[ModelConfig, Settings], optax.GradientTransformation]] = {
    "adam": lambda cfg, s: _rated(optax.scale_by_adam(b1=s.b1, b2=s.b2), cfg, s),
    "adam8bit": lambda cfg, s: _rated(scale_by_adam8bit(s.b1, s.b2), cfg, s),
    "adafactor": lambda cfg, s: _rated(scale_by_adafactor(partial(sides, cfg)), cfg, s),
    "sgd": lambda cfg, s: _rated(optax.identity(), cfg, s),
    "muon": _muon,
}


def decayed(cfg: ModelConfig, tree: Any) -> Any:
    """Which leaves decay: matrices and tables, no norms, biases or buffers."""
    return _by_row(cfg, lambda row: row.role in ("matmul", "lookup"), tree)


def matrices(cfg: ModelConfig, tree: Any) -> Any:
    """Muon's view of each leaf: what it sums over and yields; the others go to Adam.

    Layers and experts are matrices of their own; the head and the tables belong to Adam (Jordan
    2024, "Muon").
    """
    return _by_row(cfg, _matrix, tree)


def sides(cfg: ModelConfig, tree: Any) -> Any:
    """Adafactor's view of each leaf: the dims that are rows and columns of a matrix; of a table the
    first and the others."""
    return _by_row(cfg, _sides, tree)


def _by_row(cfg: ModelConfig, value: Callable[[Parameter], Any], tree: Any) -> Any:
    """A value of its row in the place of each leaf; rows of one name are alike in every group."""
    rows = {row.name: row for row in stored_rows(cfg)}
    return jax.tree_util.tree_map_with_path(lambda path, _: value(rows[path[-1].key]), tree)


def _matrix(row: Parameter) -> contrib.MuonDimensionNumbers | None:
    if row.role != "matmul" or row.group is None:
        return None
    at = {letter: i + 1 for i, (letter, _) in enumerate(row.dims)}
    sums = tuple(at[x] for x in at if x in row.contracts)
    gives = tuple(at[x] for x in at if x not in row.contracts + row.batch)
    return contrib.MuonDimensionNumbers(sums, gives) if sums and gives else None


def _sides(row: Parameter) -> Sides:
    first = 0 if row.group is None else 1
    letters = [letter for letter, _ in row.dims]
    if row.role == "matmul":
        into = [x in row.contracts for x in letters]
        mine = [x not in row.batch for x in letters]
    else:
        into = [i == 0 for i, _ in enumerate(letters)]
        mine = [True for _ in letters]
    rows, columns = (
        tuple(first + i for i, x in enumerate(letters) if mine[i] and into[i] is side)
        for side in (True, False)
    )
    lengths = [prod(row.dims[i - first][1] for i in side) for side in (rows, columns)]
    return (rows, columns) if min(lengths) > 1 else None


def stored(inner: optax.GradientTransformation, plan: TrainPlan) -> optax.GradientTransformation:
    """An optimizer with its state in the plan's dtypes and, where the plan has one, a master copy.

    State: {"master": tree or (), "inner": state of the inner optimizer}. Updates are wide.
    """
    dtypes = plan.dtypes
    wide = jnp.float64 if dtypes.param == "f64" else jnp.float32
    param = dtype_of(dtypes.param)
    own = optimizer_row(plan.optimizer).own_dtypes
    moments = None if own else dtype_of(dtypes.moments)
    master = None if dtypes.master == "none" else dtype_of(dtypes.master)

    def kept_as(state: Any) -> Any:
        return state if moments is None else cast(state, moments)

    def init(params: Any) -> Any:
        kept = () if master is None else cast(params, master)
        with jax.numpy_dtype_promotion("standard"):
            made = inner.init(cast(params, wide))
        return {"master": kept, "inner": kept_as(made)}

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        base = cast(params if master is None else state["master"], wide)
        with jax.numpy_dtype_promotion("standard"):  # optax counts on it: b1**count
            updates, after = inner.update(cast(grads, wide), cast(state["inner"], wide), base)
        updates = jax.tree_util.tree_map_with_path(
            lambda path, u: jnp.zeros_like(u) if is_buffer(path) else u, updates
        )
        after = kept_as(after)
        if master is None:
            return updates, {"master": (), "inner": after}
        whole = jax.tree.map(lambda b, u: (b + u).astype(master), base, updates)
        # The parameters are to become the rounded master: the difference says so.
        moves = jax.tree.map(
            lambda m, p: m.astype(param).astype(wide) - p.astype(wide), whole, params
        )
        return moves, {"master": whole, "inner": after}

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def cast(tree: Any, dtype: Any) -> Any:
    """The floating arrays of a tree in another dtype; counters and scalars stay."""

    def one(x: Any) -> Any:
        floating = jnp.issubdtype(jnp.result_type(x), jnp.floating) and jnp.ndim(x)
        return x.astype(dtype) if floating else x

    return jax.tree.map(one, tree)


def apply_updates(params: Any, updates: Any) -> Any:
    """Parameters and wide updates, added wide and rounded to the parameters' dtype."""
    return jax.tree.map(lambda p, u: (p.astype(u.dtype) + u).astype(p.dtype), params, updates)
