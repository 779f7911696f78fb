"""A bash script as a tree of statements: commands, pipes, conditions, loops, functions."""

from dataclasses import dataclass

from shardwise.errors import BadRequest
from shardwise.planner.export.script.tokens import HERE, INTO, LINE, ShellToken


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command: its words as they are written, assignments first; the here-documents that it
    reads, and the files that it writes."""

    words: tuple[str, ...]
    documents: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    """What `<<<` gives it to read."""


@dataclass(frozen=True, slots=True)
class ShellChain:
    """Statements joined by `&&`, `||` or `|`."""

    first: "Statement"
    joined: tuple[tuple[str, "Statement"], ...]


@dataclass(frozen=True, slots=True)
class ShellChoice:
    """`if` and `elif` with what each does, and `else`."""

    tests: tuple[tuple["Block", "Block"], ...]
    other: "Block"


@dataclass(frozen=True, slots=True)
class ShellCase:
    word: str
    ways: tuple[tuple[tuple[str, ...], "Block"], ...]


@dataclass(frozen=True, slots=True)
class ShellLoop:
    """`for NAME in WORDS`, or `while` and `until` with a test."""

    kind: str
    body: "Block"
    name: str = ""
    words: tuple[str, ...] = ('"$@"',)
    test: "Block" = ()


@dataclass(frozen=True, slots=True)
class ShellFunction:
    name: str
    body: "Block"


@dataclass(frozen=True, slots=True)
class ShellGroup:
    body: "Block"


Statement = (
    ShellCommand | ShellChain | ShellChoice | ShellCase | ShellLoop | ShellFunction | ShellGroup
)
Block = tuple[Statement, ...]
_ENDS = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}", ")", ";;"))
_BETWEEN = ("\n", ";", "&")


def block_of(tokens: list[ShellToken]) -> Block:
    """The statements of a script; BadRequest for one that is not as bash writes it."""
    parser = _Parser(tokens)
    found = parser.block()
    if parser.at < len(tokens):
        raise parser.wrong()
    return found


class _Parser:
    def __init__(self, tokens: list[ShellToken]) -> None:
        self.tokens, self.at = tokens, 0

    def peek(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def wrong(self) -> BadRequest:
        near = " ".join(token.text for token in self.tokens[max(self.at - 4, 0) : self.at + 3])
        return BadRequest(f"the script is not bash near {near[:200]!r}; correct it")

    def take(self, text: str) -> None:
        if self.peek() != text:
            raise self.wrong()
        self.at += 1

    def skip(self, words: tuple[str, ...] = _BETWEEN) -> None:
        while self.peek() in words and self.peek():
            self.at += 1

    def block(self) -> Block:
        found = []
        self.skip()
        while self.peek() and self.peek() not in _ENDS:
            found.append(self.chain())
            self.skip()
        return tuple(found)

    def chain(self) -> Statement:
        first, joined = self.redirected(), []
        while (sign := self.peek()) in ("&&", "||", "|") and sign:
            self.at += 1
            self.skip(("\n",))
            joined.append((sign, self.redirected()))
        return ShellChain(first, tuple(joined)) if joined else first

    def redirected(self) -> Statement:
        """A statement; where a loop or a group writes to starts no program."""
        found = self.statement()
        while self.peek().startswith((HERE, INTO, LINE)):
            self.at += 1
        return found

    def statement(self) -> Statement:
        word = self.peek()
        if word in ("if", "while", "until", "for", "case", "function", "{", "("):
            self.at += 1
        match word:
            case "if":
                return self.choice()
            case "while" | "until":
                test = self.block()
                return ShellLoop(word, self.done(), test=test)
            case "for":
                return self.loop()
            case "case":
                return self.case()
            case "function":
                name = self.peek()
                self.at += 1
                return self.function(name)
            case "{" | "(":
                body = self.block()
                self.take("}" if word == "{" else ")")
                return ShellGroup(body)
        following = [token.text for token in self.tokens[self.at + 1 : self.at + 3]]
        if following == ["(", ")"] and self.tokens[self.at].is_word:
            self.at += 1
            return self.function(word)
        return self.simple()

    def simple(self) -> ShellCommand:
        words = []
        while self.at < len(self.tokens) and self.tokens[self.at].is_word:
            words.append(self.peek())
            self.at += 1
        if not words:
            raise self.wrong()
        documents = tuple(w.removeprefix(HERE) for w in words if w.startswith(HERE))
        files = tuple(w.removeprefix(INTO) for w in words if w.startswith(INTO))
        lines = tuple(w.removeprefix(LINE) for w in words if w.startswith(LINE))
        plain = tuple(w for w in words if not w.startswith((HERE, INTO, LINE)))
        return ShellCommand(plain, documents, files, lines)

    def function(self, name: str) -> ShellFunction:
        for sign in ("(", ")"):  # once: a body in brackets begins with the next
            self.at += self.peek() == sign
        self.skip(("\n",))
        return ShellFunction(name, (self.statement(),))

    def choice(self) -> ShellChoice:
        tests, other = [], ()
        while True:
            test = self.block()
            self.take("then")
            tests.append((test, self.block()))
            if self.peek() != "elif":
                break
            self.at += 1
        if self.peek() == "else":
            self.at += 1
            other = self.block()
        self.take("fi")
        return ShellChoice(tuple(tests), other)

    def done(self) -> Block:
        self.take("do")
        body = self.block()
        self.take("done")
        return body

    def loop(self) -> ShellLoop:
        name, words = self.peek(), ('"$@"',)
        self.at += 1
        self.skip(("\n",))
        if self.peek() == "in":
            self.at += 1
            words = () if self.peek() in _BETWEEN else self.simple().words
        self.skip()
        return ShellLoop("for", self.done(), name=name, words=words)

    def case(self) -> ShellCase:
        word, ways = self.peek(), []
        self.at += 1
        self.skip(("\n",))
        self.take("in")
        self.skip(("\n",))
        while self.peek() and self.peek() != "esac":
            self.skip(("(",))
            patterns = []
            while self.peek() and self.peek() != ")":
                patterns += [self.peek()] if self.peek() != "|" else []
                self.at += 1
            self.take(")")
            ways.append((tuple(patterns), self.block()))
            self.skip((";;", "\n"))
        self.take("esac")
        return ShellCase(word, tuple(ways))
