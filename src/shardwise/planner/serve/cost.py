"""A server's step time as tables and lines: what a simulation asks a hundred thousand times.

Every op of a step (`count.step_work`) is priced by the roofline once, when the cost is made:

- what depends on the tokens of the step alone (matmuls, norms, collectives) and on the samples
  (head) is a table over whole tokens, priced at each of them;
- decode attention is, per kind of layer, the slower of two lines in the context of a sequence, one
  of its math and one of its memory, with bends where a window ends;
- prefill attention is the slower of math proportional to (query, key) pairs and memory linear in
  tokens; a window's pairs come from a table of their sums.

So `seconds` is what pricing the step would say, save beyond the ends of the tables and for parts of
tokens (an uneven cut), where it is interpolated. An engine's constants are included.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

import numpy as np

from shardwise.errors import BadRequest
from shardwise.hardware import Placement
from shardwise.models import kv_bytes_per_token
from shardwise.models.flops import most_keys
from shardwise.models.specs import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Layer,
    RecurrentMixer,
    SoftmaxMixer,
)
from shardwise.planner.serve.attention import decode_core
from shardwise.planner.serve.count import prefill_ops, prompt_flops, step_work
from shardwise.planner.serve.server import Server
from shardwise.planner.serve.shape import ServeShape
from shardwise.planner.simulate.cost import DecodeLine
from shardwise.roofline import Estimate, body_times, price_op
from shardwise.roofline.stacks import Stack
from shardwise.scheduling.step import StepShape
from shardwise.work import Op, Quantity

MOST_TOKENS = 16384
"""Tokens per device up to which a step is tabled; longer steps extend its last slope."""

MOST_SAMPLES = 2048
"""Sequences per step up to which sampling and exchanges are tabled."""
LONGEST = 2**17
"""Context up to which the pairs of a windowed layer are tabled."""

_PREFILL = "attention.prefill"
_ATTENTION = (
    *("attention.core", "/scan", "attention.merge"),
    *("attention.to_batch", "attention.to_heads"),
)
"""How the ids of the ops of decode attention end, which depend on more than tokens."""

_FAR = 2.0**20
"""Tokens beyond the last bend; the point gives the slope of the last line."""


_Piece = tuple[float, float, float, float, float, float]
"""From one context up to another: seconds of a batch's math at the first and their slope, and those
of its memory."""


@dataclass(frozen=True, slots=True)
class Slower:
    """Decode attention of one kind of layer: the slower of math and memory, each a line with bends
    at `knots`, held as (value at the knot, slope) per sequence. `ramp` comes on top of the math of
    a batch, `kernel` on top of either; `spread` sequences of a device's batch are one of a core's,
    and fewer are cut along their tokens where `cut`.
    """

    knots: Sequence[float]
    math: Sequence[tuple[float, float]]
    memory: Sequence[tuple[float, float]]
    ramp: float
    kernel: float
    count: float
    spread: float
    cut: bool

    def pieces(self, batch: float, queries: float) -> list[_Piece]:
        """The lines of a batch from each knot to the next one."""
        sequences = _held(batch, self.spread, self.cut)
        several, ends = sequences * queries, [*self.knots[1:], inf]
        return [
            (knot, end, several * math, several * math_rise, sequences * memory, sequences * rise)
            for knot, end, (math, math_rise), (memory, rise) in zip(
                self.knots, ends, self.math, self.memory, strict=True
            )
        ]

    def at(self, pieces: Sequence[_Piece], context: float) -> tuple[float, float, float]:
        """Seconds of a batch of such pieces, their slope in the context, and where that ends."""
        i = bisect_right(self.knots, context) - 1 if len(pieces) > 1 else 0
        knot, ends, math, math_slope, memory, memory_slope = pieces[i]
        past = context - knot
        math_now = math + math_slope * past + self.ramp
        memory_now = memory + memory_slope * past
        gap, closing = memory_now - math_now, math_slope - memory_slope
        by_math = gap < 0 or (gap == 0 and closing > 0)
        if gap * closing > 0:
            ends = min(ends, context + gap / closing)
        now, slope = (math_now, math_slope) if by_math else (memory_now, memory_slope)
        return self.count * (now + self.kernel), self.count * slope, ends


def _held(batch: float, spread: float, cut: bool) -> float:
    """`ServeShape.held` of a batch."""
    cuts = max(spread // max(batch, 1.0), 1.0) if cut else 1.0
    return ceil(batch / (spread / cuts)) / cuts


@dataclass(frozen=True, slots=True)
class Chunks:
    """Prefill attention of one kind of layer: seconds per pair, per token before a chunk or in it
    (`keys`), and per token in it. `sums` are the pairs of whole prompts by length, None where all
    pairs count."""

    pair: float
    keys: float
    queries: float
    ramp: float
    kernel: float
    count: float
    sums: Sequence[float] | None

    def seconds(self, step: StepShape) -> float:
        """Of all chunks of a step; a window is applied to the mean chunk."""
        _, _, _, prefills, tokens, context, pairs, _ = step
        math = self.pair * pairs
        if self.sums is not None:
            chunks = max(prefills, 1)
            past = context / chunks
            upto = past + tokens / chunks
            seen = _at(self.sums, upto) - _at(self.sums, past)
            math *= seen / max((upto * upto - past * past) / 2, 0.5)
        math += self.ramp
        memory = self.keys * (context + tokens) + self.queries * tokens
        return self.count * ((memory if memory > math else math) + self.kernel)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    """Seconds of a replica's steps, a `StepCost`; make one with `engine_cost`.

    `matmuls` is a table by the tokens of one device, `head` by its samples, `exchanges` by its
    decoding sequences, `gathers` by the prompt tokens of the replica; None where there are none.
    `splits` is into how many parts `data` and `expert` cut a batch, and `stationary` into how many
    more attention cuts it.
    """

    matmuls: Sequence[float]
    head: Sequence[float]
    exchanges: Sequence[float] | None
    gathers: Sequence[float] | None
    decodes: Sequence[Slower]
    chunks: Sequence[Chunks]
    splits: float
    stationary: float
    sequence_seconds: float
    kv_bytes_per_token: float
    host_bandwidth: float
    transfer_bandwidth: float
    transfer_latency: float
    known: dict[tuple[int, float], tuple[float, list[tuple[Slower, list[_Piece]]]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Of sequences and queries of each: seconds of exchanges, and the lines of each kind."""

    def seconds(self, shape: StepShape) -> float:
        """One step of any batch."""
        decodes, decode_tokens, context, prefills, prompt_tokens, _, _, samples = shape
        splits = self.splits
        tokens = ceil(decode_tokens / splits) + prompt_tokens / splits
        total = self._shared(tokens, decodes + prefills, samples)
        if decodes:
            base, slope, _ = self._decoding(decodes, context, decode_tokens / decodes)
            total += base + slope * context
        if prompt_tokens:
            for kind in self.chunks:
                total += kind.seconds(shape)
            if self.gathers is not None:
                total += _at(self.gathers, prompt_tokens)
        return total

    def decode_line(self, decodes: int, context: int) -> DecodeLine:
        """Steps that only decode, from a context of all sequences together on."""
        base, slope, until = self._decoding(decodes, context, 1.0)
        shared = self._shared(ceil(decodes / self.splits), decodes, decodes)
        return DecodeLine(base + shared, slope, until)

    def transfer_seconds(self, tokens: int) -> float:
        """The cache over the data-centre network, every chip sending its part."""
        if not self.transfer_bandwidth:
            raise BadRequest(
                "the chip has no data-centre network in the catalogue, so a cache cannot be handed "
                "over; prefill and decode on one replica, or give its rate with --hw FILE"
            )
        return self.transfer_latency + tokens * self.kv_bytes_per_token / self.transfer_bandwidth

    def host_seconds(self, tokens: int) -> float:
        """The cache over the host links of all chips."""
        if not self.host_bandwidth:
            raise BadRequest(
                "the chip has no 'host_link_oneway' in the catalogue, so a cache cannot be copied "
                "to the host; leave the host's tier out, or give the rate with --hw FILE"
            )
        return tokens * self.kv_bytes_per_token / self.host_bandwidth

    def _shared(self, tokens: float, sequences: int, samples: int) -> float:
        """All but attention: matmuls, head, and what the host does per sequence."""
        host = self.sequence_seconds * (sequences / self.splits)
        return _at(self.matmuls, tokens) + _at(self.head, ceil(samples / self.splits)) + host

    def _decoding(self, decodes: int, context: int, queries: float) -> tuple[float, float, float]:
        """Decode attention of the busiest device as base, slope and end in the whole context."""
        found = self.known.get((decodes, queries)) or self._know(decodes, queries)
        exchanges, kinds = found
        mean = context / decodes
        base, slope, until = 0.0, 0.0, inf
        for kind, pieces in kinds:
            seconds, per_context, ends = kind.at(pieces, mean)
            base += seconds - per_context * mean
            slope += per_context
            if ends < until:
                until = ends
        return base + exchanges, slope / decodes, until * decodes

    def _know(
        self, decodes: int, queries: float
    ) -> tuple[float, list[tuple[Slower, list[_Piece]]]]:
        """What the busiest device has of so many sequences, whatever their context."""
        batch = ceil(decodes / self.splits)
        mine = ceil(batch / self.stationary)
        exchanges = 0.0 if self.exchanges is None else _at(self.exchanges, batch)
        kinds = [(kind, kind.pieces(mine, queries)) for kind in self.decodes]
        self.known[decodes, queries] = found = exchanges, kinds
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pricer:
    """A server whose ops are being priced, and its numbers for counting."""

    server: Server
    shape: ServeShape
    placement: Placement

    @property
    def stack(self) -> Stack:
        return self.server.request.engine.stack

    @property
    def layers(self) -> Sequence[tuple[Layer, int]]:
        return self.server.request.cfg.layer_groups()

    def estimate(self, step: StepShape) -> Estimate:
        return self.server.price(step_work(self.server.request.cfg, self.shape, step))

    def body(self, found: Estimate, name: str) -> Quantity:
        """Seconds of one body of a step."""
        return body_times(found.ops, self.stack)[name].expected

    def op(self, op: Op) -> np.ndarray:
        """Seconds of one run of one op."""
        priced = price_op(op, self.server.piece.chip, self.placement, self.stack)
        return np.asarray(priced.derated, float)

    def math(self, op: Op) -> np.ndarray:
        return self.op(replace(op, hbm_bytes=0.0, on_chip_bytes=0.0))

    def memory(self, op: Op) -> np.ndarray:
        return self.op(replace(op, flops={}))


def engine_cost(server: Server) -> EngineCost:
    """The cost of the steps of a server of one mesh; its batch and lengths are not read."""
    shape, chip, engine = server.shape(), server.piece.chip, server.request.engine
    pricer = _Pricer(server=server, shape=shape, placement=server.placement)
    mixers = [(part, n) for layer, n in pricer.layers for part in layer.by_mixer]
    centre = chip.data_centre
    rate = 0.0 if centre is None else centre.chip_oneway * chip.efficiency.outer_network
    return EngineCost(
        matmuls=_matmuls(pricer),
        head=_head(pricer),
        exchanges=_exchanges(pricer),
        gathers=_gathers(pricer),
        decodes=[_decodes(pricer, layer, n) for layer, n in mixers if _keeps(layer)],
        chunks=[_chunks(pricer, layer, n) for layer, n in mixers if _attends(layer)],
        splits=float(shape.splits),
        stationary=float(shape.stationary),
        sequence_seconds=float(engine.sequence_seconds),
        kv_bytes_per_token=kv_bytes_per_token(server.request.cfg, shape.dtypes.kv),
        host_bandwidth=server.chips * (chip.host_link_oneway or 0.0),
        transfer_bandwidth=server.chips * rate,
        transfer_latency=0.0 if centre is None else centre.hop_seconds,
    )


def _keeps(layer: Layer) -> bool:
    return isinstance(layer.mixer, SoftmaxMixer | RecurrentMixer)


def _attends(layer: Layer) -> bool:
    return isinstance(layer.mixer, SoftmaxMixer)


def _matmuls(p: _Pricer) -> list[float]:
    """Every op of the layers but attention, the embedding, and the head of one sample."""
    tokens = np.arange(1.0, MOST_TOKENS + 1)
    whole = tokens * p.shape.splits
    step = StepShape(decodes=whole, decode_tokens=whole, samples=1)  # type: ignore[arg-type]
    found = p.estimate(step)
    total = p.body(found, "step.embed") + p.body(found, "step.sample")
    for t in found.ops:
        if t.op.body.startswith("step.layers") and not t.op.id.endswith(_ATTENTION):
            total = total + t.total
    return _table(total, tokens)


def _head(p: _Pricer) -> list[float]:
    """What more samples than one add."""
    samples = np.arange(1.0, MOST_SAMPLES + 1)
    whole = samples * p.shape.splits
    step = StepShape(decodes=1, decode_tokens=1, samples=whole)  # type: ignore[arg-type]
    body = np.broadcast_to(p.body(p.estimate(step), "step.sample"), samples.shape)
    return _table(body - body[0], samples)


def _exchanges(p: _Pricer) -> list[float] | None:
    """Sequences spread over the devices that share a KV head, and back."""
    batch = np.arange(1.0, MOST_SAMPLES + 1)
    total: Quantity = 0.0
    for layer, layers in p.layers:
        for op in decode_core(p.shape, layer, p.shape.seen(batch, 1.0)):
            if op.collective is not None:
                total = total + layers * op.count * p.op(op)
    return _table(total, batch) if np.any(total) else None


def _gathers(p: _Pricer) -> list[float] | None:
    """What prompt tokens cost besides matmuls and attention: scans, and caches gathered."""
    tokens = np.arange(1.0, MOST_TOKENS + 1)
    step = _prompt(tokens, 0.0)
    total: Quantity = 0.0
    for layer, layers in p.layers:
        for op in prefill_ops(p.shape, step, layer, p.shape.seen(tokens / p.shape.splits, 1.0)):
            if not op.id.endswith(_PREFILL):
                total = total + layers * op.count * p.op(op)
    return _table(total, tokens) if np.any(total) else None


def _table(values: Quantity, places: np.ndarray) -> list[float]:
    """Values at 1, 2, ... with the first repeated at 0."""
    found = np.broadcast_to(np.asarray(values, float), places.shape)
    return [float(found[0]), *found.tolist()]


def _prompt(tokens: Quantity, context: Quantity) -> StepShape:
    pairs = tokens * context + tokens**2 / 2
    return StepShape(
        prefills=1,
        prefill_tokens=tokens,  # type: ignore[arg-type]
        prefill_context=context,  # type: ignore[arg-type]
        prefill_pairs=pairs,  # type: ignore[arg-type]
        samples=1,
    )


def _decodes(p: _Pricer, layer: Layer, layers: int) -> Slower:
    """Both lines of a layer's decode core, from what it costs at the bends and far beyond."""
    spread, apart = float(p.shape.spread(layer.mixer)), float(p.shape.stationary)
    knots = _bends(layer)
    contexts = np.array([*knots, knots[-1] + _FAR])

    def core(batch: float) -> Op:
        ops = decode_core(p.shape, layer, p.shape.seen(batch * spread * apart, contexts))
        return next(op for op in ops if op.collective is None)

    one, two, shape = core(1.0), core(2.0), contexts.shape
    math_one, math_two = (np.broadcast_to(p.math(op), shape) for op in (one, two))
    kernel = float(p.stack.launch_seconds)
    memory = np.broadcast_to(p.memory(two) - p.memory(one), shape)
    return Slower(
        knots=knots,
        math=_pieces(contexts, math_two - math_one),
        memory=_pieces(contexts, memory),
        ramp=float((2 * math_one - math_two)[-1]) - kernel,
        kernel=kernel,
        count=float(layers),
        spread=spread,
        cut=p.shape.kv_sharding == "heads_then_batch_then_sequence",
    )


def _bends(layer: Layer) -> list[float]:
    """Contexts at which what a query sees stops growing, or grows otherwise."""
    match layer.mixer:
        case Attention() | LatentAttention() as mixer if most_keys(mixer) < inf:
            return [0.0, most_keys(mixer)]
        case CompressedAttention() as mixer:
            chosen = mixer.indexer.top_k * mixer.ratio if mixer.indexer and mixer.ratio else 0
            return sorted({0.0, float(mixer.window), float(chosen)})
        case _:
            return [0.0]


def _pieces(contexts: np.ndarray, values: np.ndarray) -> list[tuple[float, float]]:
    slopes = np.diff(values) / np.diff(contexts)
    return list(zip(values[:-1].tolist(), slopes.tolist(), strict=True))


def _chunks(p: _Pricer, layer: Layer, layers: int) -> Chunks:
    """Prefill attention from four prices: twice the pairs, and more keys."""
    tokens, kernel = float(MOST_TOKENS), float(p.stack.launch_seconds)

    def core(step: StepShape) -> Op:
        ops = prefill_ops(p.shape, step, layer, p.shape.seen(tokens / p.shape.splits, 1.0))
        return next(op for op in ops if op.id.endswith(_PREFILL))

    alone = _prompt(tokens, 0.0)
    one, two = core(alone), core(alone._replace(prefill_pairs=2 * alone.prefill_pairs))
    longer = core(alone._replace(prefill_context=tokens))  # type: ignore[arg-type]
    sums = _pairs(layer)
    seen = _at(sums, tokens) if sums is not None else tokens**2 / 2
    per_pairs = float(p.math(two) - p.math(one))
    per_keys = float(p.memory(longer) - p.memory(one)) / tokens
    return Chunks(
        pair=per_pairs / seen,
        keys=per_keys,
        queries=(float(p.memory(one)) - kernel) / tokens - per_keys,
        ramp=float(p.math(one)) - per_pairs - kernel,
        kernel=kernel,
        count=float(layers),
        sums=sums,
    )


def _pairs(layer: Layer) -> list[float] | None:
    """Pairs that count in prompts of 0, 1, 2, ... tokens; None where it is half of the square."""
    lengths = np.arange(LONGEST + 1.0)
    flops = np.asarray(prompt_flops(layer, lengths))
    sums = flops / flops[1] / 2
    return None if np.allclose(sums, lengths**2 / 2) else sums.tolist()


def _at(table: Sequence[float], place: float) -> float:
    """A table at a place: along a line between whole places, and beyond its end along that of its
    second half (the last step alone may be one tile)."""
    low, last = int(place), len(table) - 1
    if place == low <= last:
        return table[low]
    if place >= last:
        half = last // 2
        return table[last] + (place - last) * (table[last] - table[half]) / (last - half)
    return table[low] + (place - low) * (table[low + 1] - table[low])
