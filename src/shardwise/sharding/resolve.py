"""Resolution of one product: every way to compute it with local products.

A compute sharding puts each mesh axis on one letter of the product or on none. Every operand that
has the letter is cut by the axis there, in the same order of axes; operands without it are not cut
by that axis at all. That is all that a local product needs. An axis on a contracted letter leaves
the result unreduced over it; an operand that is itself unreduced over an axis passes that on, as
long as the other operand is whole there. The book's four cases (3.2) are the reshards which the
given layouts need to get there.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from shardwise.sharding.count import product_op
from shardwise.sharding.einsum import Einsum
from shardwise.sharding.local import Sizes
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.reshard import Cost, Cut, Node, arrangements


@dataclass(frozen=True, slots=True)
class ComputeSharding:
    """The axes on each letter of a product, major to minor, and sums that an operand brings.

    `partial` maps an axis to the operand (0 or 1) that is unreduced over it.
    """

    cuts: Mapping[str, Cut]
    partial: Mapping[str, int]

    def needs(self, product: Einsum, operand: int) -> Node:
        """The layout that one operand must have."""
        letters = product.operands[operand].letters
        own = tuple(sorted(a for a, i in self.partial.items() if i == operand))
        return Node(tuple(self.cuts[x] for x in letters), own)

    def makes(self, product: Einsum) -> Node:
        """The layout that the local product comes out with."""
        summed = [axis for x in product.contracted for axis in self.cuts[x]]
        unreduced = tuple(sorted([*summed, *self.partial]))
        return Node(tuple(self.cuts[x] for x in product.result.letters), unreduced)


def compute_shardings(
    product: Einsum,
    mesh: Mesh,
    sizes: Sizes,
    open_sums: Sequence[Sequence[str]] = ((), ()),
    orders: Collection[Cut] | None = None,
) -> Iterator[ComputeSharding]:
    """Every legal compute sharding of a product of two; `open_sums` are the axes over which each
    operand may come unreduced, `orders` the runs of axes that may cut a dim (None: any)."""
    letters = product.letters
    lengths = [sizes[x] for x in letters]
    for cuts in arrangements(lengths, mesh, orders):
        placed = dict(zip(letters, cuts, strict=True))
        idle = [axis for axis in mesh if not any(axis in cut for cut in cuts)]
        for partial in _partials(idle, open_sums):
            yield ComputeSharding(placed, partial)


def product_cost(product: Einsum, mesh: Mesh, sizes: Sizes, dtype: str, cost: Cost):
    """A function of a compute sharding: what its local product costs, asked once per shape."""
    first, second = (operand.letters for operand in product.operands)

    @cache
    def of(lengths: tuple[int, ...]) -> float:
        local = dict(zip(product.letters, lengths, strict=True))
        inputs = [{x: local[x] for x in letters} for letters in (first, second)]
        result = {x: local[x] for x in product.result.letters}
        return float(cost(product_op(inputs, result, dtype)))

    def priced(way: ComputeSharding) -> float:
        cut = {x: prod(mesh[axis] for axis in way.cuts[x]) for x in product.letters}
        return of(tuple(sizes[x] // cut[x] for x in product.letters))

    return priced


def _partials(idle: Sequence[str], open_sums: Sequence[Sequence[str]]) -> Iterator[dict[str, int]]:
    """Each idle axis stays idle or carries the open sum of one operand."""
    found: list[dict[str, int]] = [{}]
    for axis in idle:
        for i, axes in enumerate(open_sums):
            if axis in axes:
                found += [{**way, axis: i} for way in tuple(found) if axis not in way]
    yield from found
