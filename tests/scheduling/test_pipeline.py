"""Pipeline tables: complete, free of deadlock, within the memory that the papers give them."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from tests.drawn import on_drawn

from shardwise.errors import BadRequest
from shardwise.scheduling import Action, pipeline_schedule, ready_order
from shardwise.scheduling.pipeline import PIPELINE_KINDS, PLAIN, SCHEDULES


@st.composite
def schedules(draw):
    kind = draw(st.sampled_from(PIPELINE_KINDS))
    S, M = draw(st.integers(1, 9)), draw(st.integers(1, 20))
    v = {"interleaved": draw(st.integers(2, 5)), "zb_v": 2, "dualpipe": 2}.get(kind, 1)
    if kind == "dualpipe":
        S += S % 2
        M = 2 * S + 2 * (M // 2)
    elif kind == "zb_v":
        M += 2 * S - 2
    elif kind == "interleaved":
        M = S * (1 + M % 4)
    return pipeline_schedule(kind, S, M, v if S > 1 else 1)


@on_drawn(300, schedules())
def test_every_pass_of_every_stage_is_there_once(schedule):
    found = Counter(
        (action.kind, schedule.stage_of(rank, action.chunk), action.microbatch)
        for rank, actions in enumerate(schedule.ranks)
        for action in actions
    )
    kinds = "FBW" if schedule.splits_backward else "FB"
    wanted = {
        (kind, stage, microbatch)
        for kind in kinds
        for stage in range(schedule.global_stages)
        for microbatch in range(schedule.microbatches)
    }
    assert set(found) == wanted
    assert set(found.values()) == {1}


@on_drawn(300, schedules())
def test_ready_order_runs_everything_after_what_it_needs(schedule):
    at: dict[tuple[int, Action], int] = {}
    lists = [list(actions) for actions in schedule.ranks]
    for number, (rank, action) in enumerate(ready_order(schedule)):
        assert action == lists[rank].pop(0)
        stage, microbatch = schedule.stage_of(rank, action.chunk), action.microbatch
        for kind, source in _inputs(action.kind, stage, schedule.global_stages):
            where, chunk = schedule.place_of(source, microbatch)
            assert at[where, Action(kind, microbatch, chunk)] < number
        at[rank, action] = number
    assert not any(lists)


def _inputs(kind, stage, stages):
    """The dependences by stage, said independently of Schedule.needs."""
    if kind == "W":
        return [("B", stage)]
    if kind == "F":
        return [("F", stage - 1)] if stage else []
    return [("F", stage)] + [("B", s) for s in [stage + 1] if s < stages]


@on_drawn(200, schedules())
def test_a_stage_is_where_its_rank_says(schedule):
    for microbatch in {0, schedule.microbatches - 1}:
        for stage in range(schedule.global_stages):
            rank, chunk = schedule.place_of(stage, microbatch)
            assert schedule.stage_of(rank, chunk) == stage
            assert Action("F", microbatch, chunk) in schedule.ranks[rank]


@on_drawn(200, schedules())
def test_in_flight_stays_within_the_known_peaks(schedule):
    S, M, v = schedule.stages, schedule.microbatches, schedule.chunks
    peaks = [schedule.in_flight(rank) for rank in range(S)]
    if S == 1:
        assert peaks == [M if schedule.kind == "gpipe" else 1]
    elif schedule.kind == "gpipe":
        assert peaks == [M] * S
    elif schedule.kind == "1f1b":
        assert peaks == [min(S - rank, M) for rank in range(S)]
    elif schedule.kind == "zb_h1":
        assert peaks == [min(S, M)] * S
    elif schedule.kind == "interleaved":
        assert peaks == [min(2 * (S - 1 - r) + (v - 1) * S + 1, M * v) for r in range(S)]
    elif schedule.kind == "zb_v":
        assert peaks == [2 * S] * S
    elif schedule.kind == "dualpipe":
        assert peaks == [S + 1] * S
    else:
        pytest.fail(f"say here what the paper of '{schedule.kind}' has in flight")


def _text(actions):
    return " ".join(f"{a.kind}{a.microbatch}{'ab'[a.chunk]}" for a in actions)


def test_tables_read_as_in_the_papers():
    one = pipeline_schedule("1f1b", 2, 3)
    assert _text(one.ranks[0]) == "F0a F1a B0a F2a B1a B2a"
    assert _text(one.ranks[1]) == "F0a B0a F1a B1a F2a B2a"
    assert _text(pipeline_schedule("gpipe", 2, 2).ranks[0]) == "F0a F1a B0a B1a"
    # Megatron: rounds of S = 2 microbatches through chunk a, then chunk b.
    wave = pipeline_schedule("interleaved", 2, 4, 2)
    assert _text(wave.ranks[1])[:23] == "F0a F1a F0b B0b F1b B1b"
    assert _text(wave.ranks[0])[:19] == "F0a F1a F0b F1b F2a"
    # The last of three ranks holds two W back until its last B is out.
    h1 = pipeline_schedule("zb_h1", 3, 4)
    assert _text(h1.ranks[2]) == "F0a B0a F1a B1a F2a B2a W0a F3a B3a W1a W2a W3a"
    assert _text(h1.ranks[0]) == "F0a F1a F2a B0a W0a F3a B1a W1a B2a W2a B3a W3a"
    # The first rank of the V also has the last stage: B follows F at once.
    v = pipeline_schedule("zb_v", 2, 3, 2)
    assert _text(v.ranks[0]).startswith("F0a F1a F2a F0b B0b W0b F1b B1b W1b B0a")
    # Both ends feed: rank 0 starts microbatch 0, rank 3 microbatch 4.
    dual = pipeline_schedule("dualpipe", 4, 8, 2)
    assert _text(dual.ranks[0]).startswith("F0a F1a F2a F4b")
    assert _text(dual.ranks[3]).startswith("F4b F5b F6b F0a")


def test_dualpipe_is_its_own_mirror_image():
    schedule = pipeline_schedule("dualpipe", 6, 14, 2)
    half = schedule.microbatches // 2

    def mirrored(action):
        return Action(action.kind, (action.microbatch + half) % (2 * half), 1 - action.chunk)

    for rank in range(6):
        assert schedule.ranks[5 - rank] == tuple(map(mirrored, schedule.ranks[rank]))


def test_dualpipe_runs_most_forward_passes_next_to_a_backward_pass_of_the_other_way():
    schedule = pipeline_schedule("dualpipe", 4, 20, 2)
    for actions in schedule.ranks:
        pairs = sum(
            1
            for first, second in pairwise(actions)
            if (first.kind, second.kind) == ("F", "B") and first.chunk != second.chunk
        )
        assert pairs >= 20 - 2 * 4


def test_a_blocked_table_is_caught():
    good = pipeline_schedule("1f1b", 2, 2)
    bad = replace(good, ranks=(good.ranks[0][::-1], good.ranks[1]))
    with pytest.raises(AssertionError, match="blocks: nothing brings"):
        list(ready_order(bad))


def test_plans_and_tables_know_the_same_schedules():
    assert tuple(SCHEDULES) == PIPELINE_KINDS
    assert PLAIN in PIPELINE_KINDS
    for kind, row in SCHEDULES.items():
        for v in row.chunks:
            assert pipeline_schedule(kind, 4, 8, v).chunks == v


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("1f2b", 4, 8, 1), "unknown pipeline schedule '1f2b'; did you mean '1f1b'?"),
        (("1f1b", 0, 8, 1), "stages is 0; a pipeline has at least 1, so give 1 or more"),
        (("gpipe", 4, 0, 1), "microbatches is 0; a pipeline has at least 1"),
        (("1f1b", 4, 8, 2), "virtual_stages is 2; the schedule '1f1b' over 4 stage(s) takes 1"),
        (("interleaved", 4, 8, 1), "takes 2 or more; with 1 it is '1f1b'"),
        (("zb_v", 4, 8, 1), "virtual_stages is 1; the schedule 'zb_v' over 4 stage(s) takes 2"),
        (("dualpipe", 1, 8, 2), "takes 1 (one rank needs no chunks)"),
        (("interleaved", 4, 10, 2), "so use 12 or the schedule '1f1b'"),
        (("zb_v", 4, 6, 2), "so use 7 or more, or 'zb_h1'"),
        (("dualpipe", 5, 20, 2), "so use 6 or the schedule 'zb_v'"),
        (("dualpipe", 4, 6, 2), "so use 8"),
        (("dualpipe", 4, 11, 2), "so use 12"),
    ],
)
def test_counts_that_a_schedule_does_not_take(asked, message):
    with pytest.raises(BadRequest) as caught:
        pipeline_schedule(*asked)
    assert message in str(caught.value)
