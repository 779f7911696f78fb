"""What runs in the child of `steps.py`: the steps of plans, compiled for a described slice."""

import os
import pickle
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

AWAY_FROM_HARDWARE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""libtpu compiles without asking for the machine's own TPUs, beside others that do the same."""


def compile_plans(cases: Sequence[str], topology: str) -> list[dict[str, Any]]:
    """Compile the `train_step` of every (plan, config), pickled and in base64, for the slice.

    An answer has `hlo`, the text of every program and how often a step runs it; `held`, by part of
    the state its bytes on one device, and those of buffers and counters beside it; `moved`, bytes
    that go from stage to stage and how often. Of a pipeline all are of the last rank.
    """
    os.environ.update(AWAY_FROM_HARDWARE)  # read when JAX is imported, which is now
    from planned_steps import lowered
    from shardwise.runtime.parallel.abstract import abstract_state
    from shardwise.runtime.sharding import mesh_of
    from shardwise.runtime.trainer.optimizer import Settings, optimizer_of

    devices = lowered.tpu_devices(topology)
    answers = []
    for case in cases:
        plan, cfg = pickle.loads(b64decode(case))
        mesh, optimizer = mesh_of(plan, devices), optimizer_of(plan, cfg, Settings(steps=1))
        state = abstract_state(plan, cfg, mesh, optimizer)
        if (stages := plan.degree("stage")) > 1:  # the last rank, which the plan's list is of
            made = lowered.compiled_passes(plan, cfg, mesh, optimizer, stages - 1)
            moved = lowered.received(plan, cfg, mesh, stages - 1)
            state = {name: ranks[-1] for name, ranks in state.items()}
        else:
            step = lowered.lowered_step(plan, cfg, mesh, optimizer)
            made, moved = [(step.compile(compiler_options=lowered.WHOLE), 1)], (0, 0)
        held = {name: lowered.held_bytes(part) for name, part in state.items()}
        hlo = [(compiled.as_text(), times) for compiled, times in made]
        answers.append({"hlo": hlo, "held": held, "moved": moved})
    return answers
