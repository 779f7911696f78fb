"""Files that are on the disk before a run goes on, and files that appear whole."""

import os
from pathlib import Path


def force(path: Path) -> None:
    """To the disk: a file's data, or a folder's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(file: Path, text: str) -> None:
    """Written under another name and renamed, so that nobody reads half of it."""
    begun = file.with_name(f"{file.name}.part")
    begun.write_text(text, encoding="utf-8")
    force(begun)
    begun.rename(file)
