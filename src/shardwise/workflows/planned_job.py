"""What runs in the child of `planned.py`: the steps of plans, compiled for a described slice."""

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

    An answer has `hlo`, and `held`: by part of the state its bytes on one device, and those of
    buffers and counters beside it.
    """
    os.environ.update(AWAY_FROM_HARDWARE)  # read when JAX is imported, which is now
    from shardwise.runtime.parallel import lowered
    from shardwise.runtime.sharding import mesh_of
    from shardwise.runtime.trainer.optimizer import Settings, optimizer_of

    devices = lowered.tpu_devices(topology)
    answers = []
    for case in cases:
        plan, cfg = pickle.loads(b64decode(case))
        mesh, optimizer = mesh_of(plan, devices), optimizer_of(plan, cfg, Settings(steps=1))
        state = lowered.abstract_state(plan, cfg, mesh, optimizer)
        step = lowered.lowered_step(plan, cfg, mesh, optimizer)
        compiled = step.compile(compiler_options=lowered.WHOLE)
        held = {name: lowered.held_bytes(part) for name, part in state.items()}
        answers.append({"hlo": compiled.as_text(), "held": held})
    return answers
