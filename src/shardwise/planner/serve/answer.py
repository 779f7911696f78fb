"""plan_serve: the smallest slice that serves a model within its targets, its batch, its cost.

Definitions. TPOT is one decode step of the whole batch at the mean context (prompt plus half of the
answer). TTFT is the prefill of one prompt on an idle server plus one decode step: nothing waits in
a queue. `tokens_per_second_per_chip` counts answer tokens over all chips of the slice, used or
idle, while it decodes; prompts are prefilled on further servers of the same kind. Dollars per
million tokens are the chip-seconds of prefill per prompt token, and of decode per answer token, at
the chip's price. Targets bound expected times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from shardwise.errors import BadRequest, NoFeasiblePlan, ShardwiseError
from shardwise.hardware import Placement, Slice, parse_slice
from shardwise.models import ModelConfig
from shardwise.planner.price.plan import Usage
from shardwise.planner.serve.count import decode_work, prefill_work
from shardwise.planner.serve.memory import serve_memory
from shardwise.planner.serve.misses import misfit, no_slice_fits, targets_missed
from shardwise.planner.serve.search import (
    Bounds,
    Point,
    ServeRequest,
    SliceFound,
    Utilisation,
    at_utilisation,
    counts_scales,
    experts_of,
    front,
    heads_divide,
    place_mesh,
    search_slice,
    serve_shape,
    served_bounds,
)
from shardwise.plans import ServePlan, model_hash
from shardwise.plans.serve import SERVE_AXES
from shardwise.roofline import Estimate, price
from shardwise.roofline.engines import load_engine
from shardwise.work import MemoryTimeline, Work

_WIDER = (2, 4, 8)
"""Slices of so many times the chosen chips are searched too, for the Pareto front."""

MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeAnswer(Usage):
    """A priced serving plan. Times are seconds, memory bytes per device."""

    plan: ServePlan
    cfg: ModelConfig
    piece: Slice
    placement: Placement
    prefill_work: Work
    decode_work: Work
    prefill: Estimate
    decode: Estimate
    memory: MemoryTimeline
    prefill_bounds: Bounds
    decode_bounds: Bounds
    prefill_piece: Slice

    @property
    def work(self) -> Work:
        """The Work of one decode step on the busiest device."""
        return self.decode_work

    @property
    def prefill_seconds(self) -> dict[str, float]:
        """Prefill of one prompt."""
        return self.prefill_bounds.as_dict()

    @property
    def tpot_seconds(self) -> dict[str, float]:
        """One decode step of the batch at the mean context."""
        return self.decode_bounds.as_dict()

    @property
    def ttft_seconds(self) -> dict[str, float]:
        """Prefill of one prompt and one decode step, without queueing."""
        return (self.prefill_bounds + self.decode_bounds).as_dict()

    @property
    def tokens_per_second_per_chip(self) -> float:
        """Answer tokens per expected second and chip of the slice, while decoding."""
        return self.plan.batch / self.tpot_seconds["expected"] / self.piece.chips

    @property
    def requests_per_second_per_chip(self) -> float:
        """Whole answers per expected second and chip, while decoding (QPS/chip, ch. 8.1.1)."""
        return self.tokens_per_second_per_chip / self.plan.output_length

    @property
    def prefill_servers_per_decode_server(self) -> float:
        """Servers that prefill for one that only decodes (P:G ratio, ch. 8.1.2)."""
        answer = self.tpot_seconds["expected"] * self.plan.output_length
        return self.prefill_seconds["expected"] * self.plan.batch / answer

    @property
    def tokens_per_second_per_chip_with_prefill(self) -> float:
        """Answer tokens per expected second and chip, over the chips that decode and those of the
        servers that prefill for them."""
        more = self.prefill_servers_per_decode_server * self.prefill_piece.chips / self.piece.chips
        return self.tokens_per_second_per_chip / (1 + more)

    @property
    def usd_per_million_tokens(self) -> dict[str, float | None]:
        """Dollars per million prompt tokens and answer tokens; None where no price is known."""
        price = self.piece.chip.price
        if price is None:
            return {"input": None, "output": None}
        prefill = self.prefill_seconds["expected"] / self.plan.input_length
        return costs(
            usd_per_chip_hour=price.usd_per_chip_hour,
            chips=self.piece.chips,
            prefill=prefill * self.prefill_piece.chips / self.piece.chips,
            decode=self.tpot_seconds["expected"] / self.plan.batch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TooSmall:
    """A slice that was passed over, and why."""

    piece: Slice
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlanning:
    """The answer of a search: the best plan, other meshes on its slice, the slices passed over, the
    Pareto front over all slices looked at, and how many candidates were priced. `densest` is the
    point within the targets with most tokens per second and chip on any slice looked at."""

    request: ServeRequest
    best: ServeAnswer
    runners_up: tuple[ServeAnswer, ...]
    too_small: tuple[TooSmall, ...]
    front: tuple[Point, ...]
    densest: Point
    candidates: int


def plan_serve(request: ServeRequest, *, top: int = 3, constants: str = "vendor") -> ServePlanning:
    """Take the slices in turn until one holds the model and meets the targets; on it, the mesh and
    batch with most tokens per second. Raises NoFeasiblePlan with the nearest miss."""
    request = replace(request, kv_scales=counts_scales(constants))
    searched: list[SliceFound] = []
    passed: list[TooSmall] = []
    good: list[Point] = []
    for piece in request.pieces:
        found = search_slice(request, piece)
        searched.append(found)
        good = [p for p in found.points if p.meets(request)]
        if good:
            break
        passed.append(TooSmall(piece=piece, why=misfit(request, found)))
    if not good:
        raise _refusal(request, searched)
    chosen = _one_per_mesh(good)[: top + 1]
    wider = _wider(request, chosen[0].piece)
    searched += [search_slice(request, piece, exact=False) for piece in wider]
    answers = [answer_of(request, point, constants) for point in chosen]
    points = [p for found in searched for p in found.points]
    return ServePlanning(
        request=request,
        best=answers[0],
        runners_up=tuple(answers[1:]),
        too_small=tuple(passed),
        front=front(points),
        densest=_one_per_mesh([p for p in points if p.meets(request)])[0],
        candidates=sum(found.priced for found in searched),
    )


def _refusal(request: ServeRequest, searched: Sequence[SliceFound]) -> ShardwiseError:
    """No mesh divides the model: a bad request. Too little memory or time: no feasible plan."""
    if all(found.need == inf for found in searched):
        return BadRequest(no_slice_fits(request, searched))
    if any(found.points for found in searched):
        return NoFeasiblePlan(targets_missed(request, searched))
    return NoFeasiblePlan(no_slice_fits(request, searched))


def _one_per_mesh(points: Sequence[Point]) -> list[Point]:
    """The best point of every mesh, most tokens per second first; ties go to the faster step."""
    ranked = sorted(
        points, key=lambda p: (-p.tokens_per_second_per_chip, float(p.tpot.expected), p.memory)
    )
    best: dict[tuple[tuple[str, int], ...], Point] = {}
    for point in ranked:
        best.setdefault(tuple(point.mesh.items()), point)
    return list(best.values())


def _wider(request: ServeRequest, chosen: Slice) -> list[Slice]:
    """The first slices of at least 2, 4 and 8 times the chips."""
    wider: dict[int, Slice] = {}
    for times in _WIDER:
        for piece in request.pieces:
            if piece.chips >= times * chosen.chips:
                wider.setdefault(piece.chips, piece)
                break
    return list(wider.values())


def answer_of(request: ServeRequest, point: Point, constants: str) -> ServeAnswer:
    """A point of the search, priced again as a plan."""
    plan = ServePlan(
        model=request.model,
        model_hash=model_hash(request.cfg),
        slice=str(point.piece),
        mesh=point.mesh,
        box=point.box,
        batch=point.batch,
        input_length=request.input_length,
        output_length=request.output_length,
        prefill_chunk=request.prefill_chunk,
        kv_sharding=point.kv_sharding,
        dtypes=request.dtypes,
        constants=constants,  # type: ignore[arg-type]
        engine=request.engine.name,
    )
    return evaluate_serve(plan, request.cfg, point.piece, utilisation=request.utilisation)


def evaluate_serve(
    plan: ServePlan,
    cfg: ModelConfig,
    piece: Slice,
    *,
    prefill_piece: Slice | None = None,
    utilisation: Utilisation | None = None,
) -> ServeAnswer:
    """Count and price one plan; prompts on `prefill_piece` where the plan has a prefill server of
    its own. Raises BadRequest where it cannot be placed or does not divide."""
    if plan.prefill is not None:
        prefill_piece = prefill_piece or parse_slice(plan.prefill.slice)
        apart = evaluate_serve(plan.prefill_plan, cfg, prefill_piece, utilisation=utilisation)
        answer = evaluate_serve(replace(plan, prefill=None), cfg, piece, utilisation=utilisation)
        return replace(
            answer,
            plan=plan,
            prefill_work=apart.prefill_work,
            prefill=apart.prefill,
            prefill_bounds=apart.prefill_bounds,
            prefill_piece=prefill_piece,
        )
    check_serve_plan(plan, cfg, piece)
    request = _request_of(plan, cfg, piece, utilisation)
    placement = place_mesh(piece, plan.mesh, plan.box)
    if not placement.legal:
        raise BadRequest(
            f"the mesh {mesh_text(plan.mesh)} cannot be placed on the box "
            f"{'x'.join(map(str, plan.box))} of {piece}; choose degrees that fill it"
        )
    degrees = {axis: float(d) for axis, d in plan.mesh.items() if d > 1}
    shape = serve_shape(request, degrees, float(plan.batch), plan.kv_sharding)
    prefill, decode = prefill_work(cfg, shape), decode_work(cfg, shape)
    engine = request.engine
    priced = price(prefill, piece.chip, placement, stack=engine.stack)
    step = price(decode, piece.chip, placement, stack=engine.stack)
    chips = prod(plan.box) * piece.count
    return ServeAnswer(
        plan=plan,
        cfg=cfg,
        piece=piece,
        placement=placement,
        prefill_work=prefill,
        decode_work=decode,
        prefill=priced,
        decode=step,
        memory=serve_memory(cfg, shape),
        prefill_piece=piece,
        prefill_bounds=at_utilisation(
            served_bounds(priced, engine, shape.chunks), request, piece, chips
        ),
        decode_bounds=served_bounds(step, engine, shape.sequences),
    )


def _request_of(
    plan: ServePlan, cfg: ModelConfig, piece: Slice, utilisation: Utilisation | None
) -> ServeRequest:
    return ServeRequest(
        cfg=cfg,
        model=plan.model,
        pieces=(piece,),
        input_length=plan.input_length,
        output_length=plan.output_length,
        dtypes=plan.dtypes,
        prefill_chunk=plan.prefill_chunk,
        batch=plan.batch,
        utilisation=utilisation,
        engine=load_engine(plan.engine),
        kv_scales=counts_scales(plan.constants),
    )


def check_serve_plan(plan: ServePlan, cfg: ModelConfig, piece: Slice) -> None:
    """Raise BadRequest where a plan does not suit its model or slice."""
    if len(plan.box) != len(piece.shape) or any(
        not 1 <= used <= size for used, size in zip(plan.box, piece.shape, strict=True)
    ):
        raise BadRequest(
            f"box {'x'.join(map(str, plan.box))} is no part of {piece}; give one size per physical "
            f"axis, at most {'x'.join(map(str, piece.shape))}"
        )
    devices = prod(plan.box) * piece.count * piece.chip.jax_devices_per_chip
    if plan.devices != devices:
        raise BadRequest(
            f"the mesh {mesh_text(plan.mesh)} has {plan.devices:,} devices; box "
            f"{'x'.join(map(str, plan.box))} of {piece} has {devices:,}: make them equal"
        )
    if not heads_divide(cfg, plan.degree("tensor")):
        raise BadRequest(
            f"mesh axis 'tensor' of {plan.degree('tensor')} does not divide the heads of every "
            f"layer of {cfg.name}; take a divisor and give the rest to 'data'"
        )
    if cfg.d_model % plan.degree("fsdp"):
        raise BadRequest(
            f"mesh axis 'fsdp' of {plan.degree('fsdp')} does not divide D = {cfg.d_model:,} of "
            f"{cfg.name}; take a divisor and give the rest to 'tensor' or 'data'"
        )
    experts = experts_of(cfg)
    if experts % plan.degree("expert"):
        raise BadRequest(
            f"mesh axis 'expert' of {plan.degree('expert')} does not divide the {experts} routed "
            f"expert(s) of {cfg.name}; take a divisor and give the rest to 'data'"
        )


def costs(
    *, usd_per_chip_hour: float, chips: int, prefill: float, decode: float
) -> dict[str, float | None]:
    """Dollars per million tokens from seconds per prompt token and per answer token."""
    usd_per_second = usd_per_chip_hour / 3600 * chips
    return {
        "input": MILLION * usd_per_second * prefill,
        "output": MILLION * usd_per_second * decode,
    }


def mesh_text(mesh: Mapping[str, int]) -> str:
    """A mesh in words, outermost axis first."""
    return " x ".join(f"{a}={mesh[a]}" for a in SERVE_AXES if mesh.get(a, 1) > 1) or "one device"
