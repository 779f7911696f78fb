"""ServePlan: how a model is laid out to answer requests."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal, get_args

from shardwise.boundary.records import part
from shardwise.errors import BadRequest, shown
from shardwise.plans.chip_changes import AS_LISTED, ChipChanges
from shardwise.plans.ranges import Ranges, check_range, check_ranges
from shardwise.plans.train import check_mesh
from shardwise.scheduling.speculation import check_positions
from shardwise.units import dtype_bytes

CHECKPOINT = "checkpoint"
"""Weights in the dtypes that the checkpoint stores them in, component by component."""

ENGINE_CACHES = ("f32", "bf16", "f16", "int8", "fp8")
ENGINE_WEIGHTS = (*ENGINE_CACHES, "int4")
"""Dtypes in which our own engine keeps a cache and weights (`runtime/quant.py` has the small
ones)."""

TTFT_TARGET = 2.0
"""Seconds to the first token that are asked for where no target is given."""

SERVE_AXES = ("stage", "data", "fsdp", "expert", "tensor")
"""Mesh axes that a server uses: layers one after the other, copies of the weights, D of weights
that stay in place (`planner/step/strategies/stationary.py`), experts, and heads and widths."""

KvSharding = Literal["heads", "heads_then_batch", "heads_then_batch_then_sequence"]
KV_SHARDINGS: tuple[KvSharding, ...] = get_args(KvSharding)


def check_serve_mesh(mesh: Mapping[str, int]) -> None:
    """Raise BadRequest for a mesh that no server has."""
    check_mesh(mesh)
    for axis, degree in mesh.items():
        if axis not in SERVE_AXES and degree > 1:
            raise BadRequest(
                f"mesh axis '{axis}' of {degree} cannot take effect in a serving plan; "
                f"its axes are {', '.join(SERVE_AXES)}"
            )
    width, expert = mesh.get("fsdp", 1), mesh.get("expert", 1)
    if width > 1 and expert > 1:
        raise BadRequest(
            f"mesh axes 'fsdp' of {width} and 'expert' of {expert}: experts that lie apart are "
            "not cut along D, too; set one of them to 1"
        )
    others = [axis for axis in ("data", "fsdp", "expert") if mesh.get(axis, 1) > 1]
    if mesh.get("stage", 1) > 1 and others:
        raise BadRequest(
            f"mesh axes 'stage' of {mesh['stage']} and '{others[0]}' of {mesh[others[0]]}: stages "
            "of a server are cut by tensor alone; set one of them to 1"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeDtypes:
    """Dtypes of weights and KV cache in memory, of activations on the wire, and of the matmuls.

    `weights` may be "checkpoint": as stored, by the model's quantization_config. Matmuls run in
    `compute`, or with `matmuls` "stored" those of quantized weights in what an engine multiplies
    them in on the chip (their own dtype where it has a peak for it); attention stays in `compute`.
    """

    weights: str = CHECKPOINT
    kv: str = "bf16"
    activations: str = "bf16"
    compute: str = "bf16"
    matmuls: Literal["compute", "stored"] = "compute"

    def __post_init__(self) -> None:
        names = (self.kv, self.activations, self.compute)
        for name in names if self.weights == CHECKPOINT else (self.weights, *names):
            dtype_bytes(name)


Policy = Literal["static", "interleaved", "chunked"]
Routing = Literal["round_robin", "shortest_queue", "bounded_hash", "prefix_aware"]
SCHEDULING_RANGES: Ranges = {
    "page_size": (1, 2**20),
    "age_seconds": (1e-6, 1e9),
    "max_waiting": (0, 1e12),
    "guesses": (0, 1024),
    "guess_cost": (0, 100),
}
MOST_REPLICAS = 10**6
SERVE_RANGES: Ranges = {
    "box": (1, 1e6),
    "batch": (1, 1e9),
    "input_length": (1, 1e9),
    "output_length": (1, 1e9),
    "prefill_chunk": (1, 1e9),
    "replicas": (1, MOST_REPLICAS),
    "prefill_replicas": (0, MOST_REPLICAS),
}
"""What each number of a serving plan can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeScheduling:
    """How a replica chooses what each step runs; `scheduling/config.py` says what each choice does.

    `memory_share` is the share of a chip's memory for weights, cache and working memory, as the
    engine defines it: of all memory (vLLM's `gpu_memory_utilization`), of what is free (SGLang's
    `mem_fraction_static`), of the usable memory (ours). `release` is the engine's version, which
    its memory depends on (empty: the newest known). Without `graphs` it captures none of its steps.
    `host_cache_share` of the hosts' memory holds evicted prefixes; with `swap`, preempted sequences
    take the rest. `age_seconds` belongs to order "aged". Speculation guesses `guesses` tokens a
    step at `guess_cost` steps each. A guess after a right one is right with probability
    `acceptance`; `acceptances`, where given, has that share for each position instead.
    """

    policy: Policy = "chunked"
    page_size: int = 64
    prefix_cache: bool = True
    admission: Literal["optimistic", "reserve", "forecast"] = "optimistic"
    margin: float = 0.01
    order: Literal["fcfs", "priority", "deadline", "aged"] = "fcfs"
    age_seconds: float = 10.0
    swap: bool = False
    memory_share: float = 0.9
    release: str = ""
    graphs: bool = True
    host_cache_share: float = 0.0
    max_waiting: int = 0
    refuse_late: bool = False
    guesses: int = 0
    acceptance: float = 0.0
    guess_cost: float = 0.0
    acceptances: tuple[float, ...] | None = part()

    def __post_init__(self) -> None:
        for name in ("margin", "memory_share", "host_cache_share", "acceptance"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadRequest(f"{name} is {getattr(self, name)}; it is a share, from 0 to 1")
        check_ranges(self, SCHEDULING_RANGES)
        if self.release and not re.fullmatch(r"\d+(\.\d+)*(\.?(rc|post|dev)\d+)?", self.release):
            raise BadRequest(f"release is {shown(self.release)}; it is a version, such as 0.11.2")
        if self.policy == "static" and (self.prefix_cache or self.admission != "reserve"):
            raise BadRequest(
                "static batches share no prefixes and preempt nobody; with policy static set "
                "prefix_cache to false and admission to reserve"
            )
        if self.acceptances is not None:
            if self.acceptance:
                raise BadRequest("acceptance and acceptances both say how often guesses hold")
            check_positions(self.acceptances, self.guesses)
        if not self.guesses and (self.acceptance or self.guess_cost or self.acceptances):
            raise BadRequest("acceptance and guess_cost take no effect without guesses")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillServer:
    """The server of a prefill pool where it is another than that of the decode pool; what it does
    not say (dtypes, chunks, pages, engine) is the plan's."""

    slice: str
    mesh: Mapping[str, int]
    box: tuple[int, ...]

    def __post_init__(self) -> None:
        check_serve_mesh(self.mesh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The load that a plan was made for and confirmed under: `rate` requests per second at random,
    of the plan's lengths, or of lengths drawn from a trace's requests; and the longest times that
    they may take, in seconds (None: any); `interactivity` is the fewest tokens of an answer per
    second of a whole request. It is carried with `spare` servers of each pool lost. All
    prompts begin with the same `prefix` tokens (None: with none)."""

    rate: float
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    trace: str | None = None
    spare: int = 0
    prefix: int | None = part()
    interactivity: float | None = part()

    def __post_init__(self) -> None:
        for name, (least, most) in WORKLOAD_RANGES.items():
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), least, most)


WORKLOAD_RANGES: Ranges = {
    "rate": (1e-6, 1e6),
    "ttft": (1e-9, 1e9),
    "tpot": (1e-9, 1e9),
    "e2e": (1e-9, 1e9),
    "spare": (0, 1e6),
    "prefix": (1, 1e9),
    "interactivity": (1e-9, 1e9),
}


_OURS = ("ideal", "jax")
"""Engines of our own server: its memory is counted by no release, and its steps are compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """The choices of one model server.

    One replica spans `mesh` on `slice`, of each physical axis the part that `box` says. It decodes
    `batch` sequences at once. Prompts have `input_length` tokens and answers `output_length`. The
    same chips prefill one prompt at a time, in chunks of at most `prefill_chunk` tokens, which
    `data` and `expert` shard.

    Axis `stage` cuts the layers into stages. The batch is cut into as many parts, one on each
    stage, and a step is one pass of all parts. Axis `fsdp` cuts D of weights that stay in place,
    and each of its devices attends for some of the sequences. `tensor` cuts the KV cache by heads.
    Where it has more devices than there are KV heads, heads are replicated ("heads") or sequences
    are spread ("heads_then_batch"); where sequences are fewer than devices, their tokens are cut
    too ("heads_then_batch_then_sequence").

    `engine` is the serving software, whose measured constants add to the chip's times
    (`roofline/engines.py`; "ideal" adds nothing). `workload` is the load that a search made the
    plan for. `chips` has what differs from the catalogue's chip.

    `replicas` servers answer the load, and `routing` spreads the requests over them. `scheduling`
    says what each step of a server runs. `prefill_replicas` further servers prefill for them and
    hand the caches over; `prefill` says in what they differ from the others.
    """

    model: str
    model_hash: str
    slice: str
    mesh: Mapping[str, int]
    box: tuple[int, ...]
    batch: int
    input_length: int
    output_length: int
    prefill_chunk: int = 8192
    kv_sharding: KvSharding = "heads_then_batch"
    dtypes: ServeDtypes = field(default_factory=ServeDtypes)
    constants: Literal["vendor", "book"] = "vendor"
    engine: str = "ideal"
    replicas: int = 1
    prefill_replicas: int = 0
    prefill: PrefillServer | None = None
    routing: Routing = "shortest_queue"
    scheduling: ServeScheduling = field(default_factory=ServeScheduling)
    workload: Workload | None = None
    chips: ChipChanges = AS_LISTED

    def __post_init__(self) -> None:
        check_serve_mesh(self.mesh)
        check_ranges(self, SERVE_RANGES)
        if self.prefill_replicas and self.scheduling.policy == "static":
            raise BadRequest(
                f"{self.prefill_replicas} prefill replicas have no part in static batches; set "
                "scheduling.policy to chunked or interleaved, or prefill_replicas to 0"
            )
        fewest = min(self.replicas, self.prefill_replicas or self.replicas)
        if self.workload is not None and self.workload.spare >= fewest:
            raise BadRequest(
                f"workload.spare is {self.workload.spare} of {fewest} servers; at least one must "
                "be left, so raise replicas or lower it"
            )
        if self.engine in _OURS and self.degree("stage") > 1:
            raise BadRequest(
                f"mesh axis 'stage' of {self.degree('stage')}: engine {self.engine} has no "
                "pipeline stages; name the engine that serves, such as vllm, or set it to 1"
            )
        prefix = (self.workload and self.workload.prefix) or 0
        if prefix and not (prefix < self.input_length and self.scheduling.prefix_cache):
            raise BadRequest(
                f"workload.prefix is {prefix:,}; it is a part of prompts (input_length is "
                f"{self.input_length:,}) that scheduling.prefix_cache keeps; lower it, or set that"
            )
        if self.engine in _OURS and (self.scheduling.release or not self.scheduling.graphs):
            raise BadRequest(
                f"scheduling.release and scheduling.graphs take no effect with engine "
                f"{self.engine}; leave them out, or name the engine that serves"
            )
        if self.prefill and not self.prefill_replicas:
            raise BadRequest(
                "prefill says what a prefill pool is made of and prefill_replicas is 0; set it to "
                "1 or more, or leave prefill out"
            )

    @property
    def prefill_plan(self) -> "ServePlan":
        """The plan with the prefill pool's server in place of the decode pool's."""
        own = self.prefill
        if own is None:
            return self
        return replace(self, slice=own.slice, mesh=own.mesh, box=own.box, prefill=None)

    @property
    def worst(self) -> "ServePlan":
        """The plan with as many servers lost as it must bear."""
        load = self.workload
        if load is None or not load.spare:
            return self
        return replace(self, workload=replace(load, spare=0)).with_more(-load.spare)

    def with_more(self, servers: int) -> "ServePlan":
        """The plan with so many more servers in each pool."""
        prefills = self.prefill_replicas and self.prefill_replicas + servers
        return replace(self, replicas=self.replicas + servers, prefill_replicas=prefills)

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return prod(self.mesh.values())

    def degree(self, axis: str) -> int:
        """Degree of a mesh axis; 1 where the mesh does not name it."""
        return self.mesh.get(axis, 1)
