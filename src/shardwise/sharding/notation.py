"""The grammar of the notation: text to plain tuples and back. Layout and Mesh build on it.

    product   = array ("*" array)* ["->" array]
    array     = [name] "[" dim ("," dim)* "]" ["{" "U_" axes "}"]
    dim       = word ["_" axes]
    axes      = CAPITALS | word | "{" (CAPITALS | word) ("," (CAPITALS | word))* "}"

A run of capitals is one axis per letter (`I_XY`), a lower-case word is one axis (`D_fsdp`), several
words need braces (`D_{fsdp,tensor}`); major to minor. The book's typography reads too: arrows and
dots (→, ⋅, ·, ×), Unicode subscripts (Iₓ; Unicode has no capital ones, so ₓ and ᵧ are X and Y and
any other run is a lower-case word), bold and italic letters, and the LaTeX of its formulas.
"""

import re
import unicodedata
from typing import NamedTuple, NoReturn

from shardwise.errors import BadRequest, shown

AXIS = re.compile(r"[A-Z]|[a-z][a-z0-9_]*")
DIM = re.compile(r"[A-Za-z][A-Za-z0-9]*")
ARRAY = re.compile(r"[A-Za-z](?:[A-Za-z0-9_]*[A-Za-z0-9])?'*")
AXIS_RULE = "an axis is one capital letter (X) or a lower-case word (fsdp)"
DIM_RULE = "a dim is a letter or a word of letters and digits (D, heads)"
ARRAY_RULE = "a name has letters, digits, inner '_' and trailing primes (A, W_in, A')"

_TOKEN = re.compile(
    r"""(?P<skip>[\s$\u200b\u2060\u2061]+|\\[,;!\ ])
      | (?P<bold>\\(?:mathbf|textbf|mathrm|text|bf)\s*\{(?P<inner>[A-Za-z0-9]+'*)\})
      | (?P<arrow>->|→|⟶|\\rightarrow|\\longrightarrow|\\to(?![A-Za-z]))
      | (?P<times>[*·⋅∙×@]|\\cdot(?![A-Za-z])|\\times(?![A-Za-z]))
      | (?P<open>\\?\{) | (?P<close>\\?\})
      | (?P<mark>[][,_])
      | (?P<low>[ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵧ₀₁₂₃₄₅₆₇₈₉]+)
      | (?P<word>[A-Za-z0-9]+['′]*)""",
    re.VERBOSE,
)


class ArrayText(NamedTuple):
    """One array as written: its name, (dim, axes) pairs, and unreduced axes."""

    name: str
    dims: tuple[tuple[str, tuple[str, ...]], ...]
    unreduced: tuple[str, ...]


class _Token(NamedTuple):
    kind: str  # "word", "low", "->", "*", "end", or the mark itself
    value: str
    column: int


def read_array(text: str) -> ArrayText:
    """Read exactly one array; a product or anything after the array is an error with its place."""
    reader = _NotationReader(text)
    array = reader.array()
    token = reader.next()
    if token.kind in ("*", "->"):
        reader.fail(token, "a product starts", "give one array, such as A[I_X, J]")
    reader.expect_end(token)
    return array


def read_product(text: str) -> tuple[tuple[ArrayText, ...], ArrayText | None]:
    """Read `A[..] * B[..] -> C[..]`: the operands, and the result if `->` is written, which may be
    a scalar, `C[]`."""
    reader = _NotationReader(text)
    operands = [reader.array()]
    token = reader.next()
    while token.kind == "*":
        operands.append(reader.array())
        token = reader.next()
    result = None
    if token.kind == "->":
        result = reader.array(scalar=True)
        token = reader.next()
    reader.expect_end(token)
    return tuple(operands), result


def read_assignments(text: str, what: str, form: str) -> tuple[tuple[str, str], ...]:
    """Read `X=4,Y=2` as pairs of text; `what` and `form` word the error for anything else."""
    pairs = []
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise BadRequest(
                f"{what} {shown(text)} cannot be read at {shown(part.strip())}; write {form}"
            )
        pairs.append((name, value))
    return tuple(pairs)


def print_axes(axes: tuple[str, ...]) -> str:
    """The subscript of a dim, or nothing where it is not cut.

    >>> print_axes(("X", "Y")), print_axes(("fsdp",)), print_axes(("fsdp", "tensor"))
    ('_XY', '_fsdp', '_{fsdp,tensor}')
    """
    if not axes:
        return ""
    if len(axes) == 1 or all(axis.isupper() for axis in axes):
        return "_" + "".join(axes)
    return "_{" + ",".join(axes) + "}"


def print_array(array: ArrayText) -> str:
    """Canonical ASCII: what `read_array` reads back to the same tuple."""
    dims = ", ".join(name + print_axes(axes) for name, axes in array.dims)
    unreduced = "{U" + print_axes(array.unreduced) + "}" if array.unreduced else ""
    return f"{array.name}[{dims}]{unreduced}"


class _NotationReader:
    """Tokens of one text, read left to right by one method per rule of the grammar."""

    def __init__(self, text: str) -> None:
        if not text.strip():
            raise BadRequest("the notation is empty; an array is written A[I_X, J]")
        self.text = " ".join(text.splitlines())
        self.tokens = _tokens(self.text)
        self.position = 0

    def next(self) -> _Token:
        token = self.tokens[self.position]
        self.position += token.kind != "end"
        return token

    def peek(self) -> str:
        return self.tokens[self.position].kind

    def fail(self, token: _Token, problem: str, remedy: str) -> NoReturn:
        raise _error(self.text, token.column, problem, remedy)

    def expect_end(self, token: _Token) -> None:
        if token.kind in ("]", "}"):
            self.fail(token, f"'{token.kind}' closes nothing", "remove it")
        if token.kind != "end":
            self.fail(token, f"'{token.value}' is not expected", "join arrays with '*' or '->'")

    def array(self, *, scalar: bool = False) -> ArrayText:
        """An array; one without dims only where a `scalar` may stand."""
        name = self.name()
        token = self.next()
        if token.kind != "[":
            after = f" after '{name}'" if name else ""
            self.fail(token, f"expected '['{after}", "an array is written A[I_X, J]")
        dims = []
        if scalar and self.peek() == "]":
            self.next()
        else:
            dims = [self.dim(token)]
            while self.closing(token, "]") == ",":
                dims.append(self.dim(token))
        unreduced = self.unreduced(self.next()) if self.peek() == "{" else ()
        return ArrayText(name, tuple(dims), unreduced)

    def name(self) -> str:
        """An array's name; underscores belong to it. Empty where the array has none."""
        name = ""
        while self.peek() == "_" or (self.peek() == "word" and name[-1:] in ("", "_")):
            name += self.next().value
        return name

    def dim(self, opened: _Token) -> tuple[str, tuple[str, ...]]:
        token = self.next()
        if token.kind == "end":
            self.fail(opened, "'[' is never closed", "close it with ']'")
        if token.kind == "]" and self.tokens[self.position - 2] is opened:
            self.fail(token, "an array without dims", "write at least one dim, such as A[I]")
        if token.kind != "word":
            self.fail(token, "a dim's name is missing", "write dims like I, J_X or D_fsdp")
        return token.value, self.subscript()

    def subscript(self) -> tuple[str, ...]:
        """What follows a name: nothing, `_X`, `_{a,b}` or Unicode subscripts."""
        if self.peek() == "low":
            return _low_axes(self.next().value)
        if self.peek() != "_":
            return ()
        mark = self.next()
        if self.peek() == "{":
            return self.braces(self.next())
        if self.peek() != "word":
            self.fail(mark, "'_' without an axis", AXIS_RULE)
        return self.axis_or_run()

    def braces(self, opened: _Token) -> tuple[str, ...]:
        axes: list[str] = []
        separator = ","
        while separator == ",":
            if self.peek() == "end":
                self.fail(opened, "'{' is never closed", "close it with '}'")
            if self.peek() != "word":
                self.fail(self.next(), "an axis is missing", AXIS_RULE)
            axes += self.axis_or_run()
            separator = self.closing(opened, "}")
        return tuple(axes)

    def axis_or_run(self) -> tuple[str, ...]:
        first = self.next()
        value = first.value
        while self.peek() == "_":  # a word may hold underscores: expert_over_tensor
            value += self.next().value
            value += self.next().value if self.peek() == "word" else ""
        if value.isalpha() and value.isupper():
            return tuple(value)
        if not AXIS.fullmatch(value):
            self.fail(first, f"'{value}' is not a mesh axis", f"{AXIS_RULE}; put several in braces")
        return (value,)

    def unreduced(self, opened: _Token) -> tuple[str, ...]:
        token = self.next()
        axes = self.subscript() if token.value == "U" else ()
        if not axes:
            self.fail(token, "unreadable braces", "unreduced axes are written {U_X}")
        if self.closing(opened, "}") != "}":
            self.fail(opened, "one {U_..} per array", "write {U_XY} or {U_{fsdp,tensor}}")
        return axes

    def closing(self, opened: _Token, close: str) -> str:
        """Read ',' or the closing mark and say which it was."""
        token = self.next()
        if token.kind == "end":
            self.fail(opened, f"'{opened.kind}' is never closed", f"close it with '{close}'")
        if token.kind not in (",", close):
            problem = f"'{token.value}' where ',' or '{close}' belongs"
            self.fail(token, problem, "separate with ',' and close what is open")
        return token.kind


def _tokens(text: str) -> list[_Token]:
    plain = "".join(_plain(c) for c in text)
    tokens, column = [], 0
    while column < len(plain):
        match = _TOKEN.match(plain, column)
        if match is None:
            remedy = "the notation is A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]"
            raise _error(text, column, f"cannot read '{text[column]}'", remedy)
        token = _token(match)
        if token is not None:
            tokens.append(token)
        column = match.end()
    return [*tokens, _Token("end", "the end", len(text))]


def _token(match: re.Match[str]) -> _Token | None:
    column, value = match.start(), match[0]
    kind = match.lastgroup
    if match["bold"] is not None:
        return _Token("word", match["inner"], column)
    if kind == "skip":
        return None
    fixed = {"arrow": "->", "times": "*", "open": "{", "close": "}", "mark": value}
    if kind in fixed:
        return _Token(fixed[kind], fixed[kind], column)
    return _Token(str(kind), value.replace("′", "'"), column)


def _plain(char: str) -> str:
    """Mathematical bold and italic letters as ASCII; one character stays one character."""
    return unicodedata.normalize("NFKC", char) if 0x1D400 <= ord(char) <= 0x1D7FF else char


def _low_axes(run: str) -> tuple[str, ...]:
    if set(run) <= {"ₓ", "ᵧ"}:
        return tuple("X" if char == "ₓ" else "Y" for char in run)
    return (unicodedata.normalize("NFKC", run),)


def _error(text: str, column: int, problem: str, remedy: str) -> BadRequest:
    place = f"  {text}\n  {' ' * column}^"
    return BadRequest(f"{problem} at column {column + 1} of '{text}'; {remedy}\n{place}")
