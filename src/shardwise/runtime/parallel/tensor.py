"""Tensor and sequence parallelism: where the activations lie between and inside the blocks.

Between the blocks `x[B, T_{context,tensor}, D]` (sequence parallelism) or `x[B, T_context, D]`;
inside, `q[B, T, N_tensor, H]` and `a[B, T, F_tensor]`. The constraints stand where the layouts
change, so that the compiler gathers x over tensor before the matmuls into a block; the sums after
the matmul out of it are scattered in `partial_sums.py` (Korthikanti et al., arXiv 2205.05198), in a
pipeline's passes by the compiler. Or both are collective matmuls (`runtime/collective_matmul`),
which multiply while x, and then the sums, are on the wire; their backward passes are the same rings
the other way round.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding

from shardwise.plans.layouts import TENSOR_LETTERS
from shardwise.runtime.collective_matmul import all_gather_rows, reduce_scatter_rows
from shardwise.runtime.parallel.fsdp import gathered
from shardwise.runtime.parallel.setup import Setup
from shardwise.runtime.quant import product, products

NORMS = ("norm", "routed")
Factor = tuple[str, jax.Array]
"""The einsum of a product with x, and the weight."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The `at` hook: a constraint on each activation that a mesh axis cuts."""

    setup: Setup

    def __call__(self, name: str, x: jax.Array) -> jax.Array:
        """The activation, laid out as its name says; dims that do not divide are left whole."""
        at = self._at(name, x)
        if at is None:
            return x
        if name not in NORMS:
            return lax.with_sharding_constraint(x, at)
        # First as it is made: so its result is gathered, not what it reads.
        stream: Any = self._at("block_input", x)
        x = lax.with_sharding_constraint(x, stream)
        if self.setup.explicit_sums:
            return gathered(x, (at,), (stream,))
        return lax.with_sharding_constraint(x, at)

    def _at(self, name: str, x: jax.Array) -> NamedSharding | None:
        spec = self.setup.activation(name, x.shape)
        return None if spec is None else self.setup.sharding(spec)


@dataclass(frozen=True, slots=True)
class CollectiveMatmuls:
    """The hooks `into` and `out_of` on whole arrays, as rings over `tensor` inside `shard_map`."""

    setup: Setup

    def into(self, x_BTD: jax.Array, *factors: Factor) -> tuple[jax.Array, ...]:
        """x[B, T_tensor, D] times each weight: one ring for all that tensor cuts.

        KV heads that tensor does not divide are computed where the tokens lie; they are gathered
        afterwards, which is less than x.
        """
        cut = [i for i, factor in enumerate(factors) if self._is_cut(*factor)]
        made = dict(zip(cut, self._ring(x_BTD, [factors[i] for i in cut]), strict=True))
        here = {i: product(f[0], x_BTD, f[1]) for i, f in enumerate(factors) if i not in made}
        return tuple({**made, **here}[i] for i in range(len(factors)))

    def _is_cut(self, spec: str, w: jax.Array) -> bool:
        sizes = zip(letters_of(spec)[1], w.shape, strict=True)
        degree = self.setup.degree("tensor")
        return any(a in TENSOR_LETTERS and size % degree == 0 for a, size in sizes)

    def _ring(self, x_BTD: jax.Array, factors: list[Factor]) -> tuple[jax.Array, ...]:
        specs = [spec for spec, _ in factors]

        def local(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
            def every(block: jax.Array) -> tuple[jax.Array, ...]:
                return products(block, *zip(specs, weights, strict=True))

            return all_gather_rows(x, every, axis="tensor", bidirectional=self._bidirectional)

        stream = self.setup.stream
        weights = [self.setup.inner(letters_of(spec)[1]) for spec in specs]
        outputs = tuple(self.setup.inner(letters_of(spec)[2]) for spec in specs)
        run = self._mapped(local, (stream, *weights), outputs)
        return run(x_BTD, *(w.astype(x_BTD.dtype) for _, w in factors))

    def out_of(self, spec: str, x: jax.Array, w: jax.Array) -> jax.Array:
        """x[B, T, F_tensor] times w[F_tensor, D], summed and scattered: [B, T_tensor, D]."""

        def local(x: jax.Array, w: jax.Array) -> jax.Array:
            def one(rows: jax.Array) -> jax.Array:
                return product(spec, rows, w)

            return reduce_scatter_rows(x, one, axis="tensor", bidirectional=self._bidirectional)

        inputs = tuple(map(self.setup.inner, letters_of(spec)[:2]))
        run = self._mapped(local, inputs, self.setup.stream)
        return run(x, w.astype(x.dtype))

    def _mapped(self, local: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        # The sums over the other axes are the compiler's, so no variance is to be checked here.
        return jax.shard_map(
            local, mesh=self.setup.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
        )

    @property
    def _bidirectional(self) -> bool:
        return self.setup.tensor_matmul == "both_ways"


def letters_of(spec: str) -> tuple[str, str, str]:
    """The dims of x, of the weight and of the product in an einsum of two."""
    inputs, output = spec.split("->")
    x, w = inputs.split(",")
    return x, w, output
