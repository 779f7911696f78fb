"""Prefill and decode of a ServePlan as programs: weights, cache and activations laid out by it.

The mesh is data x expert x fsdp x tensor x spread, the last two of which are the plan's `tensor`:
heads of the cache are cut over `tensor`, and sequences over `spread`, the devices beyond one per KV
head (`kv_sharding` heads_then_batch), or the heads are there several times (heads). In decode the
stream lies in pieces of D, in prefill in pieces of T (book 7.3.2); blocks gather and scatter it.
`fsdp` cuts D of weights that stay in place, and of the stream with them: blocks scatter their
partial sums over it, attention by sequences (in prefill by tokens), an MLP by F, and gather the
answers (`planner.step.strategies.stationary`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, gcd, lcm, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.errors import BadRequest
from shardwise.models import Attention, ModelConfig, weight_dtype
from shardwise.models.specs import RecurrentMixer
from shardwise.plans import ServePlan
from shardwise.plans.layouts import tensor_letter
from shardwise.plans.serve import CHECKPOINT
from shardwise.runtime.attention import (
    Scaled,
    Scoring,
    attention_on,
    dense_attention,
    merged_attention,
)
from shardwise.runtime.cache import Cache, empty_cache
from shardwise.runtime.cache_entry import CACHES, SCALE
from shardwise.runtime.generate import decode
from shardwise.runtime.init import PADDED, Tree, padded_shape, stored_rows, tree_of
from shardwise.runtime.model import call_of, embed, head
from shardwise.runtime.options import Options
from shardwise.runtime.precision import DTYPES, dtype_of
from shardwise.runtime.programs.program import AbstractProgram
from shardwise.runtime.quant import NARROW, Quantized, quantise_params
from shardwise.runtime.sharding import parameter_spec, platform_of
from shardwise.runtime.stack import run_stack

SPLITS = ("data", "expert")
WIDTH = ("fsdp",)
MIXERS = (*SPLITS, *WIDTH)
HEADS = ("tensor", "spread")
STREAM = ("embedding", "block_input", "attention_out", "mlp_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLayout:
    """How activations lie while a phase runs: the `at` hook, and attention of prefill."""

    mesh: jax.sharding.Mesh
    phase: str

    def sharding(self, *spec: Any) -> NamedSharding:
        """A spec on the mesh."""
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def lay(self, x: jax.Array, *spec: Any) -> jax.Array:
        """A constraint, without the entries that do not divide their dim."""
        entries = [e if isinstance(e, tuple) else (e,) if e else () for e in spec]
        degrees = [prod(self.mesh.shape[a] for a in names) for names in entries]
        kept = [
            names if size % n == 0 else None
            for size, names, n in zip(x.shape, entries, degrees, strict=True)
        ]
        return lax.with_sharding_constraint(x, self.sharding(*kept))

    def __call__(self, name: str, x: jax.Array) -> jax.Array:
        """The activation of that name, laid out."""
        if self.phase == "prefill":
            return self._prefill(name, x)
        if name in (*STREAM, "lookup"):
            return self.lay(x, SPLITS, None, (*WIDTH, *HEADS))
        if name == "norm":
            return self.lay(x, SPLITS, None, WIDTH)
        if name == "qkv" and x.ndim == 4:
            whole = self.lay(x, MIXERS, None, HEADS, None)
            return self.lay(whole, (*MIXERS, "spread"), None, "tensor", None)
        if name == "qkv":
            return self.lay(x, (*MIXERS, "spread"), None, None)
        if name == "attention":
            return self.lay(x, SPLITS, None, HEADS, None)
        return self.lay(x, SPLITS, None, self._width(name, x)) if x.ndim == 3 else x

    def _prefill(self, name: str, x: jax.Array) -> jax.Array:
        if name in STREAM:
            return self.lay(x, None, (*SPLITS, *HEADS), WIDTH)
        if name == "norm":
            return self.lay(x, None, SPLITS, WIDTH)
        if name in ("qkv", "attention") and x.ndim == 4:
            return self.lay(x, None, MIXERS if name == "qkv" else SPLITS, HEADS, None)
        if name == "logits":
            return self.lay(x, None, None, HEADS)
        if name == "lookup":
            return self.lay(x, None, SPLITS, (*WIDTH, *HEADS))
        cut = name != "qkv" and x.ndim == 3
        return self.lay(x, None, SPLITS, self._width(name, x)) if cut else x

    def _width(self, name: str, x: jax.Array) -> tuple[str, ...]:
        """What cuts F: sums over D are scattered over fsdp, where it divides what tensor leaves."""
        cut = (*HEADS, *WIDTH)
        even = x.shape[-1] % prod(self.mesh.shape[a] for a in cut) == 0
        return cut if name == "mlp_in" and even else HEADS

    def decoding(self, q_BTNH: jax.Array, k_BSKH: Any, v_BSKU: Any, scoring: Scoring) -> jax.Array:
        """Attention of one token of each sequence to its cache. A device with several KV heads
        reads them as one (`merged_attention`)."""
        heads, tensor = k_BSKH.shape[2], self.mesh.shape["tensor"]
        if heads % tensor or heads == tensor:
            return dense_attention(q_BTNH, k_BSKH, v_BSKU, scoring)
        P, rows = PartitionSpec, (*MIXERS, "spread")
        whole = P(rows, None, "tensor", None)
        cached: Any = whole
        if isinstance(k_BSKH, Scaled):
            parts: Any = whole, P(rows, "tensor", None)
            cached = Scaled(*parts)
        sinks = None if scoring.sinks_N is None else P("tensor")
        places: Any = {"q_positions_BT": P(rows, None), "k_positions_BS": P(rows, None)}
        spec = replace(scoring, sinks_N=sinks, **places)
        inside = jax.shard_map(
            merged_attention,
            mesh=self.mesh,
            in_specs=(whole, cached, cached, spec),
            out_specs=whole,
        )
        return inside(q_BTNH, k_BSKH, v_BSKU, scoring)

    def kernel(
        self, q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKU: jax.Array, scoring: Scoring
    ) -> jax.Array:
        """Attention of a piece of a prompt to all of it: heads over tensor, queries over the
        other axes, keys gathered over these. A KV head is there as often as devices need it."""
        tensor = prod(self.mesh.shape[a] for a in HEADS)
        copies = lcm(k_BSKH.shape[2], tensor) // k_BSKH.shape[2]
        k_BSKH, v_BSKU = (jnp.repeat(x, copies, axis=2) for x in (k_BSKH, v_BSKU))
        splits = prod(self.mesh.shape[a] for a in MIXERS)
        time = MIXERS if splits > 1 and q_BTNH.shape[1] % splits == 0 else None
        if time:
            scoring = replace(scoring, in_order=False)
        P = PartitionSpec
        rows = {"q_positions_BT": P(None, time), "k_positions_BS": P(None, None)}
        if scoring.q_segments_BT is not None:
            rows |= {"q_segments_BT": P(None, time), "k_segments_BS": P(None, None)}
        sinks = None if scoring.sinks_N is None else P(HEADS)
        keys = P(None, None, HEADS, None)
        inside = jax.shard_map(
            partial(attention_on, platform=platform_of(self.mesh)),
            mesh=self.mesh,
            in_specs=(
                P(None, time, HEADS, None),
                keys,
                keys,
                replace(scoring, sinks_N=sinks, **rows),
            ),
            out_specs=P(None, time, HEADS, None),
            check_vma=False,  # the libraries' kernels do not say how their outputs vary
        )
        return inside(q_BTNH, k_BSKH, v_BSKU, scoring)


def serve_program(
    plan: ServePlan, cfg: ModelConfig, mesh: jax.sharding.Mesh, phase: str
) -> AbstractProgram:
    """prefill: (params, tokens [1, T], cache) -> (next token, cache) of the last chunk of a prompt;
    decode: (params, tokens [B], cache) -> (next tokens, cache) of the whole batch, its cache as
    long as finished sequences. The cache is donated; tokens are the most likely ones.
    """
    recurrent = [m.kind for m in _mixers(cfg) if isinstance(m, RecurrentMixer)]
    if recurrent:
        raise BadRequest(
            f"model '{cfg.name}' has layers of kind '{recurrent[0]}', whose states this program "
            "does not lay out; `shardwise serve` runs it on one device"
        )
    spread = spread_of(plan, cfg)
    degrees = {axis: plan.degree(axis) for axis in MIXERS}
    shape = (*degrees.values(), plan.degree("tensor") // spread, spread)
    devices = np.array(mesh.devices.flat, dtype=object).reshape(shape)
    cut = jax.sharding.Mesh(devices, (*MIXERS, *HEADS))
    layout = ServeLayout(mesh=cut, phase=phase)
    make = decode_program if phase == "decode" else prefill_program
    return make(plan, cfg, layout)


def spread_of(plan: ServePlan, cfg: ModelConfig) -> int:
    """Over how many devices of `tensor` the sequences of one KV head are spread."""
    tensor = plan.degree("tensor")
    if plan.kv_sharding == "heads":
        return 1
    heads = [m.kv_heads if isinstance(m, Attention) else 1 for m in _mixers(cfg)]
    return tensor // gcd(tensor, max(heads, default=tensor))


def _mixers(cfg: ModelConfig) -> list[Any]:
    return [layer.mixer for layer in cfg.groups]


def decode_program(plan: ServePlan, cfg: ModelConfig, layout: ServeLayout) -> AbstractProgram:
    """One token for each sequence; the batch is filled up to what its devices divide."""
    unit = prod(layout.mesh.shape[a] for a in (*MIXERS, "spread"))
    batch = ceil(plan.batch / unit) * unit
    options = Options(compute=plan.dtypes.compute, kernel=layout.decoding, scaled=True, at=layout)
    cache = abstract_cache(plan, cfg, layout, batch, plan.input_length + plan.output_length)
    tokens = jax.ShapeDtypeStruct((batch,), jnp.int32, sharding=layout.sharding(SPLITS))

    def run(params: Any, tokens_B: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        logits_BV, cache = decode(params, tokens_B, cache, cfg, options)
        return logits_BV.argmax(-1).astype(tokens_B.dtype), cache

    return _program(run, abstract_weights(plan, cfg, layout), tokens, cache, layout)


def prefill_program(plan: ServePlan, cfg: ModelConfig, layout: ServeLayout) -> AbstractProgram:
    """The last chunk of one prompt, which attends to all of it."""
    chunks = ceil(plan.input_length / plan.prefill_chunk)
    T = ceil(plan.input_length / chunks)
    options = Options(
        compute=plan.dtypes.compute, kernel=layout.kernel, at=layout, experts="ragged"
    )
    cache = abstract_cache(plan, cfg, layout, 1, T * chunks)
    tokens = jax.ShapeDtypeStruct((1, T), jnp.int32, sharding=layout.sharding(None, SPLITS))

    def run(params: Any, tokens_BT: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        places_BT = cache.lengths_B[:, None] + lax.broadcasted_iota(jnp.int32, (1, T), 1)
        call = call_of(tokens_BT, cfg, options, places_BT)
        x_BTD = embed(params, tokens_BT, cfg, call)
        held, fresh = cache.groups, chunks == 1
        x_BTD, groups = run_stack(params["layers"], x_BTD, cfg, call, held, fresh=fresh)
        assert groups is not None
        logits_BTV = head(params, x_BTD[:, -1:], cfg, call)
        return logits_BTV[:, 0].argmax(-1), Cache(groups, cache.lengths_B + T)

    return _program(run, abstract_weights(plan, cfg, layout), tokens, cache, layout)


def _program(
    run: Any, params: Any, tokens: Any, cache: Any, layout: ServeLayout
) -> AbstractProgram:
    """A step as a program. Weights come as the compiler wants them to lie in memory, since they are
    laid out once and read every step: in rows of D it would copy those of q anew each time."""
    formats = jax.tree.map(lambda x: Format(Layout.AUTO, x.sharding), params)
    function = jax.jit(run, donate_argnums=2, in_shardings=(formats, None, None))
    return AbstractProgram(function=function, arguments=(params, tokens, cache), mesh=layout.mesh)


def abstract_cache(
    plan: ServePlan, cfg: ModelConfig, layout: ServeLayout, batch: int, places: int
) -> Cache:
    """The cache: sequences over all axes but `tensor`, which cuts its heads."""
    if plan.dtypes.kv not in CACHES:
        raise BadRequest(
            f"dtypes.kv is '{plan.dtypes.kv}'; the runtime keeps its cache in one of "
            f"{', '.join(CACHES)} (--set dtypes.kv=bf16)"
        )
    shapes = jax.eval_shape(lambda: empty_cache(cfg, batch, places, CACHES[plan.dtypes.kv]))
    across = (*MIXERS, "spread") if layout.phase == "decode" else None

    def lie(name: str, x: Any, heads: int) -> Any:
        cut = "tensor" if heads and heads % layout.mesh.shape["tensor"] == 0 else None
        spec = (None, across, cut, None) if name.endswith(SCALE) else (None, across, None, cut)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding(*spec))

    kinds = [m.kv_heads if isinstance(m, Attention) else 0 for m in _mixers(cfg)]
    groups = [
        {name: lie(name, x, heads) for name, x in group.items()}
        for group, heads in zip(shapes.groups, kinds, strict=True)
    ]
    lengths: Any = jax.ShapeDtypeStruct((batch,), jnp.int32, sharding=layout.sharding())
    return Cache(tuple(groups), lengths)


def abstract_weights(plan: ServePlan, cfg: ModelConfig, layout: ServeLayout) -> Tree:
    """The parameters as the plan stores them: floats, or small numbers with scales (`quant.py`)."""
    name = _stored_dtype(plan, cfg)
    axes = {axis: plan.degree(axis) for axis in ("expert", "fsdp", "tensor")}
    heads = {**axes, "tensor": layout.mesh.shape["tensor"]}
    specs = tree_of(cfg, lambda row: _weight_spec(row, axes, heads))
    dtype = jnp.bfloat16 if name in NARROW else dtype_of(name)

    def whole(row: Any) -> jax.ShapeDtypeStruct:
        at = layout.sharding(*_weight_spec(row, axes, heads))
        return jax.ShapeDtypeStruct(padded_shape(row, at), dtype, sharding=at)

    tree = tree_of(cfg, whole)
    if name in NARROW:
        tree = jax.eval_shape(partial(quantise_params, cfg=cfg, kept=name), tree)

    def lie(spec: PartitionSpec, w: Any) -> Any:
        if not isinstance(w, Quantized):
            return jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=layout.sharding(*spec))
        entries = (*spec, *(None,) * (w.scale.ndim - len(spec)))
        kept = [e if n > 1 else None for e, n in zip(entries, w.scale.shape, strict=True)]
        parts: Any = [
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding(*at))
            for x, at in ((w.values, spec), (w.scale, kept))
        ]
        return Quantized(*parts)

    return jax.tree.map(lie, specs, tree, is_leaf=lambda x: isinstance(x, PartitionSpec))


def _stored_dtype(plan: ServePlan, cfg: ModelConfig) -> str:
    if plan.dtypes.weights != CHECKPOINT:
        names = {plan.dtypes.weights}
    else:
        names = {weight_dtype(cfg, row.dtype_role) for row in stored_rows(cfg)}
    if len(names) == 1 and names <= {*DTYPES, *NARROW}:
        return names.pop()
    raise BadRequest(
        f"weights in {', '.join(sorted(names))}; the runtime serves one of "
        f"{', '.join((*DTYPES, *NARROW))} (--set dtypes.weights=int8)"
    )


def _weight_spec(row: Any, axes: Mapping[str, int], heads: Mapping[str, int]) -> PartitionSpec:
    """A row over all of `tensor` where it divides, KV heads over the devices that have one each;
    its D, where it has one, over `fsdp`."""
    sizes, letter = dict(row.dims), tensor_letter(row)
    stored = WIDTH if "D" in sizes else ()
    if letter and letter not in PADDED and sizes[letter] % axes["tensor"]:
        return parameter_spec(row, heads, stored)
    entries = parameter_spec(row, axes, stored)
    return PartitionSpec(*(_all_of_tensor(entry) for entry in entries))


def _all_of_tensor(entry: Any) -> Any:
    names = entry if isinstance(entry, tuple) else (entry,) if entry else ()
    parts = tuple(part for a in names for part in (HEADS if a == "tensor" else (a,)))
    return parts or None
