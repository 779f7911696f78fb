"""What is told of plans that a search had compiled (--compile), without what reads programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.boundary.records import Record, part
from shardwise.models.remat import RematPolicy
from shardwise.roofline.finding import Finding


@dataclass(frozen=True, kw_only=True)
class PhaseFinding(Finding):
    """A mistake in the program of a phase."""

    phase: str
    """The phase."""


@dataclass(frozen=True, kw_only=True)
class TriedFlags(Record):
    """A set of compiler flags that was tried."""

    name: str
    """Its name."""
    about: str
    """What the flags do."""
    options: Mapping[str, str]
    """The flags with their values."""
    seconds: float | None
    """Seconds of the step with them; null where it was refused."""
    change: float
    """Change of the step, as a share; 0 where it does not fit."""
    refusal: str
    """Why it is no answer; "" where it is one."""


@dataclass(frozen=True, kw_only=True)
class TunedStep(Record):
    """A step with sets of compiler flags."""

    seconds: float
    """Seconds without them."""
    own: Mapping[str, str]
    """Flags that our trainer has on."""
    tried: Sequence[TriedFlags]
    """Each set."""
    best: str | None
    """The set with the shortest step; null where none pays."""
    libtpu_init_args: str
    """What to run any JAX program with."""


@dataclass(frozen=True, kw_only=True)
class BothWays(Record):
    """A figure as predicted and as compiled."""

    predicted: float | None
    """From the plan; null without a program."""
    compiled: float | None
    """By the compiler; null where it refused."""


@dataclass(frozen=True, kw_only=True)
class PlanAsCompiled(Record):
    """A plan as the compiler makes it."""

    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    microbatches: int
    """Microbatches of a step."""
    remat: RematPolicy
    """Remat policy: what the backward pass recomputes."""
    best: bool
    """Whether it is the best as compiled."""
    fits: bool
    """Whether it compiled and fits."""
    refusal: str
    """Why it is no answer; "" where it is one."""
    step_seconds: BothWays
    """Expected seconds of a step."""
    peak_bytes: BothWays
    """Bytes per device at the peak."""
    cached: bool
    """Whether the program was kept from an earlier compile."""


@dataclass(frozen=True, kw_only=True)
class CompiledPlans(Record):
    """The first plans of a search, compiled."""

    versions: Mapping[str, str]
    """Versions of the compiler and of what wrote the program."""
    options: Mapping[str, Any]
    """The compiler's options."""
    plans: Sequence[PlanAsCompiled]
    """Each plan, in the order of its price."""
    findings: Sequence[Finding]
    """Mistakes in the step of the best, the dearest first."""
    tuning: TunedStep | None = part()
    """The best with sets of flags (--tune)."""


@dataclass(frozen=True, kw_only=True)
class CompiledServer(Record):
    """Servers as the compiler makes their steps."""

    slice: str
    """The chips of a server."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    servers: str
    """The servers in words."""
    sequences: int
    """Sequences that a server holds at once at most."""
    prompt_tokens: int
    """Tokens of a prompt that the prefill step takes."""
    best: bool
    """Whether they are the cheapest as compiled."""
    fits: bool
    """Whether all programs compiled and fit."""
    refusal: str
    """Why it is no answer; "" where it is one."""
    decode_step_seconds: BothWays
    """Seconds of a decode step."""
    prefill_step_seconds: BothWays
    """Seconds of a prefill step."""
    peak_bytes: BothWays
    """Bytes per device at the peak."""
    requests_per_second: BothWays
    """Requests per second that the servers hold."""
    chips: int | None
    """Chips of all servers; null where they hold no load."""
    ttft_seconds: float | None
    """Seconds to the first token with the compiled steps."""
    tpot_seconds: float | None
    """Seconds per output token with the compiled steps."""
    usd_per_million_tokens: float | None
    """Dollars per million tokens with the compiled steps."""
    cached: bool
    """Whether all programs were kept from an earlier compile."""


@dataclass(frozen=True, kw_only=True)
class CompiledServers(Record):
    """The first servers of a search, compiled."""

    versions: Mapping[str, str]
    """Versions of the compiler and of what wrote the programs."""
    options: Mapping[str, Any]
    """The compiler's options."""
    plans: Sequence[CompiledServer]
    """Each plan, in the order of its price."""
    findings: Sequence[PhaseFinding]
    """Mistakes in the steps of the best, those of each phase the dearest first."""
