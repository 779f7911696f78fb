"""One op of a program on its way through the compiler: jaxpr, StableHLO, optimised HLO, schedule.

`texts.py` finds the op in the texts of JAX, `passes.py` says what each pass of the compiler changed
of it, `op.py` chooses it among the ops of the compiled program and puts all of them beside one
another. The texts come from the child that compiles (`ahead/job.py`), which keeps them where it is
asked to; nothing is compiled here. Read `op.py` first.
"""

from shardwise.profiler.stages.op import Stages, StageTexts, read_stages, stages_of

__all__ = ["StageTexts", "Stages", "read_stages", "stages_of"]
