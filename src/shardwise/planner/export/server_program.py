"""What an inference server is to the exporters: how one is started, and what its flags mean.

`vllm.py`, `sglang.py` and `trtllm.py` have a `ServerProgram` each. A plan is one `ServerPool` of
servers that are alike, or two: one that prefills and one that decodes. `serving.py` writes a pool's
command as a shell script, `deploy/` as what a cluster starts.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwise.errors import BadRequest, unknown
from shardwise.hardware import Slice, parse_slice
from shardwise.models import ModelConfig
from shardwise.planner.export.flags import Flags
from shardwise.planner.export.notes import Fields
from shardwise.plans import ServePlan
from shardwise.plans.software import Obstacle

ALONE, PREFILL, DECODE = "serve", "prefill", "decode"
"""The roles of a server: all of a request, its prompt, or its answer."""

PLAN_FILE = "plan.yaml"
"""What pods call the plan of a server that reads it itself."""

FlagValues = Mapping[str, object]
"""Values by flag in the order in which they are written, "" for a switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPool:
    """Servers that are alike: their role, how many they are, and the plan and chips of one."""

    role: str
    servers: int
    plan: ServePlan
    piece: Slice

    @property
    def hosts(self) -> int:
        """Over how many hosts one of the servers spans. A TPU slice of several hosts has four
        chips on each, whatever a single host can have (docs.cloud.google.com/tpu)."""
        chips = self.plan.devices // self.piece.chip.jax_devices_per_chip
        if self.piece.chip.vendor == "google" and chips > self.piece.chip.chips_per_host:
            return -(-chips // 4)
        return -(-chips // self.piece.chip.chips_per_host)

    @property
    def chips_per_host(self) -> int:
        """Chips of each of those hosts."""
        devices = self.plan.devices // self.hosts
        return max(1, devices // self.piece.chip.jax_devices_per_chip)


def pools_of(plan: ServePlan, piece: Slice) -> tuple[ServerPool, ...]:
    """The pool of a plan, or its two, prompts first."""
    if not plan.prefill_replicas:
        return (ServerPool(role=ALONE, servers=plan.replicas, plan=plan, piece=piece),)
    first = plan.prefill_plan
    chips = piece if plan.prefill is None else parse_slice(first.slice)
    return (
        ServerPool(role=PREFILL, servers=plan.prefill_replicas, plan=first, piece=chips),
        ServerPool(
            role=DECODE, servers=plan.replicas, plan=replace(plan, prefill=None), piece=piece
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWords:
    """How a host of a server of several says where the first is, and which it is itself."""

    leader: str
    rank: str
    others: str
    """What only the hosts beside the first say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """What pods bring a server that reads the plan itself, beside that file: its checkpoint on a
    volume, the API key that it finds in a variable `key`, a folder `cache` for compiled programs
    below which it keeps them by a variable `cache_key`, `drain_seconds` for answers that run when
    it is told to end, and what it takes of a host (`requests`). Its other hosts follow the first at
    `following_port`."""

    key: str
    drain_seconds: int
    following_port: int
    requests: Mapping[str, str]
    cache_key: str
    cache: str = "/cache"
    folder: str = "/plan"
    checkpoint: str = "/checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProgram:
    """A server: how it is started and what it says of a plan.

    `command` makes the words before the flags from chips and model; `marks` are how it is told in a
    text. `obstacles` are the choices of a pool's plan that it runs otherwise, `flags` say the
    others, and `read` gives the fields of the plan that they mean. `known` are the flags that it
    reads, `passed_over` those that are no choice of a plan, `short` maps other spellings to these.
    `hosts` are the flags of a server of several hosts, `environment` the variables that it needs
    besides. `router` starts what spreads requests over servers, by the policy that `policies` has
    for a plan's routing, and `two_pools` is its flag for two, where the port `bootstrap` follows
    the address of a server that prefills; llm-d's router calls the exchange of caches `sidecar`.
    `ports` are by role the variables and flags that number further ports, of which servers of one
    host need their own. `package` and `image` bring the server, where they are published for the
    chips. `options` is what it reads as YAML from the file that `options_flag` names, and `lost`
    says why more fields than of all servers are not carried out.
    """

    name: str
    title: str
    command: Callable[[Slice, str], list[str]]
    marks: tuple[str, ...]
    obstacles: Callable[[ServerPool, ModelConfig], Iterable[Obstacle]]
    flags: Callable[[ServerPool, ModelConfig], FlagValues]
    read: Callable[[Flags], Fields]
    known: tuple[str, ...]
    passed_over: tuple[str, ...]
    hosts: Callable[[ServerPool, HostWords], list[str]]
    environment: Callable[[ServerPool], Mapping[str, str]]
    router: str
    two_pools: str
    policies: Mapping[str, str]
    sidecar: str
    package: Callable[[Slice], str | None]
    image: Callable[[Slice], str | None]
    short: Mapping[str, str] = field(default_factory=dict)
    bootstrap: int | None = None
    ports: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    plan_file: PlanFile | None = None
    options_flag: str = ""
    options: Callable[[ServerPool], Mapping[str, object]] | None = None
    lost: Mapping[str, str] = field(default_factory=dict)

    def starts(self, words: Sequence[str]) -> bool:
        """Whether the words start it."""
        return any(mark in " ".join(words) for mark in self.marks)

    def fields(self, words: Sequence[str]) -> Fields:
        """The fields that the flags of its command say."""
        return self.read(flags_of(self.name, self._in_full(words), self._known()))

    def fields_of_any(self, words: Sequence[str]) -> Fields:
        """As `fields`, of a command that anybody wrote: flags that are not known are left out."""
        return self.read(flags_of(self.name, self._in_full(words), self._known(), others=True))

    def unread(self, words: Sequence[str]) -> Mapping[str, str]:
        """The flags of a command that `fields_of_any` leaves out, with their values."""
        flags = flags_of(self.name, self._in_full(words), self._known(), others=True)
        return {flag: v for flag, v in flags.given.items() if flag not in self._known()}

    def _known(self) -> tuple[str, ...]:
        return (*self.known, *self.passed_over)

    def _in_full(self, words: Sequence[str]) -> list[str]:
        """The words with every flag behind the command in the spelling that is known.
        Raises BadRequest for a short flag that the program does not have."""
        found, started = [], False
        for word in words:
            started = started or any(mark.split()[-1] == word for mark in self.marks)
            match = re.fullmatch(r"(--?[A-Za-z][\w-]*)(=.*)?", word, re.DOTALL)
            if not (self.short and started and match):
                found.append(word)
            elif match[1] in self.short:
                found.append(self.short[match[1]] + (match[2] or ""))
            elif match[1].startswith("--"):
                found.append(word)
            else:
                raise unknown(f"short flag of {self.title}", match[1], self.short)
        return found


def flag_words(values: FlagValues) -> list[str]:
    """Each flag with its value as one word."""
    return [flag if value == "" else f"{flag}={value}" for flag, value in values.items()]


def flags_of(
    target: str, words: Sequence[str], known: Sequence[str], *, others: bool = False
) -> Flags:
    """The flags of a command's words, as `--flag=value` or `--flag value`. BadRequest for a flag
    that no plan says, so that none is lost unseen, unless `others` are told elsewhere."""
    found: dict[str, str] = {}
    last = ""
    for word in words:
        match = re.fullmatch(r"(--[\w-]+)(?:=(.*))?", word, re.DOTALL)
        if match:
            dashed = match[1].replace("_", "-")
            last = dashed if dashed in known else match[1]
            if last in found:
                raise BadRequest(f"{target}: the flag {last} is given twice; give it once")
            found[last] = match[2] or ""
        elif last and not found[last]:
            found[last] = word
    for flag in found:
        if flag not in known and not others:
            raise BadRequest(
                f"{target}: a plan cannot express the flag {flag}; it reads {', '.join(known)}"
            )
    return Flags(target, found)


def spread_over_hosts(pool: ServerPool) -> Iterator[Obstacle]:
    """Why a server cannot be started on the hosts of its chips."""
    devices, chip = pool.plan.devices, pool.piece.chip
    tensor, each = pool.plan.degree("tensor"), devices // pool.hosts
    if devices % pool.hosts or (pool.hosts > 1 and tensor <= each and each % tensor):
        yield Obstacle(
            field="mesh",
            value=dict(pool.plan.mesh),
            rule=f"it does not divide over hosts of {chip.chips_per_host} chips",
            remedy="plan with degrees that are powers of two",
        )
