"""What a bash script starts, without starting it: variables are set, conditions decided, loops
walked, and each command that begins a program is kept with the words it would be given.

A condition about what only a machine knows (a file, a command's success) is not decided: a way that
ends in `exit` is not the one that trains, and where two are left a variable that they set otherwise
is unknown.
"""

import contextlib
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from shardwise.errors import BadRequest
from shardwise.planner.export.script.expand import (
    ShellScope,
    Value,
    as_unset,
    as_written,
    unknown_in,
    unknown_value,
)
from shardwise.planner.export.script.tokens import tokens_of
from shardwise.planner.export.script.tree import (
    Block,
    ShellCase,
    ShellChain,
    ShellChoice,
    ShellCommand,
    ShellFunction,
    ShellGroup,
    ShellLoop,
    Statement,
    block_of,
)

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[(\w*)\])?(\+)?=(.*)", re.DOTALL)
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_COMMAND = re.compile(r"--command=(?=.*\s)", re.DOTALL)
"""Where xpk and gcloud are given what their machines run."""
TPU_TYPE, SLICES = "--tpu-type", "--num-slices"
"""Of XPK: the machines that run the command, which stand among its variables."""
_MOST_STEPS = 20_000
_STARTS = ("echo", "printf", "cat", "source", ".", "alias", "trap")
"""Commands that print or read the words of others."""
FILES_OF_KEYS = (".json", ".yaml", ".yml", ".toml")
"""Ends of files that hold keys, not commands."""
_SHELLS = ("bash", "sh", "sbatch", "srun", "ssh")
"""Programs that run the script that they are given."""
Started = tuple[list[str], dict[str, Value]]
"""The words of a command, and the variables as they were then."""


def _bare(word: str) -> str:
    """A file's name without its folder."""
    return word.rpartition("/")[2]


def _option(words: list[str], name: str) -> str:
    """The value of an option, as `--name value` or `--name=value`; "" where it is not given."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    found = (
        after if word == name else word.partition("=")[2]
        for word, after in pairs
        if word.partition("=")[0] == name
    )
    return next(found, "")


class _Leaves(Exception):
    """The script ends here (`exit`), or a function or a loop does."""

    def __init__(self, word: str) -> None:
        self.word = word


class ScriptRun:
    """A script on its way; `started` are the commands that it begins."""

    def __init__(self, text: str) -> None:
        self.scope = ShellScope({}, [])
        self.started: list[Started] = []
        self.functions: dict[str, Block] = {}
        self.written: dict[str, str] = {}  # here-documents by the file that they were written to
        self.steps, self.depth = 0, 0
        self.text = text

    def all(self, values: dict[str, Value]) -> list[Started]:
        """The commands that the script begins where its caller has set `values`."""
        self.scope.values |= values
        with contextlib.suppress(_Leaves):
            self.block(block_of(tokens_of(self.text)))
        return self.started

    def block(self, block: Block) -> bool | None:
        """Whether the last of the statements succeeds, None where nobody can say."""
        found: bool | None = True
        for statement in block:
            found = self.statement(statement)
        return found

    def statement(self, statement: Statement) -> bool | None:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise BadRequest(f"the script takes over {_MOST_STEPS:,} steps; shorten its loops")
        match statement:
            case ShellCommand(words, documents, files, lines):
                if lines and "read" in words:
                    return self.reads(list(words), lines[-1])
                if files and words[0] == "echo":
                    told = [as_written(f) for w in words[1:] for f in self.scope.fields(w)]
                    self.written[_bare(self.scope.text(files[-1]))] = " ".join(told)
                return self.with_documents(list(words), documents, files)
            case ShellChain(first, joined):
                return self.chain(first, joined)
            case ShellGroup(body):
                return self.block(body)
            case ShellFunction(name, body):
                self.functions[name] = body
            case ShellChoice(tests, other):
                self.choice(tests, other)
            case ShellCase(word, ways):
                self.case(word, ways)
            case ShellLoop():
                self.loop(statement)
        return True

    def chain(self, first: Statement, joined: tuple[tuple[str, Statement], ...]) -> bool | None:
        found = self.statement(first)
        for sign, following in joined:
            if sign == "|" or found is (sign == "&&"):
                found = self.statement(following)
            elif found is None:
                external = isinstance(first, ShellCommand) and first.words[0] not in (
                    "[",
                    "[[",
                    "test",
                )
                if external and sign == "&&":
                    found = self.statement(following)
                elif not external:
                    self.either([(following,), ()])
        return found

    def choice(self, tests: tuple[tuple[Block, Block], ...], other: Block) -> None:
        ways: list[Block] = []
        for test, body in tests:
            held = self.block(test)
            if held is not False:
                ways.append(body)
            if held:
                break
        else:
            ways.append(other)
        self.either(ways)

    def case(self, word: str, ways: tuple[tuple[tuple[str, ...], Block], ...]) -> None:
        value = as_unset(self.scope.text(word))
        for patterns, body in ways:
            if any(fnmatchcase(value, as_unset(self.scope.text(p))) for p in patterns):
                return self.either([body])
        return None

    def either(self, ways: list[Block]) -> None:
        """Take the way that is left without those that end the script, or what all agree on."""
        if len(ways) == 1 and not _exits(ways[0]):
            self.block(ways[0])
            return
        before, started = dict(self.scope.values), len(self.started)
        ends: list[tuple[dict[str, Value], list[Started]]] = []
        for way in ways:
            try:
                self.block(way)
                ends.append((dict(self.scope.values), self.started[started:]))
            except _Leaves as leaves:
                if leaves.word != "exit":
                    raise
            self.scope.values = dict(before)
            del self.started[started:]
        if not ends:
            return
        merged = ends[0][0]
        for values, _ in ends[1:]:
            for name in {*values, *merged}:
                if values.get(name) != merged.get(name):
                    merged[name] = unknown_value(name)
        self.scope.values = merged
        self.started += next((begun for _, begun in ends if begun), [])

    def loop(self, loop: ShellLoop) -> None:
        if loop.kind == "for":
            for word in [field for raw in loop.words for field in self.scope.fields(raw)]:
                if re.fullmatch(r"[A-Za-z_]\w*", loop.name):
                    self.scope.set(loop.name, word)
                if self.turn(loop.body) == "break":
                    return
            return
        while self.block(loop.test) is (loop.kind == "while"):
            if self.turn(loop.body) == "break":
                return

    def turn(self, body: Block) -> str:
        try:
            self.block(body)
        except _Leaves as leaves:
            if leaves.word not in ("break", "continue"):
                raise
            return leaves.word
        return ""

    def simple(self, raw: list[str]) -> bool | None:
        before: dict[str, Value] = {}
        while raw and (found := _ASSIGNMENT.fullmatch(raw[0])):
            before[found[1]] = self.assigned(found)
            raw = raw[1:]
        if not raw:
            for name, value in before.items():
                self.scope.set(name, value)
            return True
        if raw[0] in _DECLARES:
            for word in raw[1:]:
                if found := _ASSIGNMENT.fullmatch(word):
                    self.scope.set(found[1], self.assigned(found))
            return True
        if raw[0] == "[[" or raw[0].startswith("(("):
            return self.test(raw)
        if raw[0] == "!":
            held = self.simple(raw[1:])
            return None if held is None else not held
        return self.command([f for word in raw for f in self.scope.fields(word)], before)

    def reads(self, words: list[str], line: str) -> bool:
        """`IFS=, read -r A B <<< "$LINE"`: what is left over is the last name's."""
        at = words.index("read")
        separators = next((w.partition("=")[2] for w in words[:at] if w.startswith("IFS=")), "")
        marks = self.scope.text(separators) or None
        names = [word for word in words[at + 1 :] if not word.startswith("-")]
        text = self.scope.text(line)
        cut = re.split(f"[{re.escape(marks)}]", text, maxsplit=len(names) - 1) if marks else None
        parts = text.split(maxsplit=len(names) - 1) if cut is None else cut
        for place, name in enumerate(names):
            self.scope.set(name, parts[place] if place < len(parts) else "")
        return True

    def with_documents(
        self, words: list[str], documents: tuple[str, ...], files: tuple[str, ...]
    ) -> bool | None:
        """Run a command, and a here-document that it is given as a script."""
        for file, text in zip(files, documents, strict=False):
            self.written[_bare(self.scope.text(file))] = self.filled(text)
        found = self.simple(words)
        if documents and not files and _bare(words[0]) in _SHELLS:
            self.nested(documents[-1])
        return found

    def filled(self, text: str) -> str:
        """A here-document with the variables that the script sets."""

        def known(found: re.Match[str]) -> str:
            value = self.scope.values.get(found[1])
            return value if isinstance(value, str) and not unknown_in(value) else found[0]

        return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", known, text)

    def assigned(self, found: re.Match[str]) -> Value:
        name, index, adds, raw = found.groups()
        old = self.scope.look_up(name)
        if raw.startswith("(") and raw.endswith(")"):
            new: Value = self.scope.array(raw)
            first = [] if old is None else [old] if isinstance(old, str) else old
            return [*first, *new] if adds else new
        text = self.scope.text(raw)
        if index is not None:
            return [*(old if isinstance(old, list) else []), text]
        if not adds:
            return text
        if isinstance(old, list):
            return [(old or [""])[0] + text, *old[1:]]
        return (old or "") + text

    def command(self, words: list[str], before: dict[str, Value]) -> bool | None:
        match words:
            case []:
                return True
            case ["[" | "test", *_]:
                return self.test(words)
            case ["true" | ":", *_]:
                return True
            case ["false", *_]:
                return False
            case ["exit" | "return" | "break" | "continue" as word, *_]:
                raise _Leaves(word)
            case ["set", *rest]:
                if "--" in rest:
                    self.scope.arguments = rest[rest.index("--") + 1 :]
            case ["shift", *rest]:
                del self.scope.arguments[: int(rest[0]) if rest and rest[0].isdigit() else 1]
            case ["unset", *names]:
                for name in names:
                    self.scope.values.pop(name, None)
            case ["eval", *rest]:
                self.nested(" ".join(map(as_written, rest)))
            case [name, *rest] if name in self.functions:
                return self.called(name, rest)
            case [name, *_] if name in _STARTS:
                return True
            case _:
                return self.starts(words, before)
        return True

    def starts(self, words: list[str], before: dict[str, Value]) -> bool | None:
        for i, word in enumerate(words[:-1]):
            at = i + 1
            while at < len(words) and re.fullmatch(r"-[abd-z]+", words[at]):
                at += 1
            shell = _bare(word) in ("bash", "sh")
            if shell and len(words) > at + 1 and re.fullmatch(r"-[a-z]*c", words[at]):
                many = len(self.started)
                self.nested(as_written(words[at + 1]))
                self.started[many:] = [(words[:i] + w, v) for w, v in self.started[many:]]
                return None
        for word, after in zip(words, [*words[1:], ""], strict=True):
            held = f"--command={after}" if word == "--command" else word
            if _COMMAND.match(held):
                many = len(self.started)
                self.nested(as_written(_COMMAND.sub("", held)))
                told = {
                    name: value for name in (TPU_TYPE, SLICES) if (value := _option(words, name))
                }
                self.started[many:] = [(w, v | told) for w, v in self.started[many:]]
                return None
        self.started.append((words, self.scope.values | before))
        for word in words:
            if _bare(word).endswith(FILES_OF_KEYS):
                continue  # keys, which are read as such
            if text := self.written.pop(_bare(word.rpartition("=")[2]), ""):
                self.nested(text)
        return None

    def nested(self, text: str) -> None:
        """Run a text as a script of its own."""
        self.depth += 1
        if self.depth > 20:
            raise BadRequest("the script calls itself more than 20 times; shorten it")
        with contextlib.suppress(_Leaves):
            self.block(block_of(tokens_of(text)))
        self.depth -= 1

    def called(self, name: str, arguments: list[str]) -> bool | None:
        outer, self.scope.arguments = self.scope.arguments, arguments
        self.depth += 1
        if self.depth > 20:
            raise BadRequest(f"the script's function {name} calls itself; write its loop out")
        try:
            return self.block(self.functions[name])
        except _Leaves as leaves:
            if leaves.word != "return":
                raise
            return True
        finally:
            self.scope.arguments, self.depth = outer, self.depth - 1

    def test(self, raw: list[str]) -> bool | None:
        """Whether `[ ... ]`, `[[ ... ]]` or `((...))` holds."""
        if raw[0].startswith("(("):
            value = self.scope.arithmetic(raw[0][2:-2])
            return None if unknown_in(value) else value != "0"
        double = raw[0] == "[["
        words = raw[1:] if raw[0] == "test" else raw[1:-1]
        return _Test(self.scope, words, double=double).any()


class _Test:
    """The words of a condition: `||` over `&&` over comparisons."""

    def __init__(self, scope: ShellScope, words: list[str], *, double: bool) -> None:
        self.scope, self.words, self.double, self.at = scope, words, double, 0

    def any(self) -> bool | None:
        found = [self.every()]
        while self.peek() in ("||", "-o"):
            self.at += 1
            found.append(self.every())
        return True if True in found else None if None in found else False

    def every(self) -> bool | None:
        found = [self.one()]
        while self.peek() in ("&&", "-a"):
            self.at += 1
            found.append(self.one())
        return False if False in found else None if None in found else True

    def peek(self, on: int = 0) -> str:
        return self.words[self.at + on] if self.at + on < len(self.words) else ""

    def value(self, raw: str) -> str:
        return self.scope.text(raw) if self.double else raw

    def one(self) -> bool | None:
        word = self.peek()
        self.at += 1
        if word == "!":
            held = self.one()
            return None if held is None else not held
        if word == "(":
            held = self.any()
            self.at += 1
            return held
        if self.peek() in _COMPARED and self.peek(1):
            return self.compared(self.value(word))
        if re.fullmatch(r"-[a-zA-Z]", word) and self.peek():
            return self.about(word[1])
        return _known(self.value(word), lambda text: bool(text))

    def about(self, letter: str) -> bool | None:
        raw = self.peek()
        self.at += 1
        if letter == "v":
            return self.scope.look_up(raw) is not None
        if letter in "zn":
            return _known(self.value(raw), lambda text: bool(text) is (letter == "n"))
        return None

    def compared(self, left: str) -> bool | None:
        sign, raw = self.peek(), self.peek(1)
        self.at += 2
        right = self.value(raw)
        if sign in _NUMBERS:
            sides = [self.scope.arithmetic(as_unset(text) or "0") for text in (left, right)]
            if any(unknown_in(side) for side in (left, right, *sides) if "(" in side):
                return None
            return _NUMBERS[sign](*map(int, sides)) if all(map(_whole, sides)) else None
        if sign == "=~":
            return None
        plain = not self.double or raw[:1] in "\"'"
        equal = _known(
            left + unknown_part(right),
            lambda text: text == as_unset(right) if plain else fnmatchcase(text, as_unset(right)),
        )
        return equal if equal is None or sign != "!=" else not equal


_NUMBERS = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_COMPARED = ("=", "==", "!=", "=~", *_NUMBERS)


def unknown_part(text: str) -> str:
    """Of a text the outputs of commands, which nobody can say."""
    return "".join(unknown_value(name) for name in unknown_in(text) if name.startswith("("))


def _known(text: str, holds) -> bool | None:
    """What holds of a text, an unset variable being empty; None for a command's output."""
    return None if unknown_part(text) else holds(as_unset(text))


def _whole(text: str) -> bool:
    return re.fullmatch(r"-?\d{1,19}", text) is not None


def _exits(block: Block) -> bool:
    """Whether statements may end the script."""
    return any(word == "exit" for word in _words(block))


def _words(block: Block) -> Iterator[str]:
    for statement in block:
        match statement:
            case ShellCommand(words=words):
                yield from words
            case ShellChain(first, joined):
                yield from _words((first, *(s for _, s in joined)))
            case ShellGroup(body) | ShellLoop(_, body):
                yield from _words(body)
            case ShellChoice(tests, other):
                yield from _words((*other, *(s for _, body in tests for s in body)))
            case ShellCase(_, ways):
                yield from _words(tuple(s for _, body in ways for s in body))
            case ShellFunction():
                pass
