"""Which replica a request goes to. A router sees loads and, if it asks, prefix hits; no clock.

- `round_robin`: in turn.
- `shortest_queue`: the fewest outstanding requests, the lowest number among equals.
- `bounded_hash`: consistent hashing of the session (or of the prompt's first pages), so that what
  shares a prefix meets its cache; a replica takes at most `bound` times the mean load, the next on
  the ring takes the rest (Mirrokni et al., arXiv 1608.01350).
- `prefix_aware`: the replica that will be through with the prompt first: the tokens queued there
  plus those of the prompt that it has not cached. Hits count, and so does load.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import cycle
from math import ceil
from typing import Literal, Protocol

from shardwise.errors import BadRequest, unknown
from shardwise.scheduling.requests import Request

Routing = Literal["round_robin", "shortest_queue", "bounded_hash", "prefix_aware"]
ROUTINGS: tuple[Routing, ...] = ("round_robin", "shortest_queue", "bounded_hash", "prefix_aware")

_POINTS = 100
"""Points of each replica on the ring; the shares of replicas differ by about 1/sqrt of it."""


class RoutingTarget(Protocol):
    """What a router may look at in a replica."""

    @property
    def outstanding(self) -> int:
        """Requests there that have not finished."""
        ...

    @property
    def backlog(self) -> int:
        """Prompt tokens there that are not computed yet."""
        ...

    def hit_tokens(self, request: Request) -> int:
        """Tokens of the prompt that are cached there."""
        ...


Router = Callable[[Request, Sequence[RoutingTarget]], int]
"""The number of the replica that takes a request."""


def make_router(kind: Routing, replicas: int, bound: float = 1.25, affinity: int = 1) -> Router:
    """A router over so many replicas; `bound` and `affinity` belong to "bounded_hash"."""
    if kind == "round_robin":
        turn = cycle(range(replicas))
        return lambda request, targets: next(turn)
    if kind == "shortest_queue":
        return lambda request, targets: shortest_queue(targets)
    if kind == "bounded_hash":
        return BoundedHash(replicas, bound, affinity)
    if kind == "prefix_aware":
        return prefix_aware
    raise unknown("routing", kind, ROUTINGS)


def shortest_queue(targets: Sequence[RoutingTarget]) -> int:
    """The fewest outstanding requests."""
    loads = [t.outstanding for t in targets]
    return loads.index(min(loads))


def prefix_aware(request: Request, targets: Sequence[RoutingTarget]) -> int:
    """The least prompt tokens to compute until the request's first token; then the least load."""
    costs = [
        (t.backlog + request.prompt - t.hit_tokens(request), t.outstanding, i)
        for i, t in enumerate(targets)
    ]
    return min(costs)[2]


class BoundedHash:
    """A ring of hashed points; a request goes to the first replica after its own hash that holds
    less than ceil(bound * (outstanding + 1) / replicas) requests. Where it names no session, the
    keys of its first `affinity` pages are hashed, else its id."""

    def __init__(self, replicas: int, bound: float = 1.25, affinity: int = 1) -> None:
        if bound < 1:
            raise BadRequest(
                f"a bound of {bound} times the mean load leaves requests without a replica; give "
                "at least 1"
            )
        self.bound = bound
        self.affinity = affinity
        ring = sorted((_hash(f"{r}.{p}"), r) for r in range(replicas) for p in range(_POINTS))
        self._points = [point for point, _ in ring]
        self._owners = [owner for _, owner in ring]

    def __call__(self, request: Request, targets: Sequence[RoutingTarget]) -> int:
        loads = [t.outstanding for t in targets]
        most = ceil(self.bound * (sum(loads) + 1) / len(targets))
        key = request.session or str(request.keys[: self.affinity] or request.id)
        start = bisect_right(self._points, _hash(key))
        for step in range(len(self._owners)):
            owner = self._owners[(start + step) % len(self._owners)]
            if loads[owner] < most:
                return owner
        raise AssertionError("some replica is below the mean")


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
