"""`shard`: arrays and computations in the book's notation.

One array: what each device of a mesh holds of it. A product, a chain or a reshard: the cheapest way
to compute it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from math import inf
from typing import ClassVar

from shardwise.boundary import Command, flag_of
from shardwise.boundary.options import option, place, required, several, switch
from shardwise.boundary.records import Record, hidden, part
from shardwise.commands.base.answer import Answer, Page, Resolved, Row, TextTable
from shardwise.commands.base.inputs import HardwareWords, Words, check_choice, whole_number, words
from shardwise.commands.base.layout import Verbatim
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.shard.expression import Sharding, first_movement, shard_expression
from shardwise.commands.shard.page import (
    HEADER_BYTES,
    HEADER_TIME,
    beside_page,
    product_page,
    strategy_rows,
)
from shardwise.commands.shard.result import ShardedProduct, sharded_product
from shardwise.commands.shard.run import ShardRun, run_program, to_source
from shardwise.errors import BadRequest, Remark, unknown
from shardwise.sharding import (
    Einsum,
    Layout,
    Mesh,
    Sizes,
    Strategy,
    block,
    bytes_per_device,
    bytes_total,
    copies,
    global_shape,
    local_shape,
    parse_sizes,
    shards,
)
from shardwise.sharding.backward import backward_boxes
from shardwise.sharding.notation import read_product
from shardwise.sharding.simulate import CollectiveFrames, trace_frames
from shardwise.units import format_bytes, parse_bytes

MOST_ROWS = 12
MOST_LISTED = 65_536
Rows = list[tuple[tuple[int, ...], tuple[slice, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRequest(HardwareWords, Command):
    """The shards of an array on each device, or the cheapest way to compute with sharded arrays.

    `expression` is an array "A[I_X, J]", a product "A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]" of two or
    more arrays (any einsum; leave out -> for a free result), or a reshard "A[I_XY] -> A[I_Y]". With
    `backward` it may also be lines separated by ';'. `to` "explicit" is a program of explicit
    collectives.
    """

    COMMAND: ClassVar[str] = "shard"

    expression: str = field(kw_only=False, metadata=place())
    dims: Words = field(
        metadata=required("The size of every dim.", metavar="I=SIZE,..", group="What is planned")
    )
    mesh: Words = field(
        metadata=required("Axes and degrees.", metavar="X=4,Y=2", group="What is planned")
    )
    dtype: str = option("The arrays' dtype.", default="bf16", show_default=True)
    on: str | None = option("Rank by time on a slice such as v5e:4x4.", metavar="SLICE")
    result: str | None = option(
        "Layout of the result, or any.", metavar="free|LAYOUT", group="Choices of the plan"
    )
    free: Words = several(
        "Let the search choose the layout of this input.",
        metavar="ARRAY",
        group="Choices of the plan",
    )
    max_hbm: float | str | None = option("Bytes per device to stay under, such as 300MB.")
    top: int | str | None = option("Strategies to show [default: 5].", kind="whole", metavar="N")
    backward: bool = switch(
        "Derive the backward pass, in the form of the book's boxes.", group="Choices of the plan"
    )
    store: Words = several(
        "With --backward: how a gradient (dW[..]) or optimizer state (mW[..]) is stored.",
        metavar="LAYOUT",
        group="Choices of the plan",
    )
    no_parameter: Words = several(
        "With --backward: this array is not a parameter.",
        metavar="ARRAY",
        group="Choices of the plan",
    )
    to: str | None = option("Print a runnable program.", values=("jax", "explicit"))
    run: bool = switch("Compile and run the best on virtual CPU devices.", group="The machine")

    def answer(self, progress: Progress | None = None) -> "Listing | ShardedArray | Sharded":
        """The answer of the kind that the expression asks for."""
        if not self.backward and (self.store or self.no_parameter):
            raise BadRequest("--store and --no-parameter belong to --backward; add it")
        if self.is_listing:
            self._refuse(_NOT_FOR_LISTINGS, "does nothing for lines separated by ';'")
            return Listing(backward=self._backward(None).splitlines())
        if self.is_array:
            rule = "does nothing for a single array; give a product, or a reshard with '->'"
            self._refuse(_FOR_PRODUCTS, rule)
            return self._array()
        return self._product()

    @property
    def is_listing(self) -> bool:
        """Whether it is lines of a longer computation, of which the backward pass is derived."""
        return self.backward and ";" in self.expression

    @property
    def is_array(self) -> bool:
        """Whether it is one array."""
        operands, wanted = read_product(self.expression)
        return len(operands) == 1 and wanted is None

    def _refuse(self, names: Sequence[str], why: str) -> None:
        """Raise BadRequest for the first of these keywords that was given, as it does nothing."""
        for f in fields(self):
            if f.name in names and getattr(self, f.name) != f.default:
                raise BadRequest(f"{flag_of(self, f.name)} {why}")

    def _sizes(self) -> Sizes:
        return parse_sizes(",".join(words(self.dims)))

    def _degrees(self) -> Mesh:
        return Mesh.parse(",".join(words(self.mesh)))

    def _array(self) -> "ShardedArray":
        layout, mesh, sizes = Layout.parse(self.expression), self._degrees(), self._sizes()
        for name in sizes:
            if name not in layout.letters:
                raise unknown("dim", name, layout.letters, f"the array is '{layout}'")
        rows = [(at, block(layout, sizes, mesh, at)) for at in islice(mesh.devices(), MOST_LISTED)]
        cut = Remark(f"the first {MOST_LISTED:,} of {mesh.size:,} devices are listed")
        name = layout.name or str(layout)
        return ShardedArray(
            array=str(layout),
            mesh=dict(mesh),
            spec=layout.spec(),
            unreduced=layout.unreduced,
            global_shapes={name: global_shape(layout, sizes)},
            local_shapes={name: local_shape(layout, sizes, mesh)},
            blocks=int(shards(layout, mesh)),
            copies=copies(layout, mesh),
            bytes_per_device=bytes_per_device(layout, sizes, mesh, self.dtype),
            bytes_total=bytes_total(layout, sizes, mesh, self.dtype),
            devices=[
                DeviceBlock(at=at, block=[(s.start, s.stop) for s in held]) for at, held in rows
            ],
            layout=layout,
            degrees=mesh,
            sizes=sizes,
            dtype=self.dtype,
            rows=rows,
            warnings=(cut,) if mesh.size > MOST_LISTED else (),
        )

    def _product(self) -> "Sharded":
        changed = bool(self.hw_files or self.sets or self.prices) or self.constants != "vendor"
        if not self.on and changed:
            raise BadRequest(
                "--constants, --hw, --set and --price change chips; name the slice with --on"
            )
        check_choice(self.to, "--to", ("jax", "explicit"))
        found = shard_expression(
            self.expression,
            dims=",".join(words(self.dims)),
            mesh=",".join(words(self.mesh)),
            on=self.on or "",
            dtype=self.dtype,
            out=self.result or "",
            free_inputs=words(self.free),
            max_hbm=inf if self.max_hbm is None else parse_bytes(self.max_hbm, "--max-hbm"),
            top=5 if self.top is None else whole_number(self.top, "--top", least=-1),
            hardware=self.hardware,
        )
        if (self.run or self.to) and not found.best.program.steps:
            flag = "--run" if self.run else "--to"
            raise BadRequest(f"{flag}: '{found.einsum}' needs no step, so there is nothing to run")
        result, program = sharded_product(found), found.best.program
        limit = "--max-hbm" if self.max_hbm else "the chip" if self.on else ""
        return Sharded.of(
            result,
            backward=self._backward(found.einsum).splitlines() if self.backward else None,
            source=to_source(program, self.to) if self.to else None,  # type: ignore[arg-type]
            run=run_program(program) if self.run else None,
            found=found,
            resolved={
                "expression": Resolved(value=str(found.einsum), origin="computed"),
                "max_bytes_per_device": Resolved(value=result.max_bytes_per_device, origin=limit),
            },
            warnings=found.notes,
        )

    def _backward(self, einsum: Einsum | None) -> str:
        """The derived steps of forward and backward; of a listing where there is no einsum."""
        expression = self.expression
        if einsum is not None:
            product = " * ".join(map(str, einsum.operands))
            expression = product if einsum.free else f"{product} -> {einsum.result}"
        return backward_boxes(
            expression,
            self._degrees(),
            storage=words(self.store),
            inputs=words(self.no_parameter),
            sizes=self._sizes(),
        )


_CHIPS = ("constants", "hw_files", "sets", "prices")
_FOR_PRODUCTS = ("on", "result", "free", "max_hbm", "top", "backward", "to", "run", *_CHIPS)
_NOT_FOR_LISTINGS = ("on", "result", "free", "max_hbm", "top", "to", "run", *_CHIPS)


@dataclass(frozen=True, kw_only=True, repr=False)
class Listing(Answer):
    """Forward and backward of a longer computation."""

    backward: Sequence[str]
    """The lines."""

    def table(self) -> list[Row]:
        """One row per line."""
        return [{"line": line} for line in self.backward]

    def page(self) -> Page:
        """The lines."""
        yield "\n".join(self.backward)


@dataclass(frozen=True, kw_only=True)
class DeviceBlock(Record):
    """The block of one device."""

    at: Sequence[int]
    """Its place along each mesh axis."""
    block: Sequence[tuple[int, int]]
    """Of each dim the first element that it holds, and the one after the last."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ShardedArray(Answer):
    """What each device holds of an array."""

    array: str
    """The array in the notation."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    spec: Sequence[str | Sequence[str] | None]
    """The arguments of a JAX PartitionSpec: one entry per dim."""
    unreduced: Sequence[str]
    """Mesh axes over which devices hold partial sums."""
    global_shapes: Mapping[str, Sequence[int]]
    """The shape of the array, by its name."""
    local_shapes: Mapping[str, Sequence[int]]
    """The shape of a device's block, by the array's name."""
    blocks: int
    """Different blocks."""
    copies: int
    """Devices that hold the same block."""
    bytes_per_device: float
    """Bytes that a device holds."""
    bytes_total: float
    """Bytes that all devices hold."""
    devices: Sequence[DeviceBlock]
    """What each device holds."""

    layout: Layout = hidden()
    degrees: Mesh = hidden()
    sizes: Sizes = hidden()
    dtype: str = hidden()
    rows: Rows = hidden()

    def table(self) -> list[Row]:
        """One row per device: where it is, and what it holds of each dim."""
        letters = [f"dim {n}" if n in self.mesh else n for n in self.layout.letters]
        return [dict(zip([*self.mesh, *letters], row, strict=True)) for row in _cells(self.rows)]

    def page(self) -> Page:
        """Shapes, bytes and blocks."""
        return _array_page(self)

    def sections(self) -> Mapping[str, Page]:
        """Who holds what, device by device."""
        return {"detail": iter([_holders(self, self.rows)])}


@dataclass(frozen=True, kw_only=True, repr=False)
class Sharded(Answer, ShardedProduct):
    """The cheapest ways to compute with sharded arrays, and what was asked beside them."""

    backward: Sequence[str] | None = part()
    """Forward and backward pass, derived from the layouts as written (--backward)."""
    source: str | None = part()
    """A runnable program of the best strategy (--to)."""
    run: ShardRun | None = part()
    """The best strategy compiled and run on virtual CPU devices (--run)."""
    animation: CollectiveFrames | None = part()
    """The first collective of the best strategy hop by hop (--animate -)."""

    found: Sharding = hidden()

    @property
    def best(self) -> Strategy:
        """The quickest strategy on the slice; without one that which sends the fewest bytes."""
        return self.found.best

    def movement(self) -> CollectiveFrames:
        """The first collective of the best strategy hop by hop. Raises BadRequest where nothing
        moves or no slice was given."""
        return trace_frames(first_movement(self.found))

    def table(self) -> list[Row]:
        """One row per strategy."""
        header = HEADER_TIME if self.found.ranking else HEADER_BYTES
        return [dict(zip(header, row, strict=True)) for row in strategy_rows(self)]

    def page(self) -> Page:
        """Steps, arrays and strategies; the program alone, where one was asked for, so that it can
        be piped."""
        if self.source is not None:
            yield Verbatim(self.source)
            return
        yield from product_page(self.found, self, beside_page(self.backward, self.run))


shard = verb("shard", ShardRequest)


def _cells(rows: Rows) -> list[list[str]]:
    return [[*map(str, at), *(f"{s.start}:{s.stop}" for s in held)] for at, held in rows]


def _exact(size: float) -> str:
    exact = f"{size:,.1f}".removesuffix(".0") + " B"
    return f"{exact} ({format_bytes(size)})" if size >= 1000 else exact


def _array_page(held: ShardedArray) -> Page:
    layout, mesh, dtype = held.layout, held.degrees, held.dtype
    (whole,), (local,) = held.global_shapes.values(), held.local_shapes.values()
    facts = [
        ("global shape", f"{dtype}{list(whole)}"),
        ("local shape", f"{dtype}{list(local)}"),
        ("blocks x copies", f"{held.blocks} x {held.copies}"),
        ("bytes per device", _exact(held.bytes_per_device)),
        ("bytes in total", _exact(held.bytes_total)),
    ]
    if layout.unreduced:
        facts.append(("partial sums over", ", ".join(layout.unreduced)))
    yield TextTable(
        ("", "value"), facts, title=f"{layout} on mesh {mesh} ({mesh.size:,} devices)", left=2
    )
    yield ""
    yield _holders(held, held.rows[:MOST_ROWS])
    if mesh.size > MOST_ROWS:
        yield f"  and {mesh.size - MOST_ROWS:,} more devices (--detail, --json or --csv lists them)"


def _holders(held: ShardedArray, rows: Rows) -> TextTable:
    return TextTable([*held.mesh, *held.layout.letters], _cells(rows), title="Who holds what")
