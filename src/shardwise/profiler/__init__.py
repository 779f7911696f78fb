"""Observing programs: what the compiler made of them. JAX runs in child processes only.

`child.py` runs a function or a source file on virtual CPU devices with a time and a memory limit;
`jobs.py` holds the functions that run inside such a child and import JAX; `hlo/` reads compiled
text and `timeline.py` lays it out on a slice, both without JAX; `ahead/` compiles for slices that
are not here, `buffer_kinds.py` says what its buffers hold, `collectives/` holds its collectives
against a plan's, `explain/` says where the time goes, and `stages/` follows one op from JAX to the
schedule. `trace/` captures and reads profiles,
`micro/` measures the devices here. Nothing is predicted here. Read `child.py` first.
"""

from shardwise.profiler.child import QUICK_COMPILE, need_libtpu, run_function, run_source

__all__ = ["QUICK_COMPILE", "need_libtpu", "run_function", "run_source"]
