"""What the arrays of a joined collective are for: sums that stand for a gather or a scatter.

XLA joins collectives of one kind into one with several operands, and writes some as an all-reduce:
a gather of pieces too small for its own (each device puts its piece into zeros, and all are added
up), and a reduce-scatter (all is added up, then sliced). Both are seen in what feeds the all-reduce
and in what reads it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shardwise.profiler.hlo.collectives import CompiledCollective
from shardwise.profiler.hlo.shapes import Array, arrays
from shardwise.profiler.hlo.text import Computation, Instruction, Module
from shardwise.work import CollectiveKind

Form = Literal["itself", "sum of pieces", "sum and slice"]
SAME = ("bitcast", "copy", "reshape", "transpose", "get-tuple-element", "convert")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayPart:
    """One array of a collective. `kind` is what it does, `form` how it is written, `bytes` its V as
    in `work.Collective`, `sent` the bytes of its operand on one device."""

    kind: CollectiveKind
    form: Form
    array: Array
    bytes: float
    sent: float


def parts(module: Module, collective: CompiledCollective) -> tuple[ArrayPart, ...]:
    """The arrays of a collective of the module, in order."""
    computation = module.computations[collective.computation]
    start = computation.find(collective.name)
    assert start is not None, collective.name
    found = list(_outputs(start, collective.kind))
    total = sum(array.bytes for array in found)
    # An exchange's rows come after the sizes; its operands are read one by one only in a sum.
    operands = [computation.find(name) for name in start.operands]
    made = []
    for i, array in enumerate(found):
        source = operands[i] if i < len(operands) else None
        sent = sum(a.bytes for a in arrays(source.shape)) if source is not None else array.bytes
        kind, form = collective.kind, "itself"
        if kind == "all_reduce" and source is not None and _into_zeros(module, computation, source):
            kind, form = "all_gather", "sum of pieces"
        elif kind == "all_reduce" and _is_sliced(module, computation, start, i, len(found)):
            kind, form = "reduce_scatter", "sum and slice"
        share = array.bytes / total if total else 0.0
        made.append(
            ArrayPart(kind=kind, form=form, array=array, bytes=collective.bytes * share, sent=sent)
        )
    return tuple(made)


def _outputs(start: Instruction, kind: str) -> Iterator[Array]:
    """The result's arrays; an asynchronous start's shape is (operands, results, ...)."""
    shape = start.shape
    if start.opcode.endswith("-start") and kind != "all_reduce" and not isinstance(shape, Array):
        shape = shape[1]
    yield from arrays(shape)


def _into_zeros(module: Module, computation: Computation, source: Instruction) -> bool:
    """Whether an operand is a piece written into zeros."""
    source = _origin(computation, source)
    if source.opcode == "dynamic-update-slice":
        return _filled(computation, source.operands[0])
    if source.opcode != "fusion":
        return False
    body = module.computations[source.called[0]]
    root = _origin(body, body.root)
    if root.opcode != "dynamic-update-slice":
        return False
    whole = body.find(root.operands[0])
    if whole is None or whole.opcode != "parameter":
        return _filled(body, root.operands[0])
    return _filled(computation, source.operands[int(whole.literal)])


def _origin(computation: Computation, source: Instruction) -> Instruction:
    """What an instruction copies or reshapes."""
    while source.opcode in SAME and source.operands:
        inner = computation.find(source.operands[0])
        if inner is None:
            break
        source = inner
    return source


def _filled(computation: Computation, name: str) -> bool:
    """Whether an array has one value everywhere."""
    found = computation.find(name)
    return found is not None and _origin(computation, found).opcode in ("broadcast", "constant")


def _is_sliced(
    module: Module, computation: Computation, start: Instruction, at: int, number: int
) -> bool:
    """Whether all that reads one array of a result takes a slice of it."""
    if number == 1:
        return _cut(module, computation, start.name)
    picks = [r for r in computation.readers(start.name) if _picks(r, at)]
    return bool(picks) and all(_cut(module, computation, r.name) for r in picks)


def _picks(reader: Instruction, at: int) -> bool:
    return reader.opcode == "get-tuple-element" and reader.attribute("index") == str(at)


def _cut(module: Module, computation: Computation, name: str) -> bool:
    """Whether an array is read, and only where a dynamic slice is taken of it, fused or not."""
    found, waiting = False, [name]
    while waiting:
        array = waiting.pop()
        for reader in computation.readers(array):
            if reader.opcode in SAME:
                waiting.append(reader.name)
            elif reader.opcode == "dynamic-slice" or _cut_inside(module, reader, array):
                found = True
            else:
                return False
    return found


def _cut_inside(module: Module, reader: Instruction, name: str) -> bool:
    if reader.opcode != "fusion":
        return False
    body = module.computations[reader.called[0]]
    places = [i for i, operand in enumerate(reader.operands) if operand == name]
    return all(_cut(module, body, body.parameters[i].name) for i in places)
