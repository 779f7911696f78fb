"""When, of what and by what a committed table was made: the head of its JSON document."""

import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def made() -> dict[str, Any]:
    """Date, commit (it says so where there were changes beside it) and the compiler's versions."""
    run = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    return {
        "date": str(datetime.now(UTC).date()),
        "commit": commit,
        "versions": {name: version(name) for name in ("jax", "libtpu")},
    }
