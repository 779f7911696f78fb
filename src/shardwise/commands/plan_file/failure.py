"""An out-of-memory error held against the plan that ran into it: what array it was, what else is
there, and how much less a plan must need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.boundary import read_text
from shardwise.boundary.files import TABLE_BYTES
from shardwise.boundary.records import Record
from shardwise.commands.base.layout import Fact
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.out_of_memory import MemoryFailure, read_failure
from shardwise.planner.step_arrays import StepArray, arrays_near
from shardwise.units import sig

_GIB = 2.0**30
_NAMED = 3
"""Arrays of one size that are named, and rows of a table."""
_UNBROKEN = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_IN_PIECES = 0.05
"""The share of a device from which memory that lies idle in pieces is worth a word (ours)."""


@dataclass(frozen=True, kw_only=True)
class FailedBuffer(Record):
    """One of the largest buffers of a program."""

    bytes: float
    """Its size."""
    shape: str
    """Its shape, as the compiler writes it."""
    op: str
    """The op that makes it."""
    likely: Sequence[str]
    """Arrays of the plan of that size, the likeliest first."""


@dataclass(frozen=True, kw_only=True)
class FailedStep(Record):
    """An out-of-memory error by the plan; bytes are of one device, 0 where the error has none."""

    source: str
    """What failed: PyTorch, or XLA's compiler or allocator."""
    wanted_bytes: float
    """Bytes of the failed request; from a compiler, bytes beyond the capacity."""
    held_bytes: float
    """Bytes in use; from a compiler, bytes that the program needs."""
    capacity_bytes: float
    """Bytes of the device."""
    idle_bytes: float
    """Bytes in use that were free in the allocator's cache."""
    likely: Sequence[str]
    """Arrays of the plan with the requested size, the likeliest first."""
    buffers: Sequence[FailedBuffer]
    """The largest buffers that the error lists."""
    beside: Mapping[str, float]
    """By the prediction, bytes of a device by kind at that point of the step."""
    beside_at: str
    """The point of the step."""
    unexplained_bytes: float
    """Bytes needed beyond the predicted peak; negative if the prediction is larger."""


def failure_in(file: str | Path) -> MemoryFailure:
    """The error in a file, or on standard input (-)."""
    path = Path("/dev/stdin") if Path(file) == Path("-") else Path(file)
    return read_failure(read_text(path, "the error", most=TABLE_BYTES))


def failed_step(failure: MemoryFailure, answer: TrainAnswer) -> FailedStep:
    """What failed, by the arrays of the plan."""
    near = [] if failure.compiled or not failure.wanted else arrays_near(answer, failure.wanted)
    point, kinds = _moment(near, answer)
    return FailedStep(
        source=failure.source,
        wanted_bytes=failure.wanted,
        held_bytes=failure.held,
        capacity_bytes=failure.capacity,
        idle_bytes=failure.idle,
        likely=[one.name for one in near[:_NAMED]],
        buffers=[
            FailedBuffer(
                bytes=row.size,
                shape=row.shape,
                op=row.op,
                likely=[one.name for one in arrays_near(answer, row.size)[:_NAMED]],
            )
            for row in failure.buffers
        ],
        beside={kind: float(size) for kind, size in kinds.items()},
        beside_at=point,
        unexplained_bytes=_needed(failure) - float(answer.memory.peak()),
    )


def _moment(near: Sequence[StepArray], answer: TrainAnswer) -> tuple[str, Mapping]:
    """The point of the step at which an array is there, with what the memory holds then."""
    points = dict(answer.memory.points)
    name = "loss" if near and near[0].of_loss else answer.memory.peak_point()[0]
    return name, points[name]


def _needed(failure: MemoryFailure) -> float:
    """What was needed at least, without what lay idle."""
    if failure.compiled:
        return failure.held
    return failure.held - failure.idle + failure.wanted


def room_after(failure: MemoryFailure, answer: TrainAnswer, room: float) -> float:
    """What a plan may need, by the prediction, not to fail as well: less than this one by what was
    lacking, and less than the device has where predictions were as short as here."""
    peak, devices = float(answer.memory.peak()), answer.piece.chip.jax_devices_per_chip
    short = max(_needed(failure) / peak, 1.0) if failure.capacity else 1.0
    fitting = failure.capacity / short if failure.capacity else room / devices
    return min(room, devices * min(fitting, peak - failure.short))


def failure_facts(failed: FailedStep) -> list[Fact]:
    """The error in a few lines of the page."""
    compiled, wanted = failed.source == "XLA's compiler", failed.wanted_bytes / _GIB
    of = f" of {sig(failed.capacity_bytes / _GIB)} GiB" if failed.capacity_bytes else ""
    held = f"{sig(failed.held_bytes / _GIB)}{of}"
    if compiled:
        said = f"the program needs {held}: {sig(wanted)} GiB too much"
    else:
        beside = f" beside {held} in use" if failed.held_bytes else ""
        said = f"{failed.source} asked for {sig(wanted)} GiB{beside}"
    facts = [Fact("ran out", said, "bad")]
    if failed.likely:
        facts.append(Fact("that is", "; or ".join(failed.likely)))
    elif failed.wanted_bytes and not compiled:
        facts.append(Fact("that is", "no array of the plan has that size"))
    for row in failed.buffers[:_NAMED]:
        is_ = "; or ".join(row.likely[:1]) or row.op or "no array of the plan"
        facts.append(Fact("holds", f"{sig(row.bytes / _GIB)} GiB {row.shape}: {is_}"))
    kinds = sorted(failed.beside.items(), key=lambda item: -item[1])
    held = ", ".join(f"{kind} {sig(size / _GIB)}" for kind, size in kinds if size > 0.01 * _GIB)
    facts.append(Fact("predicted", f"{held} GiB at the {failed.beside_at}"))
    return [*facts, *_remainders(failed)]


def _remainders(failed: FailedStep) -> list[Fact]:
    """What no array explains: pieces of a cache, and what the prediction lacks."""
    facts = []
    if failed.idle_bytes > _IN_PIECES * failed.capacity_bytes:
        said = f"{sig(failed.idle_bytes / _GIB)} GiB lie unused in fragments: first try {_UNBROKEN}"
        facts.append(Fact("cache", said))
    more = failed.unexplained_bytes
    if failed.capacity_bytes and more > _IN_PIECES * failed.capacity_bytes:
        said = f"{sig(more / _GIB)} GiB more were needed than the plan predicts"
        facts.append(
            Fact("else", f"{said}: other processes, or parts of the file that were not read")
        )
    return facts
