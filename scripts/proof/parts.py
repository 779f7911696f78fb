"""Mesh axes in parts: every axis as axes of prime degree, X=4 as x0=2,x1=2, and layouts over them.

XLA may run a collective over a part of an axis. The notation names whole axes, so such a collective
is priced, and such a way is looked for, on the mesh in parts; blocks stay where they were.
"""

from dataclasses import replace

from shardwise.sharding.einsum import Einsum
from shardwise.sharding.layout import Dim, Layout
from shardwise.sharding.mesh import Mesh


def in_parts(mesh: Mesh) -> Mesh:
    """The mesh with every axis in parts, major to minor.

    >>> str(in_parts(Mesh.parse("X=4,Y=3")))
    'x0=2,x1=2,y0=3'
    """
    return Mesh(tuple(part for axis in mesh for part in _parts(mesh, axis)))


def einsum_in_parts(einsum: Einsum, mesh: Mesh) -> Einsum:
    """The same einsum, every layout over the axes of `in_parts(mesh)`."""
    operands = tuple(_layout(operand, mesh) for operand in einsum.operands)
    return replace(einsum, operands=operands, result=_layout(einsum.result, mesh))


def _layout(layout: Layout, mesh: Mesh) -> Layout:
    dims = tuple(Dim(dim.name, _names(dim.axes, mesh)) for dim in layout.dims)
    return replace(layout, dims=dims, unreduced=_names(layout.unreduced, mesh))


def _names(axes: tuple[str, ...], mesh: Mesh) -> tuple[str, ...]:
    return tuple(name for axis in axes for name, _ in _parts(mesh, axis))


def _parts(mesh: Mesh, axis: str) -> tuple[tuple[str, int], ...]:
    primes, left = [], mesh[axis]
    for prime in range(2, mesh[axis] + 1):
        while left % prime == 0:
            primes.append(prime)
            left //= prime
    return tuple((f"{axis.lower()}{i}", prime) for i, prime in enumerate(primes))
