"""Sharding: the notation, who holds what of each array, and the strategies with their cost."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.apps.page.call import VerbCall
from shardwise.apps.page.controls import ViewState, choice, slider, text
from shardwise.apps.page.figures import FigureAxis, FigureData, Mark, TableData
from shardwise.apps.page.view import Drawn, PageView
from shardwise.commands.base.answer import Answer
from shardwise.commands.shard.command import Sharded, ShardedArray
from shardwise.commands.shard.result import TimedStrategy
from shardwise.sharding import Layout
from shardwise.units import format_seconds, many, sig

SLICES = ("v5e:2x2", "v5e:4x4", "v5e:8x8", "v5p:4x4x4", "h100:8", "2*h100:8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingState(ViewState):
    """The controls of the view."""

    expression: str = text("Expression", "A[I_X, J_Y] * B[J_Y, K] -> C[I_X, K]")
    dims: str = text("Dims", "I=8192,J=8192,K=32768")
    mesh: str = text("Mesh", "X=4,Y=4")
    on: str = choice("Slice", SLICES, "v5e:4x4")
    dtype: str = choice("Dtype", ("bf16", "f32", "int8"), "bf16")
    top: int = slider("Strategies shown", (1, 2, 3, 5, 8), 5)


def _calls(state: ShardingState) -> list[VerbCall]:
    named = list(dict.fromkeys(_ARRAY.findall(state.expression)))
    if [state.expression.strip()] == named:
        return [_held_call(state, named[0])]
    keywords = {
        "dims": _sizes(state, named),
        "mesh": state.mesh,
        "on": state.on,
        "dtype": state.dtype,
        "top": MOST_SHOWN,
    }
    whole = VerbCall(verb="shard", given=(state.expression,), keywords=keywords)
    return [whole, *(_held_call(state, one) for one in named[:MOST_ARRAYS])]


_ARRAY = re.compile(r"\w+'?\[[^\]]*\](?:\{U_[^}]*\})?")
Block = tuple[tuple[int, int], ...]
"""Of every dim its first and its last place."""
MOST_ARRAYS, MOST_DEVICES, MOST_SHOWN = 4, 64, 8


def _held_call(state: ShardingState, array: str) -> VerbCall:
    """Who holds what of one array."""
    keywords = {"dims": _sizes(state, [array]), "mesh": state.mesh, "dtype": state.dtype}
    return VerbCall(verb="shard", given=(array,), keywords=keywords)


def _sizes(state: ShardingState, arrays: Sequence[str]) -> str:
    letters = {letter for array in arrays for letter in Layout.parse(array).letters}
    sizes = state.dims.split(",")
    return ",".join(s for s in sizes if not letters or s.partition("=")[0].strip() in letters)


def _draw(state: ShardingState, answers: Sequence[Answer]) -> Drawn:
    found = answers[0]
    if isinstance(found, ShardedArray):
        return Drawn(
            figures=_maps(answers),
            tables=[_held(found)],
            lines=[f"{found.array}: {found.blocks} blocks, {found.copies} copies of each."],
            formula="block = dim / degree of its axes",
            source="ch. 3",
        )
    assert isinstance(found, Sharded)
    timed = [one for one in found.strategies if isinstance(one, TimedStrategy)]
    ways = {f"{i}. {one.summary}": one for i, one in enumerate(timed[: state.top], 1)}
    seconds = [one.seconds.expected for one in ways.values()]
    moved = [one.wire_bytes_per_device for one in ways.values()]
    return Drawn(
        figures=[
            _bars("seconds", "Strategies by expected seconds", "time", "s", ways, seconds),
            _bars("wire", "Bytes that each device sends", "sent", "bytes", ways, moved),
            *_maps(answers[1:]),
        ],
        tables=[_ways(timed[: state.top]), _shapes(found), _steps(found)],
        says=_sentence(timed),
        lines=[found.slice_means or "", *found.why],
        formula="bytes on the wire: (n - 1) / n of the array per axis, twice for an AllReduce",
        source="ch. 3",
    )


def _sentence(timed: Sequence[TimedStrategy]) -> str:
    """The fastest strategy, to quote; nothing where no chip times them."""
    if not timed:
        return ""
    best = timed[0]
    return (
        f"Of {many(len(timed), 'way')} {best.summary or 'no communication'} is expected to take "
        f"least: {format_seconds(best.seconds.expected)}, each device sends "
        f"{sig(best.wire_bytes_per_device / 2**20)} MiB."
    )


def _maps(answers: Sequence[Answer]) -> list[FigureData]:
    """Of every array its blocks, and the devices in the colours of the blocks that they hold."""
    maps = []
    for one in answers:
        assert isinstance(one, ShardedArray)
        if len(one.devices) <= MOST_DEVICES and len(one.devices[0].block) in (1, 2):
            maps += [_blocks(one), _devices(one)]
    return maps


def _holders(found: ShardedArray) -> dict[Block, list[str]]:
    holders: dict[Block, list[str]] = {}
    for one in found.devices:
        holders.setdefault(tuple(one.block), []).append("".join(map(str, one.at)))
    return holders


def _blocks(found: ShardedArray) -> FigureData:
    holders = _holders(found)
    sides = [((0, 1), *block)[-2:] for block in holders]
    mark = Mark(
        kind="rect",
        label=f"block of {found.array}",
        x=[columns[0] for _, columns in sides],
        y=[rows[0] for rows, _ in sides],
        x2=[columns[1] for _, columns in sides],
        y2=[rows[1] for rows, _ in sides],
        text=[" ".join(names) for names in holders.values()],
        hues=list(range(len(holders))),
    )
    copies = f"{found.copies} copies" if found.copies > 1 else "one copy"
    title = f"{found.array}: its blocks, with the devices of each; {copies}"
    return _drawing(f"held-{found.array}", title, mark, square=False)


def _devices(found: ShardedArray) -> FigureData:
    """The mesh, its last axis across, its last but one down, planes beside each other."""
    blocks, sizes = list(_holders(found)), list(found.mesh.values())
    wide = sizes[-1] if sizes else 1
    at = [(0, 0, *one.at) for one in found.devices]
    planes = [_plane(place[2:-2], sizes[:-2]) for place in at]
    x = [place[-1] + plane * (wide + 1) for place, plane in zip(at, planes, strict=True)]
    y = [place[-2] for place in at]
    mark = Mark(
        kind="rect",
        label="device",
        x=x,
        y=y,
        x2=[one + 1 for one in x],
        y2=[one + 1 for one in y],
        text=["".join(map(str, one.at)) for one in found.devices],
        hues=[blocks.index(tuple(one.block)) for one in found.devices],
    )
    title = f"The mesh ({', '.join(found.mesh)}), each device in the colour of its block"
    return _drawing(f"mesh-{found.array}", title, mark, square=True)


def _plane(outer: Sequence[int], sizes: Sequence[int]) -> int:
    """The number of a plane among those of the outer axes."""
    number = 0
    for place, size in zip(outer, sizes, strict=True):
        number = number * size + place
    return number


def _drawing(id: str, title: str, mark: Mark, square: bool) -> FigureData:
    bare = FigureAxis(bare=True)
    return FigureData(id=id, title=title, x=bare, y=bare, marks=[mark], square=square)


def _bars(id: str, title: str, label: str, unit: str, names, x: list[float]) -> FigureData:
    return FigureData(
        id=id,
        title=title,
        x=FigureAxis(label=label, unit=unit),
        y=FigureAxis(names=tuple(names)),
        marks=[Mark(kind="bar", label=label, x=x, y=list(names))],
    )


def _shapes(found: Sharded) -> TableData:
    shapes = (found.global_shapes, found.local_shapes)
    rows = [
        [name, layout, *(" x ".join(map(str, shape[name])) for shape in shapes)]
        for name, layout in found.layouts.items()
    ]
    return TableData(title="Arrays", header=("", "layout", "whole", "on each device"), rows=rows)


def _ways(timed: Sequence[TimedStrategy]) -> TableData:
    rows = [
        [f"{i}. {one.summary}", one.seconds.expected, one.wire_bytes_per_device]
        for i, one in enumerate(timed, 1)
    ]
    units = {"seconds": "s", "sent by a device": "bytes"}
    return TableData(title="Strategies", header=("way", *units), rows=rows, units=units)


def _steps(found: Sharded) -> TableData:
    return TableData(title="Steps of the best", header=("step",), rows=[[s] for s in found.steps])


def _held(found: ShardedArray) -> TableData:
    rows = [
        [", ".join(map(str, one.at)), " x ".join(f"{a}:{b}" for a, b in one.block)]
        for one in found.devices[:64]
    ]
    return TableData(title="Who holds what", header=("device", "block"), rows=rows)


VIEW = PageView(
    name="sharding",
    title="Sharding",
    about="An array, or a product of sharded arrays: what each device holds, and the cheapest way.",
    group="Explain",
    state=ShardingState,
    calls=_calls,
    draw=_draw,
    crossed=("on", "dtype"),
)
