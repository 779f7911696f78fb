"""Compiling ahead: a program for a slice that is not here, by the real compiler, in a child.

`target.py` says a slice in the compiler's words, `compile.py` is what to call, `job.py` runs in the
child, `partition.py` asks XLA's partitioner alone, `cache.py` keeps results by content and
`sources.py` says what made them, `buffers.py` reads what lies in memory and `occupancy.py` when,
`user.py` finds a user's function and `cured.py` calls it otherwise, `live.py` makes one that is in
memory travel, `saved.py` reads one that was saved, which `stablehlo.py` compiles in the child.
`data/` says what GPUs a compiler knows. No plan is known here: programs come from builders by name.
Read `compile.py`.
"""

from shardwise.profiler.ahead.buffers import Buffer
from shardwise.profiler.ahead.cache import CompileCache, default_root
from shardwise.profiler.ahead.compile import CompiledProgram, Limits, compile_ahead
from shardwise.profiler.ahead.target import CompileTarget, target_of

__all__ = [
    "Buffer",
    "CompileCache",
    "CompileTarget",
    "CompiledProgram",
    "Limits",
    "compile_ahead",
    "default_root",
    "target_of",
]
