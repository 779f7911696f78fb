"""A bash script as a tree of statements: commands, pipes, conditions, loops, functions."""

from dataclasses import dataclass

from shardwise.errors import BadRequest
from shardwise.planner.export.script.tokens import Token


@dataclass(frozen=True, slots=True)
class Simple:
    """One command: its words as they are written, assignments first."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Statements joined by `&&`, `||` or `|`."""

    first: "Statement"
    joined: tuple[tuple[str, "Statement"], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """`if` and `elif` with what each does, and `else`."""

    tests: tuple[tuple["Block", "Block"], ...]
    other: "Block"


@dataclass(frozen=True, slots=True)
class Case:
    word: str
    ways: tuple[tuple[tuple[str, ...], "Block"], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """`for NAME in WORDS`, or `while` and `until` with a test."""

    kind: str
    body: "Block"
    name: str = ""
    words: tuple[str, ...] = ('"$@"',)
    test: "Block" = ()


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    body: "Block"


@dataclass(frozen=True, slots=True)
class Group:
    body: "Block"


Statement = Simple | Chain | Choice | Case | Loop | Function | Group
Block = tuple[Statement, ...]
_ENDS = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}", ")", ";;"))
_BETWEEN = ("\n", ";", "&")


def block_of(tokens: list[Token]) -> Block:
    """The statements of a script; BadRequest for one that is not as bash writes it."""
    parser = _Parser(tokens)
    found = parser.block()
    if parser.at < len(tokens):
        raise parser.wrong()
    return found


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at = tokens, 0

    def peek(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def wrong(self) -> BadRequest:
        near = " ".join(token.text for token in self.tokens[max(self.at - 4, 0) : self.at + 3])
        return BadRequest(f"the script is no bash near {near[:200]!r}; correct it")

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
        first, joined = self.statement(), []
        while (sign := self.peek()) in ("&&", "||", "|") and sign:
            self.at += 1
            self.skip(("\n",))
            joined.append((sign, self.statement()))
        return Chain(first, tuple(joined)) if joined else first

    def statement(self) -> Statement:
        word = self.peek()
        if word in ("if", "while", "until", "for", "case", "function", "{", "("):
            self.at += 1
        match word:
            case "if":
                return self.choice()
            case "while" | "until":
                test = self.block()
                return Loop(word, self.done(), test=test)
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
                return Group(body)
        following = [token.text for token in self.tokens[self.at + 1 : self.at + 3]]
        if following == ["(", ")"] and self.tokens[self.at].is_word:
            self.at += 1
            return self.function(word)
        return self.simple()

    def simple(self) -> Simple:
        words = []
        while self.at < len(self.tokens) and self.tokens[self.at].is_word:
            words.append(self.peek())
            self.at += 1
        if not words:
            raise self.wrong()
        return Simple(tuple(words))

    def function(self, name: str) -> Function:
        self.skip(("(", ")", "\n"))
        return Function(name, (self.statement(),))

    def choice(self) -> Choice:
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
        return Choice(tuple(tests), other)

    def done(self) -> Block:
        self.take("do")
        body = self.block()
        self.take("done")
        return body

    def loop(self) -> Loop:
        name, words = self.peek(), ('"$@"',)
        self.at += 1
        self.skip(("\n",))
        if self.peek() == "in":
            self.at += 1
            words = () if self.peek() in _BETWEEN else self.simple().words
        self.skip()
        return Loop("for", self.done(), name=name, words=words)

    def case(self) -> Case:
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
        return Case(word, tuple(ways))
