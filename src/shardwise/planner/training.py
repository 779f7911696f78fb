"""plan_train: the simplest training plan that fits a slice as fast as predictions can tell, priced,
with its reasons: it searches, and prices the best plans that are found (`evaluate.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from shardwise.errors import BadRequest, NoFeasiblePlan, Remark
from shardwise.hardware import (
    Slice,
)
from shardwise.planner.checks import check_pins
from shardwise.planner.evaluate import TrainAnswer, evaluated, plan_of, plan_shape
from shardwise.planner.leaner import leaner
from shardwise.planner.price.memory import train_memory
from shardwise.planner.search.choices import AS_FAST, Simplicity, among_cards, simplicity
from shardwise.planner.search.loop import (
    SearchReport,
    TrainRequest,
    rank_of,
    search,
    simplest,
)
from shardwise.planner.search.misses import nearest_miss, no_legal_plan
from shardwise.planner.search.request import Ground
from shardwise.plans import TrainPlan
from shardwise.plans.train import mesh_text
from shardwise.roofline.evidence import Shift
from shardwise.units import DAY, format_gib, format_seconds
from shardwise.work import MemoryTimeline, Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlanning:
    """The answer of a search: the best plan, the next best meshes, the best of each other strategy
    (set of mesh axes), how much was looked at, and where the timeline ranks plans otherwise than
    the closed forms of the search did. `outside` is the best plan that the program of the request
    cannot run, where it is faster (`choosing.py`). `others` are all others that were priced by the
    timeline, fastest first. `fastest` is the one that ranks first, and the best plan the simplest
    of those that predictions cannot tell from it. Where not `margin_kept` no plan that fits leaves
    the margin of the request free. `offloaded` says what it costs that the optimizer's state lies
    in the hosts' memory, where nothing fits otherwise."""

    request: TrainRequest
    best: TrainAnswer
    fastest: TrainAnswer
    margin_kept: bool
    runners_up: tuple[TrainAnswer, ...]
    strategies: tuple[TrainAnswer, ...]
    others: tuple[TrainAnswer, ...]
    top: int
    search: SearchReport
    rank_changes: tuple[str, ...]
    outside: TrainAnswer | None = None
    offloaded: tuple[str, ...] = ()

    @property
    def best_rank(self) -> float:
        """What the objective makes smallest, of the best plan."""
        return self.rank(self.best)

    @property
    def fastest_rank(self) -> float:
        """The same, of the fastest plan."""
        return self.rank(self.fastest)

    @property
    def tied(self) -> tuple[TrainAnswer, ...]:
        """The others that take as long as the best."""
        return tuple(a for a in self.others if as_good(self.request, a, self.best, AS_FAST))

    def rank(self, answer: TrainAnswer) -> float:
        """What the objective makes smallest."""
        return _rank(self.request, answer)

    def at(self, shift: Shift) -> "TrainPlanning":
        """The same with every plan moved by what runs of one's own say of the best: they tell no
        two plans of one search apart."""

        def moved(answers: tuple[TrainAnswer, ...]) -> tuple[TrainAnswer, ...]:
            return tuple(known.setdefault(id(a), a.at(shift)) for a in answers)

        known = {id(self.best): self.best.at(shift)}
        return replace(
            self,
            request=replace(self.request, shift=shift),
            best=known[id(self.best)],
            fastest=moved((self.fastest,))[0],
            runners_up=moved(self.runners_up),
            strategies=moved(self.strategies),
            others=moved(self.others),
            outside=self.outside and self.outside.at(shift),
        )


_SPARE = 3  # meshes priced by the timeline beyond those shown: it may move them up


def plan_train(
    request: TrainRequest,
    *,
    top: int = 3,
    progress: Callable[[int, int], None] | None = None,
    exhaustive: bool = False,
) -> TrainPlanning:
    """Search the slice, and price the best plans again by the event timeline of their own stages.

    Raises NoFeasiblePlan with the nearest miss where nothing fits, BadRequest where the batch
    divides over no mesh.
    """
    check_pins(request)
    grounded = request if request.ground else replace(request, ground=Ground())
    looked = partial(search, keep=keep_of(top), progress=progress, exhaustive=exhaustive)
    asked, report = _fitting(grounded, looked)
    given, unfit = request, None
    if not report.best and (other := grounded.offloaded):
        asked_too, found = _fitting(other, looked)
        if found.best:
            unfit, report, request, grounded, asked = report, found, other, other, asked_too
    if not report.best and request.better_than < inf:
        raise NoFeasiblePlan("no plan ranks before the one that is known")
    if not report.best:
        raise NoFeasiblePlan(_nothing_fits(request, report))
    first = evaluated(request, report.best[0])
    ranked = [first, *(evaluated(request, found) for found in report.best[1:])]
    ranked.sort(key=lambda a: _order(request, a))
    best, others = _simplest(asked, ranked)
    fastest = min((best, *others), key=lambda a: _order(request, a))
    slower = [a for a in others if _order(request, a) >= _order(request, best)]
    strategies: dict[frozenset[str], TrainAnswer] = {}
    for answer in others:
        strategies.setdefault(frozenset(answer.plan.mesh), answer)
    strategies.pop(frozenset(best.plan.mesh), None)
    return TrainPlanning(
        request=request,
        best=best,
        fastest=fastest,
        margin_kept=asked is not grounded,
        runners_up=tuple(slower[:top]),
        strategies=tuple(strategies.values()),
        others=tuple(others),
        top=top,
        search=report,
        rank_changes=_rank_changes(request, report, first, fastest, best),
        offloaded=_offloaded(given, unfit, best) if unfit else (),
    )


def _fitting(
    grounded: TrainRequest, looked: Callable[[TrainRequest], SearchReport]
) -> tuple[TrainRequest, SearchReport]:
    """What was searched and found: plans that keep the margin of memory, or where none does, any
    that fit."""
    asked = grounded.with_margin
    report = looked(asked)
    if report.legal == 0:
        raise BadRequest(no_legal_plan(grounded))
    tight = asked.max_hbm_bytes < grounded.max_hbm_bytes
    if not report.best and tight and grounded.better_than == inf:
        return grounded, looked(grounded)
    return asked, report


def keep_of(top: int) -> int:
    """Meshes that a search has to find for so many beside the best."""
    return top + 1 + _SPARE


def _nothing_fits(request: TrainRequest, report: SearchReport) -> str:
    assert report.nearest is not None
    leanest = plan_of(request, report.nearest)
    loose = request.pins and request.part is None
    unpinned = search(replace(request, pins={}), keep=1).best if loose else ()
    fits = plan_of(request, unpinned[0]) if unpinned else None
    kinds, others = _leaner(request, leanest, hosts=True)
    return nearest_miss(request, report.nearest, leanest, kinds, fits, others)


def _leaner(
    request: TrainRequest, leanest: TrainPlan, hosts: bool
) -> tuple[Mapping[str, Quantity], str]:
    """What the leanest plan holds at its fullest point, and what makes it fit."""

    def held(plan: TrainPlan) -> MemoryTimeline:
        return train_memory(request.cfg, plan_shape(plan, request.cfg, request.piece.chip))

    kinds, room = held(leanest).peak_point()[1], request.max_hbm_bytes
    if request.part is not None or request.piece.chips > FEW_CHIPS:
        return kinds, ""
    needs, state = (lambda plan: float(held(plan).peak())), float(kinds["optimizer"])
    return kinds, leaner(leanest, request.cfg, request.piece, room, needs, state, hosts)


def _offloaded(request: TrainRequest, unfit: SearchReport, best: TrainAnswer) -> tuple[str, ...]:
    """That the optimizer's state lies in the hosts' memory, why, what that takes of a step, and
    what fits without."""
    assert unfit.nearest is not None
    _, others = _leaner(request, plan_of(request, unfit.nearest), hosts=False)
    need, usable = unfit.nearest.memory, request.max_hbm_bytes
    said = (
        "the optimizer's state is in host memory, and updates take "
        f"{format_seconds(best.time_parts.optimizer)} of a step: without offload the smallest plan "
        f"needs {format_gib(need)} per device, {format_gib(usable)} usable"
    )
    instead = f"; it also fits with {others}" if others else ""
    return (Remark(f"{said}{instead}; --offload none leaves this out"),)


FEW_CHIPS = 8
"""On so few chips other dtypes, an offloaded optimizer or adapters are named where nothing fits:
those who have more get more of them."""


def _simplest(
    request: TrainRequest, ranked: list[TrainAnswer]
) -> tuple[TrainAnswer, list[TrainAnswer]]:
    """The simplest plan that predictions cannot tell from the first of those ranked, and that
    leaves no more chips idle where the whole slice is paid for; and all others in their order:
    those, and what a search for simple plans alone finds."""
    fastest, apart = ranked[0], max(request.apart, AS_FAST)
    least = fastest.chips_used if request.objective == "time" else 0
    limit = rank_of(request, fastest.chips_used, float(fastest.estimate.expected) * (1 + apart))
    near = replace(request, better_than=float(limit))

    def good(one: TrainAnswer) -> bool:
        return one.chips_used >= least and as_good(request, one, fastest, apart)

    known = min(simplicity_of(request, a) for a in ranked if good(a))
    looked = simplest(near, _SPARE, known, least) if request.apart else ()
    plans = [a.plan for a in ranked]
    new = (found for found in looked if plan_of(request, found) not in plans)
    ranked = [*ranked, *(evaluated(request, found) for found in new)]
    ranked.sort(key=lambda a: _order(request, a))
    alike = (a for a in ranked if good(a))
    chip = request.piece.chip
    best = min(alike, key=lambda a: among_cards(simplicity_of(request, a), chip, a.plan.degrees))
    return best, [a for a in ranked if a is not best]


def simplicity_of(request: TrainRequest, answer: TrainAnswer) -> Simplicity:
    """What the rules of `choices.py` make smallest, of a priced plan."""
    plan, kept = answer.plan, request.with_margin.max_hbm_bytes
    beyond = max(float(answer.memory.peak()) - kept, 0.0)
    return simplicity(plan.mesh, plan, plan.microbatches, beyond, _rank(request, answer))


def as_good(request: TrainRequest, one: TrainAnswer, other: TrainAnswer, apart: float) -> bool:
    """Whether two plans differ by at most the share `apart` in what the objective makes small."""
    if request.objective == "chips" and one.chips_used != other.chips_used:
        return False
    chips = one.chips_used / other.chips_used if request.objective == "cost" else 1.0
    seconds = float(one.estimate.expected) / float(other.estimate.expected)
    return abs(chips * seconds - 1) <= apart


def _order(request: TrainRequest, answer: TrainAnswer) -> tuple[float, float, int]:
    """By rank to nine digits; of equals the one of the lower upper bound, then of fewer axes."""
    rank = _rank(request, answer)
    return float(f"{rank:.9g}"), float(answer.estimate.upper), len(answer.plan.mesh)


def _rank(request: TrainRequest, answer: TrainAnswer) -> float:
    """What the objective makes smallest, of a plan that was priced alone."""
    return float(rank_of(request, answer.chips_used, float(answer.estimate.expected)))


def _rank_changes(
    request: TrainRequest,
    report: SearchReport,
    first: TrainAnswer,
    fastest: TrainAnswer,
    best: TrainAnswer,
) -> tuple[str, ...]:
    """Says so where the first plan of the search is slower than the fastest by the timeline, by
    what a reader sees, and which of them is the answer."""
    before, after = (float(a.estimate.expected) for a in (first, fastest))
    took, least = format_seconds(before), format_seconds(after)
    if as_good(request, first, fastest, AS_FAST) or took == least or before < after:
        return ()  # of fewer chips a slower plan may be first
    simpler = ". The answer is simpler, and predictions cannot tell it from that one"
    return (
        Remark(
            f"with equal pipeline stages {_told(first)} looked fastest, at "
            f"{format_seconds(report.best[0].seconds)}. With the actual layers of each stage it "
            f"takes {took}, and {_told(fastest)} {least}"
            f"{', so that is the answer' if fastest is best else simpler}"
        ),
    )


def _told(answer: TrainAnswer) -> str:
    return f"{mesh_text(answer.plan.mesh)} ({answer.plan.pipeline_schedule})"


def run_of(tokens: float, tokens_per_second: float, piece: Slice) -> dict[str, float]:
    """Days and chip-hours of a whole run at a steady rate, all chips of the slice paid for."""
    seconds = tokens / tokens_per_second
    return {"days": seconds / DAY, "chip_hours": piece.chips * seconds / 3600}


def tokens_per_second_at(mfu: float, params: float, piece: Slice, dtype: str) -> float:
    """The book's arithmetic (ch. 6): chips x peak x MFU / (6 N)."""
    return piece.chips * piece.chip.peak(dtype) * mfu / (6 * params)


def better_batches(request: TrainRequest, best: TrainAnswer) -> list[tuple[int, float]]:
    """Batches (sequences, tokens per second) near the one asked for, at least a tenth faster.

    Tried are the nearest multiples of powers of two, and of the slice's odd factor times them.
    """
    if not best.chips_idle and request.sequences % _EVEN == 0:
        return []
    chips = request.piece.chips
    odd = chips // (chips & -chips)
    units = {unit for unit in (64, 256, 32 * odd) if request.sequences % unit}
    near = {round(request.sequences / unit) * unit for unit in units} - {0, request.sequences}
    better = []
    for sequences in sorted(n for n in near if abs(n / request.sequences - 1) <= _NEAR):
        try:
            rate = plan_train(replace(request, sequences=sequences), top=0).best.tokens_per_second
        except (BadRequest, NoFeasiblePlan):
            continue  # no offer, then
        if rate > 1.1 * best.tokens_per_second:
            better.append((sequences, rate))
    return better


_EVEN = 64  # a batch of so round a number splits well unless it leaves chips idle
_NEAR = 0.15  # a batch further off is another experiment, not the nearest one
