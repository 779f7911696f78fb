"""Bytes that one instruction moves, by the memory they are in, tiles filled up.

What is in VMEM, `S(1)`, costs no main memory. A fusion reads of a parameter only what it looks at:
a slice, gathered rows, nothing of what it updates in place; it writes only what it changes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shardwise.profiler.hlo.kernels import CUDNN_ATTENTION, paged_reads
from shardwise.profiler.hlo.rules import PRODUCT_CALLS, rule
from shardwise.profiler.hlo.shapes import HOST, MAIN, Array, arrays
from shardwise.profiler.hlo.text import Computation, Instruction, Module

_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_VIEWS = frozenset({"bitcast", "reshape", "opt-barrier", "copy"})  # a fused copy is never made


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes read and written in main memory, in on-chip memory and in the host's; `padding` is
    the part of `main` that only fills up tiles."""

    main: float = 0.0
    chip: float = 0.0
    host: float = 0.0
    padding: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            main=self.main + other.main,
            chip=self.chip + other.chip,
            host=self.host + other.host,
            padding=self.padding + other.padding,
        )


def traffic(module: Module, computation: Computation, instruction: Instruction) -> Traffic:
    """All that it reads and writes; of an asynchronous one, all until its done."""
    if instruction.opcode == "copy-start":  # (target, source, context)
        there = [instruction.shape] if isinstance(instruction.shape, Array) else instruction.shape
        moved = [*arrays(there[0]), *arrays(computation.shape_of(instruction.operands[0]))]
        return total((array, 1.0) for array in moved)
    if instruction.opcode in ("async-start", "call"):
        inside = module.computation(instruction.called[0])
        steps = [i for i in inside.instructions if rule(i.opcode) not in ("free", "done")]
        return sum((traffic(module, inside, i) for i in steps), Traffic())
    moved = [*_reads(module, computation, instruction), *_writes(module, computation, instruction)]
    return total(moved)


def total(moved: Iterable[tuple[Array, float]]) -> Traffic:
    """The sum over (array, share of it that moves)."""
    result = Traffic()
    for array, share in moved:
        size = array.padded_bytes * share
        if array.space == MAIN:
            result += Traffic(main=size, padding=size - array.bytes * share)
        else:
            result += Traffic(host=size) if array.space == HOST else Traffic(chip=size)
    return result


_Moved = tuple[Array, float]


def _reads(module: Module, computation: Computation, instruction: Instruction) -> Iterator[_Moved]:
    opcode = instruction.opcode
    inside = _fused(module, instruction)
    paged = paged_reads(computation, instruction)
    for number, name in enumerate(instruction.operands):
        given = list(arrays(computation.shape_of(name)))
        if paged is not None and number in paged.pages:
            read = paged.bytes / len(paged.pages)
            yield given[0], read / given[0].bytes if given[0].bytes else 0.0
        elif inside is not None and len(given) == 1:
            name = inside.parameters[number].name
            read = _read(module, inside, name)
            if not _aliases(instruction) and _handed_through(inside, name):
                read = given[0].bytes
            yield given[0], _share(given[0], read)
        elif opcode in _SLICES and number == 0:
            yield given[0], _share(given[0], _size(instruction))
        elif opcode in ("dynamic-update-slice", "scatter") and number == 0:
            update = computation.array_of(instruction.operands[_update(instruction)])
            yield given[0], _share(given[0], update.bytes if opcode == "scatter" else 0.0)
        else:
            yield from ((array, 1.0) for array in given)


def _writes(module: Module, computation: Computation, instruction: Instruction) -> Iterator[_Moved]:
    outputs = list(arrays(instruction.shape))
    if instruction.target in PRODUCT_CALLS:
        outputs = outputs[:1]
    elif instruction.target in CUDNN_ATTENTION:
        outputs = [array for array in outputs if array.dtype != "uint8"]  # scratch
    inside = _fused(module, instruction)
    if inside is None:
        written = _written(computation, instruction)
        yield from ((a, _share(a, written) if written is not None else 1.0) for a in outputs)
        return
    root = inside.root
    parts = list(root.operands) if root.opcode == "tuple" else [root.name]
    if len(parts) != len(outputs):
        yield from ((array, 1.0) for array in outputs)
        return
    for array, part in zip(outputs, parts, strict=True):
        handed_through = _origin(inside, part).opcode == "parameter"
        if handed_through:
            yield array, 0.0 if _aliases(instruction) else 1.0
        else:
            yield array, _share(array, _result(module, inside, part))


def _aliases(instruction: Instruction) -> bool:
    """Whether results share the memory of operands, so that handing one through costs nothing."""
    return "output_to_operand_aliasing" in instruction.fields


def _origin(computation: Computation, name: str) -> Instruction:
    if "origins" not in computation.memo:
        found: dict[str, Instruction] = {}
        for i in computation.instructions:
            found[i.name] = found[i.operands[0]] if i.opcode in _VIEWS else i
        computation.memo["origins"] = found
    return computation.memo["origins"][name]


def _handed_through(computation: Computation, parameter: str) -> bool:
    if "handed" not in computation.memo:
        root = computation.root
        parts = root.operands if root.opcode == "tuple" else (root.name,)
        computation.memo["handed"] = {_origin(computation, part).name for part in parts}
    return parameter in computation.memo["handed"]


def _fused(module: Module, instruction: Instruction) -> Computation | None:
    return module.computation(instruction.called[0]) if instruction.opcode == "fusion" else None


def _share(array: Array, moved: float) -> float:
    """What part of an array `moved` unpadded bytes are; at most the whole."""
    return min(1.0, moved / array.bytes) if array.bytes else 0.0


def _size(instruction: Instruction) -> float:
    return sum(array.bytes for array in arrays(instruction.shape))


def _update(instruction: Instruction) -> int:
    return 1 if instruction.opcode == "dynamic-update-slice" else len(instruction.operands) - 1


def _written(computation: Computation, instruction: Instruction) -> float | None:
    """Bytes that an instruction writes where that is less than its result."""
    if instruction.opcode in ("dynamic-update-slice", "scatter"):
        return computation.array_of(instruction.operands[_update(instruction)]).bytes
    return None


def _read(module: Module, computation: Computation, name: str) -> float:
    """Bytes of a value that the computation looks at, through views and fusions in it."""
    key = "read", computation.name, name
    if key not in module.memo:
        module.memo[key] = _most_looked_at(module, computation, name)
    return module.memo[key]


def _most_looked_at(module: Module, computation: Computation, name: str) -> float:
    """The most that one reader looks at; gathers by other indices look at other rows."""
    found, waiting, seen = 0.0, [name], {name}
    rows: dict[str, float] = {}
    while waiting:
        value = waiting.pop()
        for user in computation.readers(value):
            for number, operand in enumerate(user.operands):
                if operand != value:
                    continue
                passed, looked = _looked_at(module, computation, user, number)
                if user.opcode == "gather" and number == 0:
                    rows[user.operands[1]] = looked
                found = max(found, looked)
                if passed and user.name not in seen:
                    seen.add(user.name)
                    waiting.append(user.name)
    return max(found, sum(rows.values()))


def _looked_at(
    module: Module, computation: Computation, user: Instruction, number: int
) -> tuple[bool, float]:
    """Whether a user hands an operand on as it is, and the bytes of it that it looks at itself."""
    if user.opcode in _SLICES and number == 0:
        return False, _size(user)
    if user.opcode == "dynamic-update-slice" and number == 0:
        return True, 0.0  # nothing, where its result is written in its place
    if user.opcode == "scatter" and number == 0:
        return False, computation.array_of(user.operands[_update(user)]).bytes
    if user.opcode in _VIEWS:
        return True, 0.0
    if user.opcode == "tuple" and user.root:
        return False, 0.0  # passed on, not looked at
    if user.opcode == "fusion":
        inside = module.computation(user.called[0])
        name = inside.parameters[number].name
        return _handed_through(inside, name), _read(module, inside, name)
    whole = sum(array.bytes for array in arrays(computation.shape_of(user.operands[number])))
    return False, whole


def _result(module: Module, computation: Computation, name: str) -> float:
    """Bytes that an output changes: an update's where it is updated in place."""
    found = _origin(computation, name)
    if found.opcode == "fusion":
        inside = module.computation(found.called[0])
        origin = _origin(inside, inside.root.name)
        if origin.opcode not in ("tuple", "parameter"):
            return _result(module, inside, origin.name)
    written = _written(computation, found)
    return _size(found) if written is None else written
