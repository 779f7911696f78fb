"""What a reader may choose instead of the best plan: other plans, and other values of its choices.

Plans that are as fast as the best are no choice, as the simplest of them is the answer
(`training.py`). A plan is worth a row where it differs in kind from the best and from those before
it (axes, remat or schedule), or by more than `ALIKE` in time or `HEAVIER` in memory.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

from shardwise.planner.evaluate import TrainAnswer, evaluated, plan_of
from shardwise.planner.search.choices import MICROBATCHES, choices_of, strategies
from shardwise.planner.search.found import Found
from shardwise.planner.search.request import TrainRequest
from shardwise.planner.search.space import policies, spoken
from shardwise.planner.training import TrainPlanning
from shardwise.plans import TrainPlan
from shardwise.roofline.time_parts import TimeParts, waiting_on

ALIKE, HEAVIER = 0.01, 0.1
"""Plans of one kind closer than these in time and in memory are one row (ours)."""
AXES, MESH = "axes", "mesh"
"""Choices of a mesh: which axes it has, and all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A choice of the best plan, and the best plan priced with another value of it; None where none
    that fits was priced."""

    choice: str
    other: TrainAnswer | None


def choices_beside(planning: TrainPlanning) -> tuple[Beside, ...]:
    """The cost of another value of each choice that the search made and that matters to the best
    plan."""
    request, best = planning.request, planning.best
    found = [Beside(choice=MESH, other=_next_mesh(planning))]
    for choice, value in choices_of(best.plan).items():
        if len(_tried(request, choice)) == 1:
            continue
        priced = planning.search.by_choice.items()
        rivals = (found for (name, v), found in priced if name == choice and v != value)
        rival = min(rivals, key=lambda f: f.rank, default=None)
        other = rival and _priced(planning, found, plan_of(request, rival), rival)
        found.append(Beside(choice=choice, other=other))
    return tuple(found)


def _priced(
    planning: TrainPlanning, before: Iterable[Beside], plan: TrainPlan, rival: Found
) -> TrainAnswer:
    """A rival, copied from where its plan was priced before; a row of its own."""
    known = (*planning.others, *(each.other for each in before if each.other))
    same = (replace(answer) for answer in known if answer.plan == plan)
    return next(same, None) or evaluated(planning.request, rival)


def _tried(request: TrainRequest, choice: str) -> tuple:
    """The values that the search may take; () for any."""
    values = request.microbatches if choice == MICROBATCHES else request.searched[choice]
    return spoken(request, choice, policies(request) if choice == "remat" else values)


def _next_mesh(planning: TrainPlanning) -> TrainAnswer | None:
    """The fastest that a reader would tell from the best."""
    tied = {id(a) for a in planning.tied}
    others = (a for a in planning.others if id(a) not in tied)
    return next((a for a in others if not alike(a, planning.best)), None)


def differences(answer: TrainAnswer, best: TrainAnswer) -> list[str]:
    """The choices in which a plan differs from the best, its mesh first."""
    mine, theirs = _values(answer), _values(best)
    return [name for name in mine if name != AXES and mine[name] != theirs.get(name, mine[name])]


def _values(answer: TrainAnswer) -> dict[str, Hashable]:
    """Every choice that makes a difference to a plan, its mesh among them."""
    mesh = answer.plan.mesh
    return {AXES: frozenset(mesh), MESH: tuple(mesh.items()), **choices_of(answer.plan)}


def close_plans(planning: TrainPlanning, choices: Iterable[Beside]) -> tuple[TrainAnswer, ...]:
    """The first `top` that a reader would tell from the best and from those before them. The
    first that differs from the best in some set of choices comes before any second."""
    tied = {id(a) for a in planning.tied}
    found = [b.other for b in choices if b.other] + list(planning.others)
    found = sorted((a for a in found if id(a) not in tied), key=planning.rank)
    rows: list[TrainAnswer] = []
    for answer in found:
        if not any(alike(answer, row) for row in (planning.best, *rows)):
            rows.append(answer)
    firsts = {tuple(differences(a, planning.best)): a for a in reversed(rows)}
    chosen = [*sorted(firsts.values(), key=planning.rank), *rows]
    chosen = list({id(a): a for a in chosen}.values())[: planning.top]
    return tuple(sorted(chosen, key=planning.rank))


def alike(one: TrainAnswer, other: TrainAnswer) -> bool:
    """Whether a plan is no more to a reader than another: of one price, and of one kind or with
    more to explain."""
    mine, theirs = _values(one), _values(other)
    return (
        abs(one.step_seconds.expected / other.step_seconds.expected - 1) <= ALIKE
        and abs(one.peak_bytes_per_chip / other.peak_bytes_per_chip - 1) <= HEAVIER
        and all(mine.get(name) == theirs.get(name) for name in ("remat", "pipeline_schedule"))
        and (mine[AXES] == theirs[AXES] or _strategies(one) > _strategies(other))
    )


def _strategies(answer: TrainAnswer) -> int:
    return strategies(answer.plan.mesh, answer.plan)


def decisive(other: TrainAnswer, best: TrainAnswer) -> tuple[str, float]:
    """The part of the step that grows most from the best plan to another, and by how many seconds;
    "" where none grows. What compute waits for is one part, named by its mesh axes where one set of
    them is all that grows."""
    grows = _growth(other.time_parts, best.time_parts)
    part = max(grows, key=lambda name: grows[name], default="")
    return (part, grows[part]) if part and grows[part] > 0 else ("", 0.0)


def _growth(mine: TimeParts, theirs: TimeParts) -> dict[str, float]:
    """By how many seconds each part of a step is longer than another's."""
    waits = _grown(mine.waiting, theirs.waiting)
    # `own_runs` is one share of the whole of both plans.
    own, others = (replace(parts, waiting={}, own_runs=0.0).named() for parts in (mine, theirs))
    grows = _grown(own, others)
    whole = sum(waits.values())
    alone = [axes for axes, seconds in waits.items() if 0 < seconds <= whole]
    axes = alone[0] if len(alone) == 1 and waits[alone[0]] > 0.5 * whole else "networks"
    return {**grows, waiting_on(axes): whole} if waits else grows


def _grown(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after}}
