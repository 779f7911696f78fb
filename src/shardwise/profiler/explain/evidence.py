"""What the rules look at: a compiled program, its timeline, and how its arguments lie."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from shardwise.hardware.placement import place
from shardwise.hardware.slices import Slice
from shardwise.profiler.ahead.buffers import Buffer
from shardwise.profiler.explain.flow import Flow, together
from shardwise.profiler.explain.lineage import elements, largest_bytes, lineage, renewal, spread
from shardwise.profiler.hlo.groups import read_tiles
from shardwise.profiler.hlo.shapes import Array, arrays
from shardwise.profiler.hlo.sources import own_frame
from shardwise.profiler.hlo.text import Computation, Instruction, Module
from shardwise.profiler.hlo.work import HloOp, HloWork
from shardwise.profiler.timeline import HloTimeline, OpRow
from shardwise.roofline.strategies import seconds as seconds_of
from shardwise.sharding import Dim, Layout
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.reshard import Cost

LETTERS = "IJKLMNOPQR"
MOST_OPERANDS = 1000
FARTHEST = 4
"""Values among which the source of one is looked for, level by level, and levels."""
_ALIAS = re.compile(r"\{[\d, ]*\}: \((\d+), \{[\d, ]*\}")
_DONOR = re.compile(r"\((\d+), \{")
_WORD = re.compile(r"\w+")
MOVES = frozenset(
    (
        *("bitcast", "reshape", "copy", "copy-start", "copy-done", "convert", "transpose", "slice"),
        *("get-tuple-element", "dynamic-slice", "parameter", "constant", "tuple"),
        *("bitcast-convert", "custom-call", "select", "clamp", "add", "compare"),
    )
)
"""Opcodes that hand an array on, cut or laid out anew, without computing with it."""
HANDS_ON = ("get-tuple-element", "bitcast", "copy", "copy-start")
"""Opcodes that hand an array on as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument of the program on one device. `cuts` are the mesh axes that cut each dim, major
    first, `copies` those over whose devices the same piece lies; `bytes` are of the piece. `number`
    is its place among the program's parameters."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    cuts: tuple[tuple[str, ...], ...]
    copies: tuple[str, ...]
    donated: bool
    bytes: float
    number: int = 0

    @property
    def elements(self) -> int:
        """Of the piece."""
        return prod(self.dims)

    @property
    def tree(self) -> str:
        """The argument of the function that it is a leaf of."""
        found = _WORD.match(self.name)
        return found[0] if found else ""

    @property
    def axes(self) -> frozenset[str]:
        """All axes that cut it."""
        return frozenset(a for names in self.cuts for a in names)

    @property
    def layout(self) -> str:
        """In our notation, dims as I, J, K, ...: `w1[I_fsdp, J_tensor]`; a scalar is `step[]`."""
        words = _WORD.findall(self.name) or ["A"]
        label = words[-1].strip("_") or "A"
        label = f"A{label}" if label[0].isdigit() else label
        if not self.cuts:
            return f"{label}[]"
        pairs = zip(LETTERS, self.cuts, strict=False)
        return str(Layout(name=label, dims=tuple(Dim(d, axes) for d, axes in pairs)))


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A program on a slice: module, counted work and timeline, buffers, usable bytes per device.
    `donors`: what is given away counts as donated, before a compiler has found a use for it.
    `packages`: installed ones whose lines the user can change."""

    header: str
    module: Module
    work: HloWork
    timeline: HloTimeline
    piece: Slice
    buffers: Sequence[Buffer]
    capacity: float
    fits: bool
    donors: bool = False
    packages: tuple[str, ...] = ()

    @property
    def mesh(self) -> Mesh:
        return self.work.mesh

    @property
    def bandwidth(self) -> float:
        """Bytes/s of HBM that a device really gets."""
        chip = self.piece.chip
        return chip.require("hbm_bandwidth") * chip.efficiency.hbm / chip.jax_devices_per_chip

    @cached_property
    def cost(self) -> Cost:
        """The seconds of one run of an op on this slice."""
        return seconds_of(self.piece.chip, place(self.piece, dict(self.mesh)))

    def small(self, row: OpRow) -> bool:
        """Whether a collective takes a start and little else: fewer bytes than the network needs to
        come up to half of its rate, where that is known."""
        ramp = getattr(self.piece.chip.network, "ramp_bytes", None)
        wire = row.op.op.collective
        large = ramp and wire is not None and float(wire.bytes) >= ramp
        return row.bound_by == "latency" and not large

    def degree(self, axes: Sequence[str]) -> int:
        """Devices over some axes."""
        return prod(self.mesh[a] for a in axes)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments that the compiler says the sharding of."""
        found = arguments_of(self.module, self.header, self.mesh)
        given = set(_DONOR.findall(_braces(self.header, "buffer_donor="))) if self.donors else ()
        return tuple(replace(a, donated=a.donated or str(a.number) in given) for a in found)

    @cached_property
    def unused_donations(self) -> frozenset[int]:
        """The numbers of arguments that are donated and that no result takes the place of."""
        donated = _DONOR.findall(_braces(self.header, "buffer_donor="))
        return frozenset(map(int, donated))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the arguments."""
        return frozenset(a.name for a in self.arguments)

    def floats(self) -> tuple[Argument, ...]:
        """The arguments of floats with dims."""
        return tuple(a for a in self.arguments if a.dims and a.dtype.startswith(("f", "bf")))

    @cached_property
    def spread(self) -> Flow:
        """The mesh axes over which each value differs; an argument without a sharding, over all."""
        cuts = {
            int(p.literal): self._axes(p)
            for p in self.module.computation(self.module.entry).parameters
            if p.attribute("sharding")
        }
        return spread(self.module, self.mesh, cuts)

    def _axes(self, parameter: Instruction) -> frozenset[str]:
        dims = len(_dims(parameter))
        cuts, _ = sharding_axes(parameter.attribute("sharding"), dims, self.mesh)
        return frozenset(axis for names in cuts for axis in names)

    @cached_property
    def lineage(self) -> Flow:
        """The arguments that each value is a copy or a piece of."""
        return lineage(self.module)

    @cached_property
    def caches(self) -> tuple[Argument, ...]:
        """The arguments that the program hands back with a part of them written anew."""
        result, shape = self.lineage.result, self.module.computation(self.module.entry).root.shape
        parts = result if isinstance(result, tuple) else (result,)
        shapes = (shape,) if isinstance(shape, Array) else shape
        written = {
            (number, array.dims)
            for facts, part in zip(parts, shapes, strict=False)
            for array in arrays(part)
            for number, changed in together(facts)
            if changed
        }
        return tuple(a for a in self.arguments if a.dims and (a.number, a.dims) in written)

    @cached_property
    def renewed(self) -> dict[int, str]:
        """Of each argument that a result of the same array is an elementwise function of, the line
        that makes that result; each result renews one argument."""
        free = {a.number: a for a in self.arguments if a.dims and a not in self.caches}
        found: dict[int, str] = {}
        for name, made, numbers in self.results:
            for number in sorted(numbers & free.keys()):
                if (free[number].dims, free[number].dtype) == (made.dims, made.dtype):
                    found[number] = self.result_at(name) or free.pop(number).layout
                    free.pop(number, None)
                    break
        return found

    @cached_property
    def results(self) -> tuple[tuple[str, Array, frozenset[int]], ...]:
        """The arrays that the program hands back: the name of what makes each, its shape, and the
        arguments that it is an elementwise function of."""
        flow, root = renewal(self.module), self.module.computation(self.module.entry).root
        parts = flow.result if isinstance(flow.result, tuple) else (flow.result,)
        made = tuple(arrays(root.shape))
        names = root.operands if root.opcode == "tuple" else (root.name,) * len(made)
        facts = (frozenset(together(part)) for part in parts)
        return tuple(zip(names, made, facts, strict=False))

    def result_at(self, name: str) -> str:
        """The line that makes a result; "" where it has none."""
        return self.made_at(self.module.computation(self.module.entry), name)

    def made_at(self, computation: Computation, name: str) -> str:
        """The line that makes a value, those that only hand it on passed through; "" of none."""
        found = computation.find(name)
        while found is not None and not self.line_of(found) and found.opcode in HANDS_ON:
            found = computation.find(found.operands[0])
        return self.line_of(found) if found is not None else ""

    def pieces_of(self, computation: str, name: str) -> set[int]:
        """The numbers of the arguments that a value is a copy or a piece of."""
        return {number for number, _ in self.lineage.facts(computation, name)}

    def of_cache(self, computation: str, name: str) -> tuple[Argument, ...]:
        """The caches that a value is a copy or a piece of."""
        numbers = self.pieces_of(computation, name)
        return tuple(a for a in self.caches if a.number in numbers)

    @cached_property
    def rows(self) -> dict[str, OpRow]:
        """Rows of the timeline by op id."""
        return {row.op.op.id: row for row in self.timeline.rows}

    @cached_property
    def named(self) -> dict[tuple[str, str], OpRow]:
        """Rows of the timeline by computation and name."""
        return {(row.op.computation, row.op.name): row for row in self.timeline.rows}

    def rows_of(self, computation: Computation, names: Iterable[str]) -> list[OpRow]:
        """The rows of some values of a computation, of those that have one."""
        keys = ((computation.name, name) for name in names)
        return [self.named[key] for key in keys if key in self.named]

    def readers_of(self, row: OpRow) -> list[OpRow]:
        """The rows of what reads an op's result."""
        computation = self.module.computation(row.op.computation)
        return self.rows_of(computation, (i.name for i in self.users(computation, row.op.name)))

    def given_to(self, row: OpRow) -> tuple[Computation, tuple[str, ...]]:
        """What an op reads: names of values, and the computation that they are of."""
        computation = self.module.computation(row.op.computation)
        return computation, computation.names[row.op.name].operands

    def located(self, item: HloOp) -> tuple[Computation, Instruction | None]:
        """The computation that an op stands in, and its instruction there."""
        computation = self.module.computation(item.computation)
        return computation, computation.find(item.name)

    def made_bytes(self, row: OpRow) -> float:
        """Bytes of the largest array that an op leaves on a device."""
        _, found = self.located(row.op)
        return largest_bytes(found) if found is not None else 0.0

    def collectives(self, *kinds: str) -> Iterator[OpRow]:
        """Rows of collectives of some kinds."""
        for row in self.timeline.rows:
            if row.op.op.collective is not None and row.op.op.collective.kind in kinds:
                yield row

    def where(self, item: HloOp) -> str:
        """file:line of an op in the user's files (`own_frame`), or where it has none of what it
        reads, or of what reads it, or of the loop that runs it; else its name."""
        key = item.computation, item.name
        if key not in self._places:
            near = "" if item.sources else self.near(item, self.line_of, (_read, _reading))
            near = near or ("" if item.sources else self._run_at(item.computation))
            self._places[key] = near or source_of(item, self.packages)
        return self._places[key]

    def runs(self, name: str) -> Instruction | None:
        """The loop, the branch or the call that runs a computation."""
        return self._callers[name][1] if name in self._callers else None

    def _run_at(self, name: str) -> str:
        """The line of the loop or the branch that runs a computation, of what it reads, or of what
        reads it: the compiler makes loops of gathers."""
        for _ in range(FARTHEST):
            if name not in self._callers:
                return ""
            computation, found = self._callers[name]
            if line := self._nearest(computation, found, self.line_of, (_read, _reading)):
                return line
            name = computation.name
        return ""

    @cached_property
    def _callers(self) -> dict[str, tuple[Computation, Instruction]]:
        """What runs each computation that is a loop's or a branch's."""
        return {
            called: (computation, i)
            for computation in self.module.computations.values()
            for i in computation.instructions
            if i.opcode in ("while", "conditional", "call")
            for called in i.called
        }

    @cached_property
    def _places(self) -> dict[tuple[str, str], str]:
        return {}

    def line_of(self, found: Instruction) -> str:
        """The line that an instruction itself names; "" where it has none."""
        sources = self.module.sources(found)
        return str(own_frame(sources, self.packages)) if sources else ""

    def near(self, item: HloOp, said: Callable[[Instruction], str], ways: Sequence["Way"]) -> str:
        """What is said of an op: of itself or of what it runs, else of the nearest along a way, the
        values it reads or those that read it; "" where nothing is."""
        computation, found = self.located(item)
        return self._nearest(computation, found, said, ways) if found is not None else ""

    def _nearest(
        self,
        computation: Computation,
        found: Instruction,
        said: Callable[[Instruction], str],
        ways: Sequence["Way"],
    ) -> str:
        if own := self._within(found, said):
            return own
        for way in ways:
            around = [found]
            for _ in range(FARTHEST):
                names = dict.fromkeys(i.name for one in around for i in way(computation, one))
                around = [computation.names[name] for name in list(names)[:MOST_OPERANDS]]
                if word := next(filter(None, (self._within(i, said) for i in around)), ""):
                    return word
        return ""

    def _within(self, found: Instruction, said: Callable[[Instruction], str]) -> str:
        """Of an instruction, or of the last in its fusion that has anything to say."""
        called = found.called if found.opcode == "fusion" and not said(found) else ()
        inside = (i for c in called for i in reversed(self.module.computation(c).instructions))
        return said(found) or next(filter(None, map(said, inside)), "")

    def users(self, computation: Computation, name: str) -> list[Instruction]:
        """Instructions that read a value, those that only hand it on passed through."""
        found: list[Instruction] = []
        waiting, seen = [name], {name}
        while waiting:
            value = waiting.pop()
            for i in computation.readers(value):
                if i.name in seen:
                    continue
                seen.add(i.name)
                if i.opcode in HANDS_ON or i.opcode.endswith("-done"):
                    waiting.append(i.name)
                else:
                    found.append(i)
        return found

    def is_stored(self, computation: Computation, name: str) -> bool:
        """Whether a value is an argument, or a piece of one, that nothing was computed with: of the
        entry itself, or carried unchanged through a loop."""
        waiting, seen = [name], set()
        stored = False
        while waiting:
            found = computation.find(waiting.pop())
            if found is None or found.name in seen:
                continue
            seen.add(found.name)
            if found.opcode == "parameter" and computation.name == self.module.entry:
                stored = True
            elif found.opcode == "get-tuple-element" and self._carry(computation, found):
                stored = stored or len(_dims(found)) > 1
            elif found.opcode in MOVES or self._moves(found):
                waiting += found.operands
            elif elements(found) > 1:
                return False
        return stored

    def _carry(self, computation: Computation, part: Instruction) -> bool:
        """Whether a part of a loop's tuple goes into the next round as it came."""
        given = computation.find(part.operands[0])
        root = computation.root
        if given is None or given.opcode != "parameter" or root.opcode != "tuple":
            return False
        at = int(part.attribute("index"))
        if at >= len(root.operands):
            return False
        last = computation.find(root.operands[at])
        return last is not None and (
            last.name == part.name
            or (
                last.opcode == "get-tuple-element"
                and last.operands == part.operands
                and last.attribute("index") == part.attribute("index")
            )
        )

    def _moves(self, found: Instruction) -> bool:
        if found.opcode != "fusion":
            return False
        inside = (i for c in found.called for i in self.module.computation(c).instructions)
        return all(i.opcode in MOVES or self._moves(i) for i in inside)


Way = Callable[[Computation, Instruction], Sequence[Instruction]]


def _read(computation: Computation, found: Instruction) -> list[Instruction]:
    return [computation.names[name] for name in found.operands if name in computation.names]


def _reading(computation: Computation, found: Instruction) -> Sequence[Instruction]:
    return computation.readers(found.name)


TO_READERS: tuple[Way, ...] = (_reading, _read)
"""What an op is made for, before what it is made of."""


def arguments_of(module: Module, header: str, mesh: Mesh) -> tuple[Argument, ...]:
    """The arguments of a module with first line `header`, as they lie on the mesh."""
    donated = set(_ALIAS.findall(_braces(header, "input_output_alias=")))
    found = []
    for p in module.computation(module.entry).parameters:
        array = next(arrays(p.shape), None)
        if array is None:
            continue
        cuts, copies = sharding_axes(p.attribute("sharding"), len(array.dims), mesh)
        found.append(
            Argument(
                name=p.op_name.replace("\\'", "'") or p.name,
                dtype=array.dtype,
                dims=array.dims,
                cuts=cuts,
                copies=copies,
                donated=p.literal.strip() in donated,
                bytes=float(array.bytes),
                number=int(p.literal),
            )
        )
    return tuple(found)


def sharding_axes(
    text: str, dims: int, mesh: Mesh
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """An HLO sharding as mesh axes: those that cut each dim, major first, and those with copies.

    `{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}` lays devices 0..7 out as written; along
    a dim of it some axes of the mesh change, in order of their stride. A sharding in no such form,
    or none, counts as copies everywhere.
    """
    axes = tuple(a for a in mesh if mesh[a] > 1)
    ids = read_tiles(text, mesh.size)
    if ids is None:
        return ((),) * dims, axes
    where = np.stack(np.unravel_index(ids, tuple(mesh.values())), -1)
    changing = []
    for dim in range(ids.ndim):
        line = where[tuple(slice(None) if i == dim else 0 for i in range(ids.ndim))]
        first = {a: int(np.argmax(line[:, i] != line[0, i])) for i, a in enumerate(mesh)}
        cut = [a for i, a in enumerate(mesh) if np.any(line[:, i] != line[0, i])]
        changing.append(tuple(sorted(cut, key=lambda a: -first[a])))
    cuts = tuple(changing[:dims])
    return cuts, tuple(a for a in axes if not any(a in names for names in cuts))


def _braces(text: str, key: str) -> str:
    """The text of `key={...}`, its braces balanced."""
    at = text.find(key)
    depth = 0
    for end in range(max(at, 0) + len(key), len(text) if at >= 0 else 0):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return text[at + len(key) : end + 1]
    return ""


def _dims(found: Instruction) -> tuple[int, ...]:
    first: Array | None = next(arrays(found.shape), None)
    return first.dims if first else ()


def source_of(item: HloOp, packages: Sequence[str] = ()) -> str:
    """file:line of the innermost frame in the user's files, or the operation's name."""
    return str(own_frame(item.sources, packages)) if item.sources else item.op_name or item.name
