"""The event timeline: hand-laid small pipelines, transfers, reductions, and what always holds."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import BadRequest
from shardwise.planner.price.pipeline import StageCosts, costs_of
from shardwise.planner.price.timeline import timeline
from shardwise.scheduling import pipeline_schedule
from shardwise.scheduling.pipeline import PIPELINE_KINDS


def laid(kind="1f1b", S=2, M=2, v=1, *, F=1.0, B=1.0, W=1.0, **more):
    schedule = pipeline_schedule(kind, S, M, v)
    return timeline(schedule, costs_of(schedule, forward=F, backward=B, weight=W, **more))


def spans(line, rank, stream="compute"):
    return [
        (e.kind, e.microbatch, e.start, e.end)
        for e in line.events
        if (e.rank, e.stream) == (rank, stream)
    ]


def test_two_stages_by_hand():
    line = laid()
    assert spans(line, 0) == [("F", 0, 0, 1), ("F", 1, 1, 2), ("B", 0, 4, 6), ("B", 1, 7, 9)]
    assert spans(line, 1) == [("F", 0, 1, 2), ("B", 0, 2, 4), ("F", 1, 4, 5), ("B", 1, 5, 7)]
    assert line.makespan == 9
    assert line.idle == (3, 3)
    assert line.bubble_share == pytest.approx(1 / 3)
    assert line.in_flight == (2, 1)


def test_a_transfer_delays_its_receiver_and_not_its_sender():
    line = laid(transfer=0.5)
    assert spans(line, 0)[:2] == [("F", 0, 0, 1), ("F", 1, 1, 2)]
    assert spans(line, 0, "send") == [("send F", 0, 1, 1.5), ("send F", 1, 2, 2.5)]
    assert spans(line, 1)[0] == ("F", 0, 1.5, 2.5)
    # 1F1B has no slack: the second microbatch pays a round trip too.
    assert line.makespan == 9 + 2 * 0.5
    assert laid("gpipe", transfer=0.5).makespan == 9 + 2 * 0.5


def test_sends_to_one_rank_queue_and_the_two_ways_do_not():
    line = laid("gpipe", S=2, M=3, transfer=4.0)
    assert [s for _, _, s, _ in spans(line, 0, "send")] == [1, 5, 9]
    assert line.makespan > 3 * 3 + 3 + 2 * 4


def test_chunks_on_one_rank_need_no_transfer():
    """The V turns on its last rank: stages S-1 and S lie side by side."""
    line = laid("zb_v", S=2, M=3, v=2, transfer=0.25)
    assert not [e for e in line.events if e.stream == "send" and e.to == e.rank]
    sent = [(e.rank, e.to) for e in line.events if e.kind == "send F"]
    assert sorted(set(sent)) == [(0, 1), (1, 0)]
    assert len(sent) == 3 * 2


def test_uneven_stages_wait_for_the_slowest():
    line = laid(S=3, M=20, F=[1.0, 3.0, 1.0], B=[1.0, 3.0, 1.0], W=[0.0, 0.0, 0.0])
    assert line.makespan == 20 * 6 + 4 - 2
    assert line.idle[1] == line.makespan - 20 * 6


def test_gradient_reduction_at_the_end_or_in_buckets():
    """The book's figure: the data-parallel reduction follows the pipeline's last backward pass."""
    late = laid("interleaved", S=2, M=2, v=2, F=2.0, B=2.0, W=2.0, reduction=4.0, optimizer=1.0)
    plain = laid("interleaved", S=2, M=2, v=2, F=2.0, B=2.0, W=2.0)
    assert late.makespan == plain.makespan + 4 + 1
    early = laid(
        "interleaved",
        S=2,
        M=2,
        v=2,
        F=2.0,
        B=2.0,
        W=2.0,
        reduction=4.0,
        buckets=True,
        optimizer=1.0,
    )
    # The last chunk's gradients are done while the first chunk still computes: half is hidden.
    assert early.makespan == plain.makespan + 2 + 1
    chunks = [(e.chunk, e.end - e.start) for e in early.events if e.kind == "reduce" and not e.rank]
    assert chunks == [(1, 2.0), (0, 2.0)]


def test_ranks_that_finish_early_reduce_early_unless_the_norm_is_global():
    costs = {"reduction": 3.0, "optimizer": 1.0}
    own = laid(S=4, M=4, **costs)
    updates = [e.start for e in own.events if e.kind == "optimizer"]
    assert updates == sorted(updates, reverse=True)
    assert len(set(updates)) == 4
    clipped = laid(S=4, M=4, global_norm=True, **costs)
    assert {e.start for e in clipped.events if e.kind == "optimizer"} == {max(updates)}
    assert clipped.makespan == own.makespan


def test_dualpipe_reduces_and_updates_both_copies():
    line = laid("dualpipe", S=2, M=4, v=2, reduction=3.0, optimizer=1.0)
    reductions = [e for e in line.events if e.kind == "reduce" and e.rank == 0]
    assert [e.seconds for e in reductions] == [3.0, 3.0]
    assert [e.seconds for e in line.events if e.kind == "optimizer"] == [2.0, 2.0]


@st.composite
def uneven(draw):
    kind = draw(st.sampled_from(PIPELINE_KINDS))
    S = draw(st.sampled_from([2, 4, 6]))
    v = {"interleaved": 3, "zb_v": 2, "dualpipe": 2}.get(kind, 1)
    schedule = pipeline_schedule(kind, S, S * draw(st.integers(2, 3)), v)
    seconds = st.floats(0.001, 5)

    def per_rank(count):
        return draw(st.lists(seconds, min_size=count, max_size=count))

    costs = costs_of(
        schedule,
        forward=per_rank(S),
        backward=per_rank(S),
        weight=per_rank(S),
        transfer=per_rank(schedule.global_stages - 1),
        reduction=per_rank(S),
        optimizer=per_rank(S),
        buckets=draw(st.booleans()),
        global_norm=draw(st.booleans()),
    )
    return timeline(schedule, costs), costs


@settings(max_examples=100)
@given(uneven())
def test_what_always_holds(case):
    line, costs = case
    schedule = line.schedule
    streams = {}
    for event in line.events:
        streams.setdefault((event.rank, event.stream, event.to), []).append(event)
    for events in streams.values():
        assert all(a.end <= b.start for a, b in pairwise(events))
    for rank, actions in enumerate(schedule.ranks):
        passes = [e for e in streams[rank, "compute", -1] if e.kind != "optimizer"]
        assert [(e.kind, e.microbatch, e.chunk) for e in passes] == [
            (a.kind, a.microbatch, a.chunk) for a in actions
        ]
        update = streams[rank, "compute", -1][-1]
        reductions = streams[rank, "network", -1]
        assert update.kind == "optimizer"
        assert update.start >= max(reductions[-1].end, passes[-1].end)
    ends = {(e.rank, e.kind, e.microbatch, e.chunk): e.end for e in line.events}
    for event in line.events:
        if event.kind in ("F", "B", "W"):
            action = next(
                a
                for a in schedule.ranks[event.rank]
                if (a.kind, a.microbatch, a.chunk) == (event.kind, event.microbatch, event.chunk)
            )
            for rank, need in schedule.needs(event.rank, action):
                kind = need.kind if rank == event.rank else f"send {need.kind}"
                assert event.start >= ends[rank, kind, need.microbatch, need.chunk]
    assert line.makespan == max(e.end for e in line.events)
    assert all(0 <= share < 1 for share in line.bubble)
    # The seconds of each kind are those asked for, whatever the order.
    weights = costs.weight if schedule.splits_backward else (0.0,) * schedule.global_stages
    spent = sum(e.seconds for e in line.events if e.kind == "W")
    assert spent == pytest.approx(sum(weights) * schedule.microbatches)


def test_bad_costs():
    schedule = pipeline_schedule("1f1b", 4, 8)
    with pytest.raises(BadRequest, match="forward has 3 entries; the pipeline has 4 places"):
        costs_of(schedule, forward=[1.0] * 3, backward=1.0, weight=1.0)
    with pytest.raises(BadRequest, match="transfer has 4 entries; the pipeline has 3 places"):
        costs_of(schedule, forward=1.0, backward=1.0, weight=1.0, transfer=[1.0] * 4)
    for wrong in (-1.0, float("nan"), float("inf")):
        costs = costs_of(schedule, forward=1.0, backward=wrong, weight=1.0)
        with pytest.raises(BadRequest, match=r"backward holds .*; seconds are finite"):
            timeline(schedule, costs)
    short = StageCosts(
        forward=(1.0,), backward=(1.0,), weight=(1.0,), transfer=(), reduction=(), optimizer=()
    )
    with pytest.raises(BadRequest, match="forward has 1 entries; the schedule has 4 stages"):
        timeline(schedule, short)
