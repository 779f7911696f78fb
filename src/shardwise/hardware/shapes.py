"""Which shapes a torus is cut into, and which axes of a cut close into rings.

The rule of a generation follows from how its axes close (`Torus.wrap`). Cube generations join
4x4x4 cubes by optical switches, so any box of whole cubes is a slice while the pod has cubes left;
an axis may then be longer than the pod's own (MaxText's table has v5p 4x4x116). Sources:
docs.cloud.google.com/tpu pages of each generation; AI-Hypercomputer/maxtext@19142c2
accelerator_to_spec_map.py for names, shapes and wraparound of v4, v5e, v5p, v6e and tpu7x.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from shardwise.hardware.network import Torus, WrapRule

Shape = tuple[int, ...]

_FLAT: tuple[Shape, ...] = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_BELOW_A_CUBE: tuple[Shape, ...] = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShapeRule:
    """`shapes(pod)` lists shapes in one axis order; `any_order` says that the others are legal."""

    text: str
    shapes: Callable[[Shape], Iterable[Shape]]
    any_order: Callable[[Shape], bool] = lambda shape: True


def shape_text(shape: Shape) -> str:
    """The spelling of a shape.

    >>> shape_text((16, 20, 28))
    '16x20x28'
    """
    return "x".join(map(str, shape))


@lru_cache(maxsize=64)
def legal_shapes(network: Torus) -> tuple[Shape, ...]:
    """All shapes of one slice, one axis order each, fewest chips first, then most cube-like."""
    shapes = {*_RULES[network.wrap].shapes(network.pod), *_single(network)}
    return tuple(sorted(shapes, key=_size_then_spread))


def _single(network: Torus) -> tuple[Shape, ...]:
    return ((1,) * len(network.pod),) if network.single else ()


def is_legal(network: Torus, shape: Shape) -> bool:
    """Whether a slice of this torus can have the shape."""
    if shape in _legal_set(network):
        return True
    return _RULES[network.wrap].any_order(shape) and tuple(sorted(shape)) in _legal_set(network)


def rule_text(network: Torus) -> str:
    """The rule in words, for errors."""
    rule = _RULES[network.wrap].text.format(
        pod=shape_text(network.pod), chips=math.prod(network.pod), axes=len(network.pod)
    )
    return ", ".join([*map(shape_text, _single(network)), rule])


def wraps(network: Torus, shape: Shape) -> tuple[bool, ...]:
    """For each axis, whether its two ends are joined. See `WrapRule`."""
    if network.wrap == "all_multiples_of_4":
        return (all(n % 4 == 0 for n in shape),) * len(shape)
    if network.wrap == "exactly_16":
        return tuple(n == 16 for n in shape)
    if network.wrap == "never":
        return (False,) * len(shape)
    return tuple(n == p for n, p in zip(shape, _in_order_of(shape, network.pod), strict=True))


def _in_order_of(shape: Shape, dims: Shape) -> Shape:
    """`dims` sorted as the sizes of `shape` are: the pod seen along a slice's axes."""
    by_size = sorted(range(len(shape)), key=lambda i: (shape[i], i))
    placed = dict(zip(by_size, sorted(dims), strict=True))
    return tuple(placed[i] for i in range(len(shape)))


def nearest_shapes(network: Torus, shape: Shape) -> tuple[Shape, ...]:
    """The three legal shapes closest to one that is not; for a bare count, closest in chips."""

    def distance(legal: Shape) -> tuple[float, int]:
        if len(shape) == 1:
            return abs(math.log(math.prod(legal) / shape[0])), sum(legal)
        return _apart(legal, shape), 0

    return tuple(sorted(legal_shapes(network), key=distance)[:3])


def _apart(one: Shape, other: Shape) -> float:
    """Sum of the size ratios (as logs) of two shapes, axis by axis in order of size."""
    axes = max(len(one), len(other))
    pairs = zip(*(sorted((1,) * (axes - len(s)) + s) for s in (one, other)), strict=True)
    return sum(abs(math.log(a / b)) for a, b in pairs)


def shapes_with(network: Torus, chips: float) -> tuple[Shape, ...]:
    """Legal shapes with exactly that many chips, the most cube-like first."""
    return tuple(s for s in legal_shapes(network) if math.prod(s) == chips)


@lru_cache(maxsize=64)
def _legal_set(network: Torus) -> frozenset[Shape]:
    return frozenset(legal_shapes(network))


def _size_then_spread(shape: Shape) -> tuple[int, int, Shape]:
    return (math.prod(shape), sum(shape), shape)


def _cubes(pod: Shape) -> Iterable[Shape]:
    yield from _BELOW_A_CUBE
    cubes = math.prod(pod) // 64
    for a in range(1, cubes + 1):
        for b in range(a, cubes // a + 1):
            yield from ((4 * a, 4 * b, 4 * c) for c in range(b, cubes // (a * b) + 1))


def _doubling(pod: Shape) -> Iterable[Shape]:
    yield (2, 2)
    short, long = sorted(pod)
    powers = [2**i for i in range(2, long.bit_length())]
    yield from ((a, b) for a in powers for b in (a, 2 * a) if a <= short and b <= long)


def _inside(pod: Shape) -> Iterable[Shape]:
    divisors = ([d for d in range(1, n + 1) if n % d == 0] for n in pod)
    yield from (tuple(sorted(shape)) for shape in product(*divisors))


_DIVISORS = _ShapeRule(text="{axes} sizes that divide the domain {pod}", shapes=_inside)
_RULES: dict[WrapRule, _ShapeRule] = {
    "all_multiples_of_4": _ShapeRule(
        text=(
            "2x2x1, 2x2x2, 2x2x4, 2x4x4, or three multiples of 4 with at most {chips} chips "
            "(the pod {pod})"
        ),
        shapes=_cubes,
        any_order=lambda shape: all(n % 4 == 0 for n in shape),
    ),
    "exactly_16": _ShapeRule(
        text="1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16 or 16x16, in either order",
        shapes=lambda pod: _FLAT,
    ),
    "full_pod": _ShapeRule(
        text=(
            "2x2, or two powers of 2 from 4 up to the pod {pod}, "
            "one at most twice the other, in either order"
        ),
        shapes=_doubling,
    ),
    "always": _DIVISORS,
    "never": _DIVISORS,
}
