"""The report folder of a compile, written and read: what was found, in files that other tools open.

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
in its first round; the track "loops" shows how long all rounds take. What is read back is
`compile.json`, the ops and the trace.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.boundary import (
    finite,
    is_file,
    number,
    read_json,
    read_packed,
    read_table,
    to_json,
    write_table,
    write_text,
)
from shardwise.boundary.items import json_items
from shardwise.errors import BadRequest, ShardwiseError, check_known
from shardwise.hardware import parse_slice
from shardwise.planner.price.trace import write_events
from shardwise.plans import ServePlan, TrainPlan, save_plan
from shardwise.profiler.explain.graph import waits
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.stages import Stages, StageTexts, read_stages, stages_of
from shardwise.profiler.timeline import HloTimeline, OpRow
from shardwise.workflows.compile import PlanProgram, short_source

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


def write_report(
    folder: Path,
    programs: Sequence[PlanProgram],
    plan: TrainPlan | ServePlan | None,
    doc: Mapping[str, Any],
    followed: Sequence["Followed"] = (),
) -> list[str]:
    """Write the folder; gives the files' names. Raises BadRequest where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest(
            f"cannot write to '{folder}': {error.strerror}; give another --out"
        ) from None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A program, the texts of its stages, and one of its ops at each."""

    program: PlanProgram
    kept: StageTexts
    stages: Stages


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


def timeline_events(program: PlanProgram) -> dict[str, Any]:
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


def _named(what: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "ts": 0, "pid": 1, "tid": track, "name": what, "args": {"name": name}}


def _spans(line: HloTimeline, tracks: Mapping[str, int]) -> Iterator[dict[str, Any]]:
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


def _about(row: OpRow) -> dict[str, Any]:
    item, op = row.op, row.op.op
    found: dict[str, Any] = {"bound by": row.bound_by, "of roofline": round(row.of_roofline, 3)}
    found |= {"runs per step": float(op.count), "FLOPs": row.flops, "HBM bytes": op.hbm_bytes}
    if op.collective:
        sent = op.collective
        found["sends"] = f"{sent.kind} over {'+'.join(sent.axes)}: {float(sent.bytes):.0f} bytes"
    if item.op_name:
        found["operation"] = item.op_name
    if item.sources:
        found["source"] = short_source(str(item.sources[0]))
    return {key: float(v) if key == "HBM bytes" else v for key, v in found.items()}


def _memory(line: HloTimeline, occupancy: Sequence[tuple[str, int]]) -> Iterator[dict[str, Any]]:
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


# ---- reading -----------------------------------------------------------------------------------

WORDS = ("id", "op", "class", "phase", "scope", "source", "stream", "bound_by")
AMOUNTS = ("runs", "seconds", "seconds_per_step", "exposed_seconds", "flops", "hbm_bytes")
AMOUNTS += ("flops_per_byte", "of_roofline")
"""Columns of PHASE.ops.csv that are read."""
MOST_EVENTS = 300_000
"""Spans and counters of a timeline that are kept."""
REMEDY = "give a folder that `shardwise compile --out` wrote"


def read_report(folder: Path, phase: str | None, most: int) -> dict[str, Any]:
    """A program of a report: its spans, its `most` dearest ops in the order of the schedule with
    what they wait for, and HBM in use over the step. Seconds are per device.

    Raises BadRequest for what is no such folder, a phase that it lacks, or a program without times.
    """
    whole = _key(read_json(folder / "compile.json", "report", remedy=REMEDY), "result")
    programs = {_key(one, "phase"): one for one in _key(whole, "programs")}
    check_known("program of the report", phase or next(iter(programs), ""), programs)
    program = programs[phase or next(iter(programs))]
    stem = program["phase"].replace(":", ".")
    if not is_file(folder / f"{stem}.ops.csv"):
        raise BadRequest(f"report '{folder}' has no times of '{program['phase']}'; {REMEDY}")
    rows = read_table(folder / f"{stem}.ops.csv", "ops", needed=("after", *WORDS, *AMOUNTS)).rows
    ops = [_op(row) for row in rows]
    dear = {op["id"] for op in sorted(ops, key=lambda op: -op["spent_seconds"])[:most]}
    found = _nearest(waits([(row["id"], row["after"].split()) for row in rows], dear))
    named = {op["op"] for op in ops if op["id"] in dear}
    spans, memory = _timeline(folder / f"{stem}.trace.json.gz", named)
    return {
        **{name: program[name] for name in ("phase", "slice", "mesh", "fits", "usable_bytes")},
        **{name: program[name] for name in ("peak_bytes", "flops", "step_seconds", "collectives")},
        "phases": list(programs),
        "stages": _stages(program.get("stages"), folder),
        "device": _device(program["slice"]),
        "ops": _placed([op for op in ops if op["id"] in dear]),
        "waits": [{"source": a, "target": b} for b, sources in found.items() for a in sources],
        "left_seconds": sum(op["spent_seconds"] for op in ops if op["id"] not in dear),
        "spans": spans,
        "memory": memory,
    }


def _stages(found: Any, folder: Path) -> dict[str, Any] | None:
    """The op that was followed from JAX to the schedule, if one was."""
    try:
        return found and Stages.of(found).result()
    except (TypeError, KeyError):
        raise BadRequest(f"report '{folder}' has damaged stages of an op; {REMEDY}") from None


def _placed(ops: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """With a place in a drawing: one after the other, three rows for each stream."""
    streams = sorted({op["stream"] for op in ops}, key=lambda name: (name != "compute", name))
    rows = {name: 4 * i for i, name in enumerate(streams)}
    return [{**op, "place": {"x": i, "y": rows[op["stream"]] + i % 3}} for i, op in enumerate(ops)]


def _nearest(found: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Of what each op waits for the last ones: without those that one of the others waits for."""
    bit = {name: 1 << i for i, name in enumerate(found)}
    before: dict[str, int] = {}
    nearest = {}
    for name, sources in found.items():
        earlier = 0
        for source in sources:
            earlier |= before.get(source, 0)
        nearest[name] = [source for source in sources if not bit[source] & earlier]
        before[name] = earlier | sum(bit[source] for source in sources)
    return nearest


def _key(document: Any, name: str) -> Any:
    if not isinstance(document, dict) or name not in document:
        raise BadRequest(f"the report has no '{name}'; {REMEDY}")
    return document[name]


def _op(row: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {name: row[name] for name in WORDS}
    for name in AMOUNTS:
        found[name] = None if row[name] == "inf" else number(row[name], f"column {name} of ops")
    seconds = found["seconds"]
    found["attained_flops"] = found["flops"] / seconds if seconds else 0.0
    waited = found["stream"] != "compute"
    found["spent_seconds"] = found["exposed_seconds" if waited else "seconds_per_step"]
    return found


def _timeline(path: Path, names: set[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of a trace the runs of these ops and loops, and HBM in use, read event by event. Raises
    BadRequest for another document."""
    data = read_packed(path, "timeline", remedy=REMEDY)
    spans, memory = [], []
    for event in json_items(data, "traceEvents", path, "timeline", remedy=REMEDY):
        try:
            if event["ph"] == "X":
                span = _span(event)
                if span["op"] in names or span["stream"] == "loops":
                    spans.append(span)
            elif event["ph"] == "C":
                held = number(event["args"]["bytes"], "bytes of an event")
                memory.append({"seconds": _seconds(event, "ts"), "bytes": held})
        except (TypeError, KeyError, ShardwiseError):
            raise BadRequest(f"timeline '{path}' is no trace of a compile; {REMEDY}") from None
        if len(spans) + len(memory) > MOST_EVENTS:
            raise BadRequest(
                f"timeline '{path}' has more than {MOST_EVENTS:,} spans and counters that are "
                "drawn; ask for fewer ops (--top)"
            )
    return spans, memory


def _span(event: Mapping[str, Any]) -> dict[str, Any]:
    found = {"op": event["name"], "stream": event["cat"]}
    if not all(isinstance(name, str) for name in found.values()):
        raise TypeError
    return {**found, "start": _seconds(event, "ts"), "seconds": _seconds(event, "dur")}


def _seconds(event: Mapping[str, Any], key: str) -> float:
    return number(event[key], f"{key} of an event") / 1e6


def _device(slice_name: str) -> dict[str, Any]:
    """Peak rates of a device, unknown where the catalogue lacks its chip."""
    try:
        chip = parse_slice(slice_name).chip
    except ShardwiseError:
        return {"chip": None, "bf16_flops": None, "hbm_bandwidth": None}
    each = chip.jax_devices_per_chip
    rates = {"bf16_flops": chip.peak_flops.get("bf16"), "hbm_bandwidth": chip.hbm_bandwidth}
    return {"chip": chip.id, **{k: v / each if v else None for k, v in rates.items()}}
