"""Prefill and decode of a ServePlan as the engine runs them: its own jitted step, on the layout of
its server, with weights, pages and inputs that are shapes alone.

A decode step has the plan's sequences, all as long as they get; a step of prefill the last chunk of
a prompt in each pool of pages. Both take pages for their own sequences and no more, and inputs that
say so (numpy arrays), since what a step reads depends on them.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig, weight_dtype
from shardwise.models.kv import cache_groups
from shardwise.models.specs import RecurrentMixer
from shardwise.plans import ServePlan
from shardwise.plans.paged_kernel import KernelLaw, PagedLayer, kernel_problem
from shardwise.plans.serve import CHECKPOINT, ENGINE_CACHES, ENGINE_WEIGHTS
from shardwise.plans.served_steps import QUERY_BLOCK, prompt_tokens
from shardwise.runtime.attention.paged import paged_attention
from shardwise.runtime.attention.paged_triton import triton_serves
from shardwise.runtime.cache_entry import CACHES
from shardwise.runtime.engine.cache_room import kept_groups
from shardwise.runtime.engine.model_executor import empty_state, tables_of
from shardwise.runtime.engine.model_step import (
    COMPILER_OPTIONS,
    StepInputs,
    StepProgram,
    jitted_step,
)
from shardwise.runtime.engine.server_layout import ServerLayout, layout_over, paged_layers
from shardwise.runtime.engine.step_shapes import StepShapes
from shardwise.runtime.init import Tree, padded_shape, rows_tree, stored_rows
from shardwise.runtime.options import Options
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.programs.train import AbstractProgram
from shardwise.runtime.quant import NARROW, quantise_params
from shardwise.runtime.stack import keeps_stacks, unstacked
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
    weights = abstract_weights(plan, cfg, layout)
    arguments = (
        weights if keeps_stacks(program.platform) else unstacked(weights, _layer_of),
        jax.tree.map(_lying, state, layout.state_shardings(cfg, state)),
        _decoding(shapes, pages, length) if decodes else _last_chunk(shapes, pages, length, tokens),
    )
    return AbstractProgram(
        function=jitted_step(program),
        arguments=arguments,
        mesh=layout.mesh,
        notes=_notes(cfg, plan, layout),
        options=COMPILER_OPTIONS.get(program.platform, {}),
    )


def _decoding(shapes: StepShapes, pages: Sequence[int], length: int) -> StepInputs:
    """A step of all sequences, before the last of their `length` tokens."""
    inputs = shapes.padding(shapes.most, 0)
    for pool in range(shapes.pools):
        rows = slice(pool * shapes.most, pool * shapes.most + shapes.batch)
        own = np.arange(shapes.batch, dtype=np.int32)
        inputs.slots_D[rows] = pool * shapes.batch + own
        inputs.cached_D[rows] = length - 1
        inputs.table_GDM[:, rows] = _tables(shapes, pages)
    return inputs


def _last_chunk(shapes: StepShapes, pages: Sequence[int], length: int, tokens: int) -> StepInputs:
    """A step of the last `tokens` of a prompt in each pool."""
    inputs, count = shapes.padding(0, tokens), min(tokens, length)
    each = len(inputs.ends_E) // shapes.pools
    for pool in range(shapes.pools):
        at = pool * tokens
        inputs.positions_T[at : at + count] = np.arange(length - count, length, dtype=np.int32)
        blocks = slice(at // QUERY_BLOCK, (at + tokens) // QUERY_BLOCK)
        inputs.starts_C[blocks] = length - count
        inputs.table_GCM[:, blocks] = _tables(shapes, pages)[:, :1]
        inputs.ends_E[pool * each] = at + count - 1
        inputs.slots_E[pool * each] = pool * shapes.batch
    return inputs


def _tables(shapes: StepShapes, pages: Sequence[int]) -> np.ndarray:
    """The tables [G, R, M] of a pool's sequences, one after the other in its pages."""
    places = np.arange(shapes.batch * shapes.table_width, dtype=np.int32)
    own = [places % (count // shapes.pools) for count in pages]
    return np.stack(own).reshape(len(pages), shapes.batch, shapes.table_width)


def _notes(cfg: ModelConfig, plan: ServePlan, layout: ServerLayout) -> tuple[str, ...]:
    """Which layers read their pages by JAX's kernel and which by ours, and why."""
    layers = paged_layers(cfg, _cache_dtype(plan), layout)
    found: dict[tuple[KernelLaw | None, str], int] = Counter()
    for read, (layer, count) in zip(layers, cfg.layer_groups(), strict=True):
        if not isinstance(layer.mixer, RecurrentMixer):
            found[kernel_problem(read), _other(read)] += count
    return tuple(
        f"attention of {count} layers: JAX's kernel of ragged pages"
        if law is None
        else f"attention of {count} layers: {other}; JAX's kernel serves where {law.rule}"
        for (law, other), count in found.items()
    )


def _other(layer: PagedLayer) -> str:
    """What reads a layer's pages where JAX's kernel does not."""
    if layer.platform == "tpu":
        return "our kernel of pages"
    a = layer.attention
    if layer.platform == "gpu" and a is not None:
        width = max(a.head_dim, a.v_head_dim)
        if triton_serves(a.heads // a.kv_heads, width, apart=True):
            return "our kernel of pages for GPUs"
    return "pages gathered by XLA"


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


def _layer_of(stack: jax.ShapeDtypeStruct, _: int) -> jax.ShapeDtypeStruct:
    """One layer of a stack, on the devices that have its part of all layers."""
    at: Any = stack.sharding
    own = jax.sharding.NamedSharding(at.mesh, jax.sharding.PartitionSpec(*at.spec[1:]))
    return _lying(jax.ShapeDtypeStruct(stack.shape[1:], stack.dtype), own)


def _stored_dtype(plan: ServePlan, cfg: ModelConfig) -> str:
    if plan.dtypes.weights != CHECKPOINT:
        names = {plan.dtypes.weights}
    else:
        names = {weight_dtype(cfg, row.component) for row in stored_rows(cfg)}
    if len(names) == 1 and names <= {*ENGINE_WEIGHTS}:
        return names.pop()
    raise BadRequest(
        f"weights in {', '.join(sorted(names))}; the runtime serves one of "
        f"{', '.join(ENGINE_WEIGHTS)} (--set dtypes.weights=int8)"
    )
