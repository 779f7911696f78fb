"""HLO text as computations of instructions, in the order written: a schedule, where there is one.

Every spelling reads: with and without `%`, with and without the shapes of operands, metadata in
place or as stack frames in tables of their own, backend configs as JSON or as a quoted string.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.profiler.hlo.shapes import Array, Shape, read_shape
from shardwise.profiler.hlo.sources import Frames, Source, read_frames

_COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*\)\s*->\s*.*)?\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT\s+)?%?([\w.\-]+)\s*=\s*(.*)$", re.DOTALL)
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_COMMENT = re.compile(r"/\*index=\d+\*/")
_MARK = re.compile(r'"(?:[^"\\]|\\.)*"?|[(){}\[\],]')
_KEY = re.compile(r"\s*([\w\-]+)=")
_METADATA = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\{[^}]*\}|[^\s}]+)')
_CALLING = ("calls", "to_apply", "body", "condition", "true_computation", "false_computation")
_BRANCHING = ("branch_computations", "called_computations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """`name = shape opcode(operands), attributes`.

    `fields` are the attributes by name, as text. `literal` is what stands in the brackets of a
    constant or a parameter.
    """

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool
    literal: str = ""
    fields: Mapping[str, str] = field(default_factory=dict, repr=False)

    def attribute(self, key: str) -> str:
        """The text after `key=`: a list in any spelling or a word; empty if there is none."""
        return self.fields.get(key, "")

    def integers(self, key: str) -> tuple[int, ...]:
        """An attribute such as `{0,2}` as numbers."""
        return tuple(int(n) for n in re.findall(r"-?\d+", self.attribute(key)))

    @property
    def called(self) -> tuple[str, ...]:
        """The computations that it runs."""
        names = []
        for key in (*_CALLING, *_BRANCHING):
            inside = self.attribute(key).strip("{}")
            names += [name.strip().lstrip("%") for name in inside.split(",") if name.strip()]
        return tuple(names)

    @property
    def target(self) -> str:
        """What a custom call calls."""
        return self.attribute("custom_call_target").strip('"')

    @property
    def metadata(self) -> Mapping[str, str]:
        """`op_name`, `stack_frame_id`, `source_file` and so on."""
        found = _METADATA.findall(self.attribute("metadata"))
        return {key: _unquoted(value) for key, value in found}

    @property
    def op_name(self) -> str:
        """The JAX operation with its scopes: `jit(step)/transpose(jvp())/mlp/dot_general`."""
        return self.metadata.get("op_name", "")

    @property
    def config(self) -> Mapping[str, Any]:
        """The backend's config; empty where there is none or it is no JSON."""
        text = self.attribute("backend_config")
        text = _unquoted(text) if text.startswith('"') else text
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def cycles(self) -> float | None:
        """The compiler's own estimate, in clock cycles; None where it gives none."""
        found = re.search(r'"estimated_cycles":"?(\d+)', self.attribute("backend_config"))
        return float(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """Instructions in the order written."""

    name: str
    instructions: tuple[Instruction, ...]
    names: Mapping[str, Instruction] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", {i.name: i for i in self.instructions})

    def find(self, name: str) -> Instruction | None:
        """The instruction of that name."""
        return self.names.get(name)

    @property
    def root(self) -> Instruction:
        """The instruction whose value is the result."""
        return next((i for i in self.instructions if i.root), self.instructions[-1])

    @property
    def parameters(self) -> tuple[Instruction, ...]:
        """Its parameters by number."""
        found = [i for i in self.instructions if i.opcode == "parameter"]
        return tuple(sorted(found, key=lambda i: int(i.literal)))

    def shape_of(self, name: str) -> Shape:
        """The shape of an operand; ShardwiseError for a name that is not here."""
        found = self.find(name)
        if found is None:
            raise ShardwiseError(f"HLO computation '{self.name}' has no instruction '{name}'")
        return found.shape

    def array_of(self, name: str) -> Array:
        """The shape of an operand that is one array."""
        shape = self.shape_of(name)
        if not isinstance(shape, Array):
            raise ShardwiseError(f"HLO instruction '{name}' in '{self.name}' is no single array")
        return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A compiled module: its computations, the entry, and how many devices it runs on."""

    computations: Mapping[str, Computation]
    entry: str
    devices: int
    scheduled: bool
    name: str = ""
    frames: Frames = field(default_factory=Frames, repr=False)

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

    def computation(self, name: str) -> Computation:
        """A computation by name; ShardwiseError for one that the text lacks."""
        if name not in self.computations:
            raise ShardwiseError(f"HLO module '{self.name}' calls '{name}', which it lacks")
        return self.computations[name]

    def sources(self, instruction: Instruction) -> tuple[Source, ...]:
        """Where it comes from, the innermost call first; empty where the text does not say."""
        return self.frames.sources(instruction.metadata)


def read_module(text: str) -> Module:
    """Read `compiled.as_text()` or a dumped module.

    Raises ShardwiseError for text that is no HLO, that ends early, or without an entry.
    """
    computations: dict[str, Computation] = {}
    entry, name, header = "", "", ""
    body: list[Instruction] = []
    tables: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("}"):
            computations[name] = Computation(name=name, instructions=tuple(body))
            name, body = "", []
        elif name:
            if found := _INSTRUCTION.match(_whole(line, lines)):
                body.append(_instruction(found))
        elif line.startswith("HloModule"):
            header = line
        elif found := _COMPUTATION.match(line):
            name = found[2]
            entry = name if found[1] else entry
        else:
            tables.append(line)
    if name:
        raise ShardwiseError(f"the HLO text ends inside computation '{name}'; it is not complete")
    if not entry:
        raise ShardwiseError("the text is no HLO module: it has no ENTRY computation")
    return Module(
        computations=computations,
        entry=entry,
        devices=_number(header, "num_partitions") * _number(header, "replica_count"),
        scheduled="is_scheduled=true" in header,
        name=header.removeprefix("HloModule").split(",")[0].strip(),
        frames=read_frames(tables),
    )


def _number(header: str, key: str) -> int:
    found = re.search(rf"\b{key}=(\d+)", header)
    return int(found[1]) if found else 1


def _whole(line: str, lines: Iterator[str]) -> str:
    """An instruction with the lines that its brackets reach over: a constant's rows."""
    if not line.endswith(("{", ",")):
        return line
    while not _balanced(line):
        following = next(lines, None)
        if following is None:
            raise ShardwiseError(f"HLO text ends inside a bracket: '{line.strip()[:80]}'")
        line = f"{line}\n{following}"
    return line


def _balanced(text: str) -> bool:
    depth = 0
    for found in _MARK.finditer(text):
        depth += (found[0] in "({[") - (found[0] in ")}]")
    return depth == 0


def _instruction(found: re.Match[str]) -> Instruction:
    rest = _COMMENT.sub("", found[3])
    end = _closing(rest, 0) + 1 if rest.startswith("(") else _shape_end(rest)
    opcode = _OPCODE.match(rest, end)
    if opcode is None:
        raise ShardwiseError(f"HLO instruction '{found[0].strip()[:120]}' cannot be read")
    close = _closing(rest, opcode.end() - 1)
    inner = rest[opcode.end() : close]
    attributes = rest[close + 1 :]
    literal = opcode[1] in ("constant", "parameter")
    return Instruction(
        name=found[2],
        shape=read_shape(rest[:end]),
        opcode=opcode[1],
        operands=() if literal else _operands(inner),
        attributes=attributes,
        root=bool(found[1]),
        literal=inner.strip() if literal else "",
        fields=_fields(attributes),
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
    depth = 0
    for found in _MARK.finditer(text, at):
        depth += (found[0] in "({[") - (found[0] in ")}]")
        if depth == 0:
            return found.start()
    raise ShardwiseError(f"HLO text ends inside a bracket: '{text[at : at + 80]}'")


def _pieces(text: str) -> list[str]:
    """Text cut at the commas outside brackets and quotes."""
    pieces, depth, start = [], 0, 0
    for found in _MARK.finditer(text):
        mark = found[0]
        if mark == "," and depth == 0:
            pieces.append(text[start : found.start()])
            start = found.end()
        else:
            depth += (mark in "({[") - (mark in ")}]")
    return [*pieces, text[start:]]


def _fields(attributes: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    last = ""
    for piece in _pieces(attributes):
        found = _KEY.match(piece)
        if found is None or found[1] == "device_ids":  # belongs to the mesh of replica_groups
            if last:
                fields[last] += f",{piece}"
            continue
        last = found[1]
        fields[last] = piece[found.end() :].strip()
    return fields


def _operands(text: str) -> tuple[str, ...]:
    if "%" in text:
        return tuple(re.findall(r"%([\w.\-]+)", text))
    return tuple(piece.split()[-1] for piece in _pieces(text) if piece.strip())


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    return re.sub(r"\\(.)", r"\1", text[1:-1])
