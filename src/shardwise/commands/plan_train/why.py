"""Why a training plan: what bounds it, and what other plans and other values of its choices cost.

`reasons` are the sentences of --why, `close_table` and `close_detail` are the
page's tables of what else was close.
"""

from collections.abc import Iterator, Sequence

from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.base.layout import WIDTH, wrapped
from shardwise.commands.pricing.predict import slower_text, waiting
from shardwise.planner.beside import MESH, Beside, alike, decisive, differences
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.search.choices import (
    CHOICES,
    MICROBATCHES,
    SIMPLER,
    THROUGH_HOST,
    strategies,
)
from shardwise.planner.search.loop import policies
from shardwise.planner.training import TrainPlanning
from shardwise.plans import TrainPlan
from shardwise.plans.train import mesh_text
from shardwise.results.train import ClosePlan
from shardwise.roofline.resolution import read_resolution
from shardwise.units import format_seconds, gib, many

_TITLES = {c.field: c.title for c in CHOICES}
_MOST_AXES = 3
"""Other sets of mesh axes that --why has a line for."""


def reasons(planning: TrainPlanning, choices: Sequence[Beside]) -> list[str]:
    """Why this plan: what bounds it, what waits, and per choice what another value would cost."""
    best = planning.best
    bound = best.estimate.bound_by()
    alone = format_seconds(float(best.estimate.resources[bound]))
    whole = format_seconds(best.step_seconds.expected)
    return [
        f"bound by {bound}: alone, at peak rates, it takes {alone} of the expected {whole}",
        waiting(best) + _bubble_text(best),
        *(_beside(rows, planning) for rows in _by_plan(choices)),
        *_other_axes(planning, choices),
        *_tied(planning),
        *_fastest(planning),
        *_rules(planning),
        *_left_out(planning),
    ]


def _by_plan(choices: Sequence[Beside]) -> list[list[Beside]]:
    """The choices, together where one plan is the next best of several."""
    found: dict[str, list[Beside]] = {}
    for row in choices:
        found.setdefault(repr(row.other and row.other.plan), []).append(row)
    return list(found.values())


def _beside(rows: Sequence[Beside], planning: TrainPlanning) -> str:
    """Choices, their values, and the price of the next best value."""
    best, other = planning.best, rows[0].other
    chosen = ", ".join(_named(row.choice, best.plan) for row in rows)
    if other is None:
        return f"{chosen}: no plan with another value fits, of those priced"
    names = [row.choice for row in rows]
    new = ", ".join(_named(name, other.plan) for name in names)
    also = ", ".join(_named(n, other.plan) for n in differences(other, best) if n not in names)
    return f"{chosen}: with {new}{also and f' (and {also})'} {_price(other, planning)}"


def _price(other: TrainAnswer, planning: TrainPlanning) -> str:
    """What another plan takes in seconds and memory, and where its time goes."""
    best = planning.best
    took = format_seconds(other.step_seconds.expected)
    text = slower_text(other.step_seconds.expected / best.step_seconds.expected)
    if planning.request.objective == "cost" and other.chips_used != best.chips_used:
        share = planning.rank(other) / planning.best_rank - 1
        text += f"; {100 * share:.1f} % more chip-seconds per token, on {other.chips_used:,} chips"
    faster = other.step_seconds.expected < best.step_seconds.expected
    part, seconds = decisive(best, other) if faster else decisive(other, best)
    mostly = f", mostly {part} ({'-' if faster else '+'}{format_seconds(seconds)})" if part else ""
    return f"{took} and {_gib(other)} a chip: {text}{mostly}"


def _other_axes(planning: TrainPlanning, choices: Sequence[Beside]) -> Iterator[str]:
    """The best plans of other sets of mesh axes, but those that have a line already."""
    told = [row.other.plan for row in choices if row.other] + [a.plan for a in planning.tied]
    others = (a for a in planning.strategies if a.plan not in told)
    different = [a for a in others if not alike(a, planning.best)]
    for other in different[:_MOST_AXES]:
        axes = "+".join(other.plan.mesh) or "one device"
        yield f"axes {axes}: the best is {mesh_text(other.plan.mesh)}, {_price(other, planning)}"


def _tied(planning: TrainPlanning) -> Iterator[str]:
    if planning.tied:
        meshes = "; ".join(mesh_text(a.plan.mesh) for a in planning.tied)
        yield f"as fast (within 0.1 %) but not simpler: {meshes}"


def fastest_text(planning: TrainPlanning) -> str:
    """What the fastest plan gains over the best and what it risks; "" where they are one."""
    best, fastest = planning.best, planning.fastest
    if fastest is best or not planning.request.apart:
        return ""
    gain, apart = 1 - planning.fastest_rank / planning.best_rank, planning.request.apart
    more = strategies(fastest.plan.mesh, fastest.plan) - strategies(best.plan.mesh, best.plan)
    risks = [f"{many(more, 'strategy').replace('strategys', 'strategies')} more"] if more else []
    risks.append(f"{_gib(fastest)} a chip")
    differs = ", ".join([mesh_text(fastest.plan.mesh), *differs_in(fastest, best)])
    better = f"{_better(planning)}er by prediction"
    return (
        f"{100 * gain:.1f} % {better}, less than predictions can tell apart (half of these "
        f"pairs: {100 * (gain - apart):+.1f} to {100 * (gain + apart):+.1f} %): {differs}; "
        f"{', '.join(risks)}"
    )


def _fastest(planning: TrainPlanning) -> Iterator[str]:
    if text := fastest_text(planning):
        yield f"the {_better(planning)}est is {text}"


def _better(planning: TrainPlanning) -> str:
    """What a plan of a lower rank is: "fast", or "cheap" where chip-seconds are counted."""
    return "cheap" if planning.request.objective == "cost" else "fast"


def _rules(planning: TrainPlanning) -> Iterator[str]:
    """By which rules the answer is chosen, where not the fastest was asked for."""
    request, chip = planning.request, planning.best.piece.chip
    known, of = read_resolution(), (planning.best.plan.stack, chip.vendor)
    apart, margin = known.told_apart(*of), known.margin(*of)
    if not request.apart:
        return
    first, *titles = (rule.title for rule in SIMPLER)
    cards = [THROUGH_HOST] if chip.through_host else []
    order = ", then ".join([first, *cards, *titles])
    said = (
        f"predictions cannot tell plans apart within {100 * request.apart:.1f} % of the fastest "
        f"({apart.count} pairs of runs of one job); of these the answer is the one with {order}"
    )
    if not request.margin:
        yield f"{said}; no memory is kept free (--margin 0)"
        return
    free = f"at least {100 * request.margin:.3g} % of usable memory free"
    if request.margin == margin.value:
        free += f", enough for 19 of 20 predictions ({margin.count} runs)"
    kept = "it leaves" if planning.margin_kept else "no plan leaves"
    yield f"{said}; {kept} {free} (--margin)"


def _left_out(planning: TrainPlanning) -> Iterator[str]:
    best = planning.best
    if policies(planning.request) != planning.request.searched["remat"]:
        chip = best.piece.chip.id
        yield (
            f"offload was not tried: the catalogue has no host link for {chip} "
            "(give it with --set chip.host_link_oneway=NUMBER)"
        )
    if best.chips_idle:
        why = {
            "time": "no mesh tried that uses more of them is faster",
            "cost": "no mesh that uses more of them takes fewer chip-seconds per token",
            "chips": "the objective is the fewest chips on which a plan fits; the parts tried "
            "halve each axis of the slice again and again",
        }[planning.request.objective]
        yield f"{best.chips_idle:,} chips idle: {why}"


def _bubble_text(answer: TrainAnswer) -> str:
    stages, plan = answer.plan.degree("stage"), answer.plan
    if stages == 1:
        return ""
    schedule = plan.pipeline_schedule
    return f"; {stages} stages run {plan.microbatches} microbatches with schedule {schedule}"


def _value(choice: str, plan: TrainPlan) -> str:
    """The value of a choice, as a person writes it."""
    if choice == MESH:
        return mesh_text(plan.mesh)
    value = getattr(plan, choice)
    return "+".join(value) if isinstance(value, tuple) else str(value)


def _named(choice: str, plan: TrainPlan) -> str:
    """A choice and its value in few words."""
    if choice == MESH:
        return mesh_text(plan.mesh)
    if choice == MICROBATCHES:
        return many(plan.microbatches, "microbatch").replace("hs", "hes")
    if choice == "zero":
        return f"ZeRO-{plan.zero}"
    return f"{_TITLES[choice]} {_value(choice, plan)}"


def _gib(answer: TrainAnswer) -> str:
    return gib(answer.peak_bytes_per_chip)


def close_table(planning: TrainPlanning, close: Sequence[TrainAnswer]) -> Page:
    """Plans that a reader would tell apart, each with where it differs from the answer; and one
    line for those that are as fast as the answer."""
    best = planning.best
    if close:
        yield ""
        yield TextTable(
            ["close alternatives", "differs in", "step", "slower", "memory"],
            [_row(answer, best) for answer in close],
            left=2,
            ruled=False,
        )
    if text := fastest_text(planning):
        if not close:
            yield ""
        yield wrapped(text, 2, 4)
    if planning.tied:
        yield _tied_line([mesh_text(a.plan.mesh) for a in planning.tied], bool(close))


def close_detail(close: Sequence[ClosePlan], dtype: str) -> Page:
    """The plans that were close with what bounds them."""
    if not close:
        return
    yield ""
    rows = (
        [
            ", ".join([mesh_text(r.mesh), *r.differs]),
            f"{r.mfu:.1%}",
            format_seconds(r.exposed_seconds),
            r.bound_by,
        ]
        for r in close
    )
    yield TextTable(["close alternatives", f"MFU of {dtype}", "waits", "limited by"], list(rows))


def _row(answer: TrainAnswer, best: TrainAnswer) -> list[str]:
    ratio = answer.step_seconds.expected / best.step_seconds.expected
    same = answer.plan.mesh == best.plan.mesh
    return [
        "the same mesh" if same else mesh_text(answer.plan.mesh),
        ", ".join(differs_in(answer, best)) or "mesh",
        format_seconds(answer.step_seconds.expected),
        slower_text(ratio).removesuffix(" slower").removesuffix(" (within 0.1 %)"),
        _gib(answer),
    ]


def differs_in(answer: TrainAnswer, best: TrainAnswer) -> list[str]:
    """The choices beside the mesh in which a plan differs from the best, with their values; the
    chunks of a pipeline where they alone differ."""
    named = differences(answer, best)
    chunks = answer.plan.virtual_stages
    if not named and chunks != best.plan.virtual_stages:
        return [many(chunks, "chunk")]
    return [_named(name, answer.plan) for name in named if name != MESH]


def _tied_line(meshes: Sequence[str], below: bool) -> str:
    """The plans that are as fast as the answer, as many as a line has room for."""
    start = ("  " if below else "\n  ") + "as fast within 0.1 % but not simpler: "
    for shown in range(len(meshes), 1, -1):
        rest = len(meshes) - shown
        line = start + "; ".join(meshes[:shown]) + (f"; {rest} more" if rest else "")
        if len(line) <= WIDTH:
            return line
    rest = len(meshes) - 1
    return start + meshes[0] + (f"; {rest} more" if rest else "")
