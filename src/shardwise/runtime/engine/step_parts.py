"""A step as programs of its parts, one after the other: its beginning, each layer, its end.

    tokens [X] -> x [1, X, D] -> each layer, by its number -> x of the R rows that emit -> tokens

Layers of one kind are one program, and so are the ends of steps of few shapes (`few_rows`), so what
is compiled does not grow with the layers. A step takes longer by the time of as many calls. A
server's first answers come through these, until the program of the whole step (`model_step.py`) is
there: the numbers are the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.models import ModelConfig
from shardwise.models.numerics import Rope
from shardwise.models.runnable import numerics_of
from shardwise.plans.served_steps import MIXED_ROWS, power
from shardwise.runtime.call import Call, Past
from shardwise.runtime.engine.model_step import (
    COMPILER_OPTIONS,
    StepInputs,
    StepOutputs,
    StepProgram,
    StepState,
    chosen,
    emitted,
    tokens_of,
)
from shardwise.runtime.engine.row_settings import RowSettings
from shardwise.runtime.engine.sampling import TOKEN_ALONE
from shardwise.runtime.layer import run_layer
from shardwise.runtime.model import call_of, embed

FEWEST = 6
"""Layers of a kind from which on parts are compiled much sooner than the whole: the two ends, with
the sampling of tokens, take as long as two or three layers."""


def in_parts(cfg: ModelConfig) -> bool:
    """Whether a model has so many layers of each kind that their program is worth having."""
    return cfg.layers >= FEWEST * len({kind[:2] for kind in _kinds(cfg)})


def few_rows(rows: int) -> int:
    """R of a step whose end is a program of its own."""
    return power(rows, MIXED_ROWS) if rows <= MIXED_ROWS else power(rows, MIXED_ROWS**2)


def run_in_parts(
    program: StepProgram, params: Mapping[str, Any], state: StepState, inputs: StepInputs
) -> tuple[StepState, StepOutputs]:
    """`model_step` on one device, of one step, with parameters whose layers are apart. Outputs may
    have more rows, at the end."""
    outside = {name: value for name, value in params.items() if name != "layers"}
    whole = bool(program.choices.prompts or inputs.guesses_DK.shape[1])
    R = few_rows(len(inputs.slots_D) + len(inputs.slots_E))
    rows = inputs.rows if whole else _padded(inputs.rows, R)
    where, settings = jax.device_put((inputs._replace(rows=None), rows))
    plain, pages = replace(program, choices=TOKEN_ALONE), list(state.pages)
    x_1XD, positions_X = _jitted(_begin, plain)(outside, state.last_S, where)
    for group, rope, index in _kinds(program.cfg):
        layer = _jitted(_layer, plain, group, rope)
        given = params["layers"][group][index], np.int32(index), positions_X, where
        x_1XD, pages[group] = layer(x_1XD, pages[group], *given)
    if whole:
        end = _jitted(_end, program)
        last_S, outputs = end(x_1XD, state.last_S, outside, where, settings)
    else:
        given = _jitted(_emitting, plain, R)(x_1XD, state.last_S, where)
        last_S, outputs = _jitted(_choice, program)(state.last_S, outside, *given, settings)
    return StepState(tuple(pages), last_S), outputs


def _padded(rows: RowSettings, R: int) -> RowSettings:
    """Settings of R rows, the last ones those of the last."""

    def padded(x: np.ndarray) -> np.ndarray:
        return np.pad(x, [(0, R - len(x))] + [(0, 0)] * (x.ndim - 1), mode="edge")

    return jax.tree.map(padded, rows)


@lru_cache(maxsize=64)
def _kinds(cfg: ModelConfig) -> tuple[tuple[int, Rope | None, int], ...]:
    """Of each layer its group, its rotation, and its number in the group."""
    numerics, seen, found = numerics_of(cfg), dict.fromkeys(range(len(cfg.groups)), 0), []
    for layer, group in enumerate(cfg.pattern):
        found.append((group, numerics.rope(layer), seen[group]))
        seen[group] += 1
    return tuple(found)


@lru_cache(maxsize=1024)
def _jitted(part: Callable[..., Any], program: StepProgram, *kind: Any) -> Callable[..., Any]:
    """A part, which may write over what it is given to change."""
    changed = CHANGED.get(part, ())
    options = COMPILER_OPTIONS.get(program.platform)
    return jax.jit(partial(part, program, *kind), donate_argnums=changed, compiler_options=options)


def _begin(
    program: StepProgram, outside: Mapping[str, Any], last_S: jax.Array, inputs: StepInputs
) -> tuple[jax.Array, jax.Array]:
    rows = tokens_of(program, last_S, inputs)
    call = _call(program, rows.positions_X)
    return embed(outside, rows.tokens_X[None], program.cfg, call), rows.positions_X


def _layer(
    program: StepProgram,
    group: int,
    rope: Rope | None,
    x_1XD: jax.Array,
    arrays: dict[str, jax.Array],
    weights: Mapping[str, Any],
    index: Any,
    positions_X: jax.Array,
    inputs: StepInputs,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Layer `index` of a group, which writes and reads its pages."""
    call = _call(program, positions_X)
    paging = program.paging(inputs, 1 + inputs.guesses_DK.shape[1])[group]
    past = Past(arrays, index, False, paging=paging)
    used = call.options.use(group, weights)
    return run_layer(used, x_1XD, program.cfg.groups[group], rope, call, past)


def _end(
    program: StepProgram,
    x_1XD: jax.Array,
    last_S: jax.Array,
    outside: Mapping[str, Any],
    inputs: StepInputs,
    settings: RowSettings,
) -> tuple[jax.Array, StepOutputs]:
    """What the rows emit, with guesses and reports of prompts, and each slot's last token."""
    inputs, rows = inputs._replace(rows=settings), tokens_of(program, last_S, inputs)
    call, x_1RD = _call(program, rows.positions_X), x_1XD[:, rows.rows_R]
    return emitted(program, outside, last_S, inputs, rows, call, x_1XD, x_1RD)


def _emitting(
    program: StepProgram, R: int, x_1XD: jax.Array, last_S: jax.Array, inputs: StepInputs
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The rows that emit, after how many tokens, and their slots; with others to make R."""
    rows = tokens_of(program, last_S, inputs)
    slots_R = jnp.concatenate((inputs.slots_D, inputs.slots_E))
    more = R - len(slots_R)
    rows_R = jnp.pad(rows.rows_R, (0, more))
    slots_R = jnp.pad(slots_R, (0, more), constant_values=len(last_S) - 1)  # of padding
    return x_1XD[:, rows_R], rows.positions_X[rows_R] + 1, slots_R


def _choice(
    program: StepProgram,
    last_S: jax.Array,
    outside: Mapping[str, Any],
    x_1RD: jax.Array,
    after_R: jax.Array,
    slots_R: jax.Array,
    settings: RowSettings,
) -> tuple[jax.Array, StepOutputs]:
    """What the rows emit, and each slot's last token."""
    call = _call(program, after_R)
    chosen_R, reported = chosen(program, outside, x_1RD, after_R, settings, call)
    last_S = last_S.at[slots_R].set(chosen_R)
    return last_S, StepOutputs(chosen_R[None], None, tuple(x[None] for x in reported))


CHANGED: Mapping[Any, tuple[int, ...]] = {_layer: (0, 1), _end: (1,), _choice: (0,)}


def _call(program: StepProgram, positions_X: jax.Array) -> Call:
    positions_1X = positions_X[None]
    return call_of(positions_1X, program.cfg, program.options, positions_1X)
