"""Why a compiled step's collectives differ from the plan's: general rules, applied in order.

Each rule is about what compilers and runtimes do, none about a plan. It takes lines, or bytes of
lines, off the plan's list, off the compiled one, or off both, and says how many bytes; what is left
in the end is a difference. Rules that allow bytes without a counterpart compute how many.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from shardwise.models import Attention, ModelConfig, Parameter
from shardwise.models.parameters import parameters
from shardwise.plans.layouts import STORAGE_AXES, UNEVEN, tensor_letter
from shardwise.plans.train import TrainPlan
from shardwise.scheduling import pipeline_schedule
from shardwise.units import dtype_bytes
from shardwise.workflows.planned import Key, Line, activation_dtype, by_axes

SUMS = ("all_reduce", "reduce_scatter")
FLOATS = {"bf16": 2.0, "f16": 2.0, "f32": 4.0, "f64": 8.0}
SMALL = 0.5
"""Bytes below which nothing is left: sums of floats round."""

RULES = {
    "indices": "integers (token ids, positions, places and counts of rows) go along with what they "
    "describe; the plan counts none",
    "scalars": "the loss, the count of tokens and the norm of the gradients are summed over all "
    "devices; the plan counts none",
    "statistics": "softmax over a vocabulary that tensor cuts: the largest logit, the sum and the "
    "target's own of every token, in f32; the plan counts none",
    "width": "sent in another dtype than the plan counts: sums of matmuls that yield f32 are sent "
    "before they are rounded",
    "sum of pieces": "a gather of pieces too small for one of their own, as an all-reduce: each "
    "device puts its piece into zeros",
    "sum and slice": "a reduce-scatter as an all-reduce and a slice, fused on TPUs or followed by "
    "what reads the slice",
    "joined sums": "two sums one after the other over some axes each, as one over all of them",
    "replicated over tensor": "gradients of what tensor does not cut (norms, biases, routers, KV "
    "heads that it does not divide) are summed over it, since it cuts the tokens; the plan counts "
    "none",
    "whole heads": "keys and values of heads that tensor does not divide are made where the tokens "
    "lie and gathered over it, and again where they are recomputed; the plan counts none",
    "rows, not the table": "the gradient of a lookup: the rows and their ids move to the devices "
    "that store their columns, which add them up, instead of a sum of whole tables",
    "rows that travel": "how many rows a ragged exchange sends is known when it runs; both are "
    "counted as a row for each of a token's experts",
    "rows gathered": "rows that a ragged exchange brought are gathered over tensor, and their "
    "results scattered, by ragged exchanges too: a copy of what is there for every device",
    "pieces between passes": "a pipeline keeps in pieces what a later pass reads too and gathers "
    "it over tensor in both: the head's input, and gradients where the backward pass is split; the "
    "plan counts one gather",
    "kept scales": "norms read their scales in f32; without remat that copy stays for the backward "
    "pass and is not gathered again",
    "home": "a ring's sums of gradients go one hop further, home; the plan counts hops of keys",
    "ring": "an all-gather or a reduce-scatter of N pieces as N - 1 permutes of one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What one rule explains over some axes: bytes of the plan's list and of the compiled one."""

    rule: str
    kinds: tuple[str, ...]
    axes: tuple[str, ...]
    planned: float
    compiled: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
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

    rows: tuple[Row, ...]
    explained: tuple[Explained, ...]

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
    def differences(self) -> tuple[Row, ...]:
        """The rows of which something is not explained."""
        return tuple(r for r in self.rows if max(r.planned_left, r.compiled_left) > SMALL)


@dataclass(slots=True)
class Ledger:
    """What is left of both lists while rules are applied."""

    plan: TrainPlan
    cfg: ModelConfig
    planned: list[Line]
    compiled: list[Line]
    rings: tuple[Line, ...] = ()
    moved: list[Line] = field(default_factory=list)
    notes: list[Explained] = field(default_factory=list)

    def note(self, rule: str, lines: Sequence[Line], planned: float, compiled: float) -> None:
        if planned > SMALL or compiled > SMALL:
            kinds = tuple(dict.fromkeys(line.kind for line in lines))
            axes = tuple(a for a in self.plan.mesh if any(a in line.axes for line in lines))
            self.notes.append(
                Explained(rule=rule, kinds=kinds, axes=axes, planned=planned, compiled=compiled)
            )

    def left(self, lines: Sequence[Line], key: Key) -> float:
        return by_axes(lines).get(key, (0.0, 0.0))[1]

    def degree(self, axes: Sequence[str]) -> int:
        return prod(self.plan.degree(a) for a in axes)


def compare(
    plan: TrainPlan, cfg: ModelConfig, planned: Sequence[Line], compiled: Sequence[Line]
) -> Comparison:
    """Both lists by kind and axes, what the rules explain, and what is left."""
    ledger = Ledger(
        plan=plan,
        cfg=cfg,
        planned=list(planned),
        compiled=list(compiled),
        rings=tuple(x for x in planned if x.kind == "permute"),
    )
    for rule in _ORDER:
        rule(ledger)
    written = [replace(line, kind=line.written) for line in compiled]
    each = [by_axes(lines) for lines in (planned, written, ledger.planned, ledger.compiled)]
    none = (0.0, 0.0)
    rows = [
        Row(
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


def _set_aside(ledger: Ledger, rule: str, holds: Callable[[Line], bool]) -> None:
    """Compiled lines that the plan counts nothing for."""
    for key in dict.fromkeys(line.key for line in ledger.compiled):
        gone = [line for line in ledger.compiled if line.key == key and holds(line)]
        ledger.note(rule, gone, 0.0, sum(line.total for line in gone))
    ledger.compiled = [line for line in ledger.compiled if not holds(line)]


def _indices(ledger: Ledger) -> None:
    _set_aside(ledger, "indices", lambda line: line.dtype not in FLOATS)


def _scalars(ledger: Ledger) -> None:
    _set_aside(ledger, "scalars", lambda line: line.kind == "all_reduce" and line.elements == 1)


def _statistics(ledger: Ledger) -> None:
    plan = ledger.plan
    shards = plan.batch_shards * plan.microbatches * plan.degree("context")
    tokens = plan.tokens / shards

    def holds(line: Line) -> bool:
        one_each = line.dtype == "f32" and line.elements == tokens
        return one_each and line.kind == "all_reduce" and line.axes == ("tensor",)

    _set_aside(ledger, "statistics", holds)


def _forms(ledger: Ledger) -> None:
    """What the reader saw for what it is."""
    for key in dict.fromkeys((line.form, line.key) for line in ledger.compiled):
        lines = [line for line in ledger.compiled if (line.form, line.key) == key]
        if key[0] != "itself":
            ledger.note(key[0], lines, 0.0, sum(line.total for line in lines))


def _width(ledger: Ledger) -> None:
    """Both lists in the dtype of the activations."""
    width = dtype_bytes(activation_dtype(ledger.plan))
    for name in ("planned", "compiled"):
        lines = getattr(ledger, name)
        for key in dict.fromkeys(line.key for line in lines):
            wide = [x for x in lines if x.key == key and dtype_bytes(x.dtype) != width]
            more = sum(x.total * (1 - width / dtype_bytes(x.dtype)) for x in wide)
            sides = (more, 0.0) if name == "planned" else (0.0, more)
            ledger.note("width", wide, *map(abs, sides))
        scaled = [replace(x, bytes=x.bytes * width / dtype_bytes(x.dtype)) for x in lines]
        setattr(ledger, name, scaled)


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
    ledger.note("rows that travel", [x for x in lists[1] if x.kind == kind], *before)
    ledger.planned, ledger.compiled = lists


def _rows_sent(ledger: Ledger, line: Line) -> float:
    """A plan counts a copy of every token for every device of the group; a program's larger buffer
    has room for every row of all devices, its smaller one the rows of this one."""
    group = ledger.degree(line.axes)
    if line.sent:
        return min(line.sent, line.bytes / group) * group
    experts = max(getattr(layer.mlp, "experts_per_token", 0) for layer in ledger.cfg.groups)
    return line.bytes / group * experts


def _rows_gathered(ledger: Ledger) -> None:
    """Ragged exchanges over the axis that the plan gathers dispatched rows over. Their room is for
    every row of all that exchanged with the sender, once for each device of the axis; on the
    average one sender's rows are there."""
    for axes in dict.fromkeys(x.axes for x in ledger.planned if _of_dispatched(x)):
        lines = [x for x in ledger.planned if x.axes == axes and _of_dispatched(x)]
        key: Key = ("ragged_all_to_all", axes)
        room = ledger.degree(axes) * ledger.degree(("expert",))
        size = min(sum(x.total for x in lines), ledger.left(ledger.compiled, key) / room)
        ledger.note("rows gathered", lines, size, size * room)
        ledger.compiled = _take(ledger.compiled, key, size * room)
        for line in lines:
            gone = min(size, line.total)
            size -= gone
            rest = replace(line, bytes=(line.total - gone) / line.count)
            ledger.planned = [rest if x is line else x for x in ledger.planned]


def _of_dispatched(line: Line) -> bool:
    return line.name.endswith(("experts.gather", "experts.scatter"))


# Rules on sums of lines ---------------------------------------------------------------------------


def _take(lines: list[Line], key: Key, size: float, last: str = "") -> list[Line]:
    """The lines with so many bytes of a key less; those whose name begins with `last`, last."""
    order = sorted(range(len(lines)), key=lambda i: bool(last) and lines[i].name.startswith(last))
    made: list[Line | None] = list(lines)
    for i in order:
        line = lines[i]
        if line.key == key and size > 0:
            gone = min(size, line.total)
            size -= gone
            rest = line.total - gone
            made[i] = replace(line, bytes=rest / line.count) if rest > SMALL else None
    return [line for line in made if line is not None]


def _swap(ledger: Ledger, planned: Key, compiled: Key, factor: float = 1.0) -> tuple[float, float]:
    """Take off both lists what one key of the plan has and another of the program, whose bytes are
    `factor` times the plan's; what was taken of each."""
    size = min(
        ledger.left(ledger.planned, planned), ledger.left(ledger.compiled, compiled) / factor
    )
    ledger.planned = _take(ledger.planned, planned, size, last="first/")
    ledger.compiled = _take(ledger.compiled, compiled, size * factor)
    return size, size * factor


def _equal(ledger: Ledger) -> None:
    for key in by_axes(ledger.planned):
        _swap(ledger, key, key)


def _sum_and_slice(ledger: Ledger) -> None:
    for key in by_axes(ledger.planned):
        if key[0] == "reduce_scatter":
            lines = [x for x in ledger.planned if x.key == key]
            ledger.note("sum and slice", lines, *_swap(ledger, key, ("all_reduce", key[1])))


def _joined_sums(ledger: Ledger) -> None:
    """A sum over more axes pays for those over parts of them: V over the axes that store, then V
    over their pieces."""
    for key in by_axes(ledger.compiled):
        if key[0] not in SUMS:
            continue
        parts = _sums_within(ledger, key[1])
        if not parts:
            continue
        lines = [x for x in ledger.compiled if x.key == key]
        size = ledger.left(ledger.compiled, key)
        most, share, taken = 0.0, 1.0, 0.0
        for part in parts:
            got = min(ledger.left(ledger.planned, part), size * share)
            most, taken = max(most, got / share), taken + got
            ledger.planned = _take(ledger.planned, part, got, last="first/")
            share /= ledger.degree(part[1])
        ledger.compiled = _take(ledger.compiled, key, most)
        ledger.note("joined sums", lines, taken, most)


def _sums_within(ledger: Ledger, axes: tuple[str, ...]) -> list[Key]:
    """Sums of the plan over fewer of the axes, those over axes that store parameters first."""
    keys = [k for k in by_axes(ledger.planned) if k[0] in SUMS and set(k[1]) < set(axes)]
    return sorted(keys, key=lambda k: not set(k[1]) & set(STORAGE_AXES))


def _replicated_over_tensor(ledger: Ledger) -> None:
    """At most the gradients of the rows that tensor leaves whole, in every pass."""
    plan = ledger.plan
    if plan.degree("tensor") == 1 or not plan.sequence_parallel:
        return
    rows = [r for r in parameters(ledger.cfg) if not _is_cut(r, plan.degree("tensor"))]
    width = dtype_bytes(activation_dtype(plan))
    most = width * plan.microbatches * sum(r.size * r.layers for r in rows)
    for key in by_axes(ledger.compiled):
        if key[0] in SUMS and "tensor" in key[1]:
            lines = [x for x in ledger.compiled if x.key == key]
            size = min(most, ledger.left(ledger.compiled, key))
            ledger.compiled = _take(ledger.compiled, key, size)
            ledger.note("replicated over tensor", lines, 0.0, size)
            most -= size


def _is_cut(row: Parameter, tensor: int) -> bool:
    letter = tensor_letter(row)
    uneven = letter and dict(row.dims)[letter] % tensor and UNEVEN.get(letter) == "replicate"
    return bool(letter) and not uneven


def _whole_heads(ledger: Ledger) -> None:
    """At most keys and values of a shard's tokens in every layer, once and once more with remat."""
    plan, cfg = ledger.plan, ledger.cfg
    tensor = plan.degree("tensor")
    key: Key = ("all_gather", ("tensor",))
    mixers = [(layer.mixer, n) for layer, n in cfg.layer_groups()]
    heads = [(m, n) for m, n in mixers if isinstance(m, Attention) and m.kv_heads % tensor]
    if not plan.sequence_parallel:
        return
    elements = sum(n * m.kv_heads * (m.head_dim + m.v_head_dim) for m, n in heads)
    tokens = plan.tokens / (plan.batch_shards * plan.degree("context"))
    passes = 1 if plan.remat == "none" else 2
    most = passes * tokens * elements * dtype_bytes(activation_dtype(plan))
    lines = [x for x in ledger.compiled if x.key == key]
    size = min(most, ledger.left(ledger.compiled, key))
    ledger.compiled = _take(ledger.compiled, key, size)
    ledger.note("whole heads", lines, 0.0, size)


def _between_passes(ledger: Ledger) -> None:
    """At most x[B, T, D] of a shard's tokens for the last rank's head, and for both blocks of each
    of its layers where B and W are apart."""
    plan = ledger.plan
    key: Key = ("all_gather", ("tensor",))
    if plan.degree("stage") == 1 or not plan.sequence_parallel:
        return
    tokens = plan.tokens / (plan.batch_shards * plan.degree("context"))
    x_bytes = tokens * ledger.cfg.d_model * dtype_bytes(activation_dtype(plan))
    layers = plan.layers_per_stage[-1] if _splits_backward(plan) else 0
    lines = [x for x in ledger.compiled if x.key == key]
    size = min(x_bytes * (1 + 2 * layers), ledger.left(ledger.compiled, key))
    ledger.compiled = _take(ledger.compiled, key, size)
    ledger.note("pieces between passes", lines, 0.0, size)


def _splits_backward(plan: TrainPlan) -> bool:
    stages, chunks = plan.degree("stage"), plan.virtual_stages
    made = pipeline_schedule(plan.pipeline_schedule, stages, plan.microbatches, chunks)
    return made.splits_backward


def _kept_scales(ledger: Ledger) -> None:
    """At most the scales of all layers' norms, in every microbatch."""
    plan = ledger.plan
    if plan.remat != "none" or not plan.reshard_after_forward:
        return
    rows = [r for r in parameters(ledger.cfg) if r.role == "norm" and r.group is not None]
    width = dtype_bytes(activation_dtype(plan))
    most = width * plan.microbatches * sum(r.size * r.layers for r in rows)
    for key in by_axes(ledger.planned):
        if key[0] == "all_gather" and set(key[1]) <= set(STORAGE_AXES):
            lines = [x for x in ledger.planned if x.key == key]
            size = min(most, ledger.left(ledger.planned, key))
            ledger.planned = _take(ledger.planned, key, size)
            ledger.note("kept scales", lines, size, 0.0)
            most -= size


def _lookup_moves(ledger: Ledger) -> None:
    """What moves rows for the gradient of a lookup (a scatter-add), before anything is matched: at
    most a row of D for every token of the batch."""
    most = ledger.plan.tokens * ledger.cfg.d_model * dtype_bytes(activation_dtype(ledger.plan))
    moved = [x for x in ledger.compiled if _of_lookup(x) and x.kind not in SUMS]
    if sum(x.total for x in moved) <= most + SMALL:
        ledger.moved = moved
        ledger.compiled = [x for x in ledger.compiled if x not in moved]


def _lookup_sums(ledger: Ledger) -> None:
    """The sums of the tables' gradients that the plan still has, for what moved instead: at most
    the tables, in every microbatch."""
    if not ledger.moved:
        return
    width, plan = dtype_bytes(activation_dtype(ledger.plan)), ledger.plan
    tables = sum(r.size for r in parameters(ledger.cfg) if r.role == "lookup")
    most, planned = width * plan.microbatches * tables, 0.0
    lines = [x for x in ledger.planned if x.name.startswith("first/") and x.kind in SUMS]
    for line in lines:
        if planned + line.total <= most + SMALL:
            planned += line.total
            ledger.planned.remove(line)
    sums = [x for x in ledger.compiled if _of_lookup(x)]
    gone = [*ledger.moved, *sums]
    ledger.note("rows, not the table", [*gone, *lines], planned, sum(x.total for x in gone))
    ledger.compiled = [x for x in ledger.compiled if x not in sums]


def _of_lookup(line: Line) -> bool:
    return line.name.endswith("scatter-add")


def _home(ledger: Ledger) -> None:
    """A ring's backward pass is planned as n - 1 hops of keys and of their gradients each; those
    of the gradients are one more."""
    for key in by_axes(ledger.compiled):
        if key[0] != "permute":
            continue
        back = [x for x in ledger.rings if x.key == key and "/d." in x.name]
        most = sum(x.total for x in back) / 2 / max(ledger.degree(key[1]) - 1, 1)
        size = min(most, ledger.left(ledger.compiled, key))
        ledger.compiled = _take(ledger.compiled, key, size)
        ledger.note("home", back, 0.0, size)


def _ring(ledger: Ledger) -> None:
    """Permutes that a gather or a scatter over the same axes was written as."""
    for key in by_axes(ledger.planned):
        if key[0] in ("all_gather", "reduce_scatter"):
            n = ledger.degree(key[1])
            lines = [x for x in ledger.planned if x.key == key]
            factor = (n - 1) / n
            ledger.note("ring", lines, *_swap(ledger, key, ("permute", key[1]), factor))


_ORDER = (
    _indices,
    _scalars,
    _statistics,
    _forms,
    _width,
    _rows_gathered,
    _ragged,
    _lookup_moves,
    _equal,
    _sum_and_slice,
    _joined_sums,
    _lookup_sums,
    _replicated_over_tensor,
    _whole_heads,
    _between_passes,
    _kept_scales,
    _home,
    _ring,
)
