"""Layout: which mesh axes cut which dim of an array; and products of laid-out arrays as written.

One Layout drives both byte counts (`local.py`) and the runtime's PartitionSpec (`spec`).
"""

from dataclasses import dataclass

from shardwise.errors import BadRequest, unknown
from shardwise.sharding.notation import (
    ARRAY,
    ARRAY_RULE,
    AXIS,
    AXIS_RULE,
    DIM,
    DIM_RULE,
    ArrayText,
    print_array,
    read_array,
    read_product,
)

Spec = tuple[str | tuple[str, ...] | None, ...]
"""The arguments of a JAX PartitionSpec: one entry per dim."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A named dim and the mesh axes that cut it, major to minor; none means not cut."""

    name: str
    axes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """An array over a mesh: `A[I_X, J_Y]{U_Z}` (book 3.1.1).

    X shards dim I and Y shards dim J. Over Z each device holds a partial sum. Over other axes of
    the mesh the blocks are copies. `name` may be empty; a scalar, such as the result of a dot
    product, has no dims. Unreduced axes are sorted.
    Raises BadRequest if an axis is used twice.

    >>> layout = Layout.parse("A[I_XY, J]")
    >>> layout.spec(), str(layout)
    ((('X', 'Y'), None), 'A[I_XY, J]')
    """

    name: str
    dims: tuple[Dim, ...]
    unreduced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "unreduced", tuple(sorted(self.unreduced)))
        _check_names(self)
        _check_axes(self)

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Read one array, in ASCII or in the book's typography; BadRequest shows the place."""
        return cls._of(read_array(text))

    @classmethod
    def _of(cls, array: ArrayText) -> "Layout":
        dims = tuple(Dim(name, axes) for name, axes in array.dims)
        return cls(name=array.name, dims=dims, unreduced=array.unreduced)

    def __str__(self) -> str:
        dims = tuple((dim.name, dim.axes) for dim in self.dims)
        return print_array(ArrayText(self.name, dims, self.unreduced))

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes that cut a dim, in the order of the dims."""
        return tuple(axis for dim in self.dims for axis in dim.axes)

    @property
    def letters(self) -> tuple[str, ...]:
        """The names of the dims, in order."""
        return tuple(dim.name for dim in self.dims)

    def dim(self, name: str) -> Dim:
        """The dim of that name; raises BadRequest with the nearest names if there is none."""
        for dim in self.dims:
            if dim.name == name:
                return dim
        raise unknown("dim", name, self.letters, f"the array is '{self}'")

    def spec(self) -> Spec:
        """PartitionSpec form: per dim None, an axis, or axes major to minor.

        Unreduced axes are not part of it: pass `unreduced` beside it where JAX wants them.
        """
        return tuple(_entry(dim.axes) for dim in self.dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulExpr:
    """A product as written: `A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]`, of two arrays or more.

    `result` is None where `->` was left out. Notation only: which dims are contracted and what must
    be communicated is not decided here.

    >>> str(MatmulExpr.parse("A[Iₓ, J] ⋅ B[J, Kᵧ] → C[Iₓ, Kᵧ]"))
    'A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]'
    """

    operands: tuple[Layout, ...]
    result: Layout | None

    def __post_init__(self) -> None:
        if len(self.operands) < 2:
            rule = "a product has at least two arrays, such as A[I, J] * B[J, K]"
            raise BadRequest(f"'{self}' is not a product; {rule}")

    @classmethod
    def parse(cls, text: str) -> "MatmulExpr":
        """Read a product or a chain; BadRequest shows the place of a mistake."""
        operands, result = read_product(text)
        layouts = tuple(Layout._of(operand) for operand in operands)
        return cls(operands=layouts, result=Layout._of(result) if result else None)

    def __str__(self) -> str:
        product = " * ".join(map(str, self.operands))
        return f"{product} -> {self.result}" if self.result else product


def _entry(axes: tuple[str, ...]) -> str | tuple[str, ...] | None:
    if len(axes) > 1:
        return axes
    return axes[0] if axes else None


def _check_names(layout: Layout) -> None:
    if layout.name and not ARRAY.fullmatch(layout.name):
        raise BadRequest(f"array '{layout.name}' is not an array name; {ARRAY_RULE}")
    for dim in layout.dims:
        if not DIM.fullmatch(dim.name):
            raise BadRequest(f"'{dim.name}' in '{layout}' is not a dim name; {DIM_RULE}")
        if layout.letters.count(dim.name) > 1:
            rule = "the dims of one array have different names, so rename one"
            raise BadRequest(f"dim '{dim.name}' appears twice in '{layout}'; {rule}")
    for axis in (*layout.axes, *layout.unreduced):
        if not AXIS.fullmatch(axis):
            raise BadRequest(f"'{axis}' in '{layout}' is not a mesh axis; {AXIS_RULE}")


def _check_axes(layout: Layout) -> None:
    """An axis may appear once in an array: in one dim, or unreduced."""
    cuts: dict[str, str] = {}
    for dim in layout.dims:
        for axis in dim.axes:
            if cuts.get(axis) == dim.name:
                rule = "an axis may cut a dimension once, so remove one of them"
                raise BadRequest(f"mesh axis '{axis}' cuts {dim.name} twice in '{layout}'; {rule}")
            if axis in cuts:
                rule = "an axis may cut one dimension, so remove one of them"
                both = f"both {cuts[axis]} and {dim.name}"
                raise BadRequest(f"mesh axis '{axis}' cuts {both} in '{layout}'; {rule}")
            cuts[axis] = dim.name
    for axis in layout.unreduced:
        if axis in cuts:
            rule = "partial sums over an axis cannot be cut by it, so remove one of them"
            both = f"cuts {cuts[axis]} and is unreduced"
            raise BadRequest(f"mesh axis '{axis}' both {both} in '{layout}'; {rule}")
        if layout.unreduced.count(axis) > 1:
            rule = "name it once"
            raise BadRequest(f"mesh axis '{axis}' is unreduced twice in '{layout}'; {rule}")
