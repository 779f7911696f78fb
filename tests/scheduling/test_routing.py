"""Routers: each does what it says, and bounded hashing keeps its bound."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadRequest
from shardwise.scheduling import Request, make_router
from shardwise.scheduling.routing import BoundedHash


@dataclass
class Replica:
    outstanding: int = 0
    backlog: int = 0
    hit: int = 0

    def hit_tokens(self, request):
        return self.hit


def request(number=0, **more):
    return Request(id=number, arrival=0, prompt=1000, output=1, **more)


def test_round_robin_takes_turns():
    router = make_router("round_robin", 3)
    assert [router(request(), [Replica(9), Replica(), Replica()]) for _ in range(5)] == [
        0, 1, 2, 0, 1,
    ]  # fmt: skip


def test_the_shortest_queue_counts_requests():
    router = make_router("shortest_queue", 3)
    assert router(request(), [Replica(2), Replica(1, backlog=10**6), Replica(1)]) == 1


def test_prefix_aware_weighs_hits_against_the_queue():
    router = make_router("prefix_aware", 2)
    assert router(request(), [Replica(hit=900), Replica()]) == 0
    assert router(request(), [Replica(hit=900, backlog=800), Replica()]) == 0
    assert router(request(), [Replica(hit=900, backlog=1000), Replica()]) == 1
    assert router(request(), [Replica(1), Replica()]) == 1


def test_a_session_stays_where_it_is_and_few_move_when_a_replica_comes():
    requests = [request(i, session=f"user {i}") for i in range(2000)]
    four, five = make_router("bounded_hash", 4, 100), make_router("bounded_hash", 5, 100)
    before = [four(r, [Replica()] * 4) for r in requests]
    assert before == [four(r, [Replica()] * 4) for r in requests]
    shares = Counter(before)
    assert min(shares.values()) > 350
    after = [five(r, [Replica()] * 5) for r in requests]
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new for _, new in moved} == {4}
    assert len(moved) < 0.3 * len(requests)


def test_the_same_first_pages_meet():
    router = make_router("bounded_hash", 8, affinity=2)
    where = {router(request(i, keys=(1, 2, i)), [Replica()] * 8) for i in range(50)}
    assert len(where) == 1
    spread = {router(request(i, keys=(1, i, 3)), [Replica()] * 8) for i in range(50)}
    assert len(spread) > 4


@given(
    st.lists(st.sampled_from(["popular", "a", "b", "c"]), max_size=80),
    st.integers(1, 6),
    st.sampled_from([1.0, 1.25, 2.0]),
)
def test_no_replica_exceeds_the_bound(sessions, replicas, bound):
    router, loads = BoundedHash(replicas, bound), [Replica() for _ in range(replicas)]
    for number, session in enumerate(sessions):
        chosen = router(request(number, session=session), loads)
        loads[chosen].outstanding += 1
        assert loads[chosen].outstanding <= bound * (number + 1) / replicas + 1


def test_bad_routers_are_refused():
    with pytest.raises(BadRequest, match="unknown routing 'round_robbin'; did you mean"):
        make_router("round_robbin", 2)
    with pytest.raises(BadRequest, match=r"a bound of 0\.5 times the mean load"):
        make_router("bounded_hash", 2, 0.5)
