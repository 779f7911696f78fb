"""Plans: choices only, frozen and keyword-only; nothing here prices or searches.

`train.py` and `serve.py` hold the two plans, `chip_changes.py` what their chips have that the
catalogue's have not. Choices of a training plan that are rows: `stacks.py`
(software), `libraries.py` (whose layers it runs), `context_methods.py`, `optimizers.py` and
`adapters.py` (LoRA); of a serving plan `servers.py` (software) and
`engine_memory.py` (what it keeps of a GPU).
`ranges.py` checks the plans' numbers, `identity.py` says which model one is of, `files.py` loads
and saves them as YAML, `handwritten.py` those of a few keys with a batch in words
(`batch_words.py`), `handwritten_serve.py` those with a load, `schema.py` is their JSON Schema,
`laws.py` has the laws that bind a mesh to its model, `paged_kernel.py` those of a server's kernel
of attention, `served_steps.py` to what our engine pads its steps, `software/` the programs that
run a plan.
`named.py` finds the plans of published runs by name (`data/audits`), `layouts.py` maps a plan to
the Layout of every parameter and activation. Read `train.py` first.
"""

from shardwise.plans.files import save_plan
from shardwise.plans.identity import is_of, model_hash
from shardwise.plans.layouts import activation_layout, layout_table, parameter_layout
from shardwise.plans.serve import PrefillServer, ServeDtypes, ServePlan, ServeScheduling, Workload
from shardwise.plans.train import MESH_AXES, TrainDtypes, TrainPlan

__all__ = [
    "MESH_AXES",
    "PrefillServer",
    "ServeDtypes",
    "ServePlan",
    "ServeScheduling",
    "TrainDtypes",
    "TrainPlan",
    "Workload",
    "activation_layout",
    "is_of",
    "layout_table",
    "model_hash",
    "parameter_layout",
    "save_plan",
]
