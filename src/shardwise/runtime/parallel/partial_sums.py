"""Matmuls whose partial sums go straight to where they are kept, in `shard_map`.

A product over a dim that an axis cuts is a partial sum on each device: `y[B, T, D]{U_tensor}` out
of a block, `dx[B, T, D]{U_tensor}` into one, `dW[D, F_tensor]{U_fsdp}`. Asked for a layout in which
another dim is cut, a compiler that finds the collectives itself may sum the whole array everywhere
and cut it then, twice the bytes (XLA for TPUs does). So the sums are written out: a ReduceScatter
over the axes that cut the result, an AllReduce over the others. Gathers are the compiler's.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from shardwise.runtime.init import padded_shape, stored_rows
from shardwise.runtime.parallel.data import gradient_spec, is_scattered
from shardwise.runtime.parallel.scattering import ROWS, blocks, scattered
from shardwise.runtime.parallel.setup import Setup, axes_of
from shardwise.runtime.parallel.tensor import Factor, letters_of
from shardwise.runtime.quant import product
from shardwise.runtime.sharding import platform_of

Term = tuple[str, jax.Array, jax.Array]
"""An einsum of two arrays."""


Key = tuple[str, tuple[int, ...]]
"""A weight's letters and sizes."""


@dataclass(frozen=True, slots=True)
class PartialSums:
    """The hooks `into` and `out_of` on whole arrays; `homes` says how the gradient of a weight of
    these letters and sizes lies when it is summed. Weights that have none, such as KV heads that
    tensor does not divide, are the compiler's."""

    setup: Setup
    homes: Mapping[Key, PartitionSpec]

    def into(self, x_BTD: jax.Array, *factors: Factor) -> tuple[jax.Array, ...]:
        """x[B, T, D] times each weight."""
        ours = [i for i, (spec, w) in enumerate(factors) if self._has(spec, w)]
        outs = {i: product(f[0], x_BTD, f[1]) for i, f in enumerate(factors) if i not in ours}
        if ours:
            specs, weights = zip(*(factors[i] for i in ours), strict=True)
            made: Any = _into(self, specs, x_BTD, weights)
            outs |= zip(ours, made, strict=True)
        return tuple(outs[i] for i in range(len(factors)))

    def out_of(self, spec: str, x: jax.Array, w: jax.Array) -> jax.Array:
        """x[B, T, F_tensor] times w[F_tensor, D], laid out as the stream: [B, T_tensor, D]."""
        made: Any = _out_of(self, spec, x, w) if self._has(spec, w) else product(spec, x, w)
        return made

    def _has(self, spec: str, w: jax.Array) -> bool:
        return _key(letters_of(spec)[1], w.shape) in self.homes

    def gradient(self, spec: str, x: jax.Array, w: jax.Array, dy: jax.Array) -> jax.Array:
        """dW of `einsum(spec, x, w)`, where it is kept."""
        x_letters, letters, y_letters = letters_of(spec)
        home = self.homes[_key(letters, w.shape)]
        einsum = f"{x_letters},{y_letters}->{letters}"
        factors = ((x_letters, x), (y_letters, dy))
        for first, second in (factors, factors[::-1]):
            if self._in_few_rows(letters, w.shape, home, first[0], second[0]):
                return self._by_rows(letters, home, first, second).astype(w.dtype)
        return self.summed([(einsum, x, dy)], home, "gradients").astype(w.dtype)

    def _in_few_rows(
        self, letters: str, shape: tuple[int, ...], home: PartitionSpec, one: str, other: str
    ) -> bool:
        """Whether a gradient is scattered over a part of the devices along one dim, which is of the
        factor `one` while all others are of the `other`, in pieces of too few rows to be left whole
        (`scattering.py`)."""
        scatters = self._scatters(home, self._partial(f"{one},{other}->{letters}"))
        if self._on_gpu or len({dim for dim, _ in scatters}) != 1:
            return False
        dim, (axis, *_) = scatters[0]
        degree = self.setup.degree(axis)
        own = letters[dim] in one and not {*letters} - {letters[dim], *other}
        return own and degree < self.setup.mesh.size and shape[dim] < ROWS * degree

    def _by_rows(
        self, letters: str, home: PartitionSpec, first: Factor, second: Factor
    ) -> jax.Array:
        """A gradient as the matrix of its scattered dim and all its columns, scattered in blocks of
        columns."""
        (one, x), (other, y) = first, second
        cut = self._partial(f"{one},{other}->{letters}")
        scatters = self._scatters(home, cut)
        left = tuple(axis for axis in cut if not any(axis in names for _, names in scatters))
        dim, (axis, *_) = scatters[0]
        row, columns = letters[dim], letters[:dim] + letters[dim + 1 :]

        def local(x: jax.Array, y: jax.Array) -> jax.Array:
            parts, at, along = [], 0, other.index(columns[0])
            rows = x.shape[one.index(row)] // self.setup.degree(axis)
            for count in blocks(rows, y.shape[along]):
                part = lax.slice_in_dim(y, at, at + count, axis=along)
                out = jnp.einsum(f"{one},{other}->{row}{columns}", x, part)
                shape, out = out.shape[1:], out.reshape(out.shape[0], -1)
                with jax.named_scope("gradients"):
                    for _, names in scatters:
                        out = scattered(out, 0, names)
                parts.append(out.reshape(-1, *shape))
                at += count
            with jax.named_scope("gradients"):
                out = jnp.concatenate(parts, 1)
                return jnp.moveaxis(lax.psum(out, left) if left else out, 0, dim)

        inputs = tuple(map(self.setup.inner, (one, other)))
        run = jax.shard_map(
            local, mesh=self.setup.mesh, in_specs=inputs, out_specs=home, check_vma=False
        )
        made: jax.Array = run(x, y)
        return made

    @property
    def _on_gpu(self) -> bool:
        return platform_of(self.setup.mesh) == "gpu"

    def _partial(self, einsum: str) -> list[str]:
        """The axes over which products are partial sums: those that cut what is summed."""
        first, second, output = letters_of(einsum)
        summed = "".join(a for a in dict.fromkeys(first + second) if a not in output)
        return [axis for entry in self.setup.inner(summed) for axis in axes_of(entry)]

    def summed(self, terms: Sequence[Term], spec: PartitionSpec, component: str = "") -> jax.Array:
        """The sum of the products of the terms, which yield and sum over the same dims, as `spec`
        lays it out. What adds up between devices belongs to `component`, or to the block."""
        einsums = [einsum for einsum, *_ in terms]
        cut = self._partial(einsums[0])

        def local(*arrays: jax.Array) -> jax.Array:
            pairs = zip(einsums, arrays[::2], arrays[1::2], strict=True)
            products = [jnp.einsum(*pair) for pair in pairs]
            out, left = sum(products[1:], products[0]), set(cut)
            with jax.named_scope(component) if component else nullcontext():
                for dim, names in self._scatters(spec, left):
                    out = scattered(out, dim, names, at_once=self._on_gpu)
                    left -= {*names}
                return lax.psum(out, tuple(a for a in cut if a in left)) if left else out

        inputs = tuple(self.setup.inner(dims) for e in einsums for dims in letters_of(e)[:2])
        # What is not summed here is the same on all devices that hold it, so nothing is checked.
        run = jax.shard_map(
            local, mesh=self.setup.mesh, in_specs=inputs, out_specs=spec, check_vma=False
        )
        return run(*(x for _, *pair in terms for x in pair))

    def _scatters(
        self, spec: PartitionSpec, summed: Collection[str]
    ) -> list[tuple[int, tuple[str, ...]]]:
        """Dims with the axes that scatter them: tensor and those that store first, then, of their
        pieces, those that replicate and keep pieces of the optimizer's state."""
        found, storing = [], ("tensor", *self.setup.plan.storage_axes)
        for stores in (True, False):
            for dim, entry in enumerate(spec):
                names = [a for a in axes_of(entry) if a in summed and (a in storing) is stores]
                if names:
                    found.append((dim, tuple(names)))
        return found


def partial_sums(setup: Setup) -> PartialSums:
    """The hooks of a plan, for the weights of its layers."""
    homes = {}
    for row in stored_rows(setup.cfg):
        if is_scattered(row, setup):
            shape = padded_shape(row, setup.sharding(setup.stored(row)))[1:]
            key = _key("".join(letter for letter, _ in row.dims), shape)
            homes[key] = PartitionSpec(*gradient_spec(row, setup)[1:])
    return PartialSums(setup, homes)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _into(
    sums: PartialSums, specs: Sequence[str], x: jax.Array, weights: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    return tuple(product(spec, x, w) for spec, w in zip(specs, weights, strict=True))


def _into_forward(sums: PartialSums, specs: Sequence[str], x: jax.Array, weights: Any):
    return _into(sums, specs, x, weights), (x, weights)


def _into_backward(sums: PartialSums, specs: Sequence[str], kept: Any, grads: Any):
    x, weights = kept
    rows = list(zip(specs, weights, grads, strict=True))
    terms = [(_by_x(spec), dy, w.astype(dy.dtype)) for spec, w, dy in rows]
    dx = sums.summed(terms, sums.setup.stream)
    return dx, tuple(sums.gradient(spec, x, w, dy) for spec, w, dy in rows)


_into.defvjp(_into_forward, _into_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _out_of(sums: PartialSums, spec: str, x: jax.Array, w: jax.Array) -> jax.Array:
    return sums.summed([(spec, x, w.astype(x.dtype))], sums.setup.stream)


def _out_of_forward(sums: PartialSums, spec: str, x: jax.Array, w: jax.Array):
    return _out_of(sums, spec, x, w), (x, w)


def _out_of_backward(sums: PartialSums, spec: str, kept: Any, dy: jax.Array):
    x, w = kept
    whole = sums.setup.sharding(sums.setup.inner(letters_of(spec)[2]))
    dy = lax.with_sharding_constraint(dy, whole)
    dx = jnp.einsum(_by_x(spec), dy, w.astype(dy.dtype))
    return dx, sums.gradient(spec, x, w, dy)


_out_of.defvjp(_out_of_forward, _out_of_backward)


def _by_x(spec: str) -> str:
    """The einsum of a gradient by the first factor: of the result's and the second factor."""
    first, second, output = letters_of(spec)
    return f"{output},{second}->{first}"


def _key(letters: str, shape: tuple[int, ...]) -> Key:
    """Rows of the table call the width of a value H where it is that of a key, einsums always U."""
    return letters.replace("U", "H"), shape
