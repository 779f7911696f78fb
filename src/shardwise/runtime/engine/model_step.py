"""One step of a model on paged caches: D rows that decode and T tokens of prompts, in one program.

    tokens [D + T] -> layers, writing and reading pages -> the rows that emit -> logits -> tokens

The state stays on the device and is donated: the pages, and the last token of every slot, so that
the next step can be given before this one's tokens are known. One slot more than the batch takes
what padding emits. A program of `steps` decoding steps is a loop of them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import ModelConfig
from shardwise.runtime.attention.paged import NOWHERE, Paging
from shardwise.runtime.engine.sampling import Choices, RowSettings, choose, report
from shardwise.runtime.engine.step_batch import ON_DEVICE
from shardwise.runtime.model import call_of, embed, head
from shardwise.runtime.options import Options
from shardwise.runtime.paged_cache import Pages
from shardwise.runtime.stack import run_stack


class StepState(NamedTuple):
    """What stays on the device between steps."""

    pages: Pages
    last_S: jax.Array


class StepInputs(NamedTuple):
    """What the host sends. Rows that decode: their slots, cached tokens (NOWHERE: padding), tokens
    (ON_DEVICE: the slot's last), tables. Prompts: tokens, positions (NOWHERE: padding) and targets
    (the token after each, for their logprobs), tables of their blocks and where their chunks begin;
    where in T the last tokens of E chunks are, and their slots. Tables are of each group of layers
    that keep the same tokens. `rows` are settings of D + E rows."""

    slots_D: Any
    cached_D: Any
    tokens_D: Any
    table_GDM: Any
    tokens_T: Any
    positions_T: Any
    targets_T: Any
    table_GCM: Any
    starts_C: Any
    ends_E: Any
    slots_E: Any
    rows: RowSettings


class StepOutputs(NamedTuple):
    """Tokens [steps, R], and where asked for the logprobs of these and of the prompts' targets."""

    tokens: jax.Array
    logprobs: tuple[jax.Array, ...] = ()
    prompts: tuple[jax.Array, ...] = ()


def model_step(
    params: Mapping[str, Any],
    state: StepState,
    inputs: StepInputs,
    *,
    cfg: ModelConfig,
    options: Options,
    choices: Choices,
    steps: int,
    tables: tuple[int, ...],
    page_size: int,
) -> tuple[StepState, StepOutputs]:
    """Run the step (`steps` > 1 only without prompts). `tables` says which table each layer group
    goes by, whose pages hold `page_size` tokens. Padding is computed and changes nothing."""
    if steps == 1:
        return _once(params, state, inputs, cfg, options, choices, tables, page_size)

    def step(carry: tuple[StepState, Any, Any], _: None) -> Any:
        state, cached_D, tokens_D = carry
        now = inputs._replace(cached_D=cached_D, tokens_D=tokens_D)
        state, outputs = _once(params, state, now, cfg, options, choices, tables, page_size)
        cached_D = jnp.where(cached_D == NOWHERE, NOWHERE, cached_D + 1)
        return (state, cached_D, jnp.full_like(tokens_D, ON_DEVICE)), outputs

    start = (state, inputs.cached_D, inputs.tokens_D)
    (state, _, _), outputs = lax.scan(step, start, None, length=steps)
    joined = jax.tree.map(lambda x: x.reshape(steps, *x.shape[2:]), outputs)
    return state, joined


def _once(
    params: Mapping[str, Any],
    state: StepState,
    inputs: StepInputs,
    cfg: ModelConfig,
    options: Options,
    choices: Choices,
    tables: tuple[int, ...],
    page_size: int,
) -> tuple[StepState, StepOutputs]:
    D = inputs.slots_D.shape[0]
    own_D = jnp.where(inputs.tokens_D == ON_DEVICE, state.last_S[inputs.slots_D], inputs.tokens_D)
    tokens_X = jnp.concatenate((own_D, inputs.tokens_T))
    positions_X = jnp.concatenate((inputs.cached_D, inputs.positions_T))
    by_group = [
        Paging(table_DM, table_CM, inputs.starts_C, page_size)
        for table_DM, table_CM in zip(inputs.table_GDM, inputs.table_GCM, strict=True)
    ]
    paging = tuple(by_group[group] for group in tables)
    call = call_of(tokens_X[None], cfg, options, positions_X[None])
    x_1XD = embed(params, tokens_X[None], cfg, call)
    x_1XD, pages = run_stack(params["layers"], x_1XD, cfg, call, state.pages, paging=paging)
    assert pages is not None
    rows_R = jnp.concatenate((jnp.arange(D), D + inputs.ends_E))
    logits_RV = head(params, x_1XD[:, rows_R], cfg, call)[0].astype(jnp.float32)
    chosen_R = choose(logits_RV, positions_X[rows_R] + 1, inputs.rows, choices)
    slots_R = jnp.concatenate((inputs.slots_D, inputs.slots_E))
    reported = report(logits_RV, chosen_R) if choices.logprobs else ()
    prompts = ()
    if choices.prompts:
        logits_TV = head(params, x_1XD[:, D:], cfg, call)[0].astype(jnp.float32)
        prompts = report(logits_TV, inputs.targets_T)
    state = StepState(pages, state.last_S.at[slots_R].set(chosen_R))
    outputs = StepOutputs(chosen_R[None], tuple(x[None] for x in reported), prompts)
    return state, outputs
