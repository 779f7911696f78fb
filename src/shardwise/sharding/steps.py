"""Steps: what the devices do to a laid-out array, as algebra. A program is a sequence of steps.

A step names its input and output arrays with the Layout of each. Communication steps change a
Layout and nothing else; `local` steps move no bytes. What a step costs is derived from its layouts:
nothing here knows a chip.

| kind | effect on the Layout | book |
|---|---|---|
| all_gather over X of dim I | I_..X.. -> I without X | 3.2 case 2 |
| reduce_scatter over X to dim I | {U_X}, I -> I_..X | 3.3.2 |
| all_reduce over X | {U_X} -> reduced | 3.2 case 3 |
| all_to_all over X from I to J | I_..X, J -> I, J_..X | 3.3.3 |
| permute over X | the blocks change places, the Layout's axis order changes | 10.1.2 |
| slice over X of dim I | I -> I_..X: each device keeps its part of a copy; free | 3.2 |
| einsum | the local product; contracted axes become unreduced | 3.2 |
| map | a named elementwise function of local blocks (`add`, `softmax`); no cut changes | 7.3.3 |
| reshape | local blocks: a dim splits in two or two merge, I -> (J, K); cuts go with them | 7.3.3 |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from shardwise.sharding.layout import Layout
from shardwise.sharding.local import Sizes, bytes_per_device
from shardwise.sharding.mesh import Mesh

StepKind = Literal[
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "permute",
    "slice",
    "einsum",
    "map",
    "reshape",
]
COMMUNICATION: frozenset[StepKind] = frozenset(
    {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStep:
    """One step of a program: `inputs` are the layouts read, `output` the one made.

    A communication or slice step has one input. `axes` are the mesh axes that it runs over, major
    to minor; `dim` is the dim that is gathered, scattered to or sliced, and where an all-to-all
    takes the axes from; `to_dim` is where an all-to-all puts them. `function` names what a map
    computes.
    """

    kind: StepKind
    inputs: tuple[Layout, ...]
    output: Layout
    axes: tuple[str, ...] = ()
    dim: str = ""
    to_dim: str = ""
    function: str = ""

    def __str__(self) -> str:
        """The book's form, such as `A[I, J] = AllGather_X(A[I_X, J])`."""
        inputs = ", ".join(map(str, self.inputs))
        if self.kind == "einsum":
            return f"{self.output} = {' * '.join(map(str, self.inputs))}"
        if self.kind in ("map", "reshape"):
            return f"{self.output} = {self.title}({inputs})"
        over = "".join(self.axes) if all(len(a) == 1 for a in self.axes) else ",".join(self.axes)
        over = over if len(self.axes) == 1 or "," not in over else f"{{{over}}}"
        where = {"all_to_all": f", {self.dim}->{self.to_dim}", "reduce_scatter": f", {self.dim}"}
        return f"{self.output} = {self.title}_{over}({self.inputs[0]}{where.get(self.kind, '')})"

    @property
    def title(self) -> str:
        """The book's name of the kind, such as AllGather; a map's function."""
        return self.function or "".join(word.capitalize() for word in self.kind.split("_"))

    @property
    def communicates(self) -> bool:
        """Whether bytes move between devices."""
        return self.kind in COMMUNICATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Steps in order over one mesh, with the size of every dim and the dtype of the arrays."""

    mesh: Mesh
    sizes: Sizes
    dtype: str
    steps: tuple[ShardStep, ...]

    @property
    def output(self) -> Layout:
        """The layout of the last array made."""
        return self.steps[-1].output


def group_bytes(step: ShardStep, sizes: Sizes, mesh: Mesh, dtypes: Mapping[str, str]) -> float:
    """V of a communication step, the logical array of one group in bytes (see `work.Collective`).

    The gathered array of an all-gather, the input of a reduce-scatter, the buffer of an all-reduce,
    the total over the group of an all-to-all, the payload per device of a permute. `dtypes` maps an
    array's name to its dtype.
    """
    if not step.communicates:
        return 0.0
    array = step.inputs[0]
    held = bytes_per_device(array, sizes, mesh, dtypes[array.name])
    grown = step.axes if step.kind in ("all_gather", "all_to_all") else ()
    return held * prod(mesh[axis] for axis in grown)
