"""The choices of one replica's scheduler, checked."""

from dataclasses import dataclass
from typing import Literal

from shardwise.errors import BadRequest, unknown
from shardwise.scheduling.kept import KeptGroup, check_kept
from shardwise.scheduling.policies import POLICIES, Admission, Policy
from shardwise.scheduling.requests import ORDERS, Order, Time

Preemption = Literal["recompute", "swap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The choices of one replica's scheduler.

    At most `batch` sequences run at once, in `pages` pages of `page_size` tokens; `budget` is the
    tokens of a step ("chunked", "prefill") or of a chunk of one prompt ("interleaved").
    `admission` says when a request may start: "optimistic" when its prompt fits and `margin` of the
    pages stay free (running out later preempts), "reserve" when its longest answer fits, too,
    "forecast" when the peak of all running answers fits. A preempted sequence is recomputed, or
    swapped to the host while `swap_pages` has room. `host_pages` is the prefix cache's second tier.
    `age` belongs to order "aged", in the clock's units. More than `max_waiting` waiting requests
    are refused (0: no such bound), and with `refuse_late` those whose deadline passes first.
    `lookahead` is how many tokens beyond one a sequence may add in a step (speculation). `kept` are
    the groups of layers that need only the end of a sequence, beside those that need all of it.
    """

    pages: int
    page_size: int
    batch: int
    budget: int
    policy: Policy = "chunked"
    prefix_cache: bool = True
    host_pages: int = 0
    admission: Admission = "optimistic"
    margin: float = 0.01
    preemption: Preemption = "recompute"
    swap_pages: int = 0
    order: Order = "fcfs"
    age: Time = 0
    max_waiting: int = 0
    refuse_late: bool = False
    lookahead: int = 0
    kept: tuple[KeptGroup, ...] = ()

    def __post_init__(self) -> None:
        for name in ("pages", "page_size", "batch", "budget"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.policy not in POLICIES:
            raise unknown("policy", self.policy, POLICIES)
        if self.order not in ORDERS:
            raise unknown("order", self.order, ORDERS)
        if not 0 <= self.margin < 1:
            raise BadRequest(f"margin is {self.margin}; it is a share of the pages, from 0 to 1")
        if self.policy == "chunked" and self.budget <= self.batch * (1 + self.lookahead):
            raise BadRequest(
                f"the token budget of {self.budget} leaves nothing for prompts beside "
                f"{self.batch} decoding sequences; give at least "
                f"{self.batch * (1 + self.lookahead) + 1}, or a smaller batch"
            )
        if self.policy == "static" and self.prefix_cache:
            raise BadRequest("static batches use no prefix cache; set prefix_cache to false")
        if self.policy == "static" and self.admission != "reserve":
            raise BadRequest(
                f"static batches preempt nobody; set admission to reserve, not {self.admission}"
            )
        if self.preemption == "swap" and not self.swap_pages:
            raise BadRequest("preemption by swap needs room on the host; set swap_pages")
        if self.lookahead >= self.page_size:
            raise BadRequest(
                f"{self.lookahead} speculated tokens do not fit a page of {self.page_size}; use "
                "larger pages or fewer tokens"
            )
        if self.kept and self.policy == "static":
            raise BadRequest("static batches give up no pages; leave `kept` empty")
        for group in self.kept:
            check_kept(group, self.batch, self.budget, self.page_size)
