"""What each pass of the compiler changed of one op, read from the module after each pass.

An op is followed by what it is called in JAX and where it stands in the source, which the compiler
carries along as metadata: every instruction with both is of it. After a pass each of those is a
`Place`; two modules differ where their places do. So what a pass does is told as far as the text
shows it: a pass that renames or drops the metadata loses the op, and the table then says "gone".
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwise.boundary.records import Record
from shardwise.errors import BadRequest
from shardwise.profiler.hlo.collectives import KINDS
from shardwise.profiler.hlo.shapes import VMEM, Array, arrays
from shardwise.profiler.hlo.text import Instruction, Module, parse_module

WITHOUT_WORK = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "fusion"}
"""Opcodes that are no step of an op: a fusion is told by what lies in it."""
_ASYNC = ("AsyncCollectiveStart", "AsyncCollectiveDone", "async-start")


class OpKey(NamedTuple):
    """What an op is called in JAX, `jit(step)/mlp/dot_general`, and the line that it is written in;
    "" and 0 where the text does not say."""

    name: str
    file: str
    line: int


class Place(NamedTuple):
    """One instruction of an op: what it does, the array it gives and its layout (all as text),
    whether it lies in a fusion, and what else does. `asynchronous` runs beside others."""

    opcode: str
    array: str
    layout: str
    fused: bool
    beside: tuple[str, ...]
    asynchronous: bool = False

    def __str__(self) -> str:
        layout = f"{{{self.layout}}}" if self.layout else ""
        said = f"{self.opcode} {self.array}{layout}"
        if self.asynchronous:
            said += ", asynchronous"
        if self.fused:
            said += f", fused with {', '.join(self.beside)}" if self.beside else ", in a fusion"
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class PassChange(Record):
    """What one pass changed of an op."""

    number: int
    """Its number among the passes that changed anything."""
    name: str
    """Its name with that of its pipeline."""
    kinds: tuple[str, ...]
    """What it did, in a word each."""
    before: tuple[str, ...]
    """The places that differ, before it."""
    after: tuple[str, ...]
    """The same after it."""


def changes(passes: Iterable[tuple[str, str]], key: OpKey) -> Iterator[PassChange]:
    """What each pass changed of an op, of (name, module after it) in their order; the first module
    is what the compiler was given."""
    held: Counter[Place] | None = None
    for number, (name, text) in enumerate(passes):
        try:
            module = parse_module(text, f"the module after {name}")
        except BadRequest:  # a spelling that only a pass within the compiler writes
            continue
        found = Counter(places(module, key))
        if held is None:
            if found:
                held = found
                yield PassChange(
                    number=number, name=name, kinds=("given",), before=(), after=_texts(found)
                )
            continue
        gone, new = held - found, found - held
        if gone or new:
            yield PassChange(
                number=number,
                name=name,
                kinds=kinds(gone, new, held),
                before=_texts(gone),
                after=_texts(new),
            )
        held = found


def places(module: Module, key: OpKey) -> Iterator[Place]:
    """The instructions of an op in a module, in its order."""
    fusions = {
        name: i.name
        for computation in module.computations.values()
        for i in computation.instructions
        if i.opcode == "fusion"
        for name in i.called
    }
    for computation in module.computations.values():
        fused = computation.name in fusions
        mine = [i for i in computation.instructions if _is(module, i, key)]
        if not mine:
            continue
        others = [i for i in computation.instructions if i not in mine]
        beside = tuple(sorted({i.opcode for i in others} - WITHOUT_WORK - {"custom-call"}))
        marked = any(i.target in _ASYNC for i in computation.instructions)
        for i in mine:
            array, layout = _array(i)
            opcode = i.opcode.removesuffix("-start")
            yield Place(
                opcode=opcode,
                array=array,
                layout=layout,
                fused=fused,
                beside=beside if fused else (),
                asynchronous=opcode in KINDS and (marked or opcode != i.opcode),
            )


def key_of(module: Module, found: Instruction) -> OpKey:
    """What an instruction is of."""
    source = next(iter(module.sources(found)), None)
    return OpKey(found.op_name, source.file if source else "", source.line if source else 0)


def kinds(
    gone: Mapping[Place, int], new: Mapping[Place, int], held: Mapping[Place, int]
) -> tuple[str, ...]:
    """What was done, in a word each, of the places that went and those that came."""
    found: dict[str, None] = {}
    left, others = list(gone), []
    for place in new:
        same = next((g for g in left if g.opcode == place.opcode), None)
        if same is None:
            others.append(place)
            continue
        left.remove(same)
        found |= dict.fromkeys(_differences(same, place))
    for place in others:
        if place.opcode in KINDS:
            found["exchange inserted"] = None
        elif place in held:
            found["repeated"] = None
        elif place.opcode == "copy":
            found["copied"] = None
        elif left:
            left.pop(0)
            found["rewritten"] = None
        else:
            found["added"] = None
    if left:
        found["gone"] = None
    return tuple(found)


def _differences(a: Place, b: Place) -> Iterator[str]:
    if a.array != b.array:
        yield "converted" if a.array.partition("[")[2] == b.array.partition("[")[2] else "cut"
    if a.layout != b.layout:
        moved = f"S({VMEM})"
        yield "moved to VMEM" if moved in b.layout and moved not in a.layout else "layout"
    if b.fused and not a.fused:
        yield "fused"
    elif a.fused and not b.fused:
        yield "taken out of its fusion"
    elif a.beside != b.beside:
        yield "fusion changed"
    if a.asynchronous != b.asynchronous:
        yield "made asynchronous" if b.asynchronous else "made synchronous"


def _is(module: Module, found: Instruction, key: OpKey) -> bool:
    return (
        found.opcode not in WITHOUT_WORK
        and not found.opcode.endswith("-done")
        and found.op_name == key.name
        and key_of(module, found) == key
    )


def _array(found: Instruction) -> tuple[str, str]:
    """The largest array that an instruction gives, and how that lies in memory."""
    every = list(arrays(found.shape))
    if not every:
        return "()", ""
    most = max(every, key=lambda a: a.bytes)
    return f"{most.dtype}[{','.join(map(str, most.dims))}]", layout_text(most)


def layout_text(array: Array) -> str:
    """A layout as HLO writes it; "" where nothing is said.

    >>> from shardwise.profiler.hlo.shapes import read_shape
    >>> layout_text(read_shape("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}"))
    '1,0:T(8,128)(2,1)S(1)'
    """
    layout = array.layout
    tiles = "".join(f"({','.join(map(str, tile))})" for tile in layout.tiles)
    marks = (f"T{tiles}" if tiles else "") + (f"S({layout.space})" if layout.space else "")
    return ",".join(map(str, layout.order)) + (f":{marks}" if marks else "")


def _texts(found: Mapping[Place, int]) -> tuple[str, ...]:
    return tuple(f"{n} x {p}" if n > 1 else str(p) for p, n in found.items())


def pass_name(file: str) -> str:
    """The pass and its pipeline of a dumped file's name.

    >>> pass_name("module_0000.jit_f.cl_9.0016.xla-partitioner.after_spmd.before_inliner.txt")
    'spmd (xla-partitioner)'
    >>> pass_name("module_0000.jit_f.cl_9.0029.tiling-rewriter.before_tiling.txt")
    'before tiling (tiling-rewriter)'
    >>> pass_name("module_0000.jit_f.cl_9.0013.spmd-cleanup.after_pipeline-start.before_dce.txt")
    'before spmd-cleanup'
    """
    words = file.removesuffix(".txt").split(".")
    at = next((i for i, word in enumerate(words) if len(word) == 4 and word.isdigit()), 0)
    rest: Sequence[str] = words[at + 1 :]
    name = rest[0].replace("_", " ") if rest else file
    for start, said in (("after_", ""), ("before_", "before ")):
        own = next((w for w in rest[1:] if w.startswith(start)), None)
        if own == "after_pipeline-start":
            return f"before {name}"
        if own is not None:
            return f"{said}{own.removeprefix(start)} ({name})"
    return name
