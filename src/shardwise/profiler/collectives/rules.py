"""Why a compiled step's collectives differ from the plan's: general rules, applied in order.

Each rule is about what compilers do, none about a plan. It takes lines, or bytes of lines, off the
plan's list, off the compiled one, or off both, in a ratio that follows from the model and the mesh;
what is left in the end is a difference. What our runtime moves beside the plan is no rule: those
lines join the plan's list (`added.py`) and must be in the program like any other.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import isclose, prod

from shardwise.models import ModelConfig
from shardwise.models.parameters import parameters
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.layouts import STORAGE_AXES
from shardwise.profiler.collectives.added import ADDED, added_lines, with_token_rows
from shardwise.profiler.collectives.lines import (
    Key,
    Line,
    activation_dtype,
    by_axes,
    chain_bytes,
    chains,
    written,
)
from shardwise.profiler.collectives.served import as_served
from shardwise.units import DTYPE_BYTES, dtype_bytes
from shardwise.work import CollectiveKind, grouped

SUMS = ("all_reduce", "reduce_scatter")
FLOATS = {dtype: DTYPE_BYTES[dtype] for dtype in ("bf16", "f16", "f32", "f64")}
SMALL = 0.5
"""Bytes below which nothing is left: sums of floats round."""

RULES = {
    "again, or once": "where memory is short the compiler runs a gather again rather than keep "
    "what it gave (its rematerialisation, whose copies are named `.remat`), and what two passes "
    "make alike, the first hop of a ring's keys, it runs once",
    "beside the list": "arrays of integers (token ids, positions, places and counts of rows), none "
    "of more elements than the batch has rows for experts (tokens, without), go along with what "
    "they describe; the loss, the count of tokens and the norm of the gradients are summed over "
    "all devices, at most one sum for every parameter, one for every microbatch and one for the "
    "step; the plan counts none",
    "width": "sent in another dtype than the plan counts: sums of matmuls that yield f32 are sent "
    "before they are rounded",
    "as a sum": "a gather of pieces too small for one of their own as an all-reduce of pieces in "
    "zeros, and a reduce-scatter as an all-reduce and a slice, fused on TPUs or where it is read",
    "joined sums": "two sums one after the other over some axes each, as one over all of them, or "
    "the other way round",
    "rows, not the table": "the gradient of a lookup: a row for every token moves to the devices "
    "that store its columns, which add them up, instead of a sum of whole tables; over some axes "
    "the pieces may still be summed",
    "ragged rows": "how many rows a ragged exchange sends is known when it runs: both are counted "
    "as a row for each of a token's experts; what tensor gathers and scatters of them it "
    "exchanges too",
    "ring": "an all-gather or a reduce-scatter of N pieces as N - 1 permutes of one, or "
    "N + 1 beside a matmul that it is cut for, both ways round and unrolled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleNote:
    """What one rule explains over some axes: bytes of the plan's list and of the compiled one."""

    rule: str
    kinds: tuple[str, ...]
    axes: tuple[str, ...]
    planned: float
    compiled: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """One kind over the same axes: (arrays, V in bytes) per step, by producer, and what no rule
    explains of either."""

    kind: str
    axes: tuple[str, ...]
    planned: tuple[float, float]
    compiled: tuple[float, float]
    planned_left: float
    compiled_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A plan's list beside the compiled one."""

    rows: tuple[CollectiveRow, ...]
    explained: tuple[RuleNote, ...]

    @property
    def raw_match(self) -> float:
        """Bytes that both lists have, kind by kind and axes by axes as written, over those that
        either has."""
        size = sum(max(row.planned[1], row.compiled[1]) for row in self.rows)
        met = sum(min(row.planned[1], row.compiled[1]) for row in self.rows)
        return met / size if size else 1.0

    @property
    def left(self) -> float:
        """Bytes of either list that no rule explains."""
        return sum(row.planned_left + row.compiled_left for row in self.differences)

    @property
    def differences(self) -> tuple[CollectiveRow, ...]:
        """The rows of which something is not explained."""
        return tuple(r for r in self.rows if max(r.planned_left, r.compiled_left) > SMALL)


@dataclass(slots=True)
class Ledger:
    """What is left of both lists while rules are applied; `paired`: axes over which the program's
    permutes come in pairs."""

    plan: TrainPlan | ServePlan
    cfg: ModelConfig
    planned: list[Line]
    compiled: list[Line]
    notes: list[RuleNote] = field(default_factory=list)
    paired: frozenset[tuple[str, ...]] = frozenset()

    def note(self, rule: str, lines: Sequence[Line], planned: float, compiled: float) -> None:
        if planned > SMALL or compiled > SMALL:
            kinds = tuple(dict.fromkeys(line.kind for line in lines))
            axes = tuple(a for a in self.plan.mesh if any(a in line.axes for line in lines))
            self.notes.append(
                RuleNote(rule=rule, kinds=kinds, axes=axes, planned=planned, compiled=compiled)
            )

    def left(self, lines: Sequence[Line], key: Key) -> float:
        return by_axes(lines).get(key, (0.0, 0.0))[1]

    @property
    def tokens(self) -> int:
        """Tokens of a step: of a decode step one of every sequence."""
        return self.plan.tokens if isinstance(self.plan, TrainPlan) else self.plan.batch

    @property
    def rounds(self) -> int:
        return self.plan.microbatches if isinstance(self.plan, TrainPlan) else 1

    def degree(self, axes: Sequence[str]) -> int:
        return prod(self.plan.degree(a) for a in axes)


def compare(
    plan: TrainPlan | ServePlan,
    cfg: ModelConfig,
    planned: Sequence[Line],
    compiled: Sequence[Line],
) -> Comparison:
    """Both lists by kind and axes, what the rules explain, and what is left."""
    ledger = Ledger(plan=plan, cfg=cfg, planned=list(planned), compiled=list(compiled))
    ledger.paired = _paired(compiled)
    _runtime(ledger)
    trains = isinstance(plan, TrainPlan)
    ours = with_token_rows(plan, cfg, ledger.planned) if trains else ledger.planned
    for _, rule in ORDER:
        rule(ledger)
    lists = written(ours), written(compiled), ledger.planned, ledger.compiled
    each = [by_axes(lines) for lines in lists]
    none = (0.0, 0.0)
    rows = [
        CollectiveRow(
            kind=key[0],
            axes=key[1],
            planned=each[0].get(key, none),
            compiled=each[1].get(key, none),
            planned_left=each[2].get(key, none)[1],
            compiled_left=each[3].get(key, none)[1],
        )
        for key in dict.fromkeys(key for some in each for key in some)
    ]
    order = sorted(rows, key=lambda r: (r.axes, r.kind))
    return Comparison(rows=tuple(order), explained=tuple(ledger.notes))


# Rules on single lines ----------------------------------------------------------------------------


def is_counted(line: Line) -> bool:
    """Whether a compiled line must be in the plan's list: floats, more than one."""
    return line.dtype in FLOATS and not (line.kind == "all_reduce" and line.elements == 1)


def _set_aside(ledger: Ledger, rule: str, gone: Sequence[Line]) -> None:
    """Compiled lines that the plan counts nothing for."""
    for key in dict.fromkeys(line.key for line in gone):
        lines = [line for line in gone if line.key == key]
        ledger.note(rule, lines, 0.0, sum(line.total for line in lines))
    ledger.compiled = [line for line in ledger.compiled if line not in gone]


def _paired(compiled: Sequence[Line]) -> frozenset[tuple[str, ...]]:
    """The axes over which permutes come in pairs, line for line, as keys and values do."""
    permutes = [x for x in compiled if x.kind == "permute" and is_counted(x)]
    by_axes = grouped(permutes, lambda line: line.axes).items()
    return frozenset(
        axes for axes, mine in by_axes if all(n % 2 == 0 for n in Counter(mine).values())
    )


def _made_again(ledger: Ledger) -> None:
    _set_aside(ledger, "again, or once", [line for line in ledger.compiled if line.again])


def _indices(ledger: Ledger) -> None:
    most = ledger.tokens * _experts(ledger.cfg)
    gone = [x for x in ledger.compiled if x.dtype not in FLOATS and x.elements <= most]
    _set_aside(ledger, "beside the list", gone)


def _scalars(ledger: Ledger) -> None:
    gone = [x for x in ledger.compiled if x.dtype in FLOATS and not is_counted(x)]
    most = len(parameters(ledger.cfg)) + ledger.rounds + 1
    if sum(x.count for x in gone) <= most:
        _set_aside(ledger, "beside the list", gone)


def _experts(cfg: ModelConfig) -> int:
    """How many experts a token goes to, 1 without experts."""
    return max(getattr(layer.mlp, "experts_per_token", 1) for layer in cfg.groups)


def _forms(ledger: Ledger) -> None:
    """What the reader saw for what it is."""
    for key in dict.fromkeys((line.form, line.key) for line in ledger.compiled):
        lines = [line for line in ledger.compiled if (line.form, line.key) == key]
        if key[0] != "itself":
            ledger.note("as a sum", lines, 0.0, sum(line.total for line in lines))


def _width(ledger: Ledger) -> None:
    width = dtype_bytes(activation_dtype(ledger.plan))
    for name in ("planned", "compiled"):
        lines: list[Line] = getattr(ledger, name)
        scale = {x.dtype: width / FLOATS.get(x.dtype, width) for x in lines}
        for key in dict.fromkeys(line.key for line in lines):
            wide = [x for x in lines if x.key == key and scale[x.dtype] != 1]
            more = abs(sum(x.total * (1 - scale[x.dtype]) for x in wide))
            ledger.note("width", wide, *((more, 0.0) if name == "planned" else (0.0, more)))
        setattr(ledger, name, [replace(x, bytes=x.bytes * scale[x.dtype]) for x in lines])


def _ragged(ledger: Ledger) -> None:
    """Rows that a device sends, whatever room the program keeps for them."""
    kind, before = "ragged_all_to_all", [0.0, 0.0]
    lists: list[list[Line]] = []
    for i, lines in enumerate((ledger.planned, ledger.compiled)):
        made = []
        for line in lines:
            if line.kind == kind:
                before[i] += line.total
                line = replace(line, bytes=_rows_sent(ledger, line))
            made.append(line)
        lists.append(made)
    ledger.note("ragged rows", [x for x in lists[1] if x.kind == kind], *before)
    ledger.planned, ledger.compiled = lists


def _rows_sent(ledger: Ledger, line: Line) -> float:
    """A plan counts a copy of every token for every device of the group; a program's larger buffer
    has room for every row of all devices, its smaller one the rows of this one."""
    group = ledger.degree(line.axes)
    if line.sent:
        return min(line.sent, line.bytes / group) * group
    return line.bytes / group * _experts(ledger.cfg)


def _rows_gathered(ledger: Ledger) -> None:
    """Ragged exchanges over the axis that the plan gathers dispatched rows over. Their room is for
    every row of all that exchanged with the sender, once for each device of the axis; on the
    average one sender's rows are there."""
    for axes in dict.fromkeys(x.axes for x in ledger.planned if _of_dispatched(x)):
        lines = [x for x in ledger.planned if x.axes == axes and _of_dispatched(x)]
        key: Key = ("ragged_all_to_all", axes)
        room = ledger.degree(axes) * ledger.degree(("expert",))
        size = min(sum(x.total for x in lines), ledger.left(ledger.compiled, key) / room)
        ledger.note("ragged rows", lines, size, size * room)
        ledger.compiled = _take(ledger.compiled, key, size * room)
        for line in lines:
            gone = min(size, line.total)
            size -= gone
            rest = replace(line, bytes=(line.total - gone) / line.count)
            ledger.planned = [rest if x is line else x for x in ledger.planned]


def _of_dispatched(line: Line) -> bool:
    return line.name.endswith(("experts.gather", "experts.scatter"))


# Rules on sums of lines ---------------------------------------------------------------------------


def _take(lines: list[Line], key: Key, size: float) -> list[Line]:
    """The lines with so many bytes of a key less."""
    made = []
    for line in lines:
        gone = min(size, line.total) if line.key == key else 0.0
        size -= gone
        if line.total - gone > SMALL:
            made.append(replace(line, bytes=(line.total - gone) / line.count) if gone else line)
    return made


def _swap(ledger: Ledger, planned: Key, compiled: Key, factor: float = 1.0) -> tuple[float, float]:
    """Take off both lists what one key of the plan has and another of the program, whose bytes are
    `factor` times the plan's; what was taken of each."""
    size = min(
        ledger.left(ledger.planned, planned), ledger.left(ledger.compiled, compiled) / factor
    )
    ledger.planned = _take(ledger.planned, planned, size)
    ledger.compiled = _take(ledger.compiled, compiled, size * factor)
    return size, size * factor


def _equal(ledger: Ledger) -> None:
    for key in by_axes(ledger.planned):
        _swap(ledger, key, key)


def _sum_and_slice(ledger: Ledger) -> None:
    for key in by_axes(ledger.planned):
        if key[0] == "reduce_scatter":
            lines = [x for x in ledger.planned if x.key == key]
            ledger.note("as a sum", lines, *_swap(ledger, key, ("all_reduce", key[1])))


def _joined_sums(ledger: Ledger) -> None:
    """A sum over several axes pays for one over each part of them: V over the axes that store, then
    V over their pieces."""
    for key in by_axes(ledger.compiled):
        parts = _parts_of(ledger.planned, key[1]) if key[0] in SUMS else []
        if not parts:
            continue
        lines = [x for x in ledger.compiled if x.key == key]
        size, share, shares = ledger.left(ledger.compiled, key), 1.0, []
        for part in parts:
            shares.append(share)
            size = min(size, ledger.left(ledger.planned, part) / share)
            share /= ledger.degree(part[1])
        for part, share in zip(parts, shares, strict=True):
            ledger.planned = _take(ledger.planned, part, size * share)
        ledger.compiled = _take(ledger.compiled, key, size)
        ledger.note("joined sums", lines, size * sum(shares), size)


def _split_sums(ledger: Ledger) -> None:
    """A sum of the plan over several axes as one over some of them, and one of the pieces over the
    others."""
    for key in by_axes(ledger.planned):
        parts = _parts_of(ledger.compiled, key[1]) if key[0] in SUMS else []
        if not parts:
            continue
        lines = [x for x in ledger.planned if x.key == key]
        size, share, shares = ledger.left(ledger.planned, key), 1.0, []
        for _, axes in parts:
            shares.append(share)
            there = sum(ledger.left(ledger.compiled, (kind, axes)) for kind in SUMS)
            size = min(size, there / share)
            share /= ledger.degree(axes)
        for (_, axes), share in zip(parts, shares, strict=True):
            _take_sums(ledger, axes, size * share)
        ledger.planned = _take(ledger.planned, key, size)
        ledger.note("joined sums", lines, size, size * sum(shares))


def _take_sums(ledger: Ledger, axes: tuple[str, ...], size: float) -> None:
    """So many bytes of compiled sums over the axes less, of either kind."""
    for kind in SUMS:
        gone = min(ledger.left(ledger.compiled, (kind, axes)), size)
        ledger.compiled = _take(ledger.compiled, (kind, axes), gone)
        size -= gone


def _parts_of(lines: Sequence[Line], axes: tuple[str, ...]) -> list[Key]:
    """Sums of a list that together go over all the axes, each over some; those over axes that
    store parameters first. Empty where an axis is missing."""
    found: list[Key] = []
    keys = [k for k in by_axes(lines) if k[0] in SUMS and set(k[1]) < set(axes)]
    for key in sorted(keys, key=lambda k: not set(k[1]) & set(STORAGE_AXES)):
        if not any(set(key[1]) & set(other[1]) for other in found):
            found.append(key)
    return found if {a for key in found for a in key[1]} == set(axes) else []


def _lookup(ledger: Ledger) -> None:
    """What moves rows for the gradient of a lookup (a scatter-add): a row of D for every token of
    the devices that meet, which exchange by exchange (or part of one) become more, or no rule
    holds; permutes reorder them. The sum that it stands for is the plan's first of the table: over
    the axes that store it, or replicas; where the last exchange is over some of them, the pieces
    are summed over the rest."""
    moved = [x for x in ledger.compiled if x.name.endswith("scatter-add") and x.kind not in SUMS]
    sums = [x for x in ledger.planned if x.name.startswith("first/") and x.kind == "reduce_scatter"]
    tables = [x for x in sums if x.name.endswith(".params")][:1]
    plan, met = ledger.plan, set[str]()
    if not moved or not tables or not isinstance(plan, TrainPlan):
        return
    tokens = plan.tokens / (plan.batch_shards * plan.degree("context"))
    row = ledger.cfg.d_model * dtype_bytes(activation_dtype(plan))
    exchanges = [x for x in moved if x.kind != "permute"]
    for axes in dict.fromkeys(x.axes for x in exchanges):
        new = set(axes) - {"tensor"} - met
        met |= new
        size = sum(x.total for x in exchanges if x.axes == axes)
        if not new or not isclose(size, tokens * ledger.degree(tuple(met)) * row, rel_tol=1e-4):
            return
    turned = [x.total for x in moved if x.kind == "permute"]
    if not exchanges or any(size > tokens * ledger.degree(tuple(met)) * row for size in turned):
        return
    gone = [*moved, *_pieces_of(ledger, tables[0], exchanges[-1])]
    total = sum(x.total for x in gone)
    ledger.note("rows, not the table", [*gone, *tables], tables[0].total, total)
    for line in gone:
        ledger.compiled.remove(line)
    ledger.planned.remove(tables[0])


def _pieces_of(ledger: Ledger, table: Line, last: Line) -> list[Line]:
    """The sum of the pieces of a table that the last exchange of rows leaves on a device, over axes
    that it did not exchange, if there is one. What is fused with its slice has no name."""
    size = table.bytes / ledger.degree(tuple(set(last.axes) & set(table.axes)))
    over = [x for x in ledger.compiled if set(x.axes) - {"tensor"} < set(table.axes)]
    rest = [x for x in over if not set(x.axes) & set(last.axes)]
    sums = [x for x in rest if x.kind in SUMS and isclose(x.total, size)]
    named = [x for x in sums if x.name.endswith("scatter-add")]
    return [*named, *(x for x in sums if not x.name)][:1]


def _runtime(ledger: Ledger) -> None:
    """The plan's list as our runtime moves it."""
    if not isinstance(ledger.plan, TrainPlan):
        for name, gone, more in as_served(ledger.plan, ledger.cfg, ledger.planned):
            new = sum(x.total for x in more) - sum(x.total for x in gone)
            ledger.note(name, [*gone, *more], max(-new, 0.0), max(new, 0.0))
            ledger.planned = [*(x for x in ledger.planned if x not in gone), *more]
        return
    for line in added_lines(ledger.plan, ledger.cfg, ledger.planned):
        assert line.name in ADDED, line.name
        ledger.note(line.name, [line], 0.0, line.total)
        ledger.planned.append(line)


def _shared_hop(ledger: Ledger) -> None:
    """A whole hop that the plan has and the program has not, which lacks neither keys nor values
    alone: what it sends comes in pairs."""
    for line in [x for x in ledger.planned if x.name == "home" and x.again and x.bytes == x.sent]:
        if line.axes in ledger.paired:
            ledger.planned.remove(line)
            ledger.note("again, or once", [line], line.total, 0.0)


def _ring(ledger: Ledger) -> None:
    """Permutes that a gather or a scatter over the same axes was written as."""
    for axes in dict.fromkeys(x.axes for x in ledger.compiled if x.kind == "permute"):
        n = ledger.degree(axes)
        key: Key = ("permute", axes)
        kinds: tuple[CollectiveKind, ...] = ("reduce_scatter", "all_gather")
        for chain in chains([x for x in ledger.compiled if x.key == key]):
            whole = chain_bytes(chain, n)
            size = min(whole, sum(ledger.left(ledger.planned, (kind, axes)) for kind in kinds))
            if size <= SMALL:
                continue
            share, rest = size / whole, size
            others = [x for x in ledger.compiled if x not in chain]
            left = [replace(x, bytes=x.bytes * (1 - share)) for x in chain if share < 1]
            ledger.compiled = [*others, *left]
            for kind in kinds:
                gone = min(rest, ledger.left(ledger.planned, (kind, axes)))
                lines = [x for x in ledger.planned if x.key == (kind, axes)]
                ledger.planned = _take(ledger.planned, (kind, axes), gone)
                rest -= gone
                part = gone / size * share * sum(x.total for x in chain)
                ledger.note("ring", lines, gone, part)
        for kind in kinds:
            lines = [x for x in ledger.planned if x.key == (kind, axes)]
            ledger.note("ring", lines, *_swap(ledger, (kind, axes), key, (n - 1) / n))


ORDER: tuple[tuple[str, Callable[[Ledger], None]], ...] = (
    ("again, or once", _made_again),
    ("beside the list", _indices),
    ("beside the list", _scalars),
    ("as a sum", _forms),
    ("width", _width),
    ("ragged rows", _rows_gathered),
    ("ragged rows", _ragged),
    ("rows, not the table", _lookup),
    ("", _equal),
    ("as a sum", _sum_and_slice),
    ("joined sums", _joined_sums),
    ("joined sums", _split_sums),
    ("again, or once", _shared_hop),
    ("ring", _ring),
)
"""What each rule does, in order; the two without a name match what is equal and add our lines."""
