"""shardwise: count, price and plan language models on TPUs and GPUs.

Each command is a verb here, of the command's name: `shardwise plan train` is `plan_train`, and
every option that it has is a keyword; `roofline` is `matmul_roofline`. `str` of an answer is what
the command prints, `.table()` its rows, `.result` its document. The other names are the values
below. All load on first use, so that `import shardwise` costs nothing, and none of them loads JAX
but `train`; `compile`, `compare`, `explain`, `profile` and `calibrate` start it in a process of its
own when they are called.
`__main__.py` is the command, for `python -m shardwise`.

Folders stand one above the other, and a file imports only from those below it
(docs/architecture.md). At the bottom `errors.py`, `units.py`, `work.py` (what is counted and
priced) and `boundary/`, where input comes in. Then nouns: `hardware/`, `sharding/`, `models/`,
`scheduling/`, `plans/`, and `roofline/`, which makes seconds. Then verbs: `planner/` predicts,
`runtime/` executes, `profiler/` observes. `results/` has what is told of them, `workflows/` joins
them, `evidence/` holds answers against measurements, `book/` has the book's rules, `verbs/` has a
request and an answer for each command, and `apps/` are the screens. Read `work.py` first.

>>> import shardwise as sw
>>> planning = sw.plan_train("llama-3-8b", "v5p:2x2x2", batch="64seq", seq=4096)
>>> planning.best.chips_used, planning.table()[0]["mesh"]
(8, 'fsdp=8')
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.hardware import load_chip, place
    from shardwise.hardware import parse_slice as slice_of
    from shardwise.models import load_model, parameters
    from shardwise.planner.serve.answer import evaluate_serve
    from shardwise.planner.training import evaluate_train
    from shardwise.plans import ServePlan, TrainPlan, save_plan
    from shardwise.roofline.price import price
    from shardwise.sharding import Layout, Mesh
    from shardwise.sharding.backward import derive as backward
    from shardwise.verbs.bench_serve import bench_serve
    from shardwise.verbs.book import book_list
    from shardwise.verbs.book_errata import book_errata
    from shardwise.verbs.book_figure import book_figure
    from shardwise.verbs.book_quiz import book_quiz
    from shardwise.verbs.book_rule import book_rule
    from shardwise.verbs.book_show import book_show
    from shardwise.verbs.calibrate import calibrate
    from shardwise.verbs.compare import compare
    from shardwise.verbs.compile import compile
    from shardwise.verbs.explain import explain
    from shardwise.verbs.export import export
    from shardwise.verbs.hw import hw_diff, hw_list, hw_show
    from shardwise.verbs.model import model_diff, model_list, model_show
    from shardwise.verbs.plan_diff import plan_diff
    from shardwise.verbs.plan_schema import plan_schema
    from shardwise.verbs.plan_serve import plan_serve
    from shardwise.verbs.plan_show import plan_show
    from shardwise.verbs.plan_sweep import plan_sweep
    from shardwise.verbs.plan_train import plan_train
    from shardwise.verbs.profile import profile
    from shardwise.verbs.report import report
    from shardwise.verbs.roofline import matmul_roofline
    from shardwise.verbs.schema import schema
    from shardwise.verbs.shard import shard
    from shardwise.verbs.simulate import simulate
    from shardwise.verbs.train import train
    from shardwise.verbs.validate import validate
    from shardwise.workflows.plan_file import count_plan as count
    from shardwise.workflows.plan_file import load_plan
    from shardwise.workflows.shard import shard_expression as resolve

_HOMES = {
    "Layout": ("shardwise.sharding", "Layout"),
    "Mesh": ("shardwise.sharding", "Mesh"),
    "ServePlan": ("shardwise.plans", "ServePlan"),
    "TrainPlan": ("shardwise.plans", "TrainPlan"),
    "backward": ("shardwise.sharding.backward", "derive"),
    "bench_serve": ("shardwise.verbs.bench_serve", "bench_serve"),
    "book_errata": ("shardwise.verbs.book_errata", "book_errata"),
    "book_figure": ("shardwise.verbs.book_figure", "book_figure"),
    "book_list": ("shardwise.verbs.book", "book_list"),
    "book_quiz": ("shardwise.verbs.book_quiz", "book_quiz"),
    "book_rule": ("shardwise.verbs.book_rule", "book_rule"),
    "book_show": ("shardwise.verbs.book_show", "book_show"),
    "calibrate": ("shardwise.verbs.calibrate", "calibrate"),
    "compare": ("shardwise.verbs.compare", "compare"),
    "compile": ("shardwise.verbs.compile", "compile"),
    "count": ("shardwise.workflows.plan_file", "count_plan"),
    "evaluate_serve": ("shardwise.planner.serve.answer", "evaluate_serve"),
    "evaluate_train": ("shardwise.planner.training", "evaluate_train"),
    "explain": ("shardwise.verbs.explain", "explain"),
    "export": ("shardwise.verbs.export", "export"),
    "hw_diff": ("shardwise.verbs.hw", "hw_diff"),
    "hw_list": ("shardwise.verbs.hw", "hw_list"),
    "hw_show": ("shardwise.verbs.hw", "hw_show"),
    "load_chip": ("shardwise.hardware", "load_chip"),
    "load_model": ("shardwise.models", "load_model"),
    "load_plan": ("shardwise.workflows.plan_file", "load_plan"),
    "matmul_roofline": ("shardwise.verbs.roofline", "matmul_roofline"),
    "model_diff": ("shardwise.verbs.model", "model_diff"),
    "model_list": ("shardwise.verbs.model", "model_list"),
    "model_show": ("shardwise.verbs.model", "model_show"),
    "parameters": ("shardwise.models", "parameters"),
    "place": ("shardwise.hardware", "place"),
    "plan_diff": ("shardwise.verbs.plan_diff", "plan_diff"),
    "plan_schema": ("shardwise.verbs.plan_schema", "plan_schema"),
    "plan_serve": ("shardwise.verbs.plan_serve", "plan_serve"),
    "plan_show": ("shardwise.verbs.plan_show", "plan_show"),
    "plan_sweep": ("shardwise.verbs.plan_sweep", "plan_sweep"),
    "plan_train": ("shardwise.verbs.plan_train", "plan_train"),
    "price": ("shardwise.roofline.price", "price"),
    "profile": ("shardwise.verbs.profile", "profile"),
    "report": ("shardwise.verbs.report", "report"),
    "resolve": ("shardwise.workflows.shard", "shard_expression"),
    "save_plan": ("shardwise.plans", "save_plan"),
    "schema": ("shardwise.verbs.schema", "schema"),
    "shard": ("shardwise.verbs.shard", "shard"),
    "simulate": ("shardwise.verbs.simulate", "simulate"),
    "slice_of": ("shardwise.hardware", "parse_slice"),
    "train": ("shardwise.verbs.train", "train"),
    "validate": ("shardwise.verbs.validate", "validate"),
}
"""Public name -> module and name there."""

__all__ = [
    "Layout",
    "Mesh",
    "ServePlan",
    "TrainPlan",
    "backward",
    "bench_serve",
    "book_errata",
    "book_figure",
    "book_list",
    "book_quiz",
    "book_rule",
    "book_show",
    "calibrate",
    "compare",
    "compile",
    "count",
    "evaluate_serve",
    "evaluate_train",
    "explain",
    "export",
    "hw_diff",
    "hw_list",
    "hw_show",
    "load_chip",
    "load_model",
    "load_plan",
    "matmul_roofline",
    "model_diff",
    "model_list",
    "model_show",
    "parameters",
    "place",
    "plan_diff",
    "plan_schema",
    "plan_serve",
    "plan_show",
    "plan_sweep",
    "plan_train",
    "price",
    "profile",
    "report",
    "resolve",
    "save_plan",
    "schema",
    "shard",
    "simulate",
    "slice_of",
    "train",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shardwise' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
