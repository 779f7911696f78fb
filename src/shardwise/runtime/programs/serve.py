"""Prefill and decode of a ServePlan as the engine runs them: its own jitted step, on the layout of
its server, with weights, pages and inputs that are shapes alone.

A decode step has the plan's sequences, all as long as they get; a step of prefill the last chunk of
a prompt in each pool of pages. Both take pages for their own sequences and no more.
"""

from collections import Counter
from functools import partial
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig, weight_dtype
from shardwise.models.kv import cache_groups
from shardwise.models.specs import RecurrentMixer
from shardwise.plans import ServePlan
from shardwise.plans.paged_kernel import KernelLaw, kernel_problem
from shardwise.plans.serve import CHECKPOINT, ENGINE_CACHES, ENGINE_WEIGHTS
from shardwise.plans.served_steps import prompt_tokens
from shardwise.runtime.attention.paged import paged_attention
from shardwise.runtime.cache_entry import CACHES
from shardwise.runtime.engine.cache_room import kept_groups
from shardwise.runtime.engine.model_executor import empty_state, tables_of
from shardwise.runtime.engine.model_step import COMPILER_OPTIONS, StepProgram, jitted_step
from shardwise.runtime.engine.server_layout import ServerLayout, layout_over, paged_layers
from shardwise.runtime.engine.step_shapes import StepShapes
from shardwise.runtime.init import Tree, padded_shape, rows_tree, stored_rows
from shardwise.runtime.options import Options
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.programs.program import AbstractProgram
from shardwise.runtime.quant import NARROW, quantise_params
from shardwise.runtime.sharding import platform_of
from shardwise.scheduling.forecast import pages_for


def serve_program(
    plan: ServePlan, cfg: ModelConfig, mesh: jax.sharding.Mesh, phase: str
) -> AbstractProgram:
    """(params, state, inputs) -> (state, outputs) of a prefill or decode step on the devices of a
    mesh; the state is donated. Raises BadRequest for dtypes that the engine does not keep."""
    layout = layout_over(cfg, plan.mesh, plan.kv_sharding, plan.batch, list(mesh.devices.flat))
    layout.check_pages(plan.scheduling.page_size)
    decodes = phase == "decode"
    length = plan.input_length + (plan.output_length if decodes else 0)
    groups, size = cache_groups(cfg, length), plan.scheduling.page_size
    program = StepProgram(
        cfg=cfg,
        options=Options(compute=plan.dtypes.compute, kernel=paged_attention, experts="ragged"),
        tables=tables_of(cfg, groups),
        page_size=size,
        layout=layout,
    )
    tokens = 0 if decodes else prompt_tokens(plan, layout.pool_count)
    shapes = StepShapes(
        pools=layout.pool_count,
        batch=ceil(plan.batch / layout.pool_count) if decodes else 1,
        budget=plan.prefill_chunk,
        groups=len(groups),
        table_width=pages_for(length, size),
    )
    pages = [shapes.slots * shapes.table_width]
    for kept in kept_groups(groups, shapes.batch, shapes.budget, size, prefix_cache=False):
        pages.append(kept.pages * shapes.pools)
    state: Any = jax.eval_shape(
        partial(empty_state, program, groups, pages, _cache_dtype(plan), shapes.slots + 1)
    )
    inputs = shapes.padding(shapes.most if decodes else 0, tokens)
    arguments = (
        abstract_weights(plan, cfg, layout),
        jax.tree.map(_lying, state, layout.state_shardings(cfg, state)),
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs),
    )
    return AbstractProgram(
        function=jitted_step(program),
        arguments=arguments,
        mesh=layout.mesh,
        notes=_notes(cfg, plan, layout),
        options=COMPILER_OPTIONS.get(program.platform, {}),
    )


def _notes(cfg: ModelConfig, plan: ServePlan, layout: ServerLayout) -> tuple[str, ...]:
    """Which layers read their pages by JAX's kernel and which by ours, and why."""
    laws = map(kernel_problem, paged_layers(cfg, _cache_dtype(plan), layout))
    found: dict[KernelLaw | None, int] = Counter()
    here = platform_of(layout.mesh) == "tpu"
    other = "our kernel of pages" if here else "pages gathered by XLA"
    for law, (layer, count) in zip(laws, cfg.layer_groups(), strict=True):
        if not isinstance(layer.mixer, RecurrentMixer):
            found[law] += count
    return tuple(
        f"attention of {count} layers: JAX's kernel of ragged pages"
        if law is None
        else f"attention of {count} layers: {other}; JAX's kernel serves where {law.rule}"
        for law, count in found.items()
    )


def _cache_dtype(plan: ServePlan) -> Any:
    if plan.dtypes.kv not in ENGINE_CACHES:
        raise BadRequest(
            f"dtypes.kv is '{plan.dtypes.kv}'; the runtime keeps its cache in one of "
            f"{', '.join(ENGINE_CACHES)} (--set dtypes.kv=bf16)"
        )
    return CACHES[plan.dtypes.kv]


def abstract_weights(plan: ServePlan, cfg: ModelConfig, layout: ServerLayout) -> Tree:
    """The parameters as the plan stores them: floats, or small numbers with scales (`quant.py`)."""
    name = _stored_dtype(plan, cfg)
    dtype = jnp.bfloat16 if name in NARROW else dtype_of(name)

    def whole(row: Any, at: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(padded_shape(row, at), dtype)

    tree: Any = jax.tree.map(whole, rows_tree(cfg), layout.weight_shardings(cfg))
    if name in NARROW:
        tree = jax.eval_shape(partial(quantise_params, cfg=cfg, kept=name), tree)
    return jax.tree.map(_lying, tree, layout.weight_formats(cfg, tree))


def _lying(x: Any, at: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at)


def _stored_dtype(plan: ServePlan, cfg: ModelConfig) -> str:
    if plan.dtypes.weights != CHECKPOINT:
        names = {plan.dtypes.weights}
    else:
        names = {weight_dtype(cfg, row.dtype_role) for row in stored_rows(cfg)}
    if len(names) == 1 and names <= {*ENGINE_WEIGHTS}:
        return names.pop()
    raise BadRequest(
        f"weights in {', '.join(sorted(names))}; the runtime serves one of "
        f"{', '.join(ENGINE_WEIGHTS)} (--set dtypes.weights=int8)"
    )
