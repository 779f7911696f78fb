"""shardwise: count, price and plan language models on TPUs and GPUs.

The verbs of the package are re-exported here. They load on first use, so that `import shardwise`
costs nothing, and none of them loads JAX; `compile`, `compare` and `explain` start it when they are
called. `__main__.py` is the command, for `python -m shardwise`.

Folders stand one above the other, and a file imports only from those below it
(docs/architecture.md). At the bottom `errors.py`, `units.py`, `work.py` (what is counted and
priced) and `boundary/`, where input comes in. Then nouns: `hardware/`, `sharding/`, `models/`,
`scheduling/`, `plans/`, and `roofline/`, which makes seconds. Then verbs: `planner/` predicts,
`runtime/` executes, `profiler/` observes. `workflows/` joins them, `evidence/` holds answers
against measurements, `book/` has the book's rules, and `apps/` are the screens. Read `work.py`
first.

>>> import shardwise as sw
>>> planning = sw.plan_train("llama-3-8b", "v5p:2x2x2", batch="64seq", seq=4096)
>>> planning.best.chips_used
8
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.hardware import load_chip, place
    from shardwise.hardware import parse_slice as slice_of
    from shardwise.models import load_model, parameters
    from shardwise.planner.serve.answer import evaluate_serve
    from shardwise.planner.training import evaluate_train
    from shardwise.plans import ServePlan, TrainPlan, load_plan, save_plan
    from shardwise.roofline.price import price
    from shardwise.sharding import Layout, Mesh
    from shardwise.sharding.backward import derive as backward
    from shardwise.workflows.compare import compare
    from shardwise.workflows.explain import compile, explain
    from shardwise.workflows.plan_file import count_plan as count
    from shardwise.workflows.predict import plan_training as plan_train
    from shardwise.workflows.predict_serve import plan_serving as plan_serve
    from shardwise.workflows.shard import shard_expression as resolve
    from shardwise.workflows.simulate import Load
    from shardwise.workflows.simulate import simulate_plan as simulate

_HOMES = {
    "Layout": ("shardwise.sharding", "Layout"),
    "Load": ("shardwise.workflows.simulate", "Load"),
    "Mesh": ("shardwise.sharding", "Mesh"),
    "ServePlan": ("shardwise.plans", "ServePlan"),
    "TrainPlan": ("shardwise.plans", "TrainPlan"),
    "compare": ("shardwise.workflows.compare", "compare"),
    "compile": ("shardwise.workflows.explain", "compile"),
    "count": ("shardwise.workflows.plan_file", "count_plan"),
    "evaluate_serve": ("shardwise.planner.serve.answer", "evaluate_serve"),
    "evaluate_train": ("shardwise.planner.training", "evaluate_train"),
    "explain": ("shardwise.workflows.explain", "explain"),
    "load_chip": ("shardwise.hardware", "load_chip"),
    "load_model": ("shardwise.models", "load_model"),
    "load_plan": ("shardwise.plans", "load_plan"),
    "parameters": ("shardwise.models", "parameters"),
    "place": ("shardwise.hardware", "place"),
    "plan_serve": ("shardwise.workflows.predict_serve", "plan_serving"),
    "plan_train": ("shardwise.workflows.predict", "plan_training"),
    "backward": ("shardwise.sharding.backward", "derive"),
    "price": ("shardwise.roofline.price", "price"),
    "resolve": ("shardwise.workflows.shard", "shard_expression"),
    "save_plan": ("shardwise.plans", "save_plan"),
    "simulate": ("shardwise.workflows.simulate", "simulate_plan"),
    "slice_of": ("shardwise.hardware", "parse_slice"),
}
"""Public name -> module and name there."""

__all__ = [
    "Layout",
    "Load",
    "Mesh",
    "ServePlan",
    "TrainPlan",
    "backward",
    "compare",
    "compile",
    "count",
    "evaluate_serve",
    "evaluate_train",
    "explain",
    "load_chip",
    "load_model",
    "load_plan",
    "parameters",
    "place",
    "plan_serve",
    "plan_train",
    "price",
    "resolve",
    "save_plan",
    "simulate",
    "slice_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardwise' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
