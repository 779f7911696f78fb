"""Measured programs: runs captured by `jax.profiler`, read back and matched to compiled ops.

`events.py` finds the compiled ops among a capture's events and says how long each took; `read.py`
reads a file of either kind (`chrome.py` the Chrome JSON, `job.py` the protocol buffer, which JAX
reads); `match.py` puts the seconds on the ops of an `HloWork`, for which `graphs.py` tells the
kernels of CUDA graphs apart; `job.py` runs inside a child: it runs a program some steps and
captures it. Nothing is predicted here. Read `events.py` first.
"""

from shardwise.profiler.trace.events import Capture, trace_of
from shardwise.profiler.trace.match import MeasuredProgram, measure
from shardwise.profiler.trace.read import read_trace

__all__ = [
    "Capture",
    "MeasuredProgram",
    "measure",
    "read_trace",
    "trace_of",
]
