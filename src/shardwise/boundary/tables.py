"""CSV tables: a header with unique names, rows as long as it, every message with its line."""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.boundary.files import TABLE_BYTES, read_text, split_lines
from shardwise.errors import BadRequest, shown

LONGEST_CELL = 131_072
"""Characters; the csv module's own limit, where it raises."""
MOST_CELLS = 4_000_000
"""A table of that many takes about half a GB and four seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns of a table, its rows by column, and the line of the file where each begins."""

    what: str
    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    lines: tuple[int, ...]

    def at(self, index: int) -> str:
        """Where a row is."""
        return f"{self.what}, line {self.lines[index]}"


class WrongCell(BadRequest):
    """A cell that holds what its column does not take. `rule` says what the column takes and the
    remedy, where there is one; `kind` is a reason that cells of other values may share."""

    def __init__(self, column: str, value: object, rule: str, kind: str = "") -> None:
        found = "empty" if value in ("", None) else shown(value)
        super().__init__(f"column '{column}' is {found}; {rule}")
        self.kind = kind or str(self)


@contextmanager
def of_column(column: str) -> Iterator[None]:
    """What is wrong with a value that a column names, with its column."""
    try:
        yield
    except WrongCell:
        raise
    except BadRequest as error:
        raise BadRequest(f"column '{column}': {error}") from None


def place_of_row(place: str, name: str) -> str:
    """How a message names a row."""
    return f"{place}, run {shown(name)}" if name else place


def read_table(path: Path, what: str, *, needed: Sequence[str] = (), remedy: str = "") -> Table:
    """The table in a CSV file, with the columns `needed` at least.

    Raises BadRequest for a file that cannot be read, is empty, lacks a column, names one twice, or
    has a row with more or fewer cells than columns.
    """
    text = read_text(path, what, most=TABLE_BYTES, remedy=remedy)
    return parse_table(text, f"{what} '{path}'", needed=needed)


def parse_table(
    text: str,
    what: str,
    *,
    needed: Sequence[str] = (),
    is_comment: Callable[[str], bool] | None = None,
) -> Table:
    """The table in CSV text; `what` names its source. Lines that `is_comment` says are left out."""
    lines = split_lines(text, what, ends=True)
    kept = [i for i, line in enumerate(lines) if not (is_comment and is_comment(line))]
    reader = csv.reader([lines[i] for i in kept], strict=True)
    found = iter(_cells(reader, [i + 1 for i in kept], what))
    header = next(found, None)
    if header is None:
        raise BadRequest(f"{what} is empty; its first line must name its columns")
    columns = tuple(name.strip() for name in header[1])
    if (again := twice(columns)) is not None:
        raise BadRequest(f"{what} names the column {shown(again)} twice; keep one")
    _check_needed(columns, what, needed)
    rows, places = [], []
    for line, cells in found:
        if len(rows) * len(columns) > MOST_CELLS:
            raise BadRequest(f"{what} has more than {MOST_CELLS:,} cells, the limit; shorten it")
        if len(cells) != len(columns):
            raise BadRequest(
                f"{what}, line {line}: it has {len(cells)} cells and the header has "
                f"{len(columns)}; quote cells that contain commas, and leave no cell out"
            )
        rows.append(dict(zip(columns, cells, strict=True)))
        places.append(line)
    return Table(what=what, columns=columns, rows=tuple(rows), lines=tuple(places))


def _cells(reader: Any, numbers: list[int], what: str) -> Iterable[tuple[int, list[str]]]:
    """Each row that is not blank, with the line where it begins."""
    while True:
        begins = reader.line_num
        try:
            cells = next(reader, None)
        except csv.Error as error:
            line = numbers[min(begins, len(numbers) - 1)]
            reason = str(error)
            if "field larger" in reason:
                reason = f"a cell has over {LONGEST_CELL:,} characters (is a quote not closed?)"
            raise BadRequest(f"{what}, line {line} is not CSV: {reason}") from None
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield numbers[begins], cells


def check_columns(table: Table, needed: Sequence[str]) -> None:
    """Raise BadRequest where a table lacks a column."""
    _check_needed(table.columns, table.what, needed)


def twice(names: Iterable[str]) -> str | None:
    """The first name that stands there a second time, if one does."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)


def _check_needed(columns: tuple[str, ...], what: str, needed: Sequence[str]) -> None:
    missing = [c for c in needed if c not in columns]
    if missing:
        has = ", ".join(shown(c) for c in columns[:20])
        raise BadRequest(f"{what} lacks the column(s) {', '.join(missing)}; it has {has}")
