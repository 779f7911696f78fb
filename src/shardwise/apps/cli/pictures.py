"""Figures of every command: matplotlib is imported here only, when a picture is asked for."""

from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest, MissingPart


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches, drawn without a display.

    Raises MissingPart, with the install command, where matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPart(
            "--plot needs matplotlib, which is not installed; run pip install 'shardwise[plot]' "
            "(from a clone: pip install '.[plot]'), or leave --plot out"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG or SVG by the ending of `path`; BadRequest where that fails."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise BadRequest(f"cannot plot to '{path}': the ending says the format, .png or .svg")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise BadRequest(f"cannot write '{path}': {error.strerror}; give another --plot") from None
