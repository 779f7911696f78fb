"""What is differentiated: a forward computation in lines, and where its state is stored.

    In[B_X, D] * W_in[D_X, F] -> Tmp[B_X, F]      a product of two arrays or more
    softmax(A[B, S]) over S -> P[B, S]            a named function; the dim after `over` is whole
    reshape(Q[B, N, H]) -> Q'[B, K, M, H]         one dim splits, or neighbours merge

Every array stands in one layout everywhere: that in which it is made, or a parameter is stored.
Gradients and optimizer state are stored as their parameter is, unless `storage` says otherwise:
`dW_in[D, F]{U_X}` lays out the gradient of W_in and `mW_in[D_X, F]` its optimizer state. ZeRO-1, 2
and 3 are which of the three are cut (book 5.1.2).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shardwise.errors import BadRequest, check_known, unknown
from shardwise.sharding.layout import Layout, MatmulExpr

FROM_OUTPUT = frozenset({"exp", "relu", "sigmoid", "softmax", "tanh"})
"""Functions whose derivative is a function of their output; of all others the input is saved."""
_CALL = re.compile(r"\s*([a-z]\w*)\((.+)\)(?:\s+over\s+(\w+))?\s*(?:->|→)\s*(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardLine:
    """One line of the forward: `function` is "" for a product, "reshape", or a map's name."""

    function: str
    inputs: tuple[Layout, ...]
    output: Layout
    over: str = ""

    @classmethod
    def parse(cls, text: str) -> "ForwardLine":
        """Read one line; a product must say what it makes."""
        call = _CALL.fullmatch(text)
        if call is None:
            product = MatmulExpr.parse(text)
            if product.result is None:
                raise BadRequest(f"'{text}' has no result; add '-> C[I, K]'")
            return cls(function="", inputs=product.operands, output=product.result)
        function, argument, over, result = call.groups()
        return cls(
            function=function,
            inputs=(Layout.parse(argument),),
            output=Layout.parse(result),
            over=over or "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How one parameter's three kinds of state are laid out between steps."""

    parameter: Layout
    gradient: Layout
    optimizer: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Lines in order, the parameters' storage, and the inputs that want no gradient."""

    lines: tuple[ForwardLine, ...]
    storage: dict[str, Storage]
    constants: frozenset[str] = frozenset()

    @property
    def arrays(self) -> dict[str, Layout]:
        """Every array by name, in order of appearance."""
        return {a.name: a for line in self.lines for a in (*line.inputs, line.output)}

    @property
    def made(self) -> frozenset[str]:
        """The names of the arrays that a line makes."""
        return frozenset(line.output.name for line in self.lines)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Activations that come from the previous layer: neither made, parameter nor constant."""
        known = self.made | self.storage.keys() | self.constants
        return tuple(name for name in self.arrays if name not in known)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Arrays that no line reads."""
        read = {a.name for line in self.lines for a in line.inputs}
        return tuple(line.output.name for line in self.lines if line.output.name not in read)


def forward(
    lines: Iterable[str | ForwardLine],
    parameters: Iterable[str],
    storage: Sequence[str] = (),
    constants: Iterable[str] = (),
) -> Forward:
    """Check the lines and lay out the state; BadRequest names the array and the rule broken."""
    read = tuple(ForwardLine.parse(line) if isinstance(line, str) else line for line in lines)
    _check(read)
    whole = Forward(lines=read, storage={}, constants=frozenset(constants))
    for name in (*parameters, *whole.constants):
        check_known("array", name, whole.arrays, "it is named as a parameter or a constant")
        if name in whole.made:
            raise BadRequest(f"array '{name}' is made by a line; a parameter is only read")
    state = {name: whole.arrays[name] for name in parameters}
    return replace(whole, storage=_storage(state, tuple(map(Layout.parse, storage))))


def gradient_name(name: str) -> str:
    """The array of the gradient with respect to `name`."""
    return f"d{name}"


def _storage(state: dict[str, Layout], given: Sequence[Layout]) -> dict[str, Storage]:
    names = {gradient_name(name) for name in state} | {f"m{name}" for name in state}
    by_name = {layout.name: layout for layout in given}
    for layout in given:
        if layout.name not in names:
            remedy = "gradients are dNAME and optimizer state is mNAME of a parameter NAME"
            raise unknown("stored array", layout.name, sorted(names), remedy)
    stored = {}
    for name, parameter in state.items():
        gradient = by_name.get(gradient_name(name), parameter)
        optimizer = by_name.get(f"m{name}", parameter)
        for other in (gradient, optimizer):
            if other.letters != parameter.letters:
                rule = "gradient and optimizer state have their parameter's dims"
                raise BadRequest(f"'{other}' is stored beside '{parameter}'; {rule}")
        for other in (parameter, optimizer):
            if other.unreduced:
                rule = "only a gradient may be stored as partial sums"
                raise BadRequest(f"'{other}' is stored unreduced; {rule}")
        stored[name] = Storage(
            parameter=parameter,
            gradient=replace(gradient, name=gradient_name(name)),
            optimizer=replace(optimizer, name=f"m{name}"),
        )
    return stored


def _check(lines: Sequence[ForwardLine]) -> None:
    if not lines:
        raise BadRequest("the forward has no line; give at least one product")
    seen: dict[str, Layout] = {}
    for line in lines:
        for array in line.inputs:
            if not array.name:
                raise BadRequest(f"array '{array}' has no name; a derivation needs one for each")
            if seen.setdefault(array.name, array) != array:
                rule = "an array has one layout, that in which it is made or stored"
                raise BadRequest(f"'{array}' was '{seen[array.name]}' before; {rule}")
        if line.output.name in seen:
            rule = "a line makes a new array, so rename one of them"
            raise BadRequest(f"array '{line.output.name}' is already used above; {rule}")
        seen[line.output.name] = line.output
        _check_dims(line)


def _check_dims(line: ForwardLine) -> None:
    read = [letter for array in line.inputs for letter in array.letters]
    if line.function == "reshape":
        return
    for letter in line.output.letters:
        if letter not in read:
            raise BadRequest(f"dim '{letter}' of '{line.output}' is in none of its operands")
    for letter in read:
        if read.count(letter) == 1 and letter not in line.output.letters:
            rule = "a contracted dim appears in two operands"
            raise BadRequest(f"dim '{letter}' is only summed in making '{line.output}'; {rule}")
    if line.function and line.output.letters != line.inputs[0].letters:
        rule = f"{line.function} keeps the dims and their order"
        raise BadRequest(f"'{line.inputs[0]}' becomes '{line.output}'; {rule}")
    if line.over:
        line.output.dim(line.over)
