"""8-bit Adam: both moments as one byte an element and an f32 scale per block.

Dettmers et al. 2022 (arXiv:2110.02861). A block is `BLOCK` elements along an array's last dim, so
that the shards of any other dim hold whole blocks. In it values are divided by the largest and
rounded to the nearest of 256 (`codebook`); Adam itself is optax's, on the moments unpacked.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

BLOCK = 256
"""As in the authors' bitsandbytes; the paper's section 2 has 2048."""


class Packed(NamedTuple):
    """Trees like the parameters: codes of the parameters' shapes, scales [..., blocks]."""

    codes: Any
    scales: Any


class PackedMoments(NamedTuple):
    """Steps taken, first and second moments."""

    steps: jax.Array
    mu: Packed
    nu: Packed


def scale_by_adam8bit(b1: float, b2: float) -> optax.GradientTransformation:
    """`optax.scale_by_adam` whose moments are kept in 8 bits."""
    adam = optax.scale_by_adam(b1=b1, b2=b2)

    def packed(state: Any) -> PackedMoments:
        return PackedMoments(state.count, _pack(state.mu, True), _pack(state.nu, False))

    def init(params: Any) -> PackedMoments:
        return packed(adam.init(params))

    def update(grads: Any, state: PackedMoments, params: Any = None) -> Any:
        mu, nu = _unpack(state.mu, True), _unpack(state.nu, False)
        updates, after = adam.update(grads, optax.ScaleByAdamState(state.steps, mu, nu), params)
        return updates, packed(after)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


@cache
def codebook(signed: bool) -> np.ndarray:
    """The 256 values of the dynamic tree data type (section 1.3), from the least to 1.

    e leading zero bits say 10^-e, the bits after the first 1 a place between 0.1 and 1; 0 and 1
    have codes of their own. Without a sign there is one more bit for the place.

    >>> [len(codebook(signed)) for signed in (True, False)]
    [256, 256]
    >>> codebook(True)[[0, 127, 255]].round(4).tolist()
    [-0.993, 0.0, 1.0]
    """
    values = [np.zeros(1), np.ones(1)]
    for e in range(7):
        edges = np.linspace(0.1, 1, 2 ** (6 - e + (not signed)) + 1)
        places = 10.0**-e * (edges[1:] + edges[:-1]) / 2
        values += [places, -places] if signed else [places]
    return np.sort(np.concatenate(values))


def quantise(x: jax.Array, signed: bool) -> tuple[jax.Array, jax.Array]:
    """x [..., n] -> codes uint8 [..., n] and scales f32 [..., ceil(n / BLOCK)].

    Code 0 is the value 0, so that zeros behind an array (padding of another mesh) mean zeros. A
    second moment that is not zero stays so: Adam divides by it.
    """
    n, table = x.shape[-1], codebook(signed)
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -n % BLOCK)])
    blocks = padded.reshape(*x.shape[:-1], -1, BLOCK)
    scales = jnp.abs(blocks).max(-1)
    near = blocks / jnp.where(scales > 0, scales, 1)[..., None]
    middles = jnp.asarray((table[1:] + table[:-1]) / 2, near.dtype)
    index = jnp.searchsorted(middles, near, method="scan_unrolled")
    if not signed:
        index = jnp.where(near > 0, jnp.maximum(index, 1), index)
    codes = ((index - _zero(signed)) % 256).astype(jnp.uint8)
    return codes.reshape(padded.shape)[..., :n], scales


def dequantise(codes: jax.Array, scales: jax.Array, signed: bool) -> jax.Array:
    """The inverse of `quantise`, in the dtype of the scales."""
    table = jnp.asarray(np.roll(codebook(signed), -_zero(signed)), scales.dtype)
    spread = jnp.repeat(scales, BLOCK, axis=-1)[..., : codes.shape[-1]]
    return table[codes.astype(jnp.int32)] * spread


def _zero(signed: bool) -> int:
    return int(np.searchsorted(codebook(signed), 0.0))


def _pack(tree: Any, signed: bool) -> Packed:
    leaves, made = jax.tree.flatten(tree)
    done = [quantise(x, signed) for x in leaves]
    return Packed(*(made.unflatten(part) for part in zip(*done, strict=True)))


def _unpack(packed: Packed, signed: bool) -> Any:
    return jax.tree.map(lambda c, s: dequantise(c, s, signed), packed.codes, packed.scales)
