"""HLO text as computations of instructions, in the order written: a schedule, where there is one.

Both spellings read: with and without `%`, with and without the shapes of operands.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.profiler.hlo.shapes import Shape, read_shape

_COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*\)\s*->\s*.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT\s+)?%?([\w.\-]+)\s*=\s*(.*)$")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_CALLS = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations|calls)=\{([^}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """`name = shape opcode(operands), attributes`."""

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool

    def attribute(self, key: str) -> str:
        """The text after `key=`: a list in any spelling or a word; empty if there is none."""
        found = re.search(rf"\b{key}=", self.attributes)
        if found is None:
            return ""
        rest = self.attributes[found.end() :]
        if rest.startswith("{"):
            return rest[: _closing(rest, 0) + 1]
        if rest.startswith("mesh["):
            return rest[: rest.index("}") + 1]
        word = re.match(r"\[[^\]]*\](?:<=\[[^\]]*\](?:T\([^)]*\))?)?|[^,\s]*", rest)
        return word[0] if word else ""

    @property
    def called(self) -> tuple[str, ...]:
        """The computations that it runs."""
        names = _CALLS.findall(self.attributes)
        for branches in _BRANCHES.findall(self.attributes):
            names += [name.strip().lstrip("%") for name in branches.split(",") if name.strip()]
        return tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """Instructions in the order written."""

    name: str
    instructions: tuple[Instruction, ...]

    def find(self, name: str) -> Instruction | None:
        """The instruction of that name."""
        return next((i for i in self.instructions if i.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A compiled module: its computations, the entry, and how many devices it runs on."""

    computations: Mapping[str, Computation]
    entry: str
    devices: int
    scheduled: bool

    def reached(self, name: str) -> Iterator[Computation]:
        """A computation and all that it calls, each once."""
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            name = waiting.pop()
            if name in self.computations and name not in seen:
                seen.add(name)
                yield self.computations[name]
                waiting += [c for i in self.computations[name].instructions for c in i.called]


def read_module(text: str) -> Module:
    """Read `compiled.as_text()` or a dumped module; raises ShardwiseError without an entry."""
    computations: dict[str, Computation] = {}
    entry, name, body = "", "", []
    header = next((line for line in text.splitlines() if line.startswith("HloModule")), "")
    for line in text.splitlines():
        if line.startswith("}"):
            computations[name] = Computation(name=name, instructions=tuple(body))
            name, body = "", []
        elif name:
            if found := _INSTRUCTION.match(line):
                body.append(_instruction(found))
        elif not line.startswith("HloModule") and (found := _COMPUTATION.match(line)):
            name = found[2]
            entry = name if found[1] else entry
    if not entry:
        raise ShardwiseError("the text is no HLO module: it has no ENTRY computation")
    return Module(
        computations=computations,
        entry=entry,
        devices=_number(header, "num_partitions") * _number(header, "replica_count"),
        scheduled="is_scheduled=true" in header,
    )


def _number(header: str, key: str) -> int:
    found = re.search(rf"\b{key}=(\d+)", header)
    return int(found[1]) if found else 1


def _instruction(found: re.Match[str]) -> Instruction:
    rest = found[3]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else _shape_end(rest)
    opcode = _OPCODE.match(rest, end)
    if opcode is None:
        raise ShardwiseError(f"HLO instruction '{found[0].strip()[:120]}' cannot be read")
    close = _closing(rest, opcode.end() - 1)
    inner = rest[opcode.end() : close]
    return Instruction(
        name=found[2],
        shape=read_shape(rest[:end]),
        opcode=opcode[1],
        operands=_operands(inner),
        attributes=rest[close + 1 :],
        root=bool(found[1]),
    )


def _shape_end(text: str) -> int:
    """Where the first space outside braces is: a layout may hold no space, but be sure."""
    depth = 0
    for at, mark in enumerate(text):
        depth += (mark == "{") - (mark == "}")
        if mark == " " and depth == 0:
            return at
    return len(text)


def _closing(text: str, at: int) -> int:
    """The place of the bracket that closes the one at `at`; quoted text is skipped."""
    depth, quoted = 0, False
    for i in range(at, len(text)):
        mark = text[i]
        if mark == '"' and text[i - 1] != "\\":
            quoted = not quoted
        if quoted:
            continue
        depth += (mark in "({[") - (mark in ")}]")
        if depth == 0:
            return i
    raise ShardwiseError(f"HLO text ends inside a bracket: '{text[at : at + 80]}'")


def _operands(text: str) -> tuple[str, ...]:
    if "%" in text:
        return tuple(re.findall(r"%([\w.\-]+)", text))
    names, depth, word = [], 0, ""
    for mark in text + ",":
        depth += (mark in "({[") - (mark in ")}]")
        if mark == "," and depth == 0:
            names += word.split()[-1:]
            word = ""
        else:
            word += mark
    return tuple(names)
