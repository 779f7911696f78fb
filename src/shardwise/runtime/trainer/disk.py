"""Files that appear whole."""

from pathlib import Path

from shardwise.boundary.outputs import flush


def write_text(file: Path, text: str) -> None:
    """Written under another name and renamed, so that nobody reads half of it."""
    begun = file.with_name(f"{file.name}.part")
    begun.write_text(text, encoding="utf-8")
    flush(begun)
    begun.rename(file)
