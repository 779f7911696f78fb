"""HLO text as computations of instructions, in the order written: a schedule, where there is one.

Every spelling reads: with and without `%`, with and without the shapes of operands, metadata in
place or as stack frames in tables of their own, backend configs as JSON or as a quoted string.
This is the grammar alone: `door.read_module` also checks that the parts belong together.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.errors import BadRequest, ShardwiseError, shown
from shardwise.profiler.hlo.numbers import MOST_DEVICES, integer, integers
from shardwise.profiler.hlo.rules import rule
from shardwise.profiler.hlo.shapes import Array, Shape, read_shape
from shardwise.profiler.hlo.sources import Frames, Source, read_frames
from shardwise.work import grouped

_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s*[({]", re.ASCII)  # the line ends with {
_INSTRUCTION = re.compile(r"^\s+(ROOT\s+)?%?([\w.\-]+)\s*=\s*(.*)$", re.DOTALL | re.ASCII)
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(", re.ASCII)
LONGEST_NAME = 1000
"""Characters; the compiler's names of fusions have some hundred."""
_COMMENT = re.compile(r"/\*index=\d+\*/")
_MARK = re.compile(r'"(?:[^"\\]|\\.)*"?|[(){}\[\],]')
_NAME = re.compile(r"(?:^|[\s%])%?([\w.\-]++)$", re.ASCII)
_KEY = re.compile(r"\s*([\w\-]+)=")
_METADATA = re.compile(r'(?<!\w)(\w++)=("(?:[^"\\]|\\.)*"|\{[^}]*\}|[^\s}]+)')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
NO_CYCLES = str(2**63 - 1)
"""What libtpu writes as the cycles of an op that it does not estimate: a SparseCore's scatter."""
_CALLING = (
    *("calls", "to_apply", "body", "condition", "true_computation", "false_computation"),
    *("branch_computations", "called_computations"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """`name = shape opcode(operands), attributes`.

    `fields` are the attributes by name, as text. `literal` is what stands in the brackets of a
    constant or a parameter. `line` is where it begins in the text.
    """

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool
    literal: str = ""
    fields: Mapping[str, str] = field(default_factory=dict, repr=False)
    line: int = 0

    def attribute(self, key: str) -> str:
        """The text after `key=`: a list in any spelling or a word; empty if there is none."""
        return self.fields.get(key, "")

    def integers(self, key: str) -> tuple[int, ...]:
        """An attribute such as `{0,2}` as numbers. Raises BadRequest."""
        return integers(self.attribute(key).strip("{}"), f"'{key}'")

    @property
    def called(self) -> tuple[str, ...]:
        """The computations that it runs."""
        names = []
        for key in (key for key in _CALLING if key in self.fields):
            inside = self.fields[key].strip("{}")
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
        """The backend's config; empty where there is none or it is not JSON."""
        text = self.attribute("backend_config")
        text = _unquoted(text) if text.startswith('"') else text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def cycles(self) -> float | None:
        """The compiler's own estimate, in clock cycles; None where it gives none."""
        found = _CYCLES.search(self.attribute("backend_config"))
        return float(found[1]) if found and found[1] != NO_CYCLES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """Instructions in the order written."""

    name: str
    instructions: tuple[Instruction, ...]
    line: int = field(default=0, compare=False)
    names: Mapping[str, Instruction] = field(init=False, repr=False, compare=False)
    parameters: tuple[Instruction, ...] = field(init=False, repr=False, compare=False)
    memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given = [i for i in self.instructions if i.opcode == "parameter"]
        object.__setattr__(self, "names", {i.name: i for i in self.instructions})
        # Its parameters by number.
        object.__setattr__(self, "parameters", tuple(sorted(given, key=lambda i: int(i.literal))))

    def find(self, name: str) -> Instruction | None:
        """The instruction of that name."""
        return self.names.get(name)

    @property
    def root(self) -> Instruction:
        """The instruction whose value is the result."""
        if "root" not in self.memo:
            roots = (i for i in self.instructions if i.root)
            self.memo["root"] = next(roots, self.instructions[-1])
        return self.memo["root"]

    def place(self, instruction: Instruction) -> int:
        """Its index among the instructions."""
        if "places" not in self.memo:
            self.memo["places"] = {i.name: at for at, i in enumerate(self.instructions)}
        return self.memo["places"][instruction.name]

    def readers(self, name: str) -> tuple[Instruction, ...]:
        """The instructions that read a value, in order, each once."""
        if "readers" not in self.memo:
            read = [(n, i) for i in self.instructions for n in dict.fromkeys(i.operands)]
            found = grouped(read, lambda pair: pair[0])
            self.memo["readers"] = {n: tuple(i for _, i in pairs) for n, pairs in found.items()}
        return self.memo["readers"].get(name, ())

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
    what: str = "the HLO text"
    memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

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


def parse_module(text: str, what: str) -> Module:
    """The parts of `compiled.as_text()` or of a dumped module, each by itself.

    Raises BadRequest, with the line, for text that is not HLO, that ends early or has no entry.
    """
    found = _Text(text, what)
    if not found.entry:
        raise BadRequest(f"{what} is not an HLO module: it has no ENTRY computation")
    if not found.header:
        raise BadRequest(f"{what} lacks its first line, 'HloModule NAME, ...'; give it whole")
    return Module(
        computations=found.computations,
        entry=found.entry,
        devices=found.devices(),
        scheduled="is_scheduled=true" in found.header,
        name=found.header.removeprefix("HloModule").split(",")[0].strip(),
        frames=found.frames,
        what=what,
    )


class _Text:
    def __init__(self, text: str, what: str) -> None:
        self.what = what
        self.lines = [line.removesuffix("\r") for line in text.split("\n")]
        self.at = 0
        self.header = self.entry = ""
        self.computations: dict[str, Computation] = {}
        tables: list[str] = []
        while self.at < len(self.lines):
            line, self.at = self.lines[self.at], self.at + 1
            if line.startswith("HloModule") and not self.header:
                self.header = line
            elif line.rstrip().endswith("{") and (found := _COMPUTATION.match(line)):
                self.computation(found)
            elif line[:1].isspace() and _INSTRUCTION.match(line):
                raise self.error(self.at, "an instruction stands outside of any computation")
            elif line.startswith("}"):
                raise self.error(self.at, "a computation ends here that does not begin")
            else:
                tables.append(line)
        try:
            self.frames = read_frames(tables)
        except BadRequest as error:
            raise BadRequest(f"{what}: {error}") from None

    def error(self, line: int, reason: object) -> BadRequest:
        return BadRequest(f"{self.what}, line {line}: {reason}")

    def devices(self) -> int:
        """Partitions times replicas."""
        found = 1
        try:
            for key in ("num_partitions", "replica_count"):
                said = re.search(rf"\b{key}=([^,\s]*)", self.header)
                found *= integer(said[1], key, least=1, most=MOST_DEVICES) if said else 1
        except BadRequest as error:
            raise BadRequest(f"{self.what}, HloModule: {error}") from None
        return found

    def computation(self, found: re.Match[str]) -> None:
        """All of a computation, from its first line on."""
        name, begins = found[2], self.at
        if len(name) > LONGEST_NAME:
            raise self.error(begins, f"{shown(name)} has over {LONGEST_NAME} characters")
        if name in self.computations:
            raise self.error(begins, f"there is a computation '{name}' already")
        if found[1] and self.entry:
            raise self.error(begins, f"there is an ENTRY computation already, '{self.entry}'")
        body: list[Instruction] = []
        names: set[str] = set()
        while True:
            if self.at >= len(self.lines):
                reason = f"the HLO text ends inside computation '{name}'; it is not complete"
                raise self.error(self.at, reason)
            line, self.at = self.lines[self.at], self.at + 1
            if line.startswith("}"):
                break
            if not line.strip():
                continue
            at = self.at
            try:
                instruction = self.instruction(line, at)
            except BadRequest as error:
                raise self.error(at, error) from None
            if instruction.name in names:
                raise self.error(at, f"there is an instruction '{instruction.name}' already")
            names.add(instruction.name)
            body.append(instruction)
        if not body:
            raise self.error(begins, f"computation '{name}' is empty")
        self.entry = name if found[1] else self.entry
        self.computations[name] = Computation(name=name, instructions=tuple(body), line=begins)

    def instruction(self, line: str, at: int) -> Instruction:
        found = _INSTRUCTION.match(self.whole(line))
        if found is None:
            raise BadRequest(f"{shown(line.strip())} is not an HLO instruction")
        return _instruction(found, at)

    def whole(self, line: str) -> str:
        """An instruction with the lines that its brackets reach over: a constant's rows."""
        if not line.endswith(("{", ",")):
            return line
        lines, depth = [line], _depth(line)
        while depth:
            if self.at >= len(self.lines):
                raise BadRequest(f"HLO text ends inside a bracket: {shown(line.strip())}")
            lines.append(self.lines[self.at])
            depth += _depth(lines[-1])
            self.at += 1
        return "\n".join(lines)


def _depth(text: str) -> int:
    """Brackets that open less those that close."""
    marks = [found[0] for found in _MARK.finditer(text)]
    return sum((mark in "({[") - (mark in ")}]") for mark in marks)


def _as_begun(shape: Shape, opcode: str) -> tuple[Shape, str]:
    """A start of what has no rule as such, a fusion on a stream of its own: `fusion-start` is read
    as the fusion, whose results are the second part of its shape, and its done as another name."""
    base, _, end = opcode.rpartition("-")
    if rule(opcode) != "unknown" or rule(base) == "unknown":
        return shape, opcode
    if end == "start" and not isinstance(shape, Array) and len(shape) > 1:
        return shape[1], base
    return shape, "bitcast" if end in ("done", "update") else opcode


def _instruction(found: re.Match[str], line: int) -> Instruction:
    rest = _COMMENT.sub("", found[3])
    end = _closing(rest, 0) + 1 if rest.startswith("(") else _shape_end(rest)
    opcode = _OPCODE.match(rest, end)
    if opcode is None:
        raise BadRequest(f"HLO instruction {shown(found[0].strip())} cannot be read")
    if max(len(found[2]), len(opcode[1])) > LONGEST_NAME:
        raise BadRequest(f"{shown(found[2])} or its opcode has over {LONGEST_NAME} characters")
    close = _closing(rest, opcode.end() - 1)
    inner = rest[opcode.end() : close]
    attributes = rest[close + 1 :]
    literal = opcode[1] in ("constant", "parameter")
    if opcode[1] == "parameter":
        integer(inner.strip(), f"the number of parameter '{found[2]}'", most=10**6)
    shape, called = _as_begun(read_shape(rest[:end]), opcode[1])
    return Instruction(
        name=found[2],
        shape=shape,
        opcode=called,
        operands=() if literal else _operands(inner),
        attributes=attributes,
        root=bool(found[1]),
        literal=inner.strip() if literal else "",
        fields=_fields(attributes),
        line=line,
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
    raise BadRequest(f"HLO text ends inside a bracket: {shown(text[at : at + 200])}")


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
    fields: dict[str, list[str]] = {}
    last = ""
    for piece in _pieces(attributes):
        found = _KEY.match(piece)
        if found is None or found[1] == "device_ids":  # belongs to the mesh of replica_groups
            if last and piece.strip():
                fields[last].append(piece)
            continue
        last = found[1]
        fields[last] = [piece[found.end() :].strip()]
    return {key: ",".join(pieces) for key, pieces in fields.items()}


def _operands(text: str) -> tuple[str, ...]:
    """The last word of every piece: a shape may stand before the name."""
    if not text.strip():
        return ()
    names = []
    for piece in _pieces(text):
        found = _NAME.search(piece.rstrip())
        if found is None:
            said = shown(" ".join(piece.split()))
            raise BadRequest(f"operand {said} is not a name of an instruction")
        names.append(found[1])
    return tuple(names)


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    return re.sub(r"\\(.)", r"\1", text[1:-1])
