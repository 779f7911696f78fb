"""Read a capture from a file or from the folder that `jax.profiler.trace` was given."""

from pathlib import Path

from shardwise.errors import BadRequest, ShardwiseError
from shardwise.profiler.child import run_function
from shardwise.profiler.trace.chrome import read_chrome
from shardwise.profiler.trace.events import Trace, lines_of, trace_of

ENDINGS = (".xplane.pb", ".trace.json.gz", ".trace.json", ".json.gz", ".json")
READER = "shardwise.profiler.trace.job:read_planes"


def read_trace(path: Path) -> Trace:
    """The ops of a capture: `.xplane.pb` (which needs JAX) or Chrome's JSON, of a CPU, GPU or TPU.

    Raises BadRequest for a missing, empty, corrupt, truncated or foreign file, MissingPart where
    JAX is needed and missing.
    """
    path = _file(path)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadRequest(
            f"trace '{path}' cannot be read: {error.strerror}; give a capture of jax.profiler, its "
            "folder, or Chrome's JSON"
        ) from None
    if not size:
        raise BadRequest(f"trace '{path}' is empty; the capture was not finished, make it anew")
    if not path.name.endswith(".xplane.pb"):
        return trace_of(str(path), read_chrome(path))
    try:
        rows = run_function(READER, {"path": str(path)}, devices=1, what=f"reading '{path}'")
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
        found = sorted(path.rglob("*.xplane.pb"), key=lambda p: p.stat().st_mtime)
        if not found:
            raise BadRequest(f"folder '{path}' holds no '*.xplane.pb'; give a trace's file")
        return found[-1]
    if not path.name.endswith(ENDINGS):
        raise BadRequest(
            f"trace '{path}': the ending says the format; it is one of {', '.join(ENDINGS[:3])}"
        )
    return path
