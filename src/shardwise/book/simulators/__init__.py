"""Machines of the book to look at, each a function of plain settings that gives a `Animation`.

`simulation.py` has that value: cells, moves and moments, as any screen draws them. `systolic.py` is
a systolic array cycle by cycle, `copies.py` HBM to VMEM in chunks with two buffers, `collective.py`
collectives hop by hop on rings, lines, tori, switches and trees, `pipeline.py` pipeline schedules
in time, `batching.py` the slots of continuous batching. What they show is what the rest of the
library runs: the executor of collectives, the tables of pipelines, the scheduler that serves.
Nothing is drawn here. Read `systolic.py` first.
"""

from shardwise.book.simulators.batching import batching
from shardwise.book.simulators.collective import collective
from shardwise.book.simulators.copies import hbm
from shardwise.book.simulators.pipeline import pipeline
from shardwise.book.simulators.simulation import Animation, Cell, Frame, kinds_of
from shardwise.book.simulators.systolic import systolic

__all__ = [
    "Animation",
    "Cell",
    "Frame",
    "batching",
    "collective",
    "hbm",
    "kinds_of",
    "pipeline",
    "systolic",
]
