"""Read a capture from a file or from the folder that `jax.profiler.trace` was given."""

import os
from pathlib import Path

from shardwise.boundary.files import TABLE_BYTES, unreadable
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.profiler.child import run_function
from shardwise.profiler.trace.chrome import read_chrome
from shardwise.profiler.trace.events import REMEDY, Capture, lines_of, trace_of
from shardwise.units import format_bytes

ENDINGS = (".xplane.pb", ".trace.json.gz", ".trace.json", ".json.gz", ".json")
READER = "shardwise.profiler.trace.job:read_planes"
READER_BYTES = 4 * 2**30
"""What JAX may take to read a capture of `TABLE_BYTES`."""


def read_trace(path: Path) -> Capture:
    """The ops of a capture: `.xplane.pb` (which needs JAX) or Chrome's JSON, of a CPU, GPU or TPU.

    Raises BadRequest for a missing, empty, corrupt, truncated or foreign file, for one of more than
    `TABLE_BYTES` (unpacked) and for times that are none; MissingPart where JAX is needed and
    missing.
    """
    try:
        path = _file(path)
        size = path.stat().st_size if path.is_file() else -1
    except (OSError, ValueError) as error:
        raise unreadable(path, "trace", error, REMEDY) from None
    if not size:
        raise BadRequest(f"trace '{path}' is empty; the capture was not finished, make it anew")
    if not path.name.endswith(".xplane.pb"):
        return trace_of(str(path), read_chrome(path))
    if not 0 < size <= TABLE_BYTES:
        reason = "is not a file" if size < 0 else f"is longer than {format_bytes(TABLE_BYTES)}"
        raise BadRequest(
            f"trace '{path}' {reason}; capture fewer steps, without the host's threads"
        )
    try:
        rows = run_function(
            READER,
            {"path": str(path)},
            devices=1,
            memory_bytes=READER_BYTES,
            what=f"reading '{path}'",
        )
    except BadRequest:
        raise
    except ShardwiseError as error:
        if type(error) is not ShardwiseError:
            raise
        raise BadRequest(f"trace '{path}' is corrupt: {error}; capture or copy it anew") from None
    return trace_of(str(path), lines_of(rows))


def _file(path: Path) -> Path:
    """The capture itself: of a folder, its newest one."""
    if path.is_dir():
        found = [p for p in path.rglob("*.xplane.pb") if p.is_file()]
        if not found:
            raise BadRequest(f"folder '{path}' holds no '*.xplane.pb'; give a trace's file")
        return max(found, key=lambda p: p.stat().st_mtime)
    if not path.name.endswith(ENDINGS):
        raise BadRequest(
            f"trace '{path}': the ending says the format; it is one of {', '.join(ENDINGS[:3])}"
        )
    os.stat(path)  # raises for what is not there, with the system's reason
    return path
