"""A resolved program on a real compiler: run, checked, and its collectives beside the predicted.

The shard_map program does the steps of the program one by one (JAX's Manual axes); the jit program
has the same input and output shardings and leaves the rest to XLA (Auto); the explicit program says
each result's layout as a type (Explicit), and its twin that does not is refused where a product is
ambiguous. They are compiled on virtual CPU devices in a child process at the program's sizes, and
run at small ones that are cut alike. `to_source` gives the same programs as text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardwise.boundary.records import Record, hidden
from shardwise.boundary.typed import record_of
from shardwise.errors import BadRequest, unknown
from shardwise.profiler import QUICK_COMPILE, run_function
from shardwise.profiler.hlo import CompiledCollective, at_dtype, on_mesh, read_collectives
from shardwise.sharding.lowering import predicted_collectives, small_sizes
from shardwise.sharding.program_text import Style, program_source, unsaid_source
from shardwise.sharding.steps import Program
from shardwise.work import Collective, CollectiveKind

MOST_DEVICES = 64
RESOLUTION = {"f32": 1e-6, "bf16": 2.0**-7, "f16": 2.0**-10, "int8": 0.0}
"""The largest difference from the dense product, over its largest value, that counts as equal."""

Key = tuple[CollectiveKind, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StyleRun(Record):
    """One compiled program: its errors against the dense product and its gradient, and its HLO.

    `collectives` are over the mesh's axes, at the program's dtype; `widened` are the names of those
    that the compiler sends in a wider dtype, `partial` of those over a part of an axis.
    """

    equal: bool
    """Whether it computes the dense product."""
    error: float
    """Largest difference from it, over its largest value."""
    gradient_error: float | None
    """The same of its gradient; null where that was not run."""
    style: Style = hidden()
    collectives: tuple[Collective, ...] = hidden()
    compiled: tuple[CompiledCollective, ...] = hidden()
    widened: tuple[str, ...] = hidden()
    partial: tuple[str, ...] = hidden()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Record):
    """Collectives of one kind over the same axes."""

    count: int = 0
    """How many."""
    bytes: float = 0.0
    """V of all of them together, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StyleRow(Record):
    """One kind of collective over the same axes, by producer."""

    kind: CollectiveKind
    """What it does."""
    axes: tuple[str, ...]
    """Mesh axes that it goes over."""
    predicted: Counted
    """Those of the program's steps."""
    shard_map: Counted
    """Those of the compiled shard_map program."""
    jit: Counted
    """Those of the compiled jit program."""
    explicit: Counted
    """Those of the compiled explicit program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRun(Record):
    """The programs side by side.

    `run_sizes` are those that the values were compared at. `ambiguous` is what JAX says to the
    explicit program where its products do not say how their results lie; "" where it takes it.
    """

    programs: Mapping[Style, StyleRun]
    """Each style that was run."""
    as_predicted: bool
    """Whether the shard_map program sends what was predicted, byte for byte."""
    collectives: tuple[StyleRow, ...]
    """Collectives by kind and axes."""
    notes: tuple[str, ...]
    """Why the programs differ."""
    program: Program = hidden()
    run_sizes: Mapping[str, int] = hidden()
    ambiguous: str = hidden()


def run_program(program: Program, *, gradients: bool = True, seconds: float = 300.0) -> ShardRun:
    """Run a Program in the three styles on virtual CPU devices and compare.

    Raises BadRequest for meshes too large to run here, MissingPart without JAX.
    """
    check_runnable(program)
    return run_all([program], gradients=gradients, seconds=seconds)[0]


def run_all(
    programs: Sequence[Program], *, gradients: bool = True, seconds: float = 300.0
) -> tuple[ShardRun, ...]:
    """`run_program` of many in one child process: starting JAX costs more than one program."""
    cases = [case_of(program, gradients=gradients) for program in programs]
    typed = [explicit_case(program) for program in programs]
    devices = max(program.mesh.size for program in programs)
    answers = run_function(
        "shardwise.profiler.jobs:run_programs",
        {"cases": [*cases, *(case for case in typed if case)]},
        devices=devices,
        seconds=seconds,
        xla_flags=QUICK_COMPILE,
    )
    third = iter(answers[len(programs) :])
    each = zip(programs, answers, typed, strict=False)
    return tuple(
        read_answer(p, record_of(ProgramAnswer, a | (next(third) if case else {})))
        for p, a, case in each
    )


def to_source(program: Program, form: Literal["jax", "explicit"]) -> str:
    """Runnable source: `jax` has the shard_map and the jit program, `explicit` the third style."""
    if form == "jax":
        return program_source(program, ("shard_map", "jit"))
    if form == "explicit":
        return program_source(program, ("explicit",))
    raise unknown("program form", form, ("jax", "explicit"))


def check_runnable(program: Program) -> None:
    """Raise BadRequest, with what to change, for a program too large for virtual devices."""
    if program.mesh.size > MOST_DEVICES:
        rule = f"running takes at most {MOST_DEVICES}, so use a smaller mesh or --to jax"
        raise BadRequest(f"mesh {program.mesh} has {program.mesh.size:,} devices; {rule}")


def case_of(program: Program, *, gradients: bool) -> dict[str, object]:
    """What `profiler.jobs.run_programs` takes for one program."""
    styles: tuple[Style, ...] = ("shard_map", "jit")
    return {
        "source": program_source(program, styles),
        "styles": styles,
        "run": True,
        "gradients": gradients and program.dtype != "int8",
    }


def explicit_case(program: Program) -> dict[str, object] | None:
    """Like `case_of` for the explicit style, without gradients; None where it has no word for a
    step, or its result would be partial sums."""
    if program.output.unreduced:
        return None
    try:
        source, unsaid = program_source(program, ("explicit",)), unsaid_source(program)
    except BadRequest:
        return None
    return {
        "source": source,
        "unsaid": unsaid,
        "styles": ("explicit",),
        "run": True,
        "gradients": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StyleAnswer:
    """What the child says of one style of a program: the compiled text, and how far its result and
    its gradients are off."""

    hlo: str
    error: float = 0.0
    gradient_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAnswer:
    """What the child says of one program, by style; `unsaid` is the error of JAX where the explicit
    style must be told more."""

    shard_map: StyleAnswer
    jit: StyleAnswer
    explicit: StyleAnswer | None = None
    unsaid: str = ""


def read_answer(program: Program, answer: ProgramAnswer) -> ShardRun:
    """The child's answer for one program as the two runs side by side."""
    styles: tuple[Style, ...] = ("shard_map", "jit", "explicit")
    runs: dict[Style, StyleRun] = {
        style: _style_run(program, style, said)
        for style in styles
        if (said := getattr(answer, style)) is not None
    }
    predicted = predicted_collectives(program)
    rows = _rows(predicted, runs)
    return ShardRun(
        program=program,
        run_sizes=small_sizes(program),
        programs=runs,
        collectives=rows,
        as_predicted=not runs["shard_map"].partial
        and all(row.predicted.bytes == row.shard_map.bytes for row in rows),
        ambiguous=answer.unsaid,
        notes=(*_notes(program, rows, runs), *_said(runs, answer.unsaid)),
    )


def sums(collectives: Sequence[Collective]) -> dict[Key, tuple[int, float]]:
    """(kind, axes) -> how many collectives and their V in bytes together."""
    found: dict[Key, tuple[int, float]] = {}
    for collective in collectives:
        key = (collective.kind, collective.axes)
        count, size = found.get(key, (0, 0.0))
        found[key] = (count + 1, size + float(collective.bytes))
    return found


def _style_run(program: Program, style: Style, answer: StyleAnswer) -> StyleRun:
    compiled = read_collectives(answer.hlo)
    # A group of one device sends nothing; a compiler may leave such a collective in.
    compiled = tuple(c for c in compiled if any(len(set(g)) > 1 for g in c.groups))
    plain = [at_dtype(c, program.dtype) for c in compiled]
    placed = [on_mesh(c, program.mesh) for c in plain]
    pairs = list(zip(compiled, plain, strict=True))
    worst = max(answer.error, answer.gradient_error or 0.0)
    return StyleRun(
        style=style,
        error=answer.error,
        gradient_error=answer.gradient_error,
        equal=worst <= RESOLUTION[program.dtype],
        collectives=tuple(p[0] for p, c in zip(placed, plain, strict=True) for _ in range(c.count)),
        compiled=compiled,
        widened=tuple(c.name for c, p in pairs if c.bytes != p.bytes),
        partial=tuple(c.name for c, p in zip(compiled, placed, strict=True) if not p[1].whole),
    )


def _said(runs: Mapping[Style, StyleRun], ambiguous: str) -> list[str]:
    """What the explicit style cannot say, or must be told."""
    if "explicit" not in runs:
        return ["explicit: not run, because it would multiply or return partial sums"]
    if ambiguous:
        return [f"explicit: a product without out_sharding is ambiguous, and JAX says: {ambiguous}"]
    return []


def _rows(predicted: Sequence[Collective], runs: Mapping[Style, StyleRun]) -> tuple[StyleRow, ...]:
    styles: tuple[Style, ...] = ("shard_map", "jit", "explicit")
    made = [runs[style].collectives if style in runs else () for style in styles]
    each = [sums(some) for some in (predicted, *made)]
    rows = []
    for kind, axes in dict.fromkeys(key for some in each for key in some):
        found = [some.get((kind, axes), (0, 0.0)) for some in each]
        cells = [Counted(count=count, bytes=size) for count, size in found]
        named = dict(zip(("predicted", *styles), cells, strict=True))
        rows.append(StyleRow(kind=kind, axes=axes, **named))
    return tuple(rows)


def _notes(program: Program, rows: Sequence[StyleRow], runs: Mapping[Style, StyleRun]) -> list[str]:
    """Why the three lists differ, one sentence per reason."""
    notes = []
    small = small_sizes(program)
    if any(program.sizes[dim] != size for dim, size in small.items()):
        at = ", ".join(f"{dim}={size}" for dim, size in small.items())
        notes.append(f"compiled at the sizes given; values compared at {at}")
    if wide := ", ".join(style for style, run in runs.items() if run.widened):
        why = "XLA on CPUs accumulates narrow floats in f32"
        notes.append(f"{wide}: {why}; bytes are shown at {program.dtype}")
    for style, run in runs.items():
        if run.partial:
            notes.append(f"{style}: {', '.join(run.partial)} run over a part of a mesh axis")
    if any(row.predicted.bytes == row.shard_map.bytes for row in rows) and any(
        row.predicted.count != row.shard_map.count and row.predicted.bytes == row.shard_map.bytes
        for row in rows
    ):
        notes.append("shard_map: XLA joined collectives of one kind over the same axes into one")
    if program.output.unreduced:
        notes.append(f"jit: cannot express the partial sums of '{program.output}'; it reduces them")
    return notes + _other_choices(rows)


def _other_choices(rows: Sequence[StyleRow]) -> list[str]:
    """What XLA chose where it did not choose the predicted collectives."""
    more = [row for row in rows if row.jit.bytes > row.predicted.bytes]
    less = [row for row in rows if row.jit.bytes < row.predicted.bytes]
    notes = []
    for row in more:
        scatter = next((r for r in less if r.kind == "reduce_scatter"), None)
        if row.kind == "all_reduce" and scatter and set(scatter.axes) <= set(row.axes):
            less.remove(scatter)
            notes.append(
                "jit: an all-reduce and a slice replace the reduce-scatter over "
                f"{', '.join(scatter.axes)}; XLA joins them on TPUs and GPUs, not on CPUs"
            )
        else:
            over = ", ".join(row.axes)
            notes.append(f"jit: XLA inserted {row.kind} over {over} which was not predicted")
    for row in less:
        notes.append(f"jit: XLA does not need {row.kind} over {', '.join(row.axes)}")
    return notes
