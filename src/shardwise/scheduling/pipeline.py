"""Pipeline schedules as pure tables: per rank, the order of its passes. No time, no arrays.

A model is cut into global stages; a *rank* of the pipeline holds one or two or more of them, its
*chunks*. A pass is forward (F), backward (B) or weight gradient (W) of one microbatch through one
chunk. Schedules that do not split the backward pass have no W: their B is the whole of it. In the
others B computes only the gradient of the chunk's input, which the rank before waits for, and W
the gradient of its weights, which nobody waits for.

Kinds, and where the chunks lie (S ranks):

- `gpipe`: every forward, then every backward pass (Huang et al., arXiv 1811.06965).
- `1f1b`: a rank starts with as many forward passes as ranks follow it, then alternates
  (PipeDream-flush; Narayanan et al., arXiv 2104.04473, sec. 2.2.1).
- `interleaved`: the same with v chunks per rank, stage r + c*S for chunk c (sec. 2.2.2 there);
  microbatches go through a chunk in rounds of S.
- `zb_h1`: 1F1B with split backward; rank r holds r weight gradients back, so that every rank has
  the same number of microbatches in flight (Qi et al., arXiv 2401.10241, sec. 2.1).
- `zb_v`: two chunks folded into a V, stages r and 2S-1-r, so that the last stage is on the rank of
  the first (Qi et al., arXiv 2405.15362).
- `dualpipe`: each stage exists twice, and microbatches enter from both ends (DeepSeek-V3,
  arXiv 2412.19437, sec. 3.2.1). Chunk 0 is stage r and takes microbatches 0 to M/2-1 from rank 0
  upwards; chunk 1 is stage S-1-r and takes the others from rank S-1 downwards. Where the paper runs
  a whole backward pass, the table has B and, right after it, its W. The paper runs an F and the B
  next to it as one interleaved pass, to hide their all-to-alls: in the table they are neighbours.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple, get_args

from shardwise.errors import BadRequest, unknown

PassKind = Literal["F", "B", "W"]
PipelineKind = Literal["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe"]
PIPELINE_KINDS: tuple[PipelineKind, ...] = get_args(PipelineKind)
SPLIT_KINDS: frozenset[PipelineKind] = frozenset({"zb_h1", "zb_v", "dualpipe"})
"""Schedules whose backward pass is split in B and W."""


class Action(NamedTuple):
    """One pass of one rank: of `microbatch`, through the rank's chunk number `chunk`.

    A tuple, as a table has tens of thousands of them, and they are keys.
    """

    kind: PassKind
    microbatch: int
    chunk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The order of passes of every rank: `ranks[r]`, complete and free of deadlock.

    `stages` is the number of ranks. A rank may start an action when the one before it in its own
    list is over and so are those of `needs`.
    """

    kind: PipelineKind
    stages: int
    microbatches: int
    chunks: int
    ranks: tuple[tuple[Action, ...], ...]

    @property
    def splits_backward(self) -> bool:
        """Whether B is the input gradient alone, with W beside it."""
        return self.kind in SPLIT_KINDS

    @property
    def global_stages(self) -> int:
        """Parts that the layers are cut into; dualpipe holds each of them twice."""
        return self.stages if self.kind == "dualpipe" else self.stages * self.chunks

    def stage_of(self, rank: int, chunk: int) -> int:
        """The global stage that lies in a rank's chunk."""
        if self.kind == "dualpipe":
            return rank if chunk == 0 else self.stages - 1 - rank
        if self.kind == "zb_v" and chunk == 1:
            return 2 * self.stages - 1 - rank
        return rank + chunk * self.stages

    def place_of(self, stage: int, microbatch: int) -> tuple[int, int]:
        """(rank, chunk) where a microbatch meets a global stage."""
        if self.kind == "dualpipe":
            chunk = int(self.chunks == 2 and microbatch >= self.microbatches // 2)
            return (self.stages - 1 - stage if chunk else stage), chunk
        chunk, rank = divmod(stage, self.stages)
        return (self.stages - 1 - rank if self.kind == "zb_v" and chunk else rank), chunk

    def bounds(self, layers_per_stage: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """The first layer and the one after the last of every global stage: layers in order, the
        `layers_per_stage[r]` of a rank dealt to its chunks as evenly as they go."""
        found, at = [], 0
        pieces = self.global_stages // self.stages
        for stage in range(self.global_stages):
            rank, chunk = self.place_of(stage, 0)
            here, more = divmod(layers_per_stage[rank], pieces)
            found.append((at, at + here + (chunk < more)))
            at = found[-1][1]
        return tuple(found)

    def needs(self, rank: int, action: Action) -> tuple[tuple[int, Action], ...]:
        """(rank, action) pairs that must be over first: whose result the action reads.

        F of a stage reads F of the stage before; B reads B of the stage after, and the activations
        that its own F kept; W reads what its own B left.
        """
        stage, microbatch = self.stage_of(rank, action.chunk), action.microbatch
        if action.kind == "W":
            return ((rank, Action("B", microbatch, action.chunk)),)
        found = []
        if action.kind == "B":
            found.append((rank, Action("F", microbatch, action.chunk)))
        source = stage - 1 if action.kind == "F" else stage + 1
        if 0 <= source < self.global_stages:
            where, chunk = self.place_of(source, microbatch)
            found.append((where, Action(action.kind, microbatch, chunk)))
        return tuple(found)

    def in_flight(self, rank: int) -> int:
        """The most chunk-microbatches whose activations a rank holds at once.

        They live from F to the end of the backward pass: W where it is split, else B.
        """
        last = "W" if self.splits_backward else "B"
        alive = peak = 0
        for action in self.ranks[rank]:
            alive += (action.kind == "F") - (action.kind == last)
            # The last pass still reads them: they leave after it, before the next F.
            peak = max(peak, alive)
        return peak


def pipeline_schedule(
    kind: str, stages: int, microbatches: int, virtual_stages: int = 1
) -> Schedule:
    """The table of a schedule over `stages` ranks; see the module for the kinds.

    `virtual_stages` is the chunks per rank: v of interleaved (2 or more), 2 of zb_v and dualpipe,
    1 of the others, and 1 of every kind on one rank. Raises BadRequest for counts that the
    schedule does not take.
    """
    checked = check_counts(kind, stages, microbatches, virtual_stages)
    ranks = tuple(
        tuple(_passes(checked, rank, stages, microbatches, virtual_stages))
        for rank in range(stages)
    )
    return Schedule(
        kind=checked,
        stages=stages,
        microbatches=microbatches,
        chunks=virtual_stages,
        ranks=ranks,
    )


def check_counts(kind: str, stages: int, microbatches: int, virtual_stages: int) -> PipelineKind:
    """The kind, if it takes these counts; raises BadRequest otherwise."""
    if kind not in PIPELINE_KINDS:
        raise unknown("pipeline schedule", kind, PIPELINE_KINDS)
    found = PIPELINE_KINDS[PIPELINE_KINDS.index(kind)]
    for name, count in (("stages", stages), ("microbatches", microbatches)):
        if count < 1:
            raise BadRequest(f"{name} is {count}; a pipeline has at least 1, so give 1 or more")
    _check_chunks(found, stages, virtual_stages)
    if stages == 1:
        return found
    if found == "interleaved" and microbatches % stages:
        raise BadRequest(
            f"microbatches {microbatches} are no multiple of {stages} stages; the schedule "
            f"'interleaved' runs them in rounds of one per stage, so use "
            f"{-(-microbatches // stages) * stages} or the schedule '1f1b'"
        )
    if found == "zb_v" and microbatches < 2 * stages - 1:
        raise BadRequest(
            f"microbatches is {microbatches}; the schedule 'zb_v' fills both arms of its V with "
            f"2 x {stages} - 1 microbatches, so use {2 * stages - 1} or more, or 'zb_h1'"
        )
    if found == "dualpipe":
        if stages % 2:
            raise BadRequest(
                f"stages is {stages}; the schedule 'dualpipe' pairs the ranks from both ends, so "
                f"use {stages + 1} or the schedule 'zb_v'"
            )
        if microbatches % 2 or microbatches < 2 * stages:
            nearest = max(2 * stages, microbatches + microbatches % 2)
            raise BadRequest(
                f"microbatches is {microbatches}; the schedule 'dualpipe' sends half of them each "
                f"way and takes an even number from 2 x {stages} stages on, so use {nearest}"
            )
    return found


def _check_chunks(kind: PipelineKind, stages: int, virtual_stages: int) -> None:
    if stages == 1:
        takes, legal = "1 (one rank needs no chunks)", virtual_stages == 1
    elif kind == "interleaved":
        takes, legal = "2 or more; with 1 it is '1f1b'", virtual_stages >= 2
    else:
        count = 2 if kind in ("zb_v", "dualpipe") else 1
        takes, legal = f"{count}", virtual_stages == count
    if not legal:
        raise BadRequest(
            f"virtual_stages is {virtual_stages}; the schedule '{kind}' over {stages} stage(s) "
            f"takes {takes}"
        )


def ready_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """All actions of all ranks, each after what it needs and after its predecessor on its rank.

    Raises AssertionError where the table blocks: no schedule of this module does.
    """
    at = [0] * schedule.stages
    over: set[tuple[int, Action]] = set()
    waiting: dict[tuple[int, Action], list[int]] = {}
    awake = deque(range(schedule.stages))
    while awake:
        rank = awake.popleft()
        while at[rank] < len(schedule.ranks[rank]):
            action = schedule.ranks[rank][at[rank]]
            missing = next((n for n in schedule.needs(rank, action) if n not in over), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            yield rank, action
            at[rank] += 1
            over.add((rank, action))
            awake.extend(waiting.pop((rank, action), ()))
    assert not waiting, f"'{schedule.kind}' blocks: nothing brings {next(iter(waiting))}"


def _passes(
    kind: PipelineKind, rank: int, stages: int, microbatches: int, chunks: int
) -> Iterable[Action]:
    """The ordered passes of one rank."""
    if kind == "interleaved" and stages > 1:
        return _interleaved(rank, stages, microbatches, chunks)
    phases = _PHASES[kind if stages > 1 or kind == "gpipe" else _ALONE[kind]]
    halves = kind == "dualpipe" and stages > 1
    return _numbered(phases(rank, stages, microbatches), microbatches, halves)


_ALONE: dict[PipelineKind, PipelineKind] = {
    "1f1b": "1f1b",
    "interleaved": "1f1b",
    "zb_h1": "zb_h1",
    "zb_v": "zb_h1",
    "dualpipe": "zb_h1",
}
"""On one rank every kind is a plain loop over microbatches, with or without W."""

_PASSES: dict[str, PassKind] = {"F": "F", "B": "B", "W": "W"}

Phase = tuple[str, int]
"""Passes such as "F0 B1 W1" (kind and chunk) and how often they repeat."""


def _numbered(phases: Iterable[Phase], microbatches: int, halves: bool) -> Iterator[Action]:
    """Actions of phases: each kind of pass of a chunk takes the microbatches in order.

    A bare "W" is of the oldest B that has none yet. With `halves` chunk 1 takes the second half of
    the microbatches.
    """
    first = (0, microbatches // 2) if halves else (0, 0)
    counts: dict[str, int] = {}
    owed: deque[str] = deque()
    for name in chain.from_iterable(passes.split() * times for passes, times in phases):
        if name[0] == "B":
            owed.append(name[1])
        if name == "W":
            name += owed[0]
        if name[0] == "W":
            owed.remove(name[1])
        number = counts[name] = counts.get(name, -1) + 1
        chunk = int(name[1])
        yield Action(_PASSES[name[0]], first[chunk] + number, chunk)


def _gpipe(rank: int, stages: int, microbatches: int) -> list[Phase]:
    return [("F0", microbatches), ("B0", microbatches)]


def _one_forward_one_backward(rank: int, stages: int, microbatches: int) -> list[Phase]:
    """As many forward passes first as ranks follow: then their first gradient comes back."""
    ahead = min(stages - 1 - rank, microbatches)
    return [("F0", ahead), ("F0 B0", microbatches - ahead), ("B0", ahead)]


def _zb_h1(rank: int, stages: int, microbatches: int) -> list[Phase]:
    """1F1B with `rank` weight gradients held back; they fill the wait at the end.

    Rank r has S-1-r forward passes ahead and r weight gradients behind: S in flight on each.
    """
    ahead = min(stages - 1 - rank, microbatches)
    steady = microbatches - ahead
    held = min(rank, steady)
    held_late = min(rank - held, ahead)
    return [
        ("F0", ahead),
        ("F0 B0", held),
        ("F0 B0 W0", steady - held),
        ("B0", held_late),
        ("B0 W0", ahead - held_late),
        ("W0", held + held_late),
    ]


def _zb_v(rank: int, stages: int, microbatches: int) -> list[Phase]:
    """Down the V and up again; the phases of the paper's figure for F = B = W.

    Rank 0 runs 2S-1 forward passes until its first microbatch comes back up: 2S chunk-microbatches
    are in flight, as much as 1F1B's S whole ones. Ranks further in have their two chunks closer
    together: they alternate them earlier, and hold the last weight gradients back.
    """
    inward = stages - rank
    return [
        ("F0", 2 * inward - 1),
        ("F1 F0", rank),
        ("F1 B1 W1", inward),
        ("F0 B0 W0 F1 B1 W1", microbatches - 2 * stages + 1 + rank),
        ("B0 W0 F1 B1 W1", inward - 1),
        ("B0 B1", rank),
        ("B0 W0", inward),
        ("W1", rank),
        ("W0", rank),
    ]


def _dualpipe(rank: int, stages: int, microbatches: int) -> list[Phase]:
    """The eight steps of the bidirectional schedule, seen from the nearer end of the pipeline.

    `near` is the chunk whose microbatches enter at that end, `far` the other; `depth` counts ranks
    from it. While both directions flow, each forward pass stands next to a backward pass of the
    other direction.
    """
    second = rank >= stages // 2
    near, far = (1, 0) if second else (0, 1)
    depth = stages - 1 - rank if second else rank
    inward = stages // 2 - depth - 1
    both = depth + 1
    # Of the last 2 x both backward passes the first half runs whole, the others owe their W.
    end = [f"B{far}", f"B{near}"] * both
    whole = [f"{name} W" for name in end[:both]]
    return [
        (f"F{near}", 2 * inward),
        (f"F{near} F{far}", both),
        (f"B{far} W F{far}", inward),
        (f"F{near} B{far} W F{far} B{near} W", microbatches // 2 - stages + both),
        (f"B{far} W F{far} B{near} W", inward),
        (" ".join([*whole, *end[both:]]), 1),
        (f"W B{near}", inward),
        ("W", both),
    ]


_PHASES: dict[PipelineKind, Callable[[int, int, int], list[Phase]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "zb_h1": _zb_h1,
    "zb_v": _zb_v,
    "dualpipe": _dualpipe,
}


def _interleaved(rank: int, stages: int, microbatches: int, chunks: int) -> Iterator[Action]:
    """1F1B over chunk-microbatches: S microbatches through chunk 0, then chunk 1, and so on.

    A rank is ahead by all rounds of its chunks but the last, and by two passes for each rank that
    follows: so many passes later its first gradient is back.
    """
    total = microbatches * chunks
    order = []
    for number in range(total):
        group, place = divmod(number, stages * chunks)
        chunk, microbatch = divmod(place, stages)
        order.append((group * stages + microbatch, chunk))
    forward = [Action("F", m, c) for m, c in order]
    backward = [Action("B", m, chunks - 1 - c) for m, c in order]
    ahead = min(2 * (stages - 1 - rank) + (chunks - 1) * stages, total)
    yield from forward[:ahead]
    for f, b in zip(forward[ahead:], backward, strict=False):
        yield f
        yield b
    yield from backward[total - ahead :]
