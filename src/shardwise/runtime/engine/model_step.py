"""One step of a model on paged caches: D rows that decode and T tokens of prompts, in one program.

    tokens [D + T] -> layers, writing and reading pages -> the rows that emit -> logits -> tokens

Where guesses are checked, each row that decodes has K more tokens, and emits those of them that it
would have chosen itself, and one more. A token is chosen by noise of its seed and its place alone
(`sampling.py`), so what comes out is, token for token, what comes out without guesses; a guess
holds as often as the model's distribution says. A draft model draws its guesses by the same noise,
which makes them hold as often as the two distributions can agree on without talking (Daliri et al.,
arXiv 2408.07978, Gumbel sampling).

The state stays on the device and is donated: the pages, and the last token of every slot, so that
the next step can be given before this one's tokens are known. One slot more than the batch takes
what padding emits. A program of `steps` decoding steps is a loop of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import ModelConfig
from shardwise.runtime.attention.paged import NOWHERE, Paging, Reader
from shardwise.runtime.call import Call
from shardwise.runtime.engine.sampling import (
    LOWEST,
    TOKEN_ALONE,
    Choices,
    RowSettings,
    choose,
    report,
    report_where,
)
from shardwise.runtime.engine.server_layout import PLACES, ServerLayout
from shardwise.runtime.engine.step_batch import NO_GUESS, ON_DEVICE
from shardwise.runtime.model import call_of, embed, head
from shardwise.runtime.options import Options
from shardwise.runtime.paged_cache import Pages
from shardwise.runtime.sharding import platform_of
from shardwise.runtime.stack import run_stack


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgram:
    """What a program of a step is compiled for, beside its shapes: the model and how it is run, on
    the mesh of a `layout`; what its rows ask for and how many `steps` it makes (more than one only
    without prompts). `tables` says which table each layer group goes by, whose pages hold
    `page_size` tokens. A `draft` model has its parameters beside those of the model, its layer
    groups behind the model's."""

    cfg: ModelConfig
    options: Options
    tables: tuple[int, ...]
    page_size: int
    layout: ServerLayout | None = None
    draft: ModelConfig | None = None
    choices: Choices = TOKEN_ALONE
    steps: int = 1

    @property
    def pools(self) -> int:
        """How many pools of pages the step's rows are of."""
        return 1 if self.layout is None else self.layout.pool_count

    @property
    def drafting(self) -> "StepProgram | None":
        """That of the draft model, which runs on one device."""
        if self.draft is None:
            return None
        tables = self.tables[len(self.cfg.groups) :]
        return replace(self, cfg=self.draft, tables=tables, layout=None, draft=None)

    @property
    def platform(self) -> str:
        """cpu, gpu or tpu, here or not."""
        return jax.default_backend() if self.layout is None else platform_of(self.layout.mesh)

    def by_rows(self, logits_RV: jax.Array) -> jax.Array:
        """Logits of which each device has some rows, of the model's own vocabulary."""
        if self.layout is None:
            return logits_RV
        return self.layout.by_rows(logits_RV)[:, : self.cfg.vocabulary]

    def logits(self, params: Mapping[str, Any], x_1RD: jax.Array, call: Call) -> jax.Array:
        """Logits [R, V] in float32; V may have more columns, of tokens that cannot come."""
        logits_RV = head(params, x_1RD, self.cfg, call, padded=True)[0].astype(jnp.float32)
        if logits_RV.shape[1] == self.cfg.vocabulary:
            return logits_RV
        places_RV = lax.broadcasted_iota(jnp.int32, logits_RV.shape, 1)
        return jnp.where(places_RV < self.cfg.vocabulary, logits_RV, LOWEST)

    def paging(self, inputs: "StepInputs", each: int) -> tuple[Paging, ...]:
        """Where a step's sequences lie, for each layer group."""
        over = (None, None) if self.layout is None else (self.layout.over, PLACES)
        reader = READERS.get(self.platform, "loop")
        by_group = [
            Paging(table_DM, table_CM, inputs.starts_C, self.page_size, *over, each, reader)
            for table_DM, table_CM in zip(inputs.table_GDM, inputs.table_GCM, strict=True)
        ]
        return tuple(by_group[group] for group in self.tables[: len(self.cfg.groups)])


@lru_cache(maxsize=256)
def jitted_step(program: StepProgram) -> Callable[..., Any]:
    """`model_step` of a program, for all executors of a model; the state is donated."""
    options = COMPILER_OPTIONS.get(program.platform)
    return jax.jit(partial(model_step, program), donate_argnums=1, compiler_options=options)


READERS: Mapping[str, Reader] = {"tpu": "kernel", "gpu": "triton"}
"""Who reads pages, by platform; elsewhere a loop of XLA's does."""

COMPILER_OPTIONS: Mapping[str, dict[str, Any]] = {
    "tpu": {
        "xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000,
        "xla_tpu_control_large_2nd_minor_layout_for_x16": False,
    }
}
"""By platform. A step's products have few rows: cut into chains of permutes, as libtpu does from
some size on, each permute costs its latency and weights are copied for it; and tpu7x would copy the
16-bit weights of all layers into tiles of 16 rows in every step (docs/lab/log.md)."""


class StepState(NamedTuple):
    """What stays on the device between steps."""

    pages: Pages
    last_S: jax.Array


class StepInputs(NamedTuple):
    """What the host sends. Rows that decode: their slots, cached tokens (NOWHERE: padding),
    tokens (ON_DEVICE: the slot's last), K guesses of the next ones (NO_GUESS: none from here
    on), tables. Prompts: tokens, positions (NOWHERE: padding) and targets (the token after each,
    for their logprobs), tables of their blocks and where their chunks begin; where in T the last
    tokens of E chunks are, and their slots. Tables are of each group of layers that keep the
    same tokens. `rows` are settings of D + E rows. D and T hold as many rows of each pool, one
    pool after the other; tables name its own pages."""

    slots_D: Any
    cached_D: Any
    tokens_D: Any
    guesses_DK: Any
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
    """Tokens [steps, R], and where asked for the logprobs of these and of the prompts' targets.
    Where guesses are checked they are [1 + K, R], of which a row emits the first `counts_R`."""

    tokens: jax.Array
    counts_R: jax.Array | None = None
    logprobs: tuple[jax.Array, ...] = ()
    prompts: tuple[jax.Array, ...] = ()


def model_step(
    program: StepProgram, params: Mapping[str, Any], state: StepState, inputs: StepInputs
) -> tuple[StepState, StepOutputs]:
    """Run the step. Padding is computed and changes nothing."""
    if program.layout is not None:
        prompts = bool(inputs.tokens_T.shape[0])
        options = program.layout.options(program.options, prompts=prompts)
        program = replace(program, options=options)
    count, guessed = len(program.cfg.groups), ()
    if program.drafting is not None:
        params, others = params["model"], params["draft"]
        guessed, inputs = _guess(program.drafting, others, state, state.pages[count:], inputs)
        state = state._replace(pages=state.pages[:count])
    once = partial(_once, program, params)
    if program.steps == 1:
        state, outputs = once(state, inputs)
        return state._replace(pages=(*state.pages, *guessed)), outputs

    def step(carry: tuple[StepState, Any, Any], _: None) -> Any:
        state, cached_D, tokens_D = carry
        now = inputs._replace(cached_D=cached_D, tokens_D=tokens_D)
        state, outputs = once(state, now)
        cached_D = jnp.where(cached_D == NOWHERE, NOWHERE, cached_D + 1)
        return (state, cached_D, jnp.full_like(tokens_D, ON_DEVICE)), outputs

    start = (state, inputs.cached_D, inputs.tokens_D)
    (state, _, _), outputs = lax.scan(step, start, None, length=program.steps)
    joined = jax.tree.map(lambda x: x.reshape(program.steps, *x.shape[2:]), outputs)
    return state, joined


def _once(
    program: StepProgram, params: Mapping[str, Any], state: StepState, inputs: StepInputs
) -> tuple[StepState, StepOutputs]:
    rows = tokens_of(program, state.last_S, inputs)
    # On a mesh all tokens go on, as they are laid out by pool; for their logprobs, too.
    alone = program.layout is None and not program.choices.prompts and len(inputs.tokens_T)
    given = inputs, rows.tokens_X, rows.positions_X, rows.each, rows.rows_R if alone else None
    x_1XD, pages, call = _layers(program, params, state.pages, *given)
    x_1RD = x_1XD if alone else x_1XD[:, rows.rows_R]
    last_S, outputs = emitted(program, params, state.last_S, inputs, rows, call, x_1XD, x_1RD)
    state = StepState(pages, last_S)
    layout = program.layout
    if layout is not None:
        state = lax.with_sharding_constraint(state, layout.state_shardings(program.cfg, state))
        outputs = lax.with_sharding_constraint(outputs, layout.sharding())
    return state, outputs


class TokenRows(NamedTuple):
    """The X tokens of a step, pool by pool, with their positions; which of them emit, which are of
    prompts, and how many each row that decodes has."""

    tokens_X: jax.Array
    positions_X: jax.Array
    rows_R: jax.Array
    at_T: jax.Array
    each: int


def tokens_of(program: StepProgram, last_S: jax.Array, inputs: StepInputs) -> TokenRows:
    """What a step computes, of what its slots emitted last."""
    pools = program.pools
    own_D = jnp.where(inputs.tokens_D == ON_DEVICE, last_S[inputs.slots_D], inputs.tokens_D)
    tokens_DK1, positions_DK1 = _with_guesses(own_D, inputs)
    D, each = tokens_DK1.shape
    tokens_X = _by_pool(pools, tokens_DK1, inputs.tokens_T)
    at_X = jnp.arange(tokens_X.shape[0]).reshape(pools, -1)
    first = D * each // pools
    at_T = at_X[:, first:].reshape(-1)
    return TokenRows(
        tokens_X=tokens_X,
        positions_X=_by_pool(pools, positions_DK1, inputs.positions_T),
        rows_R=jnp.concatenate((at_X[:, :first].reshape(-1), at_T[inputs.ends_E])),
        at_T=at_T,
        each=each,
    )


def emitted(
    program: StepProgram,
    params: Mapping[str, Any],
    last_S: jax.Array,
    inputs: StepInputs,
    rows: TokenRows,
    call: Call,
    x_1XD: jax.Array,
    x_1RD: jax.Array,
) -> tuple[jax.Array, StepOutputs]:
    """What the rows emit, and each slot's last token, of what the layers made of X and R tokens."""
    D, each = len(inputs.tokens_D), rows.each
    settings = jax.tree.map(lambda x: _repeated(x, D, each), inputs.rows)
    after_R = rows.positions_X[rows.rows_R] + 1
    chosen_R, reported = chosen(program, params, x_1RD, after_R, settings, call)
    prompts = ()
    if program.choices.prompts:
        logits_TV = program.logits(params, x_1XD[:, rows.at_T], call)
        prompts = report(logits_TV, inputs.targets_T)
    tokens_KR, *reported = (_by_row(x, D, each) for x in (chosen_R, *reported))
    counts_R, last_R = None, tokens_KR[0]
    if each > 1:
        held_D = _held_up(tokens_KR[:, :D].T, inputs)
        counts_R = jnp.concatenate((held_D, jnp.ones_like(inputs.slots_E)))
        last_R = jnp.take_along_axis(tokens_KR, counts_R[None] - 1, axis=0)[0]
    slots_R = jnp.concatenate((inputs.slots_D, inputs.slots_E))
    outputs = StepOutputs(tokens_KR, counts_R, tuple(reported), prompts)
    return last_S.at[slots_R].set(last_R), outputs


def chosen(
    program: StepProgram,
    params: Mapping[str, Any],
    x_1RD: jax.Array,
    after_R: jax.Array,
    settings: RowSettings,
    call: Call,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """The token of each row, which comes `after_R` others, and what is reported of it."""
    logits_RV = program.logits(params, x_1RD, call)
    chosen_R = choose(logits_RV, after_R, settings, program.choices, program.by_rows)
    if not program.choices.every:
        return chosen_R, ()
    return chosen_R, report_where(settings.reported_R.any(), logits_RV, chosen_R)


def _layers(
    program: StepProgram,
    params: Mapping[str, Any],
    cache: Pages,
    inputs: StepInputs,
    tokens_X: jax.Array,
    positions_X: jax.Array,
    each: int = 1,
    wanted: jax.Array | None = None,
) -> tuple[jax.Array, Pages, Call]:
    """What the layers make of a step's tokens, of which each row that decodes has `each`; of the
    `wanted` ones, where these are given."""
    cfg, paging = program.cfg, program.paging(inputs, each)
    call = call_of(tokens_X[None], cfg, program.options, positions_X[None])
    x_1XD = embed(params, tokens_X[None], cfg, call)
    x_1XD, pages = run_stack(
        params["layers"], x_1XD, cfg, call, cache, paging=paging, wanted=wanted
    )
    assert pages is not None
    return x_1XD, pages, call


# Guesses.


def _guess(
    program: StepProgram,
    params: Mapping[str, Any],
    state: StepState,
    cache: Pages,
    inputs: StepInputs,
) -> tuple[Pages, StepInputs]:
    """Let a draft model run over the prompts and guess the next tokens of each row, one after the
    other; it runs over its last guess, too, so that all is cached that may hold."""
    own_D = jnp.where(inputs.tokens_D == ON_DEVICE, state.last_S[inputs.slots_D], inputs.tokens_D)
    settings = jax.tree.map(lambda x: x[: own_D.shape[0]], inputs.rows)
    rows = inputs._replace(table_GCM=inputs.table_GCM[:, :0], starts_C=inputs.starts_C[:0])
    run = partial(_layers, program, params)
    if len(inputs.tokens_T):
        prompts = inputs._replace(table_GDM=inputs.table_GDM[:, :0])
        _, cache, _ = run(cache, prompts, inputs.tokens_T, inputs.positions_T)
    if not len(own_D):
        return cache, inputs

    def step(carry: tuple[Pages, jax.Array], ahead: jax.Array) -> Any:
        cache, tokens_D = carry
        places_D = jnp.where(inputs.cached_D == NOWHERE, NOWHERE, inputs.cached_D + ahead)
        x_1DD, cache, call = run(cache, rows, tokens_D, places_D)
        logits_DV = program.logits(params, x_1DD, call)
        next_D = choose(logits_DV, places_D + 1, settings, TOKEN_ALONE)
        return (cache, next_D), next_D

    K = inputs.guesses_DK.shape[1]
    (cache, _), guesses_KD = lax.scan(step, (cache, own_D), jnp.arange(K + 1, dtype=jnp.int32))
    wanted_DK = jnp.where(inputs.guesses_DK == NO_GUESS, NO_GUESS, guesses_KD[:K].T)
    return cache, inputs._replace(guesses_DK=wanted_DK)


def _with_guesses(own_D: jax.Array, inputs: StepInputs) -> tuple[jax.Array, jax.Array]:
    """The tokens of each row that decodes and their positions, [D, 1 + K]."""
    guesses_DK = inputs.guesses_DK
    ahead_K = 1 + jnp.arange(guesses_DK.shape[1], dtype=jnp.int32)
    there_DK = (guesses_DK != NO_GUESS) & (inputs.cached_D[:, None] != NOWHERE)
    positions_DK = jnp.where(there_DK, inputs.cached_D[:, None] + ahead_K[None], NOWHERE)
    tokens = jnp.concatenate((own_D[:, None], jnp.maximum(guesses_DK, 0)), axis=1)
    return tokens, jnp.concatenate((inputs.cached_D[:, None], positions_DK), axis=1)


def _held_up(tokens_DK1: jax.Array, inputs: StepInputs) -> jax.Array:
    """How many tokens each row emits: those before the first guess that did not hold, and its own
    after them."""
    held_DK = tokens_DK1[:, :-1] == inputs.guesses_DK
    return 1 + jnp.cumprod(held_DK.astype(jnp.int32), axis=1).sum(1)


def _repeated(x: jax.Array, D: int, each: int) -> jax.Array:
    """Settings of D + E rows for each token of the first D."""
    return x if each == 1 else jnp.concatenate((jnp.repeat(x[:D], each, axis=0), x[D:]))


def _by_row(x: jax.Array, D: int, each: int) -> jax.Array:
    """[D * each + E, ...] as [each, D + E, ...]; the last E have one token, which stands first."""
    if each == 1:
        return x[None]
    first = jnp.swapaxes(x[: D * each].reshape(D, each, *x.shape[1:]), 0, 1)
    rest = jnp.zeros((each, x.shape[0] - D * each, *x.shape[1:]), x.dtype).at[0].set(x[D * each :])
    return jnp.concatenate((first, rest), axis=1)


def _by_pool(pools: int, rows_D: jax.Array, rows_T: jax.Array) -> jax.Array:
    """Each pool's rows that decode, then its tokens of prompts."""
    parts = rows_D.reshape(pools, -1), rows_T.reshape(pools, -1)
    return jnp.concatenate(parts, axis=1).reshape(-1)
