"""A plan's programs with abstract arguments: what to lower, without an array being made.

`program.py` is what each of them is, `train.py` makes a training step and `serve.py` the engine's
prefill and decode; `plan.py` picks the one that a plan and a phase name. The mesh may be of a
topology that is not here. Nothing is compiled or run here. Read `train.py` first.
"""

from shardwise.runtime.programs.plan import plan_program
from shardwise.runtime.programs.program import AbstractProgram
from shardwise.runtime.programs.serve import serve_program
from shardwise.runtime.programs.train import train_program

__all__ = ["AbstractProgram", "plan_program", "serve_program", "train_program"]
