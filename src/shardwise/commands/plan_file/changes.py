"""What to change in somebody's launch file: plans near the one that it says, each written into the
file and read out of it again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record, hidden
from shardwise.commands.plan_file.check_words import NO_RISK, change_text, risks_of
from shardwise.commands.plan_file.failure import room_after
from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.planner.evaluate import TrainAnswer, evaluate_train
from shardwise.planner.export import EXPORTERS, parse_export
from shardwise.planner.export.edit import diff_of, edited, without_given
from shardwise.planner.export.known_flags import dialect_named
from shardwise.planner.export.trainer import TARGETS as TRAINERS
from shardwise.planner.export.trainer.dialects import spellings
from shardwise.planner.near_table import WORTH
from shardwise.planner.nearby import NearPlan, priced_near
from shardwise.planner.out_of_memory import MemoryFailure
from shardwise.plans import MESH_AXES, TrainPlan
from shardwise.plans.software import candidates_of_plan
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.resolution import read_resolution

MOST_CHANGES = 3
_TRIES = 30
"""Plans that are written into the file, at most: most are, at once."""
_FASTER = 0.99
"""A change is worth its risk where a step takes at most this share of what it did (ours)."""
_LEANER = 0.05
"""The share of usable memory that a change must free where it makes no step shorter (ours)."""
_COSTS = 1.15
"""A step that takes longer than this times what it did is not a price for memory (ours)."""
_ALIKE = 0.02
"""Steps of which one is by this share shorter are alike (ours)."""
_SAME = 1e-6
"""Times and bytes of one plan differ by rounding alone."""


@dataclass(frozen=True, kw_only=True)
class FileChange(Record):
    """A change of a launch file, priced as the changed file is read."""

    choices: Sequence[str]
    """Choices of the plan that change."""
    says: str
    """The change in a line."""
    step_seconds: Bounds
    """Seconds of a step with it."""
    gain_seconds: float
    """Expected seconds that a step takes less; negative where it takes longer."""
    gain: float
    """The same as a share of the step without it."""
    peak_bytes_per_chip: float
    """Bytes per chip at the peak with it."""
    saved_bytes_per_chip: float
    """Bytes that the peak is lower; negative where it is higher."""
    fits: bool
    """Whether memory then holds it."""
    risks: Sequence[str]
    """Risks and costs that the price does not include."""
    diff: str
    """The change of the file as a unified diff."""

    text: str = hidden("")
    short_diff: str = hidden("")


def usable_of(answer: TrainAnswer) -> float:
    """Bytes of a chip that a program can use."""
    return answer.piece.chip.require("hbm_usable_bytes")


def margin_of(answer: TrainAnswer) -> float:
    """The share of usable memory that a plan has to leave free to fit in 19 of 20 cases."""
    known = read_resolution()
    return known.margin(answer.plan.stack, answer.piece.chip.vendor).value


def unwritten(target: str, answer: TrainAnswer) -> str:
    """Why no change can be written for a program; "" where one can."""
    plan, cfg, piece = answer.plan, answer.cfg, answer.piece
    runner = EXPORTERS[target].runner(piece)
    found = runner.obstacles(candidates_of_plan(plan, cfg, piece)) if runner else []
    return next((str(obstacle) for obstacle in found if obstacle.field in ("model", "slice")), "")


def changes_of(
    text: str,
    file: str,
    target: str,
    answer: TrainAnswer,
    failure: MemoryFailure | None = None,
) -> list[FileChange]:
    """The best few changes of a file whose plan was priced, the best first; of each kind the best.

    The one with most gain of those without a risk comes first, then what makes a step shorter, then
    what frees memory; where the plan does not fit, or ran into a `failure`, only what makes it fit.
    """
    if unwritten(target, answer):
        return []
    usable, peak = usable_of(answer), answer.peak_bytes_per_chip
    room = usable * (1 - margin_of(answer))
    if failure is not None:
        room = room_after(failure, answer, room)
    elif peak <= usable:
        room = max(room, peak)
    near = priced_near(answer, room, EXPORTERS[target].runner(answer.piece))
    fitting = [n for n in near if n.answer.peak_bytes_per_chip <= room]
    if not fitting and failure is None:
        fitting = [n for n in near if n.answer.peak_bytes_per_chip <= usable]
    ranked = _safe_first(list(_in_order(fitting, answer, room)), answer, peak > room)
    found = dict[int, FileChange]()  # by place among those ranked
    kinds: set[str] = set()
    tried: set[int] = set()
    sets = list[set[str]]()
    failed = list[frozenset[str]]()
    for alike in range(3):  # of one axis, then of one choice, where there are not enough others
        for at, one in enumerate(ranked):
            if len(found) == MOST_CHANGES or len(tried) == _TRIES:
                return [found[place] for place in sorted(found)]
            mine = _kinds_of(one, answer)
            known = {kind for kind in mine & kinds if not (alike and kind.startswith("-"))}
            if (mine in sets if alike > 1 else known) or at in tried:
                continue
            tried.add(at)
            values = _values_of(one)
            if any(other <= values for other in failed):
                continue  # with more to change
            if change := _written(one, text, file, target, answer):
                found[at] = change
                kinds |= mine
                sets.append(mine)
            else:
                failed.append(values)
    return [found[place] for place in sorted(found)]


def _values_of(near: NearPlan) -> frozenset[str]:
    """What a plan has of the choices that it changes, each in a word."""
    plan, names = near.answer.plan, set(near.choices)
    names |= {"remat_kinds"} if "remat" in names else set()
    names |= {"virtual_stages"} if "pipeline_schedule" in names else set()
    return frozenset(f"{name} {getattr(plan, name)}" for name in names)


def _kinds_of(near: NearPlan, given: TrainAnswer) -> set[str]:
    """What a plan changes, a mesh by the axes that grow (+) and those that shrink (-)."""
    degrees = ((a, near.answer.plan.degree(a), given.plan.degree(a)) for a in MESH_AXES)
    moved = {("+" if new > old else "-") + axis for axis, new, old in degrees if new != old}
    return moved | {choice for choice in near.choices if choice != "mesh"}


def _in_order(near: Sequence[NearPlan], given: TrainAnswer, room: float) -> Iterator[NearPlan]:
    """Plans worth a change, best first; `room` is the memory that there is."""
    before, peak = given.step_seconds.expected, given.peak_bytes_per_chip

    def order(one: NearPlan) -> tuple[float, float]:
        """By time as predictions tell it, then the one with less memory."""
        share = one.answer.step_seconds.expected / before * WORTH ** len(one.choices)
        return round(share / _ALIKE), one.answer.peak_bytes_per_chip

    by_time = sorted(near, key=order)
    if peak > room:
        yield from by_time
        return
    yield from (n for n in by_time if n.answer.step_seconds.expected <= _FASTER * before)

    def price(one: NearPlan) -> float:
        """Seconds for a byte less; one that takes none of the step costs as much as the least."""
        longer = max(one.answer.step_seconds.expected - before, (1 - _FASTER) * before)
        return longer / (peak - one.answer.peak_bytes_per_chip)

    leaner = (n for n in near if n.answer.peak_bytes_per_chip <= peak - _LEANER * usable_of(given))
    slow = (n for n in leaner if n.answer.step_seconds.expected <= _COSTS * before)
    yield from sorted(slow, key=price)


def _safe_first(ranked: list[NearPlan], given: TrainAnswer, must_fit: bool) -> list[NearPlan]:
    """Plans in their order, but first the best of those without a risk: one that makes a step
    shorter, or where the file's plan must fit, one that takes little longer than the best."""
    margin, before = margin_of(given), given.step_seconds.expected
    times = [one.answer.step_seconds.expected for one in ranked]
    limit = _COSTS * times[0] if must_fit and times else _FASTER * before
    fast = (one for one, seconds in zip(ranked, times, strict=True) if seconds <= limit)
    safe = (n for n in fast if risks_of(given, n.answer, n.choices, margin) == [NO_RISK])
    first = next(safe, None)
    return ranked if first is None else [first, *(one for one in ranked if one is not first)]


def _optimizer_word(text: str, target: str, plan: TrainPlan, piece: Slice) -> str:
    """What the file's program calls the optimizer of a plan; "" where it has no other word."""
    row = EXPORTERS[target].runner(piece)
    words = {} if row is None else row.words.get("optimizer", {})
    word = str(words.get(plan.optimizer, plan.optimizer))
    if target in TRAINERS and (own := dialect_named(text)) is not None:
        word = next((str(said) for _, said in spellings(own, "optim", word)), word)
    return "" if word == plan.optimizer else word


def _written(
    near: NearPlan, text: str, file: str, target: str, given: TrainAnswer
) -> FileChange | None:
    """The change that makes the file say a plan; None where no edit reads back as promised."""
    exporter, cfg, piece = EXPORTERS[target], given.cfg, given.piece

    def reads(changed: str) -> TrainPlan:
        return parse_export(changed, target, model=(given.plan.model, cfg), piece=piece)

    def same(plan: TrainPlan) -> bool:
        try:
            found = evaluate_train(plan, cfg, piece)
        except BadRequest:
            return False
        pairs = (
            (found.step_seconds.expected, near.answer.step_seconds.expected),
            (found.peak_bytes_per_chip, near.answer.peak_bytes_per_chip),
        )
        return all(abs(mine / other - 1) <= _SAME for mine, other in pairs)

    def writes(plan: TrainPlan) -> str:
        return exporter.write(plan, cfg, piece)

    try:
        changed = edited(text, target, near.answer.plan, writes, reads, same)
    except BadRequest:  # what the exporter has no word for
        return None
    if changed is None:
        return None
    plan = reads(changed)
    after = evaluate_train(plan, cfg, piece).at(given.shift)
    gain = given.step_seconds.expected - after.step_seconds.expected
    return FileChange(
        choices=near.choices,
        says=change_text(
            given.plan, plan, near.choices, _optimizer_word(text, target, plan, piece)
        ),
        step_seconds=after.step_seconds,
        gain_seconds=gain,
        gain=gain / given.step_seconds.expected,
        peak_bytes_per_chip=after.peak_bytes_per_chip,
        saved_bytes_per_chip=given.peak_bytes_per_chip - after.peak_bytes_per_chip,
        fits=after.peak_bytes_per_chip <= usable_of(after),
        risks=risks_of(given, after, near.choices, margin_of(given)),
        diff=diff_of(text, changed, file),
        text=without_given(changed),
        short_diff=diff_of(text, changed, file, around=0),
    )
