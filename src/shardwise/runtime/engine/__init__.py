"""The inference engine: replicas that serve requests in JAX, by the scheduler of `scheduling`.

`core.py` is the engine, from requests to tokens; `generation.py` a request, its sampling and its
answer; `replica.py` an executor with its pools of pages, `slots.py` the record of a pool's batch,
`step_batch.py` what an executor gets and gives back. `model_executor.py` is the executor: it pads
steps to the shapes of `step_shapes.py` and runs `model_step.py`, whose tokens it reads later, or
its parts (`step_parts.py`) while `compiling.py` makes the whole behind. `server_layout.py` lays it
out on a mesh, `hosts.py` on those of several hosts. `sampling.py` chooses tokens by the settings of
the requests, which `row_settings.py` collects. `opening.py` makes an engine of a checkpoint, with
as many pages as `cache_room.py` says; `thread.py` steps one for an event loop. `embedding.py` makes
vectors of prompts beside it. `slot_engine.py` has the five verbs of the book over an executor,
without a scheduler. Not here: HTTP (`apps/server/`), text (`runtime/text/`), the choice of what a
step runs (`scheduling/`), its predicted time (`planner/serve`). Read `core.py` first.
"""

from shardwise.runtime.engine.core import Engine
from shardwise.runtime.engine.generation import GREEDY, Generation, Sampling
from shardwise.runtime.engine.slot_engine import Prefix, SlotEngine

__all__ = [
    "GREEDY",
    "Engine",
    "Generation",
    "Prefix",
    "Sampling",
    "SlotEngine",
]
