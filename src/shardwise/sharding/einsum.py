"""Einsums in the notation: what is batched, contracted and kept, and what stands in the way.

`A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]` is one product; more arrays are a chain, multiplied from left
to right; one array, `A[I_XY] -> A[I_Y]`, is a reshard. In a product a letter that both operands and
the result share is a batch dim, and one that the result lacks is contracted. Without `->` a product
contracts what its operands share, and the result's sharding is free.

A chain may use a letter again, as the book's `In[B, D] * W_in[D, F] * W_out[F, D] -> Out[B, D]`:
its first product contracts D, and W_out brings another dim of that name and size. So a product
within a chain contracts the shared letters that nothing later has; where there are none, those
after the letters that both operands begin with, which are batch dims (E in
`x[E, B, D] * W[E, D, F] * V[E, F, D]`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from shardwise.errors import BadRequest, unknown
from shardwise.sharding.layout import Dim, Layout
from shardwise.sharding.notation import print_axes, read_product

_RESULT_NAMES = ("C", "D", "E", "Out", "Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Einsum:
    """Operands with their layouts, the wanted result, and whether the result's sharding is free.

    Every array has a name of its own; unnamed operands are called A, B, ... Where `free` is set the
    axes in `result` mean nothing.

    >>> einsum = Einsum.parse("A[I, J_X] * B[J_X, K]")
    >>> str(einsum), einsum.free, einsum.contracted
    ('A[I, J_X] * B[J_X, K] -> C[I, K]', True, ('J',))
    """

    operands: tuple[Layout, ...]
    result: Layout
    free: bool = False

    def __post_init__(self) -> None:
        _check_names(self)
        _check_letters(self)

    @classmethod
    def parse(cls, text: str) -> "Einsum":
        """Read an einsum, a chain or a reshard; BadRequest shows the place of a mistake."""
        arrays, wanted = read_product(text)
        operands = _named([Layout._of(array) for array in arrays])
        if wanted is None:
            return cls(operands=operands, result=_inferred(operands), free=True)
        result = Layout._of(wanted)
        if not result.name:
            name = operands[0].name if len(operands) == 1 else _result_name(operands)
            result = replace(result, name=name)
        return cls(operands=operands, result=result)

    def __str__(self) -> str:
        return f"{' * '.join(map(str, self.operands))} -> {self.result}"

    @property
    def letters(self) -> tuple[str, ...]:
        """Every letter, in order of appearance."""
        return tuple(dict.fromkeys(x for operand in self.operands for x in operand.letters))

    @property
    def contracted(self) -> tuple[str, ...]:
        """The letters of a product that are summed over: those the result lacks."""
        return tuple(x for x in self.letters if x not in self.result.letters)

    @property
    def is_reshard(self) -> bool:
        """Whether there is nothing to multiply."""
        return len(self.operands) == 1

    def to(self, layout: Layout) -> "Einsum":
        """The same einsum with another wanted result; its letters must be the same ones."""
        named = layout if layout.name else replace(layout, name=self.result.name)
        return replace(self, result=named, free=False)

    def freed(self) -> "Einsum":
        """The same einsum with the result's sharding left open."""
        return replace(self, result=uncut(self.result), free=True)

    def products(self) -> tuple["Einsum", ...]:
        """The chain as products of two, left to right; what lies between has no sharding yet.

        An intermediate is called Tmp, or Tmp1, Tmp2, ... where there are several.
        """
        running, steps = self.operands[0], []
        for i, operand in enumerate(self.operands[1:], 1):
            later = self.operands[i + 1 :]
            if not later:
                steps.append(replace(self, operands=(running, operand)))
                break
            kept = _kept(running, operand, later, self.result.letters)
            if not kept:
                rule = "each product must keep a letter, so order the operands differently"
                raise BadRequest(f"'{running} * {operand}' in '{self}' keeps no letter; {rule}")
            name = _unused(self, "Tmp" if len(self.operands) == 3 else f"Tmp{i}")
            made = Layout(name=name, dims=tuple(map(Dim, kept)))
            steps.append(Einsum(operands=(running, operand), result=made, free=True))
            running = made
        return tuple(steps)

    def obstacles(self) -> tuple[str, ...]:
        """Why the einsum as written cannot be done by local products alone; empty if it can.

        The cases of book 3.2: a contracted letter cut in one operand only (2), partial sums that
        the result does not have (3), one axis on letters of different operands (4), and a result
        that is cut otherwise than the product comes out. A chain is not looked at: what lies
        between its products is free.
        """
        if len(self.operands) > 2:
            return ()
        return (*_uneven_cuts(self), *_double_use(self), *_result_differs(self))


def uncut(layout: Layout) -> Layout:
    """The same array, replicated everywhere."""
    return Layout(name=layout.name, dims=tuple(Dim(x) for x in layout.letters))


def _named(operands: Sequence[Layout]) -> tuple[Layout, ...]:
    taken = {operand.name for operand in operands}
    spare = (name for name in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if name not in taken)
    return tuple(o if o.name else replace(o, name=next(spare)) for o in operands)


def _inferred(operands: tuple[Layout, ...]) -> Layout:
    """The result that is not written: what is left once every product has contracted its share."""
    if len(operands) == 1:
        return uncut(operands[0])
    text = " * ".join(map(str, operands))
    running = operands[0]
    for i, operand in enumerate(operands[1:], 1):
        own = set(running.letters) ^ set(operand.letters)
        kept = _kept(running, operand, operands[i + 1 :], own)
        if not kept:
            rule = "the operands share every letter; write the result after '->'"
            raise BadRequest(f"the result of '{text}' would have no dim: {rule}")
        running = Layout(name=_result_name(operands), dims=tuple(map(Dim, kept)))
    return running


def _kept(
    left: Layout, right: Layout, later: Sequence[Layout], wanted: Collection[str]
) -> tuple[str, ...]:
    """The letters that a product within a chain keeps, as the module's text says."""
    coming = {x for operand in later for x in operand.letters}
    shared = [x for x in left.letters if x in right.letters]
    contracted = {x for x in shared if x not in coming and x not in wanted}
    if not contracted:
        again = [x for x in shared if x in coming]
        lead = [x for x, y in zip(left.letters, right.letters, strict=False) if x == y]
        contracted = {x for x in again if x not in lead} or set(again)
    every = dict.fromkeys((*left.letters, *right.letters))
    needed = {*coming, *wanted}
    return tuple(x for x in every if x in needed and x not in contracted)


def _result_name(operands: Sequence[Layout]) -> str:
    taken = {operand.name for operand in operands}
    free = (name for name in _RESULT_NAMES if name not in taken)
    return next(free, "Result'")


def _unused(einsum: Einsum, name: str) -> str:
    taken = {array.name for array in (*einsum.operands, einsum.result)}
    while name in taken:
        name += "'"
    return name


def _check_names(einsum: Einsum) -> None:
    names = [operand.name for operand in einsum.operands]
    if not einsum.is_reshard:
        names.append(einsum.result.name)
    for name in names:
        if names.count(name) > 1:
            rule = "every array has a name of its own, so rename one of them"
            raise BadRequest(f"array '{name}' is twice in '{einsum}'; {rule}")


def _check_letters(einsum: Einsum) -> None:
    for letter in einsum.result.letters:
        if letter not in einsum.letters:
            remedy = f"the result '{einsum.result}' may keep letters of the operands only"
            raise unknown("dim", letter, einsum.letters, remedy)
    if einsum.is_reshard and set(einsum.result.letters) != set(einsum.letters):
        lost = ", ".join(einsum.contracted)
        rule = "a reshard keeps every dim; to sum over one, multiply with an array that has it"
        raise BadRequest(f"'{einsum}' loses {lost}; {rule}")
    if einsum.is_reshard and einsum.result.letters != einsum.operands[0].letters:
        rule = "a reshard keeps the order of the dims, so write them in the same order"
        raise BadRequest(f"'{einsum}' transposes its dims; {rule}")


def _cuts(einsum: Einsum, letter: str) -> dict[str, tuple[str, ...]]:
    """Operand name -> axes that cut the letter there."""
    return {o.name: o.dim(letter).axes for o in einsum.operands if letter in o.letters}


def _uneven_cuts(einsum: Einsum) -> list[str]:
    said = []
    for letter in einsum.letters:
        cuts = _cuts(einsum, letter)
        if len(set(cuts.values())) > 1:
            ways = " and ".join(f"{letter}{print_axes(a)} in {n}" for n, a in cuts.items())
            kind = "contracted" if letter in einsum.contracted else "batch"
            said.append(f"the {kind} dim {letter} is sharded differently: {ways}")
    return said


def _double_use(einsum: Einsum) -> list[str]:
    said = []
    for axis in dict.fromkeys(axis for o in einsum.operands for axis in o.axes):
        places = {(x, n) for x in einsum.letters for n, a in _cuts(einsum, x).items() if axis in a}
        if len({letter for letter, _ in places}) > 1:
            where = " and ".join(f"{letter} of {name}" for letter, name in sorted(places))
            said.append(f"axis {axis} shards {where}: only the diagonal blocks would be multiplied")
    return said


def _result_differs(einsum: Einsum) -> list[str]:
    if einsum.free or _uneven_cuts(einsum) or _double_use(einsum):
        return []
    cut = {x: next(iter(_cuts(einsum, x).values())) for x in einsum.letters}
    partial = {axis for x in einsum.contracted for axis in cut[x]}
    partial |= {axis for operand in einsum.operands for axis in operand.unreduced}
    dims = tuple(Dim(x, cut[x]) for x in einsum.result.letters)
    name = einsum.operands[0].name if einsum.is_reshard else einsum.result.name
    made = Layout(name=name, dims=dims, unreduced=tuple(partial))
    if replace(made, name=einsum.result.name) == einsum.result:
        return []
    word = "the array is" if einsum.is_reshard else "the local product is"
    return [f"{word} {made}, {einsum.result} is wanted"]
