"""Random einsums with random shardings, one per seed.

One in eight is a reshard, one in eight a chain of three arrays, the others are products of two;
operands have 2 to 4 dims; some inputs arrive as partial sums and some results are wanted so. Each
dim has two sizes: a small one to run with and a multiple of it to price with.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm, prod

from shardwise.sharding.einsum import Einsum
from shardwise.sharding.layout import Dim, Layout
from shardwise.sharding.mesh import Mesh

MESHES = (
    *((n,) for n in (2, 3, 4, 8)),
    *((2, 2), (2, 4), (4, 2), (2, 3), (3, 2)),
    *((2, 2, 2),) * 3,
)


FACTORS = (5, 7, 25, 35, 49, 125)
"""From small to priced sizes: without a factor of any degree, so that both divide alike."""
SKIP = 1_000_000
SLICES = {4: ("v5e:2x2", "v5p:2x2x1"), 8: ("v5e:2x4", "v5p:2x2x2")}
"""Slices of torus chips by how many devices a mesh has; any number fits a part of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnEinsum:
    """One drawn einsum: `sizes` to run with, `priced_sizes` to price with, on a slice."""

    seed: int
    einsum: Einsum
    mesh: Mesh
    sizes: dict[str, int]
    priced_sizes: dict[str, int]
    dtype: str
    slice_text: str


def draw(seed: int) -> DrawnEinsum:
    """The case of a seed; the same one every time."""
    dice = random.Random(seed)
    degrees = dice.choice(MESHES)
    mesh = Mesh(tuple(zip("XYZ", degrees, strict=False)))
    kind = dice.choice(("reshard", "chain", *("product",) * 6))
    operands, result = {"reshard": _reshard, "chain": _chain, "product": _product}[kind](dice)
    sizes = _sizes(dice, sorted({*"".join(operands), *result}), mesh)
    arrays = [
        _laid_out(dice, name, letters, mesh, sizes)
        for name, letters in zip("ABW", operands, strict=False)
    ]
    if dice.random() < 0.15:
        at = dice.randrange(len(arrays))
        arrays[at] = _with_sums(dice, arrays[at], mesh)
    name = "A" if kind == "reshard" else "C"
    wanted = _laid_out(dice, name, result, mesh, sizes)
    opened = sorted({axis for array in arrays for axis in array.unreduced})
    if opened and dice.random() < 0.3:
        wanted = _left_open(wanted, dice.sample(opened, dice.randint(1, len(opened))))
    if wanted == arrays[0]:  # a reshard with nothing to do
        return replace(draw(seed + SKIP), seed=seed)
    factor = dice.choice(FACTORS[: 8 - max(map(len, operands))])
    return DrawnEinsum(
        seed=seed,
        einsum=Einsum(operands=tuple(arrays), result=wanted),
        mesh=mesh,
        sizes=sizes,
        priced_sizes={x: n * factor for x, n in sizes.items()},
        dtype=dice.choice(("f32", "f32", "f32", "bf16")),
        slice_text=dice.choice((*SLICES.get(mesh.size, ()), f"h100:{mesh.size}")),
    )


def _product(dice: random.Random) -> tuple[list[str], str]:
    """Batch letters in both and the result, contracted ones in both, each operand's own."""
    while True:
        batch, summed = dice.randint(0, 2), dice.randint(1, 2)
        left, right = dice.randint(0, 2), dice.randint(0, 2)
        shared = batch + summed
        if 2 <= shared + left <= 4 and 2 <= shared + right <= 4 and batch + left + right:
            break
    letters = iter("IJKLMNOP")
    b, s, m, n = ("".join(next(letters) for _ in range(k)) for k in (batch, summed, left, right))
    return [_mixed(dice, b + s + m), _mixed(dice, b + s + n)], _mixed(dice, b + m + n)


def _chain(dice: random.Random) -> tuple[list[str], str]:
    batch = dice.choice(("", "", "E"))
    return [batch + "IJ", batch + "JK", batch + "KL"], batch + dice.choice(("IL", "LI"))


def _reshard(dice: random.Random) -> tuple[list[str], str]:
    letters = "IJKL"[: dice.randint(2, 4)]
    return [letters], letters


def _mixed(dice: random.Random, letters: str) -> str:
    return "".join(dice.sample(letters, len(letters)))


def _sizes(dice: random.Random, letters: Sequence[str], mesh: Mesh) -> dict[str, int]:
    """Most dims divide by the whole mesh, some by one axis alone."""
    whole, one = lcm(2, mesh.size), list(mesh.values())
    return {x: dice.choice((whole, whole, whole, 2 * whole, dice.choice(one))) for x in letters}


def _laid_out(
    dice: random.Random, name: str, letters: str, mesh: Mesh, sizes: dict[str, int]
) -> Layout:
    """Each axis cuts one of the dims that it divides, or none; in any order within a dim."""
    cuts: dict[str, tuple[str, ...]] = dict.fromkeys(letters, ())
    for axis in dice.sample(list(mesh), len(mesh)):
        fits = [x for x in letters if sizes[x] % prod(mesh[a] for a in (*cuts[x], axis)) == 0]
        dim = dice.choice(("", *fits, *fits))
        if dim:
            cuts[dim] += (axis,)
    return Layout(name=name, dims=tuple(Dim(x, cuts[x]) for x in letters))


def _with_sums(dice: random.Random, layout: Layout, mesh: Mesh) -> Layout:
    idle = [axis for axis in mesh if axis not in layout.axes]
    return replace(layout, unreduced=tuple(dice.sample(idle, dice.randint(0, len(idle)))))


def _left_open(layout: Layout, axes: Sequence[str]) -> Layout:
    dims = (Dim(d.name, tuple(a for a in d.axes if a not in axes)) for d in layout.dims)
    return replace(layout, dims=tuple(dims), unreduced=tuple(axes))
