"""The hardware catalogue: every chip, two side by side, numbers with sources, and prices."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import State, choice
from shardwise.apps.page.figures import FigureAxis, FigureData, Mark, TableData
from shardwise.apps.page.view import Drawn, PageView
from shardwise.apps.page.views.chips import CHIPS
from shardwise.verbs.answer import Answer

UNITS = {"bf16_flops": "FLOP/s", "fp8_flops": "FLOP/s", "int8_flops": "FLOP/s"}
UNITS |= {"hbm_bytes": "bytes", "hbm_bandwidth": "bytes/s", "link_oneway": "bytes/s"}
UNITS |= {"usd_per_chip_hour": "USD/h"}


def _calls(state: State) -> list[VerbCall]:
    keywords = {"constants": state["constants"]}
    return [
        VerbCall(verb="hw_list", command="hw list", keywords=keywords),
        VerbCall(verb="hw_show", command="hw show", given=(state["chip"],), keywords=keywords),
        VerbCall(
            verb="hw_diff",
            command="hw diff",
            given=(state["chip"], state["beside"]),
            keywords=keywords,
        ),
    ]


def _draw(state: State, answers: Sequence[Answer]) -> Drawn:
    chips, shown = answers[0].result["chips"], answers[1].result
    return Drawn(
        figures=[_plane(chips, state)],
        tables=[
            _both(answers[2].result, _units(shown)),
            _numbers(shown),
            _prices(shown),
            _list(chips),
        ],
        lines=[f"{shown['name']}: {shown['network']}.", *shown["notes"]],
        formula="catalogue",
        source="each number has its own, below",
    )


def _units(shown: Mapping[str, Any]) -> dict[str, str]:
    found = {name: one["unit"] or "" for name, one in shown["numbers"].items()}
    return {**found, "usd_per_chip_hour": "USD/h"}


def _both(found: Mapping[str, Any], units: Mapping[str, str]) -> TableData:
    first, second = found["first"], found["second"]
    rows = [
        [name, *(_cell(one[side]) for side in ("first", "second")), one["ratio"], units.get(name)]
        for name, one in found["numbers"].items()
    ]
    header = ("", first, f"{second} ", "ratio", "unit")
    return TableData(title=f"{first} beside {second}", header=header, rows=rows)


def _plane(chips: Sequence[Mapping[str, Any]], state: State) -> FigureData:
    x, y = state["x"], state["y"]
    known = [one for one in chips if one[x] and one[y]]
    named = dict.fromkeys((state["chip"], state["beside"]))
    marks = []
    for label, own in (
        ("other chips", [one for one in known if one["chip"] not in named]),
        *((name, [one for one in known if one["chip"] == name]) for name in named),
    ):
        xs, ys = ([one[axis] for one in own] for axis in (x, y))
        marks.append(Mark(kind="dot", label=label, x=xs, y=ys, text=[one["chip"] for one in own]))
    return FigureData(
        id="plane",
        title="Chips of the catalogue",
        x=FigureAxis(label=x, unit=UNITS[x], log=True),
        y=FigureAxis(label=y, unit=UNITS[y], log=True),
        marks=marks,
    )


def _numbers(shown: Mapping[str, Any]) -> TableData:
    rows = [
        [name, _cell(one["value"]), one["source"] or "", one["unit"] or ""]
        for name, one in shown["numbers"].items()
    ]
    header = ("", "value", "source", "unit")
    return TableData(title=f"Numbers of {shown['id']}", header=header, rows=rows)


def _cell(value: Any) -> Any:
    if value is None:
        return "unknown"
    return value if isinstance(value, int | float) else str(value)


def _prices(shown: Mapping[str, Any]) -> TableData:
    header = ("", "USD per chip-hour", "as of", "kind", "source")
    names = ("usd_per_chip_hour", "as_of", "kind", "source")
    found = shown["prices"].items()
    rows = [[name, *(_cell(one[n]) for n in names)] for name, one in found if one]
    return TableData(title="Prices", header=header, rows=rows)


def _list(chips: Sequence[Mapping[str, Any]]) -> TableData:
    header = ("chip", *UNITS, "price_as_of")
    rows = [[one[name] if one[name] is not None else "" for name in header] for one in chips]
    return TableData(title="Catalogue", header=header, rows=rows, units=UNITS)


VIEW = PageView(
    name="hardware",
    title="Hardware",
    about="Chips, their numbers with sources, and prices with dates.",
    controls=(
        choice("chip", "Chip", CHIPS, "v5p"),
        choice("beside", "Beside", CHIPS, "h100"),
        choice("x", "Across", tuple(UNITS), "hbm_bandwidth"),
        choice("y", "Up", tuple(UNITS), "bf16_flops"),
        choice("constants", "Whose numbers", ("vendor", "book"), "vendor"),
    ),
    calls=_calls,
    draw=_draw,
)
