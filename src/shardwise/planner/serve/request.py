"""ServeRequest: what is to be served, within which times, and what a search may choose from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Literal

import numpy as np

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.simulate.metrics import Objectives
from shardwise.planner.simulate.steady import ROOM, SHARE
from shardwise.plans.chip_changes import AS_LISTED, ChipChanges
from shardwise.plans.serve import ServeDtypes, ServeScheduling
from shardwise.plans.servers import JAX, ServingSoftware
from shardwise.roofline.engines import IDEAL_ENGINE, EngineConstants, load_engine
from shardwise.scheduling import Speculation
from shardwise.work import Quantity

Pools = Literal["one", "two", "any"]
POOLS: tuple[Pools, ...] = ("one", "two", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Prefill at a given share of the peak by 2 * params * tokens (the book's arithmetic)."""

    share: float
    params: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequest:
    """Requests of `input_length` prompt and `output_length` answer tokens, and how to serve them.

    The answer is the cheapest servers that hold the load: `rate` requests per second at random, of
    which `percentile` keep `goal`. Without a rate (0) it is as many as they can hold: one server,
    or, where `fill`, as many as `max_chips` have room for. A server lies on one of `pieces`, slices
    of one chip, smallest first, and stores and multiplies in one of `dtypes`; its steps have at
    most one of `chunks` tokens. Prompts and answers share its servers, or have `pools` of their
    own. `batch` is the most sequences of a server, where it is not 0. `pins` fix degrees of the
    mesh. The load is held with `spare` servers of each pool lost; all prompts begin with the same
    `prefix` tokens. With `prefill_pieces`, slices of another chip, prompts have servers there, on
    at most `prefill_chips`, and answers take at most `decode_chips` of `pieces`.

    `software` says what can be laid out, `engine` has its constants, and `constants` says how
    `pieces` were read ("vendor" or "book"), `chips` what a plan keeps of that beside. Servers take
    the first of `shares` of the memory, as their engine means it, with which some keep the goal;
    the engine is of `release` (empty: the newest known), and without `graphs` it captures none.
    With `speculation` each step checks guesses of it.
    """

    cfg: ModelConfig
    model: str
    pieces: tuple[Slice, ...]
    input_length: int
    output_length: int
    dtypes: tuple[ServeDtypes, ...] = (ServeDtypes(),)
    chunks: tuple[int, ...] = (8192,)
    pins: Mapping[str, int] = field(default_factory=dict)
    software: ServingSoftware = JAX
    engine: EngineConstants = IDEAL_ENGINE
    constants: str = "vendor"
    goal: Objectives = field(default_factory=Objectives)
    pools: Pools = "one"
    max_chips: float = inf
    fill: bool = False
    batch: int = 0
    utilisation: Utilisation | None = None
    rate: float = 0.0
    spare: int = 0
    prefix: int = 0
    percentile: float = SHARE
    chips: ChipChanges = AS_LISTED
    shares: tuple[float, ...] = (ServeScheduling().memory_share,)
    release: str = ""
    graphs: bool = True
    speculation: Speculation | None = None
    prefill_pieces: tuple[Slice, ...] = ()
    prefill_chips: float = inf
    decode_chips: float = inf

    @property
    def memory_share(self) -> float:
        """The share that is looked at."""
        return self.shares[0]

    @property
    def scheduling(self) -> ServeScheduling:
        """What a plan says of its engine's memory, and of guesses."""
        found = ServeScheduling(
            memory_share=self.memory_share, release=self.release, graphs=self.graphs
        )
        guess = self.speculation
        if guess is None:
            return found
        return replace(
            found,
            guesses=guess.tokens,
            acceptance=guess.acceptance,
            guess_cost=guess.cost,
            acceptances=guess.positions or None,
        )

    @property
    def within(self) -> Objectives:
        """The goal less what a server leaves of it, as runs differ (`simulate/steady.py`)."""
        goal = self.goal
        return Objectives(**{f.name: getattr(goal, f.name) * (1 - ROOM) for f in fields(goal)})

    def beyond(self, answering: Quantity, prefill: Quantity) -> Quantity:
        """Whether servers that answer and that prefill on so many chips are more than there are."""
        either = np.logical_or(answering > self.decode_chips, prefill > self.prefill_chips)
        return np.logical_or(either, answering + prefill > self.max_chips)

    def on(self, pieces: tuple[Slice, ...]) -> "ServeRequest":
        """The same on other slices, by what prices the software there."""
        engine = self.engine
        if self.software.is_priced_by(engine.name):
            engine = load_engine(self.software.engine_on(pieces[0].chip))
        return replace(self, pieces=pieces, engine=engine)
