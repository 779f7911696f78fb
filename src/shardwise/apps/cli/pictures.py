"""Figures of every command: matplotlib is imported here only, when a picture is asked for."""

import io
from pathlib import Path
from typing import Any

from shardwise.boundary import write_bytes
from shardwise.errors import BadRequest, MissingPart


def need_matplotlib() -> None:
    """Raise MissingPart, with the install command, where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingPart(
            "--plot needs matplotlib, which is not installed; run pip install 'shardwise[plot]' "
            "(from a clone: pip install '.[plot]'), or leave --plot out"
        ) from None


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches, drawn without a display; MissingPart as above."""
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # measures texts, whatever format is written
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG or SVG by the ending of `path`; BadRequest where that fails."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise BadRequest(f"cannot plot to '{path}': the ending says the format, .png or .svg")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=150)
    write_bytes(path, drawn.getvalue(), option="--plot")
