"""Fine-tuning with transformers' Trainer: TRL, axolotl, accelerate and DeepSpeed, read and written.

The four are one door, as their files belong together: a script starts TRL by `accelerate launch`,
whose config names a DeepSpeed JSON. `files.py` makes one text of them, `given.py` its keys (of a
Python script by `python_script.py`, of programs with keys of their own by `dialects.py`), which
`read.py` makes fields of and `unread.py` tells the rest of; `write.py` writes the four. What they
cannot run is the row of `plans/software/trainer.py`. Read `given.py` first.
"""

from shardwise.planner.export.trainer.files import named_files, taken_apart, with_files
from shardwise.planner.export.trainer.given import MODEL, Given, given_of, model_named
from shardwise.planner.export.trainer.read import read
from shardwise.planner.export.trainer.unread import notes
from shardwise.planner.export.trainer.write import (
    obstacles_accelerate,
    obstacles_axolotl,
    obstacles_deepspeed,
    write_accelerate,
    write_axolotl,
    write_deepspeed,
    write_trl,
)

TARGETS = ("trl", "axolotl", "accelerate", "deepspeed")
"""By the names that `--to` and `--from` take."""

__all__ = [
    "MODEL",
    "TARGETS",
    "Given",
    "given_of",
    "model_named",
    "named_files",
    "notes",
    "obstacles_accelerate",
    "obstacles_axolotl",
    "obstacles_deepspeed",
    "read",
    "taken_apart",
    "with_files",
    "write_accelerate",
    "write_axolotl",
    "write_deepspeed",
    "write_trl",
]
