"""The report folder of a compile: what was found, in files that other tools open.

    compile.json          what the command printed, as one document
    plan.yaml             the plan, where there was one
    PHASE.hlo.txt         the scheduled program, with the compiler's cycles
    PHASE.ops.csv         every op: where it comes from, how long it takes, what bounds it
    PHASE.buffers.csv     the largest buffers
    PHASE.memory.csv      HBM in use over the schedule
    PHASE.trace.json.gz   the timeline for ui.perfetto.dev, one track per stream
    PHASE.stages.txt      with --stages: one op at every stage, and the texts it was found in,
    PHASE.jaxpr.txt       PHASE.stablehlo.txt and PHASE.given.hlo.txt

Times are those of the timeline (`profiler/timeline.py`), per device. A loop's body is drawn once,
in its first round; the track "loops" shows how long all rounds take. `report_result.py` reads back
`compile.json`, the ops and the trace.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.boundary import finite, to_json, write_table, write_text
from shardwise.boundary.outputs import make_folder
from shardwise.commands.program.compiling import PlanProgram, short_source
from shardwise.errors import BadRequest
from shardwise.planner.price.trace import write_events
from shardwise.plans import ServePlan, TrainPlan, save_plan
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.stages import Stages, StageTexts, read_stages, stages_of
from shardwise.profiler.timeline import HloTimeline, OpRow

OPS = (
    *("id", "after", "op", "opcode", "class", "phase", "scope", "source", "stream"),
    *("runs", "seconds", "seconds_per_step", "exposed_seconds", "lower_seconds"),
    *("bound_by", "of_roofline", "cycles", "flops", "hbm_bytes", "padding_bytes"),
    *("flops_per_byte", "collective", "axes", "collective_bytes"),
)
"""Columns of PHASE.ops.csv: amounts and `seconds` of one run, the others say of what; `after` are
the ids of ops that it waits for, with blanks between."""
BUFFERS = ("bytes", "kind", "shape", "op", "source")
MEMORY = ("instruction", "bytes_in_use")


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A program, the texts of its stages, and one of its ops at each."""

    program: PlanProgram
    kept: StageTexts
    stages: Stages


def write_report(
    folder: Path,
    programs: Sequence[PlanProgram],
    plan: TrainPlan | ServePlan | None,
    doc: Mapping[str, object],
    followed: Sequence[Followed] = (),
) -> list[str]:
    """Write the folder; gives the files' names. Raises BadRequest where it cannot be written."""
    make_folder(folder)
    write_text(folder / "compile.json", to_json(finite(doc)[0]), option="--out")
    names = ["compile.json"]
    if plan is not None:
        save_plan(plan, folder / "plan.yaml")
        names.append("plan.yaml")
    for program in programs:
        names += _write_program(folder, program)
    for one in followed:
        names += _write_stages(folder, one)
    return names


def follow(programs: Sequence[PlanProgram], folder: Path, what: str) -> Iterator[Followed]:
    """The op that `what` names in each program, of the texts that its compile left in a folder."""
    for program in programs:
        texts = read_stages(folder / f"{program.compiled.key}.json.gz")
        module, ops = read_module(program.compiled.hlo), program.work.ops
        found = stages_of(texts, module, ops, program.timeline, what)
        yield Followed(program=program, kept=texts, stages=found)


def _write_stages(folder: Path, one: Followed) -> Iterator[str]:
    stem = one.program.phase.replace(":", ".")
    texts = {
        "stages.txt": stages_text(one.stages),
        "jaxpr.txt": one.kept.jaxpr,
        "stablehlo.txt": one.kept.stablehlo,
        "given.hlo.txt": one.kept.passes[0][1] if one.kept.passes else "",
    }
    for ending, text in texts.items():
        write_text(folder / f"{stem}.{ending}", text, option="--out")
        yield f"{stem}.{ending}"


def stages_text(stages: Stages) -> str:
    """All of an op at every stage, nothing cut."""
    heads = {"jaxpr": stages.jaxpr, "StableHLO": stages.stablehlo, "optimised HLO": stages.hlo}
    lines = [f"{stages.op}  {stages.source}"]
    for head, texts in heads.items():
        lines += ["", head, *(f"  {text}" for text in texts)]
    lines += ["", "schedule (start and seconds of the first run; * is of this op)"]
    for turn in stages.schedule:
        mark = "*" if turn.own else " "
        lines.append(f"{mark} {turn.start:.9f} {turn.seconds:.9f} {turn.stream} {turn.name}")
    lines += ["", "passes"]
    for change in stages.changes:
        lines.append(f"  {change.number} {change.name}: {', '.join(change.kinds)}")
        lines += [f"    - {text}" for text in change.before]
        lines += [f"    + {text}" for text in change.after]
    return "\n".join([*lines, ""])


def _write_program(folder: Path, program: PlanProgram) -> Iterator[str]:
    stem, compiled = program.phase.replace(":", "."), program.compiled

    def path(ending: str) -> Path:
        return folder / f"{stem}.{ending}"

    write_text(path("hlo.txt"), compiled.hlo, option="--out")
    buffers = ((b.bytes, b.kind, b.shape, b.op, short_source(b.source)) for b in compiled.buffers)
    yield path("hlo.txt").name
    yield _write_csv(path("buffers.csv"), BUFFERS, buffers)
    if compiled.occupancy:
        yield _write_csv(path("memory.csv"), MEMORY, compiled.occupancy)
    if program.timeline is not None:
        yield _write_csv(path("ops.csv"), OPS, map(_op_row, program.timeline.rows))
        write_events(timeline_events(program), path("trace.json.gz"), "--out")
        yield path("trace.json.gz").name


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    write_table(path, columns, rows, option="--out")
    return path.name


def _op_row(row: OpRow) -> list[Any]:
    item, op = row.op, row.op.op
    source = short_source(str(item.sources[0])) if item.sources else ""
    sent = op.collective
    kind, axes, size = (sent.kind, "+".join(sent.axes), sent.bytes) if sent else ("", "", "")
    where = [
        op.id,
        " ".join(op.after),
        op.name,
        item.opcode,
        op.op_class,
        op.phase,
        item.scope,
        source,
        op.stream,
    ]
    times = [float(op.count), row.seconds, row.per_step, row.exposed, row.lower]
    limits = [row.bound_by, row.of_roofline, item.cycles]
    amounts = [row.flops, float(op.hbm_bytes), item.padding, row.intensity]
    return [*where, *times, *limits, *amounts, kind, axes, size]


# ---- the trace ---------------------------------------------------------------------------------


def timeline_events(program: PlanProgram) -> dict[str, object]:
    """The timeline of a program in the Trace Event Format: a track per stream, a counter of HBM.

    Times are microseconds from the start of the step. Raises BadRequest without a timeline.
    """
    line = program.timeline
    if line is None:
        raise BadRequest(f"'{program.phase}' has no timeline on '{program.compiled.slice}'")
    streams = sorted({span.stream for span in line.spans}, key=lambda s: (s != "compute", s))
    tracks = {stream: i + 1 for i, stream in enumerate(streams)}
    title = f"{program.phase}, a device of {program.compiled.slice} (compiled, expected times)"
    return {
        "traceEvents": [
            _named("process_name", 0, title),
            *(_named("thread_name", track, stream) for stream, track in tracks.items()),
            *_spans(line, tracks),
            *_memory(line, program.compiled.occupancy),
        ],
        "displayTimeUnit": "ms",
        "otherData": {"step_seconds": repr(line.expected), "slice": program.compiled.slice},
    }


def _named(what: str, track: int, name: str) -> dict[str, object]:
    return {"ph": "M", "ts": 0, "pid": 1, "tid": track, "name": what, "args": {"name": name}}


def _spans(line: HloTimeline, tracks: Mapping[str, int]) -> Iterator[dict[str, object]]:
    rows = {row.op.name: row for row in line.rows}
    for span in line.spans:
        # Whole nanoseconds at both ends: else rounding lets neighbours overlap.
        start, end = round(span.start * 1e9), round((span.start + span.seconds) * 1e9)
        yield {
            "ph": "X",
            "ts": start / 1e3,
            "dur": (end - start) / 1e3,
            "pid": 1,
            "tid": tracks[span.stream],
            "name": f"{span.name} x {span.times}" if span.times > 1 else span.name,
            "cat": span.stream,
            "args": _about(rows[span.name]) if span.name in rows else {},
        }


def _about(row: OpRow) -> dict[str, object]:
    item, op = row.op, row.op.op
    found: dict[str, Any] = {"bound by": row.bound_by, "of roofline": round(row.of_roofline, 3)}
    found |= {"runs per step": float(op.count), "FLOPs": row.flops, "HBM bytes": op.hbm_bytes}
    if op.collective:
        sent = op.collective
        words = f"{sent.kind} over {'+'.join(sent.axes)}: {float(sent.bytes):.0f} bytes"
        found |= {"sends": words}
    if item.op_name:
        found |= {"operation": item.op_name}
    if item.sources:
        found |= {"source": short_source(str(item.sources[0]))}
    return {key: float(v) if key == "HBM bytes" else v for key, v in found.items()}


def _memory(line: HloTimeline, occupancy: Sequence[tuple[str, int]]) -> Iterator[dict[str, object]]:
    """HBM in use; an instruction without a time of its own changes it when the one before runs."""
    starts: dict[str, float] = {}
    for span in line.spans:
        starts.setdefault(span.name, span.start)
    now = 0.0
    for name, size in occupancy:
        now = max(now, starts.get(name, now))
        yield {
            "ph": "C",
            "ts": round(now * 1e9) / 1e3,
            "pid": 1,
            "tid": 0,
            "name": "HBM in use",
            "args": {"bytes": size},
        }
