"""Compiled programs that `scripts/kept_programs.py` keeps here for tests."""

import gzip
from pathlib import Path

FOLDER = Path(__file__).parent


def hlo(name):
    """The scheduled module of a program of `index.json`."""
    return gzip.decompress((FOLDER / f"{name}.hlo.gz").read_bytes()).decode()
