"""What is told of servers under a load: by `plan serve`, and by `plan show` of its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.boundary.records import Record, part
from shardwise.errors import Remark
from shardwise.hardware import Chip, Switched
from shardwise.hardware.prices import range_beside
from shardwise.models.describe import context_warning, unpriced
from shardwise.models.facts import SequenceCache, sequence_cache
from shardwise.planner.serve.answer import ServeAnswer, evaluate_serve
from shardwise.planner.serve.instead import Alternative
from shardwise.planner.serve.replica import replica_of
from shardwise.planner.serve.served import Served
from shardwise.planner.serve.server import server_of
from shardwise.planner.simulate.steady import COUNTED, RUNS
from shardwise.plans import ServePlan
from shardwise.plans.engine_memory import seen_bytes
from shardwise.plans.serve import CHECKPOINT, KvSharding, Workload
from shardwise.plans.servers import SERVING_SOFTWARE, ServingSoftware
from shardwise.results.server import ChipPrice, UsdPerMillion, price_of
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.engines import (
    first_token_class,
    first_token_range,
    load_engine,
    serving_error,
)


@dataclass(frozen=True, kw_only=True)
class TypicalError(Record):
    """Typical errors of predictions on published runs of servers of this kind, as shares."""

    ttft: float
    """Of the time to the first token."""
    tpot: float
    """Of the time per output token."""


@dataclass(frozen=True, kw_only=True)
class ServerMemory(Record):
    """Bytes of a device."""

    weights: float
    """Bytes of weights."""
    activations: float
    """Bytes of activations at the peak."""
    cache: float
    """Bytes that are left for the KV cache."""
    cache_tokens: int
    """Tokens that the cache of a server holds."""
    engine: float
    """Bytes of the engine itself: context, buffers, captured graphs."""
    line_tokens: int
    """Tokens of each rank that the engine prints ("GPU KV cache size")."""
    line_requests: float
    """Requests of the plan's length that a rank's cache holds ("Maximum concurrency")."""
    usable: float
    """Bytes that the share is of."""
    share: float
    """Share of them that servers take."""
    sequence: SequenceCache | None = part()
    """Cache of one sequence over all devices, for a model with more than keys and values."""


@dataclass(frozen=True, kw_only=True)
class WholeBoxes(Record):
    """The servers in whole hosts, which is what clouds bill that rent nothing smaller."""

    chips_per_box: int
    """Chips of a host."""
    chips: int
    """Chips of all hosts."""
    usd_per_hour: float | None
    """Dollars per hour; null without a price."""


@dataclass(frozen=True, kw_only=True)
class AskedPrices(Record):
    """What providers ask for a chip and hour."""

    low: float
    """Dollars of the cheapest."""
    high: float
    """Dollars of the dearest."""
    low_offer: str
    """The cheapest."""
    high_offer: str
    """The dearest."""
    providers: int
    """Providers with a price."""
    text: str
    """The same in words."""


@dataclass(frozen=True, kw_only=True)
class SimulatedLoad(Record):
    """How the load was simulated."""

    runs: int
    """Runs, each with its own random arrivals."""
    requests: int
    """Requests that are counted of each."""
    servers: int
    """Servers that were simulated."""


@dataclass(frozen=True, kw_only=True)
class UsdOfTokens(UsdPerMillion):
    """Dollars of all chips per million tokens: of prompts and answers by what prompts lengthen a
    step, or by the chips of each pool."""

    all: float | None
    """Of prompt and answer tokens together; null without a price."""


@dataclass(frozen=True, kw_only=True)
class HoursOfTokens(Record):
    """Hours of all chips per million tokens, as dollars are."""

    input: float
    """Of prompt tokens."""
    output: float
    """Of answer tokens."""
    all: float
    """Of both together."""


@dataclass(frozen=True, kw_only=True)
class ServedPlan(Record):
    """Servers under a load: the same from a search and from a file."""

    model: str
    """The model's name."""
    slice: str
    """The chips of a server, as COUNT*CHIP:SHAPE."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree of a server, outermost first."""
    batch: int
    """Sequences that a server holds at once at most."""
    replicas: int
    """Servers that answer."""
    prefill_slice: str | None
    """The chips of a prefill server; null without prefill servers."""
    prefill_mesh: Mapping[str, int] | None
    """Its mesh; null without prefill servers."""
    prefill_replicas: int
    """Servers that only prefill."""
    prefill_chunk: int
    """Tokens of a prompt that a step takes at most."""
    kv_sharding: KvSharding
    """How the KV cache is cut beyond KV heads."""
    weights: str
    """Dtype of the weights."""
    kv: str
    """Dtype of the KV cache."""
    software: str
    """The serving software."""
    chips: int
    """Chips of all servers."""
    chip: str
    """The chip."""
    input_tokens: float
    """Tokens of a prompt, in the mean."""
    output_tokens: float
    """Tokens of an answer, in the mean."""
    targets: Workload
    """The load that it was made for, and the longest times that a request may take."""
    holds: bool
    """Whether the load is held within its targets, by simulation."""
    why_not: str
    """Why it is not; "" where it is."""
    requests_per_second: float
    """Requests per second of all servers."""
    output_tokens_per_second: float
    """Answer tokens per second of all servers."""
    tokens_per_second_per_chip: float
    """The same per chip."""
    in_target: float
    """Share of requests within all targets."""
    answered: float
    """Share of requests that are answered."""
    running: float
    """Sequences that a server runs in the mean."""
    ttft_seconds: Bounds
    """Seconds from arrival to the first token that 90 % of requests keep; lower and upper hold 4 of
    5 published runs."""
    tpot_seconds: Bounds
    """(E2E - TTFT) / (output tokens - 1), likewise."""
    e2e_seconds: Bounds
    """Seconds of a whole request, likewise."""
    typical_error: TypicalError | None
    """Typical errors of these predictions; null if the software was not measured on the chip."""
    memory: ServerMemory
    """Memory of a device."""
    decode_step_seconds: Bounds
    """Seconds of a decode step of the sequences that run in the mean."""
    where_it_goes: Mapping[str, float]
    """Seconds of each part of that step; they add up to it."""
    usd_per_hour: float | None
    """Dollars per hour of all servers; null without a price."""
    whole_boxes: WholeBoxes | None
    """The servers in whole hosts; null where they fill them."""
    usd_per_million_tokens: UsdOfTokens
    """Dollars."""
    chip_hours_per_million_tokens: HoursOfTokens
    """Chip-hours."""
    price: ChipPrice | None
    """The price behind the dollars."""
    price_range: AskedPrices | None
    """What providers ask."""
    simulated: SimulatedLoad
    """How the load was simulated."""


@dataclass(frozen=True, kw_only=True)
class OtherServers(Record):
    """Another way to serve; times are null where they are the answer's own."""

    name: str
    """How it differs from the answer."""
    note: str
    """What to know of it."""
    option: str
    """What to type for it: options to change, or a `simulate` of the answer's plan."""
    servers: str
    """The servers in words."""
    chips: int
    """Chips of all servers."""
    requests_per_second: float
    """Requests per second of all servers."""
    usd_per_hour: float | None
    """Dollars per hour; null without a price."""
    usd_per_million_tokens: float | None
    """Dollars per million tokens of prompts and answers; null without a price."""
    provider: str | None
    """Whose price that is."""
    ttft_seconds: float | None
    """Seconds to the first token."""
    tpot_seconds: float | None
    """Seconds per output token."""


def software_of(plan: ServePlan) -> ServingSoftware | None:
    """The software that a plan is priced for; None of constants that no software has."""
    return next((row for row in SERVING_SOFTWARE.values() if row.is_priced_by(plan.engine)), None)


def served_result(served: Served) -> ServedPlan:
    """A plan under its load: the same from a search and from a file."""
    plan, held, chip = served.plan, served.held, served.piece.chip
    software, pools = software_of(plan), bool(plan.prefill_replicas)
    step = _decode_step(served)
    known, error = measured(plan, chip), serving_error(mixture=served.cfg.has_experts)
    ttft, tpot, e2e = _times(served, known)
    assert plan.workload is not None, "a served plan has its load"
    return ServedPlan.part_of(
        plan,
        model=served.cfg.name,
        prefill_slice=plan.prefill_plan.slice if pools else None,
        prefill_mesh=plan.prefill_plan.mesh if pools else None,
        weights=plan.dtypes.weights,
        kv=plan.dtypes.kv,
        software=software.name if software else plan.engine,
        chips=served.chips,
        chip=chip.id,
        input_tokens=served.demand.prompt,
        output_tokens=served.demand.output,
        targets=plan.workload,
        holds=held.kept,
        why_not=held.why,
        requests_per_second=served.rate,
        output_tokens_per_second=served.tokens_per_second,
        tokens_per_second_per_chip=served.tokens_per_second / served.chips,
        in_target=held.good,
        answered=held.answered,
        running=held.running,
        ttft_seconds=ttft,
        tpot_seconds=tpot,
        e2e_seconds=e2e,
        typical_error=TypicalError(ttft=error.ttft, tpot=error.tpot) if known else None,
        memory=memory_of(served),
        decode_step_seconds=step.tpot_seconds,
        where_it_goes=step.time_parts.named(),
        usd_per_hour=served.usd_per_hour,
        whole_boxes=boxes_of(served),
        usd_per_million_tokens=UsdOfTokens(**served.usd_per_million),
        chip_hours_per_million_tokens=HoursOfTokens(**served.per_million(float(served.chips))),
        price=price_of(chip),
        price_range=range_of(chip),
        simulated=SimulatedLoad(runs=len(held.runs), requests=COUNTED, servers=held.replicas),
    )


def _times(served: Served, known: bool) -> tuple[Bounds, Bounds, Bounds]:
    """The 90th percentiles of TTFT, TPOT and whole answers, with what they were measured to be."""
    engine = load_engine(served.plan.engine)
    low, high = (known and engine.range_on(served.piece.chip.id)) or (1.0, 1.0)
    soonest, latest = first_range(served) if known else (1.0, 1.0)
    ttft, tpot, e2e = served.held.times
    return (
        Bounds(lower=ttft * soonest, expected=ttft, upper=ttft * latest),
        Bounds(lower=tpot * low, expected=tpot, upper=tpot * high),
        Bounds(lower=e2e * low, expected=e2e, upper=e2e * high),
    )


def first_range(served: Served) -> tuple[float, float]:
    """What times to the first token of servers like these were measured to be."""
    family, pools = served.plan.engine, bool(served.plan.prefill_replicas)
    return first_token_range(first_token_class(family, pools=pools, in_flight=served.held.running))


def measured(plan: ServePlan, chip: Chip) -> bool:
    """Whether the software's times were measured on chips of this vendor."""
    software = software_of(plan)
    return software is not None and chip.vendor in software.measured


def _decode_step(served: Served) -> ServeAnswer:
    """A decode step of the sequences that run at the mean."""
    plan = replace(served.plan, batch=max(1, round(served.held.running)))
    alone = replace(plan, prefill=None, prefill_replicas=0)
    return evaluate_serve(alone, served.cfg, served.piece)


def memory_of(served: Served) -> ServerMemory:
    """Bytes of a device: weights, activations, what is left for the cache, and what is usable."""
    plan, piece = served.plan, served.piece
    server = server_of(plan, served.cfg, piece)
    share = plan.scheduling.memory_share
    shape = server.shape(float(plan.batch))
    taken = float(server.budget(shape, share))
    of_free = shape.engine is not None and shape.engine.of_free
    usable = seen_bytes(piece.chip) if of_free else taken / share
    peak = max(
        (point for _, point in server.memory(float(plan.batch)).points),
        key=lambda point: float(point["weights"] + point["activations"]),
    )
    return ServerMemory(
        weights=float(peak["weights"]),
        activations=float(peak["activations"]),
        cache=float(server.cache_bytes(shape, share)),
        cache_tokens=replica_of(server, memory_share=share).kv_tokens,
        engine=float(peak.get("engine", 0.0)),
        line_tokens=int(server.line_tokens(shape, share)),
        line_requests=float(server.requests_held(shape, share)),
        usable=usable,
        share=taken / usable if of_free else share,
        sequence=sequence_cache(served.cfg, shape.longest, plan.dtypes.kv),
    )


def boxes_of(served: Served) -> WholeBoxes | None:
    """The fleet in whole boxes (hosts), where its chips fill none: what clouds bill that rent
    nothing smaller. None where they do, for PCIe cards, which are rented one by one, and for chips
    that are rented as slices."""
    chip = served.piece.chip
    each = chip.chips_per_host
    boxed = isinstance(chip.network, Switched) and not chip.network.cards
    two = served.prefill_piece.chip.id != chip.id
    if two or not boxed or served.chips % each == 0:
        return None
    chips = -(-served.chips // each) * each
    usd = None if chip.price is None else chips * chip.price.usd_per_chip_hour
    return WholeBoxes(chips_per_box=each, chips=chips, usd_per_hour=usd)


def range_of(chip: Chip) -> AskedPrices | None:
    """What providers ask, the cheapest and the dearest."""
    found = range_beside(chip.id, chip.price)
    if found is None:
        return None
    return AskedPrices(
        low=found.low.usd_per_chip_hour,
        high=found.high.usd_per_chip_hour,
        low_offer=found.low.listed,
        high_offer=found.high.listed,
        providers=found.providers,
        text=str(found),
    )


def other_servers(rows: Sequence[Alternative]) -> list[OtherServers]:
    """Alternatives, or a front."""
    return [
        OtherServers.part_of(
            row,
            requests_per_second=row.rate,
            usd_per_million_tokens=row.usd_per_million,
            ttft_seconds=row.ttft,
            tpot_seconds=row.tpot,
        )
        for row in rows
    ]


def served_cautions(served: Served) -> list[str]:
    """What a reader should know before trusting the figures."""
    plan, chip, software = served.plan, served.piece.chip, software_of(served.plan)
    said = []
    if software is not None and software.note:
        said.append(f"--for {software.name}: {software.note}")
    elif not measured(plan, chip) and not plan.engine.endswith(".toml"):  # measured by its file
        said.append(
            f"{software.title if software else plan.engine} was not measured on {chip.id}: "
            "times use the chip's rates and the software's overhead on GPUs"
        )
    if chip.price is None:
        said.append(
            Remark(f"no public price for {chip.id}: chip-hours only; give --price {chip.id}=USD")
        )
    elif chip.price.stale():
        said.append(
            f"the price of {chip.id} is from {chip.price.as_of}, over half a year ago; choose "
            "another with --provider, or give one with --price"
        )
    if plan.dtypes.weights != CHECKPOINT or plan.dtypes.kv != "bf16":
        said.append("fewer bits change the model's answers: check its quality first")
    if served.plan.workload and served.plan.workload.trace:
        said.append(
            "lengths are drawn from the trace and arrivals are random: shared prefixes and bursts "
            "are left out; simulate the plan with --trace to include them"
        )
    longest = plan.input_length + plan.output_length
    return [*said, *context_warning(served.cfg, longest), *unpriced(served.cfg)]


DEFINITIONS = {
    "holds": f"in {RUNS} runs of {COUNTED:,} requests: at least 95 % within all targets, with 5 % "
    "of them to spare; at least 99 % of requests answered; the wait does not grow",
    "ttft_seconds": "from arrival to the first token, queueing included: 90 % of requests "
    "are faster, in 98 of 100 runs; lower and upper hold 4 of 5 published runs",
    "tpot_seconds": "(E2E - TTFT) / (output tokens - 1), 90 % as above; lower and upper hold 4 of "
    "5 published runs",
    "usd_per_million_tokens": "the hourly cost of all chips over the tokens of an hour at this "
    "load; split into input and output by the step time that prompts add, or by the chips of each "
    "pool",
    "instead": "estimates by short runs; of other chips checked by full runs where they are near "
    "what they hold, and given more servers, not simulated, where these do not hold; one server "
    "fewer or more by full runs; `option` is what to type to simulate a row",
    "front": "the answer, and closed-form estimates of faster plans that keep the targets and "
    "cost more",
}
