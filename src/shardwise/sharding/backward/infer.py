"""Forward lines from one expression: a chain is cut into products, its intermediates laid out.

Every axis is placed by itself: along the chain, the letter that it cuts in each intermediate (or
none) is the one with which the fewest arrays move, by `product.cost`, found by dynamic programming.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.sharding.backward.forward import Forward, Line, forward
from shardwise.sharding.backward.product import Cost, Place, choose, cost, cuts_of, place
from shardwise.sharding.layout import Dim, Layout, MatmulExpr


def forward_of(expr: str, storage: Sequence[str] = (), inputs: Sequence[str] = ()) -> Forward:
    """Read a chain, or lines separated by `;`; all but the first array and `inputs` are parameters.

    >>> tp = forward_of("In[B, D_Y] * W_in[D, F_Y] * W_out[F_Y, D] -> Out[B, D_Y]")
    >>> str(tp.arrays["Tmp"]), [*tp.storage]
    ('Tmp[B, F_Y]', ['W_in', 'W_out'])
    """
    texts = [text for text in re.split(r"[;\n]", expr) if text.strip()]
    lines = list(map(Line.parse, texts)) if len(texts) > 1 else pairs(MatmulExpr.parse(expr))
    given = dict.fromkeys(array.name for line in lines for array in line.inputs)
    made = {line.output.name for line in lines}
    free = {lines[0].inputs[0].name, *inputs, *made}
    return forward(lines, [name for name in given if name not in free], storage)


def pairs(expr: MatmulExpr) -> list[Line]:
    """A chain as products of two, left to right, with the intermediates in the cheapest layouts."""
    operands = expr.operands
    shapes = _intermediates(expr)
    chain = _Chain(operands=operands, shapes=shapes, result=expr.result)
    axes = dict.fromkeys(a for array in chain.fixed for a in (*array.axes, *array.unreduced))
    homes = {axis: chain.place(axis) for axis in axes}
    made = []
    for i, shape in enumerate(shapes):
        if expr.result and i == len(shapes) - 1:
            made.append(_named(expr.result, shape.name))
            continue
        roles = {axis: homes[axis][i] for axis in axes}
        cuts = cuts_of(chain.fixed, roles)
        dims = tuple(Dim(letter, cuts.get(letter, ())) for letter in shape.letters)
        made.append(Layout(name=shape.name, dims=dims))
    lefts = (operands[0], *made[:-1])
    return [
        Line(function="", inputs=(left, right), output=out)
        for left, right, out in zip(lefts, operands[1:], made, strict=True)
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

    def place(self, axis: str) -> list[str | None]:
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
            step: dict[Place, tuple[Cost, list[Place]]] = {}
            for goal in goals:
                ways = [
                    (
                        _plus(
                            so_far,
                            _cost((at, place(right, axis)), (left, right.letters), shape, goal),
                        ),
                        way,
                    )
                    for at, (so_far, way) in best.items()
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


def _intermediates(expr: MatmulExpr) -> tuple[Layout, ...]:
    """The uncut results of the products, with their names."""
    operands = expr.operands
    count = len(operands) - 1
    last = expr.result.letters if expr.result else _uncontracted(operands)
    taken = {array.name for array in operands} | ({expr.result.name} if expr.result else set())
    made, have = [], operands[0].letters
    for i in range(1, count + 1):
        have = last if i == count else _matmul(have, operands[i].letters, last)
        name = (expr.result.name if expr.result else "") or "Out"
        if i < count:
            name = "Tmp" if count == 2 else f"Tmp{i}"
        while name in taken and not (i == count and expr.result and expr.result.name):
            name += "'"
        made.append(Layout(name=name, dims=tuple(Dim(d) for d in have)))
    return tuple(made)


def _matmul(
    left: tuple[str, ...], right: tuple[str, ...], last: tuple[str, ...]
) -> tuple[str, ...]:
    """The dims of one product inside a chain.

    Neighbours contract what they share, even if the dim comes back later, as D does in
    In[B, D] * W_in[D, F] * W_out[F, D] -> Out[B, D]; only dims that lead both and the last result
    are batch dims.
    """
    batch = 0
    while left[: batch + 1] == right[: batch + 1] == last[: batch + 1] and batch < len(left):
        batch += 1
    shared = {*left} & {*right[batch:]}
    return tuple(d for d in dict.fromkeys((*left, *right)) if d not in shared)


def _uncontracted(operands: Sequence[Layout]) -> tuple[str, ...]:
    have = operands[0].letters
    for right in operands[1:]:
        have = _matmul(have, right.letters, ())
    return have


def _named(layout: Layout, name: str) -> Layout:
    return Layout(name=name, dims=layout.dims, unreduced=layout.unreduced)
