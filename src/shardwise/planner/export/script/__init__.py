"""What a launch script starts: the program, its arguments, and how many processes there are.

`tokens.py` cuts bash into words and operators, `tree.py` makes statements of them, `expand.py` says
what a word's variables stand for, `run.py` walks the statements without starting anything, and
`launchers.py` reads torchrun, srun, python and the like: `launch_of(text)` is the whole of it, of
manifests of Kubernetes and Compose, too (`manifest.py`). A
script that somebody runs gets the words that are read here, as its own shell would give them. What
the text cannot say (a variable of the caller, a command's output) stays as `$NAME`.
"""

from shardwise.planner.export.script.launchers import Launch, launch_of, written_by
from shardwise.planner.export.script.manifest import script_of
from shardwise.planner.export.script.run import SLICES, TPU_TYPE

__all__ = ["SLICES", "TPU_TYPE", "Launch", "launch_of", "script_of", "written_by"]
