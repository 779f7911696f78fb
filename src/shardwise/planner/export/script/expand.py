"""Words of a bash script with their values: variables, arrays, defaults, arithmetic, quotes.

A value that the script does not say (a variable that nobody sets, a command's output) stays in its
word between two marks, so that what needs it can ask for it by name.
"""

import ast
import re
from collections.abc import Callable, Mapping
from fnmatch import translate
from typing import Any

from shardwise.errors import BadRequest, shown
from shardwise.planner.export.script.tokens import past, within

Value = str | list[str]
_OPEN, _CLOSE = "\ue000", "\ue001"
MOST_TEXT = 256 * 1024
"""Characters of a value: no launch needs as many, and doubling in a loop would take all memory."""
_MOST_CUT = 1000
"""Characters of a value that `${X%...}` is tried on."""
_PARAMETER = re.compile(r"(!)?(#)?(\w+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_UNKNOWN = re.compile(f"{_OPEN}(.*?){_CLOSE}", re.DOTALL)


def unknown_value(name: str) -> str:
    """The text of a value that the script does not say."""
    return f"{_OPEN}{name}{_CLOSE}"


def unknown_in(text: str) -> list[str]:
    """Names of what a text holds that the script does not say."""
    return _UNKNOWN.findall(text)


def as_written(text: str) -> str:
    """The text, with `$NAME` for what the script does not say."""
    return _UNKNOWN.sub(lambda found: f"${found[1]}", text)


def as_unset(text: str) -> str:
    """The text with nothing for what the script does not say."""
    return _UNKNOWN.sub("", text)


class ShellScope:
    """Variables of a script and the arguments that it is called with (none)."""

    def __init__(self, values: Mapping[str, Value], arguments: list[str]) -> None:
        self.values, self.arguments = dict(values), arguments

    def set(self, name: str, value: Value) -> None:
        """Give a variable a value; BadRequest for one without end."""
        size = len(value) if isinstance(value, str) else sum(map(len, value)) + len(value)
        if size > MOST_TEXT:
            raise BadRequest(f"the script's {name} exceeds {MOST_TEXT:,} characters; shorten it")
        self.values[name] = value

    def fields(self, raw: str) -> list[str]:
        """The words that bash makes of one word."""
        return _Fields(self).of(raw)

    def text(self, raw: str) -> str:
        """A word as one text, as on the right of an assignment."""
        return _Fields(self, splits=False).joined(raw)

    def array(self, raw: str) -> list[str]:
        """The elements of `(a b c)`."""
        found = [field for word in within(raw[1:-1]) for field in self.fields(word)]
        return [re.sub(r"^\[\w+\]=", "", field) for field in found]

    def look_up(self, name: str) -> Value | None:
        """What a name stands for; None where nothing set it."""
        if name in "@*":
            return list(self.arguments)
        if name == "#":
            return str(len(self.arguments))
        if name == "0":
            return "script.sh"
        if name.isdigit():
            at = int(name[:6]) - 1
            return self.arguments[at] if at < len(self.arguments) else None
        return self.values.get(name)

    def parameter(self, inner: str) -> Value:
        """What `${inner}` stands for."""
        found = _PARAMETER.fullmatch(inner)
        if found is None:
            return unknown_value("{" + inner + "}")
        indirect, length, name, index, operation = found.groups()
        value = self.look_up(name)
        if indirect:
            value = self.look_up(as_written("".join(value or [])))
        if isinstance(value, list) and index not in ("@", "*") and name not in "@*":
            at = self.arithmetic(index or "0")
            value = value[int(at)] if at.isdigit() and int(at) < len(value) else None
        elif isinstance(value, str) and index in ("@", "*"):
            value = [value]
        elif value is None and index in ("@", "*"):
            value = []
        if length:
            return "0" if value is None else str(len(value))
        return self._operated(name, value, operation)

    def _operated(self, name: str, value: Value | None, operation: str) -> Value:
        kind = re.match(r":?[-=+?]|##?|%%?|//?[#%]?|:|,,?|\^\^?|@\w", operation)
        word = operation[kind.end() :] if kind else ""
        empty = not value or (isinstance(value, str) and not as_unset(value))
        match kind and kind[0]:
            case ":-" | "-" | ":=" | "=":
                if value is not None and not (empty and operation[0] == ":"):
                    return value
                given = self.text(word)
                if "=" in operation[:2]:
                    self.set(name, given)
                return given
            case ":+" | "+":
                there = value is not None and not (empty and operation[0] == ":")
                return self.text(word) if there else ""
            case None | ":?" | "?":
                return unknown_value(name) if value is None else value
        if value is None:
            return unknown_value(name)
        assert kind is not None
        if kind[0] == ":":
            return self._cut(value, word)
        change = self._change(kind[0], word)
        return [change(v) for v in value] if isinstance(value, list) else change(value)

    def _cut(self, value: Value, word: str) -> Value:
        """`${X:start:length}`."""
        first, colon, many = word.partition(":")
        begin, size = int(self.arithmetic(first) or 0), self.arithmetic(many) if colon else ""
        if isinstance(value, list) and value == self.arguments:
            begin -= 1
        begin = max(begin + len(value), 0) if begin < 0 else begin
        return value[begin : begin + int(size)] if size else value[begin:]

    def _change(self, kind: str, word: str) -> Callable[[str], str]:
        if kind[0] in ",^":
            whole = str.lower if kind[0] == "," else str.upper
            return whole if len(kind) == 2 else lambda v: whole(v[:1]) + v[1:]
        if kind[0] == "@":
            return lambda v: v
        pattern, _, new = word.partition("/")
        text, inner = self.text(new), translate(self.text(pattern))[:-2]  # without its end
        if kind[0] == "/":
            return lambda v: re.sub(inner, lambda _: text, v, count=0 if "//" in kind else 1)
        glob = translate(self.text(word))
        ends = [kind == "##", kind == "%%"]

        def cut(v: str) -> str:
            cuts = range(min(len(v), _MOST_CUT) + 1)
            if kind[0] == "#":
                fit = [i for i in cuts if re.match(glob, v[:i])]
                return v[(max if ends[0] else min)(fit) :] if fit else v
            fit = [i for i in cuts if re.match(glob, v[i:])]
            return v[: (min if ends[1] else max)(fit)] if fit else v

        return cut

    def arithmetic(self, text: str) -> str:
        """The value of `$((text))`: whole numbers, `/` towards zero, as bash reckons."""
        plain = self.text(text.replace('"', ""))
        names = set(re.findall(r"[A-Za-z_]\w*", as_unset(plain)))
        held = {name: self.look_up(name) for name in names}
        missing = [*unknown_in(plain), *(name for name in names if held[name] is None)]
        numbers = {n: self._number(v) for n, v in held.items() if isinstance(v, str)}
        for name in names:
            if isinstance(held[name], str):
                missing += unknown_in(str(held[name]))
        if missing or not plain.strip():
            return unknown_value(missing[0]) if missing else "0"
        try:
            way = re.sub(r"^([^?]+)\?([^?:]+):([^?:]+)$", r"(\2) if (\1) else (\3)", plain.strip())
            tree = ast.parse(way.replace("&&", " and ").replace("||", " or "), mode="eval")
            return str(int(_reckoned(tree.body, numbers)))
        except (SyntaxError, ValueError, TypeError, KeyError, ZeroDivisionError, OverflowError):
            return unknown_value(f"(({shown(plain, 80)}))")

    def _number(self, value: str) -> Any:
        return int(value) if re.fullmatch(r"\s*-?\d{1,18}\s*", value) else value


_STEPS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: int(a / b) if abs(a) < 2**52 else a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b if 0 <= b <= 62 else int("no"),
    ast.LShift: lambda a, b: a << b if 0 <= b <= 62 else int("no"),
    ast.RShift: lambda a, b: a >> b if 0 <= b <= 62 else int("no"),
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def _reckoned(node: ast.expr, numbers: Mapping[str, Any]) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return _bounded(value)
        case ast.Name(id=name):
            return _bounded(int(numbers[name]))
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_reckoned(inner, numbers)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _STEPS:
            return _bounded(_STEPS[type(op)](_reckoned(left, numbers), _reckoned(right, numbers)))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _STEPS:
            return int(_STEPS[type(op)](_reckoned(left, numbers), _reckoned(right, numbers)))
        case ast.IfExp(test=test, body=body, orelse=other):
            return _reckoned(body if _reckoned(test, numbers) else other, numbers)
        case ast.BoolOp(op=op, values=parts):
            found = [bool(_reckoned(part, numbers)) for part in parts]
            return int(all(found) if isinstance(op, ast.And) else any(found))
    raise ValueError


def _bounded(value: int) -> int:
    if abs(value) >= 2**63:
        raise OverflowError
    return value


_DOCUMENT = re.compile(
    r"cat[ \t]*<<-?[ \t]*(?P<end>\w+)[ \t]*\n(?P<held>.*?)^[ \t]*(?P=end)[ \t]*",
    re.DOTALL | re.MULTILINE,
)
"""`cat` of a here-document, whose variables stand for their values."""


class _Fields:
    """One word on its way to the fields that it makes."""

    def __init__(self, scope: ShellScope, *, splits: bool = True) -> None:
        self.scope, self.splits = scope, splits
        self.done: list[str] = []
        self.now: str | None = None

    def of(self, raw: str) -> list[str]:
        self._walk(raw, quoted=False)
        return [*self.done, *([] if self.now is None else [self.now])]

    def joined(self, raw: str) -> str:
        return " ".join(self.of(raw))

    def _walk(self, raw: str, *, quoted: bool) -> None:
        at = 0
        while at < len(raw):
            c = raw[at]
            end = past(raw, at) if c in "\\$`" or (not quoted and c in "'\"") else at + 1
            part, at = raw[at:end], end
            if c == "\\" and part != "\\\n":
                escaped = not quoted or part[1:] in ('"', "\\", "$", "`")
                self._add(part[1:] if escaped else part)
            elif c == "'" and not quoted:
                self._add(part[1:-1])
            elif c == '"' and not quoted:
                self._add("")
                self._walk(part[1:-1], quoted=True)
            elif c == "$":
                if part == "$":
                    name = re.match(r"[A-Za-z_]\w*|[0-9@*#?$!-]", raw[at:])
                    at += name.end() if name else 0
                    part = f"${{{name[0]}}}" if name else "\\$"
                self._expanded(part, quoted=quoted)
            elif c == "`":
                self._put(unknown_value(f"({part[1:-1]})"), quoted=quoted)
            elif c != "\\":
                self._add(c)

    def _expanded(self, part: str, *, quoted: bool) -> None:
        """`${...}`, `$(...)`, `$((...))`, `$'...'` or a plain `$`."""
        if part.startswith(("\\", "$'")):
            self._add("$" if part[0] == "\\" else part[2:-1])
        elif part.startswith("$((") and part.endswith("))"):
            self._put(self.scope.arithmetic(part[3:-2]), quoted=quoted)
        elif part.startswith("$("):
            self._put(self._output(part[2:-1]), quoted=quoted)
        else:
            self._put(self.scope.parameter(part[2:-1]), quoted=quoted, star="*" in part)

    def _output(self, command: str) -> str:
        """What a command prints: that of `echo`, of `basename` and of a here-document is known, no
        other's."""
        if held := _DOCUMENT.fullmatch(command.strip()):
            inner = _Fields(self.scope, splits=False)
            inner._walk(held["held"], quoted=True)
            return inner.now or ""
        words = within(command)
        if words[:1] == ["basename"] and len(words) == 2:
            return self.scope.text(words[1]).rstrip("/").rpartition("/")[2]
        if words[:1] == ["echo"] and not re.search(r"[|;&<>]", command):
            return " ".join(field for word in words[1:] for field in self.scope.fields(word))
        return unknown_value(f"({command.strip()})")

    def _put(self, value: Value, *, quoted: bool, star: bool = False) -> None:
        if isinstance(value, list) and (star or not self.splits):
            value = " ".join(value)
        if quoted or not self.splits:
            if isinstance(value, str):
                return self._add(value)
            if not value and self.now == "":
                self.now = None  # "${A[@]}" of an empty array is not a word
        parts = [value] if isinstance(value, str) else value
        for i, part in enumerate(parts):
            if i:
                self._end()
            if quoted:
                self._add(part)
            else:
                self._split(part)

    def _split(self, text: str) -> None:
        """Add text that bash cuts where it has blanks; what is not known stays whole."""
        for piece in re.split(f"(\\s+|{_OPEN}.*?{_CLOSE})", text, flags=re.DOTALL):
            if piece and piece.isspace():
                self._end()
            elif piece:
                self._add(piece)

    def _add(self, text: str) -> None:
        self.now = (self.now or "") + text

    def _end(self) -> None:
        if self.now is not None:
            self.done.append(self.now)
        self.now = None
