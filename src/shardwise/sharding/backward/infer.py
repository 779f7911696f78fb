"""Forward lines from one expression: a chain is cut into products, its intermediates laid out.

Every axis is placed by itself: along the chain, the letter that it cuts in each intermediate (or
none) is the one with which the fewest arrays move, by `product.cost`, found by dynamic programming.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.errors import BadRequest
from shardwise.sharding.backward.forward import Forward, ForwardLine, forward
from shardwise.sharding.backward.product import Cost, Place, choose, cost, cuts_of, place
from shardwise.sharding.einsum import Einsum
from shardwise.sharding.layout import Dim, Layout


def forward_of(expr: str, storage: Sequence[str] = (), inputs: Sequence[str] = ()) -> Forward:
    """Read a chain, or lines separated by `;`; all but the first array and `inputs` are parameters.

    >>> tp = forward_of("In[B, D_Y] * W_in[D, F_Y] * W_out[F_Y, D] -> Out[B, D_Y]")
    >>> str(tp.arrays["Tmp"]), [*tp.storage]
    ('Tmp[B, F_Y]', ['W_in', 'W_out'])
    """
    texts = [text for text in re.split(r"[;\n]", expr) if text.strip()]
    listed = len(texts) > 1 or "(" in expr
    lines = list(map(ForwardLine.parse, texts)) if listed else pairs(Einsum.parse(expr))
    given = dict.fromkeys(array.name for line in lines for array in line.inputs)
    made = {line.output.name for line in lines}
    free = {lines[0].inputs[0].name, *inputs, *made}
    return forward(lines, [name for name in given if name not in free], storage)


def pairs(einsum: Einsum) -> list[ForwardLine]:
    """A chain as products of two, left to right, with the intermediates in the cheapest layouts."""
    if einsum.is_reshard:
        rule = "a backward pass needs a product, such as A[I, J] * B[J, K] -> C[I, K]"
        raise BadRequest(f"'{einsum}' multiplies nothing; {rule}")
    products = einsum.products()
    chain = _Chain(
        operands=einsum.operands,
        shapes=tuple(product.result for product in products),
        result=None if einsum.free else einsum.result,
    )
    made = chain.results()
    lefts = (einsum.operands[0], *made[:-1])
    return [
        ForwardLine(function="", inputs=(left, right), output=out)
        for left, right, out in zip(lefts, einsum.operands[1:], made, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """The operands, the uncut results of every product, and the last result's layout if given."""

    operands: tuple[Layout, ...]
    shapes: tuple[Layout, ...]
    result: Layout | None

    @property
    def fixed(self) -> tuple[Layout, ...]:
        return (*self.operands, self.result) if self.result else self.operands

    def results(self) -> tuple[Layout, ...]:
        """The layout of every product's result."""
        axes = dict.fromkeys(a for array in self.fixed for a in (*array.axes, *array.unreduced))
        homes = {axis: self.place(axis) for axis in axes}
        made = []
        for i, shape in enumerate(self.shapes[:-1] if self.result else self.shapes):
            cuts = cuts_of(self.fixed, {axis: homes[axis][i] for axis in axes})
            dims = tuple(Dim(letter, cuts.get(letter, ())) for letter in shape.letters)
            made.append(Layout(name=shape.name, dims=dims))
        return (*made, self.result) if self.result else tuple(made)

    def place(self, axis: str) -> list[Place]:
        """The letter that the axis cuts in each result of the chain."""
        letters = {place(array, axis) for array in self.fixed}
        best: dict[Place, tuple[Cost, list[Place]]] = {
            place(self.operands[0], axis): ((0.0, 0, 0), [])
        }
        left = self.operands[0].letters
        for right, shape in zip(self.operands[1:], self.shapes, strict=True):
            goals: list[Place] = [d for d in shape.letters if d in letters] + [None]
            if self.result is not None and shape is self.shapes[-1]:
                goals = [place(self.result, axis)]
            there, letters_of = place(right, axis), (left, right.letters)
            step: dict[Place, tuple[Cost, list[Place]]] = {}
            for goal in goals:
                ways = [
                    (_plus(spent, _cost((at, there), letters_of, shape, goal)), way)
                    for at, (spent, way) in best.items()
                ]
                spent, way = min(ways, key=lambda w: w[0])
                step[goal] = (spent, [*way, goal])
            best, left = step, shape.letters
        return min(best.values(), key=lambda b: b[0])[1]


def _cost(
    places: Sequence[Place], letters: Sequence[tuple[str, ...]], shape: Layout, goal: Place
) -> Cost:
    role = choose(places, letters, shape.letters, goal)
    return cost(role, places, letters, shape.letters, goal)


def _plus(a: Cost, b: Cost) -> Cost:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]
