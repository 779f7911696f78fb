"""Mesh: named axes and their degrees, in order. It knows no hardware."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from numbers import Integral

from shardwise.errors import BadRequest, entry_of, shown
from shardwise.sharding.notation import AXIS, AXIS_RULE, read_assignments


@dataclass(frozen=True, slots=True)
class Mesh(Mapping[str, int]):
    """Axes and degrees, outermost first; the last axis is the one whose devices are closest.

    A read-only mapping axis -> degree that compares by order too and can be a dict key.

    >>> mesh = Mesh.parse("X=4,Y=2")
    >>> mesh.size, mesh["X"], str(mesh)
    (8, 4, 'X=4,Y=2')
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        for axis, degree in self.axes:
            if not AXIS.fullmatch(axis):
                raise BadRequest(f"mesh axis '{axis}' is not an axis name; {AXIS_RULE}")
            if not isinstance(degree, Integral) or degree < 1:
                rule = "a degree is a whole number of at least 1"
                raise BadRequest(f"mesh axis '{axis}' has degree {degree}; {rule}")
        # NumPy integers come out of searches; plain ones print and serialise.
        object.__setattr__(self, "axes", tuple((axis, int(d)) for axis, d in self.axes))
        names = list(self)
        for axis in names:
            if names.count(axis) > 1:
                rule = "an axis has one degree, so remove or rename one"
                raise BadRequest(f"mesh axis '{axis}' appears twice in '{self}'; {rule}")

    @classmethod
    def of(cls, degrees: Mapping[str, int]) -> "Mesh":
        """A mesh from an ordered mapping, such as a plan's."""
        return cls(tuple(degrees.items()))

    @classmethod
    def parse(cls, text: str) -> "Mesh":
        """Read `X=4,Y=2`; raises BadRequest for anything else."""
        pairs = read_assignments(text, "mesh", "axes and degrees like X=4,Y=2")
        for axis, degree in pairs:
            if not re.fullmatch(r"-?\d{1,9}", degree, re.ASCII):
                rule = "a degree is a whole number of at least 1, as in X=4"
                raise BadRequest(f"mesh axis '{axis}' has degree {shown(degree)}; {rule}")
        return cls(tuple((axis, int(degree)) for axis, degree in pairs))

    def __str__(self) -> str:
        return ",".join(f"{axis}={degree}" for axis, degree in self.axes)

    def __getitem__(self, axis: str) -> int:
        for name, degree in self.axes:  # a few; a dict is slower and searches ask millions of times
            if name == axis:
                return degree
        raise KeyError(axis)

    def __iter__(self) -> Iterator[str]:
        return (axis for axis, _ in self.axes)

    def __len__(self) -> int:
        return len(self.axes)

    @property
    def size(self) -> int:
        """The devices: the product of all degrees."""
        return prod(degree for _, degree in self.axes)

    def devices(self) -> Iterator[tuple[int, ...]]:
        """The coordinates of every device, the last axis fastest."""
        return _coordinates(tuple(degree for _, degree in self.axes))

    def degree(self, axis: str) -> int:
        """The degree of an axis; raises BadRequest with the nearest names for an unknown one."""
        return entry_of("mesh axis", axis, self, f"the mesh is {self}")


def _coordinates(degrees: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """One at a time: `itertools.product` would list an axis of 10^12 devices first."""
    if not degrees:
        yield ()
        return
    for at in range(degrees[0]):
        for rest in _coordinates(degrees[1:]):
            yield (at, *rest)
