"""When, of what and by what a committed document was made, and its part of a page."""

import re
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def made(packages: Sequence[str] = ("jax", "libtpu")) -> dict[str, Any]:
    """The head of a JSON document: date, commit, and versions of packages."""
    return {
        "date": str(datetime.now(UTC).date()),
        "commit": commit(),
        "versions": {name: version(name) for name in packages},
    }


def commit() -> str:
    """The commit that is checked out; it says so where there were changes beside it."""
    run = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()


def put(page: Path, script: str, text: str) -> None:
    """Write what a script found between its marks on a page, `<!-- scripts/ab_cd.py -->` and
    `<!-- end: ab cd -->`."""
    begin = f"<!-- scripts/{Path(script).name} -->"
    end = f"<!-- end: {Path(script).stem.replace('_', ' ')} -->"
    whole = page.read_text(encoding="utf-8")
    assert begin in whole, f"{page} lacks {begin}"
    assert end in whole, f"{page} lacks {end}"
    told = f"{begin}\n{text}\n{end}"
    page.write_text(re.sub(f"{begin}.*{end}", lambda _: told, whole, flags=re.S), encoding="utf-8")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = (header, ["---"] * len(header), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
