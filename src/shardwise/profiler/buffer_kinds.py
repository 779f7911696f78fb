"""A compiled program's buffers by the planner's kinds of memory, and what parameters are in them.

The compiler names arguments; what is temporary is told by its local shape: that of a parameter as
it is stored (a gradient), of one as it is used (a gathered parameter, of one layer or of all),
something stacked over the layers (an activation that waits for the backward pass), or else what
comes and goes. `memory_of` sums places, which may be shared over time, so the kinds together are
the compiler's own total of what it assigned; a table adds what is left to the peak as `REST`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from shardwise.models import ModelConfig, Parameter
from shardwise.models.parameters import parameters
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.layouts import parameter_layout
from shardwise.profiler.ahead import Buffer
from shardwise.profiler.hlo.shapes import Array, arrays, read_shape
from shardwise.work import tally

ARGUMENTS = (
    ("state['params']", "params"),
    ("state['optimizer']", "optimizer"),
    ("params", "weights"),
    ("cache", "kv"),
    ("state.pages", "kv"),
)
"""How arguments' names begin, and the kind of memory that they are."""


REST = "gaps, code and small ones"
"""The peak less the kinds: holes between places, the program itself, buffers that are not listed;
below zero where places are not all alive at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferPlace:
    """A buffer and what it is: `kind` as the planner's, `of` the parameters whose local shape it
    has (as `gathered`, or as they are stored), `layers` how many layers it is stacked over."""

    buffer: Buffer
    kind: str
    of: tuple[str, ...] = ()
    gathered: bool = False
    layers: int = 1


def places(
    buffers: Sequence[Buffer], plan: TrainPlan | ServePlan, cfg: ModelConfig
) -> tuple[BufferPlace, ...]:
    """Every buffer of a plan's program with its kind, in their order."""
    table = _ShapeTable.of(plan, cfg)
    return tuple(_place(buffer, table) for buffer in buffers)


def memory_of(found: Sequence[BufferPlace]) -> dict[str, float]:
    """Bytes by kind."""
    return tally((place.kind, place.buffer.bytes) for place in found)


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShapeTable:
    """Local dims in order of size -> names of parameters, as gathered and as stored."""

    trains: bool
    gathered: Mapping[Shape, tuple[str, ...]]
    stored: Mapping[Shape, tuple[str, ...]]
    layers: frozenset[int]

    @staticmethod
    def of(plan: TrainPlan | ServePlan, cfg: ModelConfig) -> "_ShapeTable":
        trains = isinstance(plan, TrainPlan)
        storage = plan.storage_axes if isinstance(plan, TrainPlan) else ()
        spans = isinstance(plan, TrainPlan) and plan.expert_over_tensor
        rows = parameters(cfg)
        used = dict(_shapes(rows, plan.mesh, (), spans))
        stored = dict(_shapes(rows, plan.mesh, storage, spans))
        return _ShapeTable(
            trains=trains,
            gathered={shape: names for shape, names in used.items() if shape not in stored},
            stored=stored,
            layers=frozenset(count for _, count in cfg.layer_groups()) - {1},
        )


def _shapes(
    rows: Sequence[Parameter], mesh: Mapping[str, int], storage: tuple[str, ...], spans: bool
) -> Iterator[tuple[Shape, tuple[str, ...]]]:
    found: dict[Shape, list[str]] = {}
    for row in rows:
        layout = parameter_layout(row, mesh, storage, spans)
        cuts = {dim.name: prod(mesh.get(a, 1) for a in dim.axes) for dim in layout.dims}
        dims = [ceil(size / cuts.get(name, 1)) for name, size in row.dims]
        if len(dims) > 1:  # a vector's shape tells nothing
            found.setdefault(_key(dims), []).append(row.name)
    for shape, names in found.items():
        yield shape, tuple(dict.fromkeys(names))


def _key(dims: Sequence[int]) -> Shape:
    return tuple(sorted(n for n in dims if n > 1))


def _place(buffer: Buffer, table: _ShapeTable) -> BufferPlace:
    if buffer.kind == "argument":
        kind = next((k for start, k in ARGUMENTS if buffer.op.startswith(start)), "other")
        return BufferPlace(buffer=buffer, kind=kind)
    passing = "transient" if table.trains else "activations"
    array = _array(buffer.shape)
    if array is None or buffer.kind != "temporary":
        return BufferPlace(buffer=buffer, kind=passing if buffer.kind == "temporary" else "other")
    for layers, dims in _readings(array, table.layers):
        key = _key(dims)
        if names := table.gathered.get(key):
            return BufferPlace(buffer=buffer, kind=passing, of=names, gathered=True, layers=layers)
        if table.trains and (names := table.stored.get(key)):
            return BufferPlace(buffer=buffer, kind="gradients", of=names, layers=layers)
    if table.trains and array.dims and array.dims[0] in table.layers:
        return BufferPlace(buffer=buffer, kind="checkpoints", layers=array.dims[0])
    return BufferPlace(buffer=buffer, kind=passing)


def _readings(array: Array, layers: frozenset[int]) -> Iterator[tuple[int, Shape]]:
    """The array as a stack over layers, where its first dim is as long, and as itself."""
    if array.dims and array.dims[0] in layers:
        yield array.dims[0], array.dims[1:]
    yield 1, array.dims


def _array(text: str) -> Array | None:
    if not text or text.startswith("("):
        return None
    found = list(arrays(read_shape(text)))
    return found[0] if len(found) == 1 else None
