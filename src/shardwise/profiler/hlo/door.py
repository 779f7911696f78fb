"""Where HLO text comes in: it is parsed, and all that the later passes rely on is checked once.

After it every operand stands before its reader, every computation that runs is there, none runs
itself, fusions take as many operands as they have parameters, and each instruction has what the
rules of its opcode read (`operands.py`). A message names the text, the line and the instruction.
"""

from collections.abc import Mapping
from pathlib import Path

from shardwise.boundary.archives import read_packed
from shardwise.boundary.files import decode
from shardwise.errors import BadRequest, shown
from shardwise.profiler.hlo.groups import read_groups
from shardwise.profiler.hlo.operands import check_instruction, check_sharding
from shardwise.profiler.hlo.text import Computation, Instruction, Module, parse_module
from shardwise.profiler.hlo.transfers import slices_of

TEXT_BYTES = 16 * 2**20
"""Of a file; programs of large models have some megabytes."""
FILE_INSTRUCTIONS = 100_000
MOST_INSTRUCTIONS = 1_000_000
"""Of a file, and of what was compiled here: all computations, each as often as the text runs it (a
loop's body once). Programs of large models have some ten thousand."""
DEEPEST = 50
"""Computations that run each other; real programs have some ten levels."""
MOST_MEMBERS = 2**22
"""Devices of all the different replica groups of a program."""
_RUN = frozenset({"fusion", "call", "while", "conditional", "async-start"})
"""Opcodes whose computations the passes go through; others (a sum's `to_apply`) may be left out."""
REMEDY = "give the whole text of the compiled program, as `compiled.as_text()` has it"


def read_hlo(path: Path, what: str = "the HLO text") -> tuple[Module, str]:
    """The module in a file, which gzip may have packed, and its text. Raises BadRequest."""
    data = read_packed(path, what, most=TEXT_BYTES, remedy=REMEDY)
    text = decode(data, path, what)
    return read_module(text, f"{what} '{path}'", most=FILE_INSTRUCTIONS), text


def read_module(text: str, what: str = "the HLO text", *, most: int = MOST_INSTRUCTIONS) -> Module:
    """Read `compiled.as_text()` or a dumped module.

    Raises BadRequest, with the line, for text that is not HLO, that ends early or lacks an entry,
    or whose parts do not belong together, and for one of more than `most` instructions; `what`
    names the text there.
    """
    module = parse_module(text, what)
    if sum(len(c.instructions) for c in module.computations.values()) > most:
        raise BadRequest(f"{what} has more than {most:,} instructions")
    for computation in module.computations.values():
        _check_order(module, computation)
    _check_calls(module, most)
    for computation in module.computations.values():
        for instruction in computation.instructions:
            try:
                check_instruction(module, computation, instruction)
            except BadRequest as error:
                raise refused(module, instruction, str(error)) from None
    _check_groups(module)
    devices = module.devices * slices_of(module)
    for parameter in module.computations[module.entry].parameters:
        try:
            check_sharding(parameter, devices)
        except BadRequest as error:
            raise refused(module, parameter, str(error)) from None
    return module


def refused(module: Module, instruction: Instruction, reason: str) -> BadRequest:
    """The error for an instruction."""
    return BadRequest(
        f"{module.what}, line {instruction.line}: {instruction.opcode} '{instruction.name}': "
        f"{reason}; {REMEDY}"
    )


def _check_order(module: Module, computation: Computation) -> None:
    """One root, parameters 0, 1, ..., and every operand before what reads it."""
    seen: set[str] = set()
    roots = 0
    for instruction in computation.instructions:
        for name in instruction.operands:
            if name not in seen:
                where = "stands after it" if name in computation.names else "is not there"
                reason = f"it reads {shown(name)}, which {where} in '{computation.name}'"
                raise refused(module, instruction, reason)
        seen.add(instruction.name)
        roots += instruction.root
        if roots > 1:
            raise refused(module, instruction, f"'{computation.name}' has a ROOT already")
    for number, parameter in enumerate(computation.parameters):
        if int(parameter.literal) != number:
            reason = f"'{computation.name}' has no parameter {number}, or has it twice"
            raise refused(module, parameter, reason)


def _check_calls(module: Module, most: int) -> None:
    """Computations that run are there, none runs itself, and all of them are of a finite size."""
    sizes: dict[str, tuple[int, int]] = {}  # name -> instructions run, levels
    waiting: list[tuple[str, bool]] = [(name, False) for name in module.computations]
    open_: set[str] = set()
    while waiting:
        name, done = waiting.pop()
        if name in sizes:
            continue
        calls = _calls(module, module.computations[name])
        if done:
            open_.discard(name)
            sizes[name] = _size(module.computations[name], calls, sizes)
            _check_size(module, module.computations[name], sizes[name], most)
            continue
        open_.add(name)
        waiting.append((name, True))
        for called, instruction in calls.items():
            if called in open_:
                raise refused(module, instruction, f"it runs '{called}', which runs it again")
            if called not in sizes:
                waiting.append((called, False))


def _size(
    computation: Computation,
    calls: Mapping[str, Instruction],
    sizes: Mapping[str, tuple[int, int]],
) -> tuple[int, int]:
    """(instructions that a computation runs, levels below it)."""
    runs = len(computation.instructions)
    levels = 0
    for instruction in computation.instructions:
        for name in instruction.called:
            if name in calls:
                runs += sizes[name][0]
                levels = max(levels, sizes[name][1] + 1)
    return runs, levels


def _check_size(module: Module, computation: Computation, size: tuple[int, int], most: int) -> None:
    if size[0] > most or size[1] > DEEPEST:
        raise BadRequest(
            f"{module.what}, line {computation.line}: computation '{computation.name}' runs more "
            f"than {most:,} instructions, or {DEEPEST} computations in each other"
        )


def _calls(module: Module, computation: Computation) -> dict[str, Instruction]:
    """The computations that one runs, each with an instruction that runs it."""
    found: dict[str, Instruction] = {}
    for instruction in computation.instructions:
        for name in instruction.called:
            if name in module.computations:
                found.setdefault(name, instruction)
            elif instruction.opcode in _RUN:
                reason = f"it runs {shown(name)}, a computation that is not there"
                raise refused(module, instruction, reason)
    return found


def _check_groups(module: Module) -> None:
    """The replica groups of a program are together of a size that can be held."""
    different = {
        text
        for computation in module.computations.values()
        for instruction in computation.instructions
        if (text := instruction.attribute("replica_groups"))
    }
    if len(different) * module.devices > MOST_MEMBERS:
        raise BadRequest(
            f"{module.what} has {len(different)} different replica groups of {module.devices} "
            f"devices; at most {MOST_MEMBERS:,} are read in all"
        )
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if text := instruction.attribute("replica_groups"):
                try:
                    read_groups(text, module.devices)
                except BadRequest as error:
                    raise refused(module, instruction, str(error)) from None
