"""What both planners end with: what would change the answer, chips side by side, and the sheet to
save, whose rows are chips x prices x growth.

Growth of a run is of its tokens: as many times the days and dollars. Growth of a load is of its
requests per second, each planned anew. Dollars are in proportion to the price.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from shardwise.apps.page.figures import FigureAxis, FigureData, Mark, TableData
from shardwise.commands.plan_train.chips_beside import ChipsBeside
from shardwise.commands.plan_train.swept_result import ChipPlan
from shardwise.plans.train import mesh_text
from shardwise.results.run import WholeRun
from shardwise.results.sensitivity import ChangedInput, strongest
from shardwise.results.served import ServedPlan

BESIDE = "h100 b200"
BESIDE_ABOUT = "Such as h100 b200; empty: none. The decision sheet has them too."
TRAIN_HEADER = ("chip", "slice", "price", "USD per chip-hour", "growth", "tokens", "days")
TRAIN_HEADER += ("days, 1 in 10 less", "days, 1 in 10 more", "USD")
SERVE_HEADER = ("chip", "servers", "price", "USD per chip-hour", "growth", "requests/s", "chips")
SERVE_HEADER += ("USD per hour", "USD per million tokens")


def called(model: str) -> str:
    """What a model is called in a sentence: one that is written out is the reader's own."""
    family, written, _ = model.partition("(")
    return f"your {family}" if written else model


def named(own: str, beside: str) -> str:
    """A chip and those beside it, as commands take them; "" where there are no others."""
    others = dict.fromkeys(word for word in beside.replace(",", " ").split() if word != own)
    return ",".join([own, *others]) if others else ""


def strongest_line(found: Sequence[ChangedInput] | None) -> list[str]:
    """The line of the inputs that weigh most; none of a quick answer."""
    return [strongest(found)] if found else []


def changes(found: Sequence[ChangedInput] | None) -> list[TableData]:
    """What one changed input does to the answer, that which weighs most first; none of a quick
    answer."""
    if not found:
        return []
    timed = any(one.time is not None for one in found)
    rows = [
        [one.name, f"x {one.by:.3g}", *([_times(one.time)] if timed else []), _times(one.cost)]
        for one in found
    ]
    header = ("input", "changed", *(["time of a token"] if timed else []), "cost")
    title = "What would change it (the same plan, priced again)"
    return [TableData(title=title, header=header, rows=rows)]


def change_figure(found: Sequence[ChangedInput]) -> FigureData | None:
    """The same as ratios to the answer, beside the line of no change."""
    if not found:
        return None
    names = [f"{one.name} x {one.by:.3g}" for one in found]
    marks = [
        Mark(kind="dot", label=said, x=[value for value, _ in known], y=[name for _, name in known])
        for said, which in (("time of a token", "time"), ("cost", "cost"))
        if (known := [
            (value, name)
            for one, name in zip(found, names, strict=True)
            if (value := getattr(one, which)) is not None
        ])
    ]  # fmt: skip
    return FigureData(
        id="changes",
        title="What would change it: one input at a time, the same plan",
        x=FigureAxis(label="ratio to the answer"),
        y=FigureAxis(names=tuple(names)),
        marks=[*marks, Mark(kind="rule", label="as the answer", x=[1])],
    )


def _times(value: float | None) -> str:
    return "" if value is None else f"x {value:.3g}"


def days_figure(own: str, run: WholeRun | None, beside: ChipsBeside | None) -> FigureData | None:
    """Days of the run on each slice, with the range of 8 of 10 runs where it is known."""
    if run is None:
        return None
    rows: dict[str, WholeRun | ChipPlan] = {own: run}
    for one in _planned(beside) if beside else ():
        rows.setdefault(one.slice, one)
    known = [(name, one.days_80) for name, one in rows.items()]
    ranges = [(name, days) for name, days in known if days is not None]
    return FigureData(
        id="days",
        title="Days of the run, and how sure",
        x=FigureAxis(label="time", unit="days"),
        y=FigureAxis(names=tuple(rows)),
        marks=[
            Mark(
                kind="range",
                label="8 of 10 runs",
                x=[days.low for _, days in ranges],
                x2=[days.high for _, days in ranges],
                y=[name for name, _ in ranges],
            ),
            Mark(kind="dot", label="expected", x=[one.days for one in rows.values()], y=list(rows)),
        ],
    )


def chips_figure(found: ChipsBeside) -> FigureData | None:
    """Dollars of the run on each chip."""
    known = [one for one in _planned(found) if one.usd_at_price is not None]
    if not known:
        return None
    names = [one.slice for one in known]
    dollars = Mark(kind="bar", label="USD", x=[one.usd_at_price for one in known], y=names)
    return FigureData(
        id="chips",
        title="Chips side by side: dollars of the run",
        x=FigureAxis(label="cost", unit="USD"),
        y=FigureAxis(names=tuple(names)),
        marks=[dollars],
    )


def chips_table(found: ChipsBeside) -> TableData:
    """Each chip with its plan, days and dollars, or why it has none."""
    rows = []
    for one in found.chips:
        if not isinstance(one, ChipPlan):
            rows.append([one.slice, one.miss, *[None] * 5])
            continue
        range_ = one.days_80
        between = f"{range_.low:,.0f} to {range_.high:,.0f}" if range_ else None
        rows.append([one.slice, mesh_text(one.mesh), one.days, between, one.usd_at_price,
                     one.usd_at_price_low, one.usd_at_price_high])  # fmt: skip
    header = ("slice", "plan", "days", "8 of 10 runs", "USD", "cheapest provider", "dearest")
    units = {"USD": "USD", "cheapest provider": "USD", "dearest": "USD"}
    return TableData(title="Chips side by side, as listed", header=header, rows=rows, units=units)


def _planned(found: ChipsBeside) -> Iterator[ChipPlan]:
    return (one for one in found.chips if isinstance(one, ChipPlan))


def train_rows(found: ChipsBeside, growth: float) -> Iterator[Sequence[Any]]:
    """Each chip at each price, for so many times the tokens."""
    for one in _planned(found):
        range_ = one.days_80
        took = (one.days, *((range_.low, range_.high) if range_ else (None, None)))
        grown = [None if days is None else growth * days for days in took]
        offers = {
            price.usd_per_chip_hour: (price.source.partition(":")[0], usd)
            for name in ("price_low", "price_high", "price")
            if (price := getattr(one, name)) and (usd := getattr(one, f"usd_at_{name}"))
        }
        for price, (source, usd) in sorted(offers.items()):
            yield [one.chip, one.slice, source, price, growth, growth * found.tokens, *grown,
                   growth * usd]  # fmt: skip


def serve_rows(plans: Sequence[ServedPlan], growth: float) -> Iterator[Sequence[Any]]:
    """Each chip at each price, as it is planned for the load that has grown."""
    for one in plans:
        usual, asked = one.price, one.price_range
        offers = {asked.low: asked.low_offer, asked.high: asked.high_offer} if asked else {}
        if usual is not None:
            offers[usual.usd_per_chip_hour] = usual.source.partition(":")[0]
        hours = one.chip_hours_per_million_tokens.all
        for usd, source in sorted(offers.items()):
            yield [one.chip, f"{one.replicas} x {one.slice}", source, usd, growth,
                   one.requests_per_second, one.chips, one.chips * usd, hours * usd]  # fmt: skip
