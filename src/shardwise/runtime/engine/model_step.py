"""One step of a model on paged caches: D rows that decode and T tokens of prompts, in one program.

    tokens [D + T] -> layers, writing and reading pages -> the rows that emit -> logits -> tokens

The state stays on the device and is donated: the pages, and the last token of every slot, so that
the next step can be given before this one's tokens are known. One slot more than the batch takes
what padding emits. A program of `steps` decoding steps is a loop of them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import ModelConfig
from shardwise.runtime.attention.paged import NOWHERE, Paging
from shardwise.runtime.engine.sampling import Choices, RowSettings, choose, report
from shardwise.runtime.engine.server_layout import PLACES, ServerLayout
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
    that keep the same tokens. `rows` are settings of D + E rows. D and T hold as many rows of each
    pool, one pool after the other; tables name its own pages."""

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
    layout: ServerLayout | None = None,
) -> tuple[StepState, StepOutputs]:
    """Run the step (`steps` > 1 only without prompts). `tables` says which table each layer group
    goes by, whose pages hold `page_size` tokens. Padding is computed and changes nothing."""
    if layout is not None:
        options = layout.options(options, prompts=bool(inputs.tokens_T.shape[0]))
    once = partial(
        _once,
        params,
        cfg=cfg,
        options=options,
        choices=choices,
        tables=tables,
        page_size=page_size,
        layout=layout,
    )
    if steps == 1:
        return once(state, inputs)

    def step(carry: tuple[StepState, Any, Any], _: None) -> Any:
        state, cached_D, tokens_D = carry
        now = inputs._replace(cached_D=cached_D, tokens_D=tokens_D)
        state, outputs = once(state, now)
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
    *,
    cfg: ModelConfig,
    options: Options,
    choices: Choices,
    tables: tuple[int, ...],
    page_size: int,
    layout: ServerLayout | None,
) -> tuple[StepState, StepOutputs]:
    pools = 1 if layout is None else layout.pool_count
    own_D = jnp.where(inputs.tokens_D == ON_DEVICE, state.last_S[inputs.slots_D], inputs.tokens_D)
    tokens_X = _by_pool(pools, own_D, inputs.tokens_T)
    positions_X = _by_pool(pools, inputs.cached_D, inputs.positions_T)
    over = (None, None) if layout is None else (layout.over, PLACES)
    by_group = [
        Paging(table_DM, table_CM, inputs.starts_C, page_size, *over)
        for table_DM, table_CM in zip(inputs.table_GDM, inputs.table_GCM, strict=True)
    ]
    paging = tuple(by_group[group] for group in tables)
    call = call_of(tokens_X[None], cfg, options, positions_X[None])
    x_1XD = embed(params, tokens_X[None], cfg, call)
    x_1XD, pages = run_stack(params["layers"], x_1XD, cfg, call, state.pages, paging=paging)
    assert pages is not None
    at_X = jnp.arange(tokens_X.shape[0]).reshape(pools, -1)
    each = own_D.shape[0] // pools
    at_T = at_X[:, each:].reshape(-1)
    rows_R = jnp.concatenate((at_X[:, :each].reshape(-1), at_T[inputs.ends_E]))
    logits_RV = head(params, x_1XD[:, rows_R], cfg, call)[0].astype(jnp.float32)
    chosen_R = choose(logits_RV, positions_X[rows_R] + 1, inputs.rows, choices)
    slots_R = jnp.concatenate((inputs.slots_D, inputs.slots_E))
    reported = report(logits_RV, chosen_R) if choices.logprobs else ()
    prompts = ()
    if choices.prompts:
        logits_TV = head(params, x_1XD[:, at_T], cfg, call)[0].astype(jnp.float32)
        prompts = report(logits_TV, inputs.targets_T)
    state = StepState(pages, state.last_S.at[slots_R].set(chosen_R))
    outputs = StepOutputs(chosen_R[None], tuple(x[None] for x in reported), prompts)
    if layout is not None:
        state = lax.with_sharding_constraint(state, layout.state_shardings(cfg, state))
        outputs = lax.with_sharding_constraint(outputs, layout.sharding())
    return state, outputs


def _by_pool(pools: int, rows_D: jax.Array, rows_T: jax.Array) -> jax.Array:
    """Each pool's rows that decode, then its tokens of prompts."""
    parts = rows_D.reshape(pools, -1), rows_T.reshape(pools, -1)
    return jnp.concatenate(parts, axis=1).reshape(-1)
