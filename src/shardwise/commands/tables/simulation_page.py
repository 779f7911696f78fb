"""A simulated machine for people: what came out, and a drawing in letters."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwise.book.simulators import Animation, Cell, Frame, kinds_of
from shardwise.commands.base.answer import Page, Row
from shardwise.commands.base.layout import WIDTH, Fact, Facts, Verbatim, wrapped
from shardwise.units import format_seconds, sig

MOST_ROWS, MOST_MOVES, SIDE_BY_SIDE = 12, 8, 3
FILLS = "=-~:+.*#"
"""What the bars of each kind are filled with, in the order of the kinds."""


def simulation_rows(found: Animation) -> list[Row]:
    """One row per bar, or per move or cell of every frame."""
    if found.bars:
        return [
            {"row": found.rows[int(bar.y)], "kind": bar.kind, "text": bar.text,
             f"start [{found.x_unit}]": bar.x, f"end [{found.x_unit}]": bar.x + bar.width}
            for bar in found.bars
        ]  # fmt: skip
    rows: list[Row] = []
    for frame in found.frames:
        rows += [
            {found.x_label: frame.at, "from": move.source, "to": move.target, "text": move.text,
             "bytes": move.bytes}
            for move in frame.moves
        ]  # fmt: skip
        rows += [
            {found.x_label: frame.at, "x": cell.x, "y": cell.y, "kind": cell.kind,
             "text": cell.text, **cell.values}
            for cell in frame.cells
        ]  # fmt: skip
    return rows


def simulation_page(found: Animation) -> Page:
    """Title, readings, notes, a drawing and the settings."""
    yield wrapped(f"{found.title} ({found.source})", hanging=2)
    yield Facts([Fact(n, _reading(v, found.units.get(n, ""))) for n, v in found.readings.items()])
    for note in found.notes:
        yield wrapped(note, 2, 4)
    yield ""
    yield from _drawing(found)
    yield settings_line(found.settings)


def frames_page(found: Animation) -> Page:
    """Every frame that is kept, one below the other."""
    for frame in found.frames:
        yield ""
        yield Verbatim("\n".join([f"{frame.label}", *_marks(found, frame, len(frame.moves))]))
    if found.frames_left_out:
        yield f"  {found.frames_left_out:,} more frames are left out; make the machine smaller"


def settings_line(settings: Mapping[str, object]) -> str:
    """What --set takes, with the values that were used."""
    said = " ".join(f"{name}={_value(value)}" for name, value in settings.items())
    return wrapped(f"settings (--set NAME=VALUE): {said}", 2, 4)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_value, value)) or "all"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _reading(value: float, unit: str) -> str:
    if unit == "s":
        return format_seconds(value)
    return f"{sig(value, 4)} {unit}".rstrip()


def _drawing(found: Animation) -> Page:
    if found.bars:
        yield Verbatim("\n".join(gantt(found)))
        return
    chosen = _chosen(found)
    if chosen and chosen[0].cells:
        yield Verbatim("\n".join(_beside([[f.label, *_marks(found, f)] for f in chosen])))
        return
    for frame in chosen:
        yield Verbatim("\n".join([frame.label, *_marks(found, frame, MOST_MOVES)]))


def _chosen(found: Animation) -> Sequence[Frame]:
    """A few frames at even distances: of cells those in which something works."""
    if found.places:
        return [frame for frame in found.frames if frame.moves][:1]
    live = [f for f in found.frames if any(c.kind == "working" for c in f.cells)]
    if len(live) <= SIDE_BY_SIDE:
        return live
    last = SIDE_BY_SIDE - 1
    return [live[i * (len(live) // 2) // last] for i in range(SIDE_BY_SIDE)]


def gantt(found: Animation) -> Iterator[str]:
    """The bars in letters: a line per row, each bar its text and then the fill of its kind."""
    end = max(bar.x + bar.width for bar in found.bars)
    label = max(map(len, found.rows))
    room = WIDTH - label - 5
    kinds = [kind for kind in kinds_of(found) if any(bar.kind == kind for bar in found.bars)]
    fill = {kind: FILLS[i % len(FILLS)] for i, kind in enumerate(kinds)}
    for number, name in enumerate(found.rows[:MOST_ROWS]):
        line = [" "] * room
        for bar in sorted((b for b in found.bars if int(b.y) == number), key=lambda b: b.height):
            if bar.height > _THIN:
                _place(line, bar, end, fill[bar.kind])
        yield f"  {name.ljust(label)} |{''.join(line)}|"
    if len(found.rows) > MOST_ROWS:
        yield f"  ... {len(found.rows) - MOST_ROWS} more rows"
    legend = ", ".join(f"{sign} {kind}" for kind, sign in fill.items())
    yield f"  {' ' * label}  0 to {_moment(end, found.x_unit)}; {legend}"


_THIN = 0.5
"""Bars of less height run beside others and are not drawn in letters."""


def _moment(at: float, unit: str) -> str:
    return format_seconds(at) if unit == "s" else f"{sig(at)} {unit}"


def _place(line: list[str], bar: Cell, end: float, fill: str) -> None:
    first = round(bar.x / end * len(line))
    last = max(round((bar.x + bar.width) / end * len(line)), first + 1)
    for i in range(first, min(last, len(line))):
        line[i] = fill
    if last - first > len(bar.text):
        line[first : first + len(bar.text)] = bar.text


def _marks(found: Animation, frame: Frame, most: int = MOST_MOVES) -> list[str]:
    if found.places or frame.moves:
        lines = [f"  {move.text}, {_bytes(move.bytes)}" for move in frame.moves[:most]]
        more = len(frame.moves) - most
        return [*lines, f"  ... {more} more at once"] if more > 0 else lines
    if found.bars:
        return []
    rows = sorted({cell.y for cell in frame.cells})
    columns = range(int(max((cell.x for cell in frame.cells), default=0)) + 1)
    at = {(cell.x, cell.y): cell for cell in frame.cells}
    wide = max(4, *(len(cell.text) for cell in frame.cells)) + 1
    return [
        "".join(_cell_text(at.get((x, y))).rjust(wide) for x in columns).rstrip() or "  ."
        for y in rows
    ]


def _cell_text(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return "." if cell.kind == "idle" else f"({cell.text})" if cell.kind == "loaded" else cell.text


def _bytes(size: float) -> str:
    return f"{size:,.0f} B"


def _beside(blocks: Sequence[Sequence[str]]) -> Iterator[str]:
    """Blocks of lines next to each other, as far as the page is wide."""
    shown, used = [], 0
    for block in blocks:
        wide = max(map(len, block)) + 4
        if shown and used + wide > WIDTH:
            break
        shown.append((block, wide))
        used += wide
    for number in range(max(len(block) for block, _ in shown)):
        parts = [(b[number] if number < len(b) else "").ljust(wide) for b, wide in shown]
        yield "  " + "".join(parts).rstrip()
