"""How a page is laid out: labelled lines, two ends of a line, wrapped text, `WIDTH` columns.

An answer for people is one page: at most `HEIGHT` lines, the answer first, then what bounds it,
what else was close and what to type next. What a reader may want beyond it stands in the answer's
sections (`Answer.sections`). A tone says how good a figure is; a terminal shows it as a colour, a
file shows nothing of it.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

WIDTH, HEIGHT = 100, 30
"""Columns and lines of a page."""
TIGHT = 0.9
"""The share of a limit beyond which a figure that keeps it is called tight."""

Tone = Literal["", "good", "tight", "bad", "faint"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One labelled line of a page, such as `memory  52.8 of 95.7 GiB`, and how good it is."""

    label: str
    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Labelled lines below one another, their texts aligned and wrapped."""

    rows: Sequence[Fact]
    indent: int = 2

    def lines(self) -> list[tuple[str, str, Tone]]:
        """Each printed line as its label, padded, and its text with the tone of its fact."""
        labels = max((len(row.label) for row in self.rows), default=0)
        margin, found = self.indent + labels + 2, []
        for row in self.rows:
            label = " " * self.indent + row.label.ljust(labels) + "  "
            for text in textwrap.wrap(row.text, WIDTH - margin, break_long_words=False) or [""]:
                found.append((label, text, row.tone))
                label = " " * margin
        return found

    def __str__(self) -> str:
        """Plain text, the same everywhere."""
        return "\n".join((label + text).rstrip() for label, text, _ in self.lines())


def both_ends(left: str, right: str, width: int = WIDTH) -> str:
    """A line with a text at each end; two lines where they do not fit on one.

    >>> both_ends("fsdp=8", "runs in MaxText", 30)
    'fsdp=8         runs in MaxText'
    """
    room = width - len(left) - len(right)
    if room >= 2:
        return left + " " * room + right
    indent = " " * (len(left) - len(left.lstrip()))
    return f"{left}\n{indent}{right}"


def wrapped(text: str, indent: int = 0, hanging: int | None = None) -> str:
    """A paragraph of at most `WIDTH` columns, its later lines indented by `hanging`."""
    later = indent if hanging is None else hanging
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def tone_of(used: float, limit: float) -> Tone:
    """How well a figure keeps a limit: over it, close to it (beyond `TIGHT` of it), or well below.

    >>> tone_of(60, 80), tone_of(79, 80), tone_of(81, 80)
    ('good', 'tight', 'bad')
    """
    if used > limit:
        return "bad"
    return "tight" if used > TIGHT * limit else "good"


def shares_text(parts: Mapping[str, float], least: float = 0.005) -> str:
    """Parts of a whole as a list of percentages, those below `least` of it added up at the end.

    >>> shares_text({"math at peak": 3.0, "waiting on fsdp": 0.98, "host": 0.02}, least=0.01)
    'math at peak 75 %, waiting on fsdp 24 %, other 0.5 %'
    """
    whole = sum(parts.values())
    shown = {name: value for name, value in parts.items() if value >= least * whole and value}
    rest = whole - sum(shown.values())
    said = [f"{name} {percent(value / whole)}" for name, value in shown.items()]
    return ", ".join([*said, f"other {percent(rest / whole)}"] if rest > 1e-4 * whole else said)


def percent(share: float) -> str:
    """A share as people say it: whole percents, tenths below two.

    >>> percent(0.714), percent(0.0042)
    ('71 %', '0.4 %')
    """
    return f"{share:.0%}".replace("%", " %") if share >= 0.02 else f"{share:.1%}".replace("%", " %")


def more_line(options: Iterable[str]) -> str:
    """The last line of a page: which options say more.

    >>> more_line(["--detail", "--top N"])
    '  more: --detail  --top N'
    """
    return "  more: " + "  ".join(options)
