"""The roofline explorer: one product on a chip, beside another, over every batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import ViewState, choice, powers, slider
from shardwise.apps.page.figures import FigureAxis, FigureData, KeyFigure, Mark, facts
from shardwise.apps.page.view import Drawn, PageView
from shardwise.apps.page.views.chips import CHIPS, NONE, chip_choice
from shardwise.boundary.records import values
from shardwise.commands.base.answer import Answer
from shardwise.commands.tables.hw import ChipNumbers
from shardwise.commands.tables.roofline import MatmulAnswer
from shardwise.units import format_seconds, sig

Found = Mapping[str, MatmulAnswer]
"""A chip -> the product on it."""

BATCHES = "1:16384:141"
"""Sizes M of the curves; ten for each factor of two, so that the steps of the tile show."""
DTYPES = ("bf16", "fp8", "int8")
UNITS = {"flops": "FLOP", "padded_flops": "FLOP", "intensity": "FLOP/B"}
UNITS |= {"critical_intensity": "FLOP/B", "attainable_flops": "FLOP/s", "bandwidth": "bytes/s"}
UNITS |= {"math_seconds": "s", "comms_seconds": "s", "latency_seconds": "s"}
BOUNDS = {f"{bound} seconds": "s" for bound in ("lower", "expected", "upper")}


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineState(ViewState):
    """The controls of the view."""

    on: str = chip_choice("Chip", CHIPS, "v5e")
    beside: str = chip_choice("Beside", (NONE, *CHIPS), "h100")
    m: int = slider("Batch M", powers(0, 14), 256, unit="tokens")
    k: int = slider("K", powers(7, 16), 8192)
    n: int = slider("N", powers(7, 16), 32768)
    dtype: str = choice("Compute dtype", DTYPES, "bf16")
    weights: str = choice("Weights stored as", ("same", "int8", "fp8", "bf16", "int4"), "same")
    level: str = choice("Operands come from", ("hbm", "vmem", "ici", "dcn", "pcie"), "hbm")


def _calls(state: RooflineState) -> list[VerbCall]:
    rates = [_call(state, chip) for chip in _chips(state)]
    return [*rates, *(_tile_call(chip) for chip in _chips(state))]


def _chips(state: RooflineState) -> list[str]:
    return [state.on] + [state.beside] * (state.beside not in (NONE, state.on))


def _tile_call(chip: str) -> VerbCall:
    return VerbCall(verb="hw_show", given=(chip,))


def _call(state: RooflineState, chip: str) -> VerbCall:
    keywords = {
        "on": chip,
        "matmul": f"{state.m}x{state.k}x{state.n}",
        "dtype": state.dtype,
        "weights": None if state.weights == "same" else state.weights,
        "level": state.level,
        "batch": BATCHES,
    }
    return VerbCall(verb="matmul_roofline", keywords=keywords)


def _draw(state: RooflineState, answers: Sequence[Answer]) -> Drawn:
    chips = _chips(state)
    found, tiles = {}, {}
    for chip, roof, shown in zip(chips, answers, answers[len(chips) :], strict=False):
        assert isinstance(roof, MatmulAnswer)
        assert isinstance(shown, ChipNumbers)
        found[chip] = roof
        tiles[chip] = " x ".join(map(str, shown.chip.matmul_tile))
    return Drawn(
        figures=[_roof(found), _seconds(found, state.m), _padded(found, tiles, state.m)],
        tables=[
            facts(
                f"M = {state.m} on {chip}",
                {"tile m x k x n": tiles[chip], **_figures(one)},
                UNITS | BOUNDS,
            )
            for chip, one in found.items()
        ],
        says=" ".join(_said(chip, one) for chip, one in found.items()),
        key=[_key(chip, one) for chip, one in found.items()],
        formula="T_math = 2MKN / C, T_comms = bytes / W; attainable FLOP/s = min(C, I W)",
        source="ch. 1; rates of the chip's file (hardware view)",
    )


def _roof(found: Found) -> FigureData:
    marks = []
    for chip, one in found.items():
        rows = one.rows or ()
        x, y = [row.intensity for row in rows], [row.attainable_flops for row in rows]
        marks.append(Mark(kind="line", label=chip, x=x, y=y))
    for chip, one in found.items():
        x, y = [one.intensity], [one.attainable_flops]
        marks.append(Mark(kind="dot", label=chip, x=x, y=y))
    return FigureData(
        id="roofline",
        title="What a chip attains at the intensity of each batch",
        x=FigureAxis(label="arithmetic intensity", unit="FLOP/B", log=True),
        y=FigureAxis(label="attainable", unit="FLOP/s", log=True),
        marks=marks,
    )


def _seconds(found: Found, m: int) -> FigureData:
    marks = []
    for chip, one in found.items():
        rows = one.rows or ()
        sizes = [row.m for row in rows]
        math, comms = [row.math_seconds for row in rows], [row.comms_seconds for row in rows]
        for label, y in (("T_math", math), ("T_comms", comms)):
            marks.append(Mark(kind="line", label=f"{label}, {chip}", x=sizes, y=y, dashed=True))
        y = [row.seconds.expected for row in rows]
        marks.append(Mark(kind="line", label=f"expected, {chip}", x=sizes, y=y))
    title = "Seconds against the batch, dims padded to the chip's tile"
    return _by_batch("seconds", title, FigureAxis(label="time", unit="s", log=True), marks, m)


def _padded(found: Found, tiles: Mapping[str, str], m: int) -> FigureData:
    """FLOPs that are asked for, and those of whole tiles, which are a staircase."""
    marks = []
    for chip, one in found.items():
        rows = one.rows or ()
        sizes, y = [row.m for row in rows], [row.padded_flops for row in rows]
        marks.append(Mark(kind="line", label=f"{chip}, tiles of {tiles[chip]}", x=sizes, y=y))
    rows = next(iter(found.values())).rows or ()
    x, y = [row.m for row in rows], [row.flops for row in rows]
    marks.append(Mark(kind="line", label="asked for", x=x, y=y, dashed=True))
    title = "FLOPs of whole tiles against the batch"
    return _by_batch("padded", title, FigureAxis(label="work", unit="FLOP", log=True), marks, m)


def _by_batch(id: str, title: str, y: FigureAxis, marks: list[Mark], m: int) -> FigureData:
    """Curves over the batch, with that of the product."""
    x = FigureAxis(label="batch M", unit="tokens", log=True)
    asked = Mark(kind="rule", label=f"M = {m}", x=[m])
    return FigureData(id=id, title=title, x=x, y=y, marks=[*marks, asked])


def _figures(one: MatmulAnswer) -> dict[str, object]:
    rest = {name: getattr(one, name) for name in UNITS}
    return {**rest, **{f"{k} seconds": v for k, v in values(one.seconds).items()}}


def _said(chip: str, one: MatmulAnswer) -> str:
    first = one.critical_batch.first
    until = (
        "no batch reaches the peak"
        if first is None
        else f"the peak is reached from M = {first:.0f}"
    )
    took = format_seconds(one.seconds.expected)
    return f"On {chip} the product takes about {took}, bound by {one.bound_by}; {until}."


def _key(chip: str, one: MatmulAnswer) -> KeyFigure:
    """What the chip can attain at this intensity."""
    note = f"at {sig(one.intensity)} FLOP a byte; {sig(one.critical_intensity)} reach the peak"
    return KeyFigure(
        label=f"attained by {chip}", value=one.attainable_flops, unit="FLOP/s", note=note
    )


VIEW = PageView(
    name="roofline",
    title="Roofline",
    about="One matrix product [M, K] x [K, N] on one chip, beside another chip.",
    group="Explain",
    state=RooflineState,
    calls=_calls,
    draw=_draw,
    crossed=("on", "beside", "dtype"),
)
