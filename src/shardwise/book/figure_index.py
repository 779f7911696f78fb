"""Every figure of the book by its id, with the settings that it takes as plain values.

A figure is curves (`figures.py`, `roofline_figures.py`, `serving_figures.py`) or a machine to look
at (`simulators/`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import getdoc, signature
from typing import Any

from shardwise.book import figures, roofline_figures, serving_figures
from shardwise.book.figures import BookTorus, Figure
from shardwise.book.megatron import megatron_mfu
from shardwise.book.serving_figures import BookServer
from shardwise.book.simulators import Animation, batching, collective, hbm, pipeline, systolic
from shardwise.book.simulators.simulation import check_size, check_whole
from shardwise.errors import BadRequest, entry_of, shown, unknown

MOST_CHIPS = 2**24
Setting = float | str | tuple[int, ...]
"""A number, a word, or whole numbers."""
Settings = Mapping[str, Setting | Sequence[float]]
"""Settings by name, as they are given: a list in place of a tuple, too."""


@dataclass(frozen=True, slots=True)
class FigureEntry:
    """The function of a figure, and its chapter. What it is drawn on (a torus, a server) is a
    dataclass of settings, its first argument; the others are settings themselves."""

    function: Callable[..., Figure | Animation]
    chapter: str
    base: BookTorus | BookServer | None = None

    @property
    def about(self) -> str:
        """What it shows: its docstring's first sentence."""
        text = " ".join((getdoc(self.function) or "").split("\n\n")[0].split())
        return text.partition(". ")[0].removesuffix(".") + "."

    @property
    def steps(self) -> bool:
        """Whether it is a machine, step by step."""
        return signature(self.function).return_annotation is Animation

    def settings(self) -> dict[str, Setting]:
        """Every setting with its value in the book."""
        own = {n: p.default for n, p in signature(self.function).parameters.items()}
        if self.base is None:
            return own
        of_base = {f.name: getattr(self.base, f.name) for f in fields(self.base)}
        return {**of_base, **dict(list(own.items())[1:])}

    def draw(self, given: Mapping[str, Setting]) -> Figure | Animation:
        """The figure with some settings changed."""
        if self.base is None:
            return self.function(**given)
        of_base = {f.name: given[f.name] for f in fields(self.base) if f.name in given}
        rest = {name: value for name, value in given.items() if name not in of_base}
        return self.function(replace(self.base, **of_base), **rest)


FIGURES: Mapping[str, FigureEntry] = {
    "fig.1.roofline": FigureEntry(roofline_figures.roofline_sizes, "1"),
    "fig.1.batch": FigureEntry(roofline_figures.batch_knees, "1"),
    "fig.4.matmul": FigureEntry(roofline_figures.matmul_growth, "4"),
    "fig.5.ratio_curves": FigureEntry(figures.ratio_curves, "5", figures.RATIOS),
    "fig.5.math_comms": FigureEntry(figures.math_comms, "5", figures.CUBE),
    "fig.5.interactive": FigureEntry(figures.interactive, "5", figures.CUBE),
    "fig.5.interactive.tp": FigureEntry(figures.interactive_tensor, "5", figures.CUBE),
    "fig.5.interactive.threshold": FigureEntry(figures.interactive_threshold, "5", figures.CUBE),
    "fig.7.speculation": FigureEntry(roofline_figures.speculation, "7"),
    "fig.8.pareto": FigureEntry(serving_figures.pareto, "8", serving_figures.BOOK_SERVER),
    "fig.8.breakdown": FigureEntry(serving_figures.breakdown, "8", serving_figures.BOOK_SERVER),
    "fig.gpu.ar_curve": FigureEntry(figures.all_reduce_measured, "12"),
    "fig.gpu.sharded_gather": FigureEntry(figures.sharded_gather, "12"),
    "fig.gpu.ragged": FigureEntry(figures.ragged, "12"),
    "fig.gpu.megatron": FigureEntry(megatron_mfu, "12"),
    "systolic": FigureEntry(systolic, "2"),
    "hbm": FigureEntry(hbm, "2"),
    "collective": FigureEntry(collective, "3"),
    "pipeline": FigureEntry(pipeline, "5"),
    "batching": FigureEntry(batching, "7"),
}
"""The figures in the order of the book, then the simulators."""


def figure_ids() -> tuple[str, ...]:
    """Ids that `figure` knows, in the order of the book, then the simulators."""
    return tuple(FIGURES)


def figure(figure_id: str, set: Settings | None = None) -> Figure | Animation:
    """One figure, with some of its settings changed: numbers, texts, lists of numbers.

    Raises BadRequest with the ids, or the settings, for a typo, and for a value that a setting
    does not take.
    """
    found = _entry(figure_id)
    return found.draw(
        {n: v for n, v in figure_settings(figure_id, set).items() if n in (set or {})}
    )


def figure_settings(figure_id: str, set: Settings | None = None) -> dict[str, Setting]:
    """The settings of a figure with their values: those of the book, or as they were changed."""
    known = _entry(figure_id).settings()
    for name, value in (set or {}).items():
        if name not in known:
            raise unknown(f"setting of {figure_id}", name, known)
        known[name] = read_setting(name, value, known[name])
    return known


def _entry(figure_id: str) -> FigureEntry:
    return entry_of("figure", figure_id, FIGURES, "`shardwise book list` shows all")


def read_setting(name: str, value: Any, like: Setting) -> Setting:
    """A value of the kind of the one in the book. Raises BadRequest for another kind."""
    if isinstance(like, tuple):
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(check_whole(name, one, 1, MOST_CHIPS) for one in values)
    if isinstance(value, list | tuple):
        raise BadRequest(f"{name} is a list; it takes one value, such as {like}")
    if isinstance(like, str):
        return str(value)
    if isinstance(value, str):
        raise BadRequest(f"{name} is {shown(value)}; it is a number, such as {like}")
    if isinstance(like, int):
        whole = isinstance(value, float) and value.is_integer()
        return check_whole(name, int(value) if whole else value, 0, MOST_CHIPS)
    return check_size(name, value)
