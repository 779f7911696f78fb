"""A request as it arrives, and the sequence that the scheduler makes of it.

A `Request` never changes. A `Sequence` is its state in one scheduler: which pages hold its cache,
how much of it is computed, and the counters that account for every token. The tokens of a sequence
obey, at every end of a request,

    prefilled + hit + decoded = prompt + emitted - 1 + lost

where `lost` are cached tokens given up by a preemption (they are computed or hit again), and the
last token emitted is never put through the model.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shardwise.errors import BadRequest, unknown

Order = Literal["fcfs", "priority", "deadline", "aged"]
ORDERS: tuple[Order, ...] = ("fcfs", "priority", "deadline", "aged")

Time = float
"""A moment on the caller's clock: seconds, or whole ticks of a simulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: `prompt` tokens in, `output` tokens out, after which the model stops.

    The scheduler knows only `limit`, the most tokens it may emit (0: as many as `output`). `keys`
    names the content of the prompt page by page, one key for each full page from the front: equal
    keys at equal places mean equal tokens up to there. Smaller `priority` is more urgent.
    `deadline` is the moment by which the first token is wanted. `session` is what routing by
    affinity goes by, the first key where it is empty.
    """

    id: int
    arrival: Time
    prompt: int
    output: int
    limit: int = 0
    keys: tuple[Any, ...] = ()
    priority: int = 0
    deadline: Time = float("inf")
    session: str = ""

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            if getattr(self, name) < 1:
                raise BadRequest(
                    f"request {self.id} has {name} {getattr(self, name)}; it needs at least 1 token"
                )
        if self.limit and self.limit < self.output:
            raise BadRequest(
                f"request {self.id} emits {self.output} tokens, over its limit of {self.limit}"
            )

    @property
    def most(self) -> int:
        """The most tokens that it may emit."""
        return self.limit or self.output


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of a request in a scheduler. Only the scheduler writes it.

    `cached` is how many of its tokens are in the cache while it does not decode; `target` how many
    must be before it emits the next token. Where it decodes, its cached tokens are `base` plus the
    beats of its scheduler. `node` is the deepest node of the prefix tree that holds its first
    `borrowed` pages, `first_hit` the tokens found in the prefix cache when it first started.
    `keys` are the request's, to which an engine adds those of answered tokens (and writes nothing
    else here). `slot` is its row in the batch while it runs, else -1. Without running it may hold
    pages of the host (`swapped`) or, `forked`, those of the prompt it shares.
    `kept` has for each group of layers that keep only the end of a sequence its pages by their
    places in the table (`kept.py`).
    """

    request: Request
    order: tuple[Any, ...]
    keys: tuple[Any, ...] = field(init=False)
    slot: int = -1
    swapped: list[int] = field(default_factory=list)
    forked: bool = False
    forks: "list[Sequence]" = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    kept: list[dict[int, int]] = field(default_factory=list)
    swapped_kept: list[dict[int, int]] = field(default_factory=list)
    node: Any = None
    borrowed: int = 0
    cached: int = 0
    target: int = field(init=False)
    emitted: int = 0
    base: int = 0
    end: int = 0
    due: int = 0
    first_hit: int = 0
    hit: int = 0
    host_hit: int = 0
    prefilled: int = 0
    decoded: int = 0
    lost: int = 0
    preemptions: int = 0
    started: Time | None = None
    first_token: Time | None = None
    last_token: Time | None = None
    finished: Time | None = None
    refusal: str = ""

    def __post_init__(self) -> None:
        self.target = self.request.prompt
        self.keys = self.request.keys

    def moved(self, order: tuple[Any, ...]) -> "Sequence":
        """The same sequence for another scheduler, with all that is counted and nothing held."""
        other = replace(self, order=order, pages=[], node=None, borrowed=0, swapped=[], forks=[])
        other.kept, other.swapped_kept = [], []
        other.target, other.keys = self.target, self.keys
        return other


def order_key(request: Request, order: Order, age: Time) -> tuple[Any, ...]:
    """What requests are served by, smallest first; unique.

    "fcfs" by arrival; "priority" by class, then arrival, which may starve a class; "deadline" the
    earliest first; "aged" by arrival plus `age` for each step of priority, so that a request waits
    at most that long behind one of the next class that came after it, and none starves.
    """
    if order == "fcfs":
        return (request.arrival, request.id)
    if order == "priority":
        return (request.priority, request.arrival, request.id)
    if order == "deadline":
        return (request.deadline, request.arrival, request.id)
    if order == "aged":
        return (request.arrival + age * request.priority, request.id)
    raise unknown("order", order, ORDERS)
