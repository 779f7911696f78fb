"""The hardware catalogue: every chip, two side by side, numbers with sources, and prices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import ViewState, choice
from shardwise.apps.page.figures import FigureAxis, FigureData, Mark, TableData, cell
from shardwise.apps.page.view import Drawn, PageView
from shardwise.apps.page.views.chips import CHIPS, chip_choice
from shardwise.boundary.records import values
from shardwise.commands.base.answer import Answer
from shardwise.commands.tables.hw import ChipList, ChipNumbers, ChipsCompared
from shardwise.commands.tables.hw_result import ChipSummary
from shardwise.units import format_bytes, format_rate, format_usd, sig

UNKNOWN = "unknown"
UNITS = {"bf16_flops": "FLOP/s", "fp8_flops": "FLOP/s", "int8_flops": "FLOP/s"}
UNITS |= {"hbm_bytes": "bytes", "hbm_bandwidth": "bytes/s", "link_oneway": "bytes/s"}
UNITS |= {"usd_per_chip_hour": "USD/h"}
CALLED = {
    "bf16_flops": "bf16 peak",
    "fp8_flops": "fp8 peak",
    "int8_flops": "int8 peak",
    "hbm_bytes": "memory",
    "hbm_bandwidth": "memory bandwidth",
    "link_oneway": "a link, one way",
    "usd_per_chip_hour": "price",
}
"""Fields of a chip as they are called on axes and in columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareState(ViewState):
    """The controls of the view."""

    chip: str = chip_choice("Chip", CHIPS, "v5p")
    beside: str = chip_choice("Beside", CHIPS, "h100")
    x: str = choice("Across", tuple(CALLED), "hbm_bandwidth", words=tuple(CALLED.values()))
    y: str = choice("Up", tuple(CALLED), "bf16_flops", words=tuple(CALLED.values()))
    constants: str = choice("Whose numbers", ("vendor", "book"), "vendor")


def _calls(state: HardwareState) -> list[VerbCall]:
    keywords = {"constants": state.constants}
    return [
        VerbCall(verb="hw_list", keywords=keywords),
        VerbCall(verb="hw_show", given=(state.chip,), keywords=keywords),
        VerbCall(verb="hw_show", given=(state.beside,), keywords=keywords),
        VerbCall(verb="hw_diff", given=(state.chip, state.beside), keywords=keywords),
    ]


def _draw(state: HardwareState, answers: Sequence[Answer]) -> Drawn:
    listed, shown, other, pair = answers
    assert isinstance(listed, ChipList)
    assert isinstance(shown, ChipNumbers)
    assert isinstance(other, ChipNumbers)
    assert isinstance(pair, ChipsCompared)
    named = dict.fromkeys((state.chip, state.beside))
    both = [one for name in named for one in listed.chips if one.chip == name]
    return Drawn(
        says=" ".join(map(_sentence, both)),
        figures=[_plane(listed.chips, state)],
        tables=[
            _both(pair, {**_units(other), **_units(shown)}),
            _numbers(shown),
            _prices(shown),
            _list(listed.chips),
        ],
        lines=[f"{shown.name}: {shown.network}.", *shown.notes],
        source="each number has its own, in the tables",
    )


def _sentence(one: ChipSummary) -> str:
    """A chip in numbers, to quote; what is unknown is left out."""
    known = (
        (one.bf16_flops, lambda value: f"computes {format_rate(value, 'FLOP/s')} in bf16"),
        (one.hbm_bytes, lambda value: f"holds {sig(value / 2**30)} GiB"),
        (one.hbm_bandwidth, lambda value: f"reads {format_bytes(value)}/s"),
        (one.usd_per_chip_hour, lambda value: f"costs {format_usd(value)} an hour"),
    )
    said = [words(value) for value, words in known if value is not None]
    return f"{one.chip} {', '.join(said)}."


def _units(shown: ChipNumbers) -> dict[str, str]:
    found = {name: one.unit for name, one in shown.numbers.items()}
    return {**found, "usd_per_chip_hour": "USD/h"}


def _both(pair: ChipsCompared, units: Mapping[str, str]) -> TableData:
    rows = [
        [name, cell(one.first, UNKNOWN), cell(one.second, UNKNOWN), one.ratio, units.get(name, "")]
        for name, one in pair.numbers.items()
    ]
    header = ("", pair.first, f"{pair.second} ", "ratio", "unit")
    return TableData(title=f"{pair.first} beside {pair.second}", header=header, rows=rows)


def _plane(chips: Sequence[ChipSummary], state: HardwareState) -> FigureData:
    x, y = state.x, state.y
    known = [one for one in chips if getattr(one, x) and getattr(one, y)]
    named = dict.fromkeys((state.chip, state.beside))
    marks = []
    for label, own in (
        ("other chips", [one for one in known if one.chip not in named]),
        *((name, [one for one in known if one.chip == name]) for name in named),
    ):
        xs, ys = ([getattr(one, axis) for one in own] for axis in (x, y))
        marks.append(Mark(kind="dot", label=label, x=xs, y=ys, text=[one.chip for one in own]))
    return FigureData(
        id="plane",
        title="Chips of the catalogue",
        x=FigureAxis(label=CALLED[x], unit=UNITS[x], log=True),
        y=FigureAxis(label=CALLED[y], unit=UNITS[y], log=True),
        marks=marks,
    )


def _numbers(shown: ChipNumbers) -> TableData:
    rows = [
        [name, cell(one.value, UNKNOWN), one.source or "", one.unit]
        for name, one in shown.numbers.items()
    ]
    header = ("", "value", "source", "unit")
    return TableData(title=f"Numbers of {shown.id}", header=header, rows=rows)


def _prices(shown: ChipNumbers) -> TableData:
    header = ("", "per chip-hour", "as of", "kind", "source")
    rows = [
        [name, one.usd_per_chip_hour, one.as_of, one.kind, one.source]
        for name, one in values(shown.prices).items()
        if one
    ]
    units = {"per chip-hour": "USD"}
    return TableData(title="Prices", header=header, rows=rows, units=units)


def _list(chips: Sequence[ChipSummary]) -> TableData:
    names = ("chip", *CALLED, "price_as_of")
    rows = [["" if (v := getattr(one, n)) is None else v for n in names] for one in chips]
    header = ("chip", *CALLED.values(), "price as of")
    units = {said: UNITS[name] for name, said in CALLED.items()}
    return TableData(title="Catalogue", header=header, rows=rows, units=units)


VIEW = PageView(
    name="hardware",
    title="Hardware",
    about="Chips, their numbers with sources, and prices with dates.",
    group="Look up",
    state=HardwareState,
    calls=_calls,
    draw=_draw,
    crossed=("chip", "beside", "constants"),
)
