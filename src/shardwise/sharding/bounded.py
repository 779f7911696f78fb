"""What keeps the search of `chain.py` small: no axes of one device, and in large searches fewer
orders of the axes that share a dim. What is left out is said in the answer's notes.
"""

from dataclasses import replace
from itertools import combinations

from shardwise.sharding.einsum import Einsum
from shardwise.sharding.layout import Layout
from shardwise.sharding.local import Sizes
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.reshard import Cut, few_arrangements, too_many


def without_units(einsum: Einsum, mesh: Mesh) -> tuple[Einsum, Mesh]:
    """The einsum and the mesh without axes of one device: those cut nothing and move nothing, but
    each multiplies the layouts to search. A mesh of one device keeps its first axis."""
    cutting = tuple(pair for pair in mesh.axes if pair[1] > 1) or mesh.axes[:1]
    kept = {axis for axis, _ in cutting}

    def cut(layout: Layout) -> Layout:
        dims = tuple(replace(d, axes=tuple(a for a in d.axes if a in kept)) for d in layout.dims)
        sums = tuple(axis for axis in layout.unreduced if axis in kept)
        return replace(layout, dims=dims, unreduced=sums)

    operands, result = tuple(map(cut, einsum.operands)), cut(einsum.result)
    return replace(einsum, operands=operands, result=result), Mesh(cutting)


MOST_EXACT = 1_500
"""Ways to cut a product up to which axes are tried in every order (ours): about 10 s on a slice."""
MOST_AXES = 12


def orders_of(einsum: Einsum, mesh: Mesh, sizes: Sizes) -> frozenset[Cut] | None:
    """None where every order of axes is searched; else the runs of axes that may cut a dim: in the
    mesh's order or as in the expression, with all that can be left out of them."""
    if len(mesh) > MOST_AXES:
        raise too_many(f"{len(mesh)} axes of more than one device, of at most {MOST_AXES}")
    letters = max((p.letters for p in einsum.products()), key=len, default=einsum.letters)
    if few_arrangements([sizes[x] for x in letters], mesh, MOST_EXACT):
        return None
    layouts = (*einsum.operands, einsum.result)
    runs = {tuple(mesh), *(dim.axes for layout in layouts for dim in layout.dims)}
    return frozenset(
        part for run in runs for n in range(len(run) + 1) for part in combinations(run, n)
    )
