"""What is told of one priced serving plan: a prefill and a decode step of a full server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record, part
from shardwise.hardware import Chip, describe
from shardwise.models import ModelConfig
from shardwise.models.facts import SequenceCache, sequence_cache
from shardwise.models.specs import Attention, SoftmaxMixer
from shardwise.planner.serve.answer import ServeAnswer
from shardwise.planner.serve.server import Phase, server_of
from shardwise.planner.serve.shape import SPLIT_AXES, cached_heads
from shardwise.plans.serve import KvSharding
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.engines import first_token_class, first_token_range, load_engine

_SHOWN_OPS = 6


@dataclass(frozen=True, kw_only=True)
class ChipPrice(Record):
    """The price behind dollars."""

    usd_per_chip_hour: float
    """Dollars per chip and hour."""
    as_of: str
    """Month of the price."""
    source: str
    """Provider, and where it is published."""
    kind: str
    """Whether it is on demand, spot, or committed."""
    stale: bool
    """Whether it is older than half a year."""
    text: str
    """The same in words."""


@dataclass(frozen=True, kw_only=True)
class ServeOp(Record):
    """One op of a phase, all its runs together."""

    name: str
    """Component that computes or collective."""
    component: str
    """The part of the model that it is for."""
    stream: str
    """Resource that it uses: compute, hbm, or "net:" and mesh axes."""
    count: float
    """Runs."""
    seconds: float
    """Seconds of all of them."""


@dataclass(frozen=True, kw_only=True)
class BoundBy(Record):
    """What bounds each phase: the resource with the most seconds at peak rates."""

    prefill: str
    """Of a prefill."""
    decode: str
    """Of a decode step."""


@dataclass(frozen=True, kw_only=True)
class ResourceSeconds(Record):
    """Seconds of each resource at peak rates."""

    prefill: Mapping[str, float]
    """Of a prefill."""
    decode: Mapping[str, float]
    """Of a decode step."""


@dataclass(frozen=True, kw_only=True)
class PhaseOps(Record):
    """The longest ops."""

    prefill: Sequence[ServeOp]
    """Of a prefill."""
    decode: Sequence[ServeOp]
    """Of a decode step."""


@dataclass(frozen=True, kw_only=True)
class UsdPerMillion(Record):
    """Dollars per million tokens, by the chip-seconds of prefill and decode."""

    input: float | None
    """Of prompt tokens; null without a price."""
    output: float | None
    """Of answer tokens; null without a price."""


@dataclass(frozen=True, kw_only=True)
class PricedServer(Record):
    """One server of a serving plan, with its times and memory."""

    slice: str
    """The chips, as COUNT*CHIP:SHAPE."""
    slice_means: str
    """The same in words: chips, hosts, and which axes of the network wrap."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    box: tuple[int, ...]
    """Chips of each physical axis of a slice that the mesh uses."""
    placement: Sequence[str]
    """Placement of each mesh axis on the network, in words."""
    kv_sharding: KvSharding
    """How the KV cache is cut beyond KV heads."""
    engine: str
    """The constants of serving software that price it."""
    batch: int
    """Sequences that decode at once."""
    input_length: int
    """Tokens in a prompt."""
    output_length: int
    """Tokens in an answer."""
    kv_layout: str
    """How the KV cache is cut over the mesh, in words."""
    chips_used: int
    """Chips that the mesh uses."""
    chips_idle: int
    """Chips of the slice that it does not use."""
    prefill_seconds: Bounds
    """Seconds of a prefill of one prompt."""
    ttft_seconds: Bounds
    """Seconds to the first token on an idle server: prefill and the time of the engine."""
    tpot_seconds: Bounds
    """Seconds of a decode step of all sequences at the mean context."""
    ttft_interval: tuple[float, float] | None
    """The 80 % range of the seconds to the first token; null where none was measured."""
    tpot_interval: tuple[float, float] | None
    """The 80 % range of the expected decode step; null where the engine's was not measured."""
    tokens_per_second_per_chip: float
    """Answer tokens per second and chip while it decodes."""
    tokens_per_second_per_chip_with_prefill: float
    """The same over all chips, with those of the servers that prefill for it."""
    requests_per_second_per_chip: float
    """Answers per second and chip while it decodes."""
    prefill_servers_per_decode_server: float
    """Servers that prefill for one that only decodes."""
    usd_per_million_tokens: UsdPerMillion
    """Dollars per million tokens."""
    peak_bytes_per_chip: float
    """Bytes per chip at the peak."""
    price: ChipPrice | None
    """The price behind the dollars."""
    usable_bytes_per_chip: float
    """Bytes per chip that a program can use: of an engine whose memory is known, its share."""
    memory_by_kind: Mapping[str, float]
    """Bytes per chip at the peak, by kind."""
    memory_share: float
    """Share of a chip's memory that a server takes, as its engine means it."""
    cache_tokens: int
    """Tokens that the cache of the server holds within that share."""
    line_tokens: int
    """Tokens of each rank that the engine prints ("GPU KV cache size")."""
    line_requests: float
    """Requests of the plan's length that a rank's cache holds ("Maximum concurrency")."""
    sequence: SequenceCache | None = part()
    """Cache of one sequence over all devices, for a model with more than keys and values."""
    memory_peak_at: str
    """The phase in which most memory is in use."""
    bound_by: BoundBy
    """What bounds each phase."""
    resource_seconds: ResourceSeconds
    """Seconds of each resource at peak rates."""
    where_it_goes: Mapping[str, float]
    """Seconds of each part of a decode step; they add up to it."""
    top_ops: PhaseOps
    """The longest ops."""


def priced_server(answer: ServeAnswer) -> PricedServer:
    """One priced serving plan."""
    piece, plan = answer.piece, answer.plan
    prefill, decode = answer.prefill, answer.decode
    server, share = server_of(plan, answer.cfg, piece), plan.scheduling.memory_share
    shape = server.shape(float(plan.batch))
    return PricedServer.part_of(
        answer,
        slice=str(piece),
        slice_means=describe(piece),
        mesh=plan.mesh,
        box=plan.box,
        placement=answer.placement.describe(),
        kv_sharding=plan.kv_sharding,
        engine=plan.engine,
        batch=plan.batch,
        input_length=plan.input_length,
        output_length=plan.output_length,
        kv_layout=cache_text(answer.cfg, plan.mesh, plan.kv_sharding),
        ttft_interval=_first_interval(answer),
        tpot_interval=_interval(answer),
        usd_per_million_tokens=UsdPerMillion(**answer.usd_per_million_tokens),
        price=price_of(piece.chip),
        usable_bytes_per_chip=float(server.budget(shape, share if shape.engine else 1.0))
        * piece.chip.jax_devices_per_chip,
        memory_share=share,
        cache_tokens=int(server.cache_tokens(shape, share)),
        line_tokens=int(server.line_tokens(shape, share)),
        line_requests=float(server.requests_held(shape, share)),
        sequence=sequence_cache(answer.cfg, shape.longest, plan.dtypes.kv),
        memory_peak_at=answer.memory.peak_point()[0],
        bound_by=BoundBy(prefill=prefill.estimate.bound_by(), decode=decode.estimate.bound_by()),
        resource_seconds=ResourceSeconds(prefill=_resources(prefill), decode=_resources(decode)),
        where_it_goes=answer.time_parts.named(),
        top_ops=PhaseOps(prefill=_top(prefill), decode=_top(decode)),
    )


def price_of(chip: Chip) -> ChipPrice | None:
    """The price behind the dollars, with date and source; None where the catalogue has none."""
    price = chip.price
    if price is None:
        return None
    return ChipPrice.part_of(price, stale=price.stale(), text=str(price))


def cache_text(cfg: ModelConfig, mesh: Mapping[str, int], kv_sharding: str) -> str:
    """How the KV cache is cut over the mesh: by sequences, by heads, along tokens."""
    mixers = [layer.mixer for layer in cfg.groups if isinstance(layer.mixer, SoftmaxMixer)]
    if not mixers:
        return "no KV cache, only recurrent states"
    tensor, split = mesh.get("tensor", 1), [a for a in SPLIT_AXES if mesh.get(a, 1) > 1]
    parts = [f"cut by sequences over {' and '.join(split)}"] if split else []
    heads = min(cached_heads(m) for m in mixers)
    if tensor > 1 and heads > 1:
        parts.append("cut by heads over tensor")
    if tensor > heads:
        parts.append(_beyond_heads(heads, tensor // heads, _BEYOND[kv_sharding]))
    latent = not any(isinstance(m, Attention) for m in mixers)
    return f"{'latent ' if latent else ''}KV cache {', '.join(parts) or 'on one device'}"


def _first_interval(answer: ServeAnswer) -> tuple[float, float] | None:
    """The range of the time to the first token of one request alone at its server, where the
    engine's was measured."""
    engine, plan = load_engine(answer.plan.engine), answer.plan
    if engine.range is None:
        return None
    pools, expected = bool(plan.prefill_replicas), answer.ttft_seconds.expected
    low, high = first_token_range(first_token_class(plan.engine, pools=pools, in_flight=1))
    return expected * low, expected * high


def _interval(answer: ServeAnswer) -> tuple[float, float] | None:
    """The range of the time per output token, where the engine's was measured."""
    found = load_engine(answer.plan.engine).range_on(answer.piece.chip.id)
    expected = answer.tpot_seconds.expected
    return found and (expected * found[0], expected * found[1])


_BEYOND = {
    "heads": "",
    "heads_then_batch": "by sequences",
    "heads_then_batch_then_sequence": "by sequences, then along their tokens,",
}


def _beyond_heads(heads: int, devices: int, cut: str) -> str:
    """How `devices` of tensor share a KV head, or the one entry that serves all heads."""
    over = f"cut {cut} over" if cut else "replicated on"
    if heads == 1:
        return f"{over if cut else 'replicated over'} tensor"
    return f"each head {over} {devices} devices"


def _resources(phase: Phase) -> dict[str, float]:
    """Seconds of each resource at peak rates."""
    return {name: float(seconds) for name, seconds in phase.estimate.resources.items()}


def _top(phase: Phase) -> list[ServeOp]:
    return [
        ServeOp(
            name=t.op.name,
            component=t.op.component,
            stream=t.op.stream,
            count=float(t.op.count),
            seconds=float(t.total),
        )
        for t in phase.estimate.top(_SHOWN_OPS)
        if float(t.total) > 0
    ]
