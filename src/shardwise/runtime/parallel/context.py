"""Attention on a mesh: heads over tensor, tokens over context (ring, all-gather or Ulysses).

One `shard_map` around the kernel, over every axis of the mesh: q[B, T_context, N_tensor, H] and k,
v[B, S_context, K_tensor, H]. Inside, a library's kernel may serve (it would not under plain `jit`:
custom calls are not cut). Where tensor does not divide K, each KV head is sent lcm(K, tensor) / K
times. Causal rows are dealt in zig-zag where the ring or the gather would else be unbalanced.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import lcm

import jax
import jax.numpy as jnp

from shardwise.models import ModelConfig
from shardwise.plans.context_methods import ContextMethod, context_row
from shardwise.plans.train import TrainPlan
from shardwise.runtime.attention import (
    Kernel,
    Scoring,
    all_gather_attention,
    attention_on,
    cudnn_head_dim,
    dense_attention,
    ring_attention,
    to_zigzag,
    ulysses_attention,
)
from shardwise.runtime.attention.all_gather import splash_gathered
from shardwise.runtime.attention.best import WIDE_TILE
from shardwise.runtime.attention.ring_kernel import ring_kernel_attention, ring_kernel_serves
from shardwise.runtime.attention.splash import CutRows, splash_serves
from shardwise.runtime.parallel.setup import Setup
from shardwise.runtime.sharding import platform_of

Batch = Mapping[str, jax.Array]
BY_TOKEN = ("q_positions_BT", "k_positions_BS", "q_segments_BT", "k_segments_BS")


@dataclass(frozen=True, slots=True)
class MeshKernel:
    """A `Kernel` on whole arrays that runs a method on each device's block of them."""

    setup: Setup

    def __call__(
        self, q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKU: jax.Array, scoring: Scoring
    ) -> jax.Array:
        """[B, T, N, U], laid out as q."""
        inner = self.setup.inner
        copies = lcm(k_BSKH.shape[2], self.setup.degree("tensor")) // k_BSKH.shape[2]
        k_BSKH, v_BSKU = (jnp.repeat(x, copies, axis=2) for x in (k_BSKH, v_BSKU))
        given = [name for name in BY_TOKEN if getattr(scoring, name) is not None]
        sinks = None if scoring.sinks_N is None else inner("N")
        specs = replace(scoring, sinks_N=sinks, **dict.fromkeys(given, inner("BT")))
        block = inner("BTNH")
        inside = jax.shard_map(
            self._method(),
            mesh=self.setup.mesh,
            in_specs=(block, block, block, specs),
            out_specs=block,
            check_vma=False,  # the libraries' kernels do not say how their outputs vary
        )
        return inside(q_BTNH, k_BSKH, v_BSKU, scoring)

    def _method(self) -> Kernel:
        local = local_kernel(self.setup)
        if "context" not in self.setup.axes:
            return local
        return _METHODS[self.setup.plan.context_method](local, self.setup)


def _all_gather(local: Kernel, setup: Setup) -> Kernel:
    """JAX's kernel on TPUs where it serves and places in the row tell what is seen; else that of
    one device for any positions."""
    anywhere = partial(all_gather_attention, axis="context", kernel=local)
    if platform_of(setup.mesh) != "tpu" or setup.plan.attention_kernel == "scores":
        return anywhere
    cut = CutRows("context", dealt=zigzag(setup.plan, setup.cfg))

    def method(
        q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKU: jax.Array, scoring: Scoring
    ) -> jax.Array:
        if splash_serves(q_BTNH, scoring) and (cut.dealt or scoring.in_order):
            return splash_gathered(q_BTNH, k_BSKH, v_BSKU, scoring, cut=cut)
        return anywhere(q_BTNH, k_BSKH, v_BSKU, scoring)

    return method


def _ring(_: Kernel, setup: Setup) -> Kernel:
    """JAX's kernel on TPUs where it serves; else our own tiles, wide ones off CPUs."""
    platform = platform_of(setup.mesh)
    wide = {} if platform == "cpu" else {"block_T": WIDE_TILE, "block_S": WIDE_TILE}
    tiles = partial(ring_attention, axis="context", **wide)
    if platform != "tpu" or not zigzag(setup.plan, setup.cfg):
        return tiles

    def method(
        q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKU: jax.Array, scoring: Scoring
    ) -> jax.Array:
        if ring_kernel_serves(q_BTNH, scoring):
            return ring_kernel_attention(q_BTNH, k_BSKH, v_BSKU, scoring, axis="context")
        return tiles(q_BTNH, k_BSKH, v_BSKU, scoring)

    return method


_METHODS: Mapping[ContextMethod, Callable[[Kernel, Setup], Kernel]] = {
    "all_gather": _all_gather,
    "ring": _ring,
    "ulysses": lambda local, _: partial(ulysses_attention, axis="context", kernel=local),
}


def local_kernel(setup: Setup) -> Kernel:
    """What one device computes: the whole matrix of scores, or tiles by the best kernel of the
    mesh's devices, which need not be here."""
    if setup.plan.attention_kernel == "scores":
        return dense_attention
    widest = cudnn_head_dim(setup.mesh.devices.flat[0])
    return partial(attention_on, platform=platform_of(setup.mesh), cudnn=widest)


def kernel_for(setup: Setup) -> Kernel:
    """The attention of a plan."""
    return MeshKernel(setup) if setup.axes else local_kernel(setup)


def zigzag(plan: TrainPlan, cfg: ModelConfig) -> bool:
    """Whether rows are dealt in zig-zag: where blocks in order would not share the work, and no
    mixer wants the blocks in order."""
    context = plan.degree("context")
    dealt = context_row(plan.context_method).dealt(cfg.mixer_kinds)
    return dealt and context > 1 and plan.sequence_length % (2 * context) == 0


def dealt(batch: Batch, plan: TrainPlan, cfg: ModelConfig) -> Batch:
    """The batch with the tokens of each row in the order that the devices hold them."""
    if not zigzag(plan, cfg):
        return batch
    tokens = batch["tokens"]
    positions = jax.lax.broadcasted_iota(jnp.int32, tokens.shape, 1)
    return {
        name: to_zigzag(x, plan.degree("context"))
        for name, x in {"positions": positions, **batch}.items()
    }
