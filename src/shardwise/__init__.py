"""shardwise: count, price and plan language models on TPUs and GPUs.

Each command is a function here with the same name: `shardwise plan train` is `plan_train`, and its
options are keywords; `roofline` is `matmul_roofline`. `str` of an answer is the output of the
command, `.table()` its rows, `.result` its document. The other names are the values below. All load
on first use, so that `import shardwise` costs nothing. Only `train` loads JAX; `compile`,
`compare`, `explain`, `profile` and `calibrate` start JAX in a process of its own.
`__main__.py` is the command, for `python -m shardwise`.

Folders are in layers, and a file imports only from layers below it (docs/architecture.md). At the
bottom `errors.py`, `units.py`, `work.py` (what is counted and priced) and `boundary/`, where input
comes in. Then nouns: `hardware/`, `sharding/`, `models/`, `scheduling/`, `plans/`, and `roofline/`,
which makes seconds. Then verbs: `planner/` predicts, `runtime/` executes, `profiler/` observes.
`results/` has the fields of answers, `evidence/` compares answers with measurements, `book/` has
the book's rules, `commands/` has a request and an answer for each command, and `apps/` are the
screens. Read `work.py` first.

>>> import shardwise as sw
>>> planning = sw.plan_train("llama-3-8b", "v5p:2x2x2", batch="64seq", seq=4096)
>>> planning.best.chips_used, planning.table()[0]["mesh"]
(8, 'fsdp=8')
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.commands.plan_file.check import check
    from shardwise.commands.plan_file.diff import plan_diff
    from shardwise.commands.plan_file.export import export
    from shardwise.commands.plan_file.show import plan_show
    from shardwise.commands.plan_serve.serve import plan_serve
    from shardwise.commands.plan_serve.simulate import simulate
    from shardwise.commands.plan_train.sweep import plan_sweep
    from shardwise.commands.plan_train.train import plan_train
    from shardwise.commands.pricing.plans import count_plan as count
    from shardwise.commands.pricing.plans import load_plan
    from shardwise.commands.program.compare import compare
    from shardwise.commands.program.compile import compile
    from shardwise.commands.program.explain import explain
    from shardwise.commands.program.profile import profile
    from shardwise.commands.program.report import report
    from shardwise.commands.run.bench_serve import bench_serve
    from shardwise.commands.run.calibrate import calibrate
    from shardwise.commands.run.train import train
    from shardwise.commands.shard.command import shard
    from shardwise.commands.shard.expression import shard_expression as resolve
    from shardwise.commands.tables.book import book_list
    from shardwise.commands.tables.book_errata import book_errata
    from shardwise.commands.tables.book_figure import book_figure
    from shardwise.commands.tables.book_quiz import book_quiz
    from shardwise.commands.tables.book_rule import book_rule
    from shardwise.commands.tables.book_show import book_show
    from shardwise.commands.tables.hw import hw_diff, hw_list, hw_show
    from shardwise.commands.tables.model import model_diff, model_list, model_show
    from shardwise.commands.tables.plan_schema import plan_schema
    from shardwise.commands.tables.roofline import matmul_roofline
    from shardwise.commands.tables.schema import schema
    from shardwise.commands.tables.validate import validate
    from shardwise.hardware import load_chip, place
    from shardwise.hardware import parse_slice as slice_of
    from shardwise.models import load_model, parameters
    from shardwise.planner.evaluate import evaluate_train
    from shardwise.planner.serve.answer import evaluate_serve
    from shardwise.plans import ServePlan, TrainPlan, save_plan
    from shardwise.roofline.price import price
    from shardwise.sharding import Layout, Mesh
    from shardwise.sharding.backward import derive as backward

_HOMES = {
    "Layout": ("shardwise.sharding", "Layout"),
    "Mesh": ("shardwise.sharding", "Mesh"),
    "ServePlan": ("shardwise.plans", "ServePlan"),
    "TrainPlan": ("shardwise.plans", "TrainPlan"),
    "backward": ("shardwise.sharding.backward", "derive"),
    "bench_serve": ("shardwise.commands.run.bench_serve", "bench_serve"),
    "book_errata": ("shardwise.commands.tables.book_errata", "book_errata"),
    "book_figure": ("shardwise.commands.tables.book_figure", "book_figure"),
    "book_list": ("shardwise.commands.tables.book", "book_list"),
    "book_quiz": ("shardwise.commands.tables.book_quiz", "book_quiz"),
    "book_rule": ("shardwise.commands.tables.book_rule", "book_rule"),
    "book_show": ("shardwise.commands.tables.book_show", "book_show"),
    "calibrate": ("shardwise.commands.run.calibrate", "calibrate"),
    "check": ("shardwise.commands.plan_file.check", "check"),
    "compare": ("shardwise.commands.program.compare", "compare"),
    "compile": ("shardwise.commands.program.compile", "compile"),
    "count": ("shardwise.commands.pricing.plans", "count_plan"),
    "evaluate_serve": ("shardwise.planner.serve.answer", "evaluate_serve"),
    "evaluate_train": ("shardwise.planner.evaluate", "evaluate_train"),
    "explain": ("shardwise.commands.program.explain", "explain"),
    "export": ("shardwise.commands.plan_file.export", "export"),
    "hw_diff": ("shardwise.commands.tables.hw", "hw_diff"),
    "hw_list": ("shardwise.commands.tables.hw", "hw_list"),
    "hw_show": ("shardwise.commands.tables.hw", "hw_show"),
    "load_chip": ("shardwise.hardware", "load_chip"),
    "load_model": ("shardwise.models", "load_model"),
    "load_plan": ("shardwise.commands.pricing.plans", "load_plan"),
    "matmul_roofline": ("shardwise.commands.tables.roofline", "matmul_roofline"),
    "model_diff": ("shardwise.commands.tables.model", "model_diff"),
    "model_list": ("shardwise.commands.tables.model", "model_list"),
    "model_show": ("shardwise.commands.tables.model", "model_show"),
    "parameters": ("shardwise.models", "parameters"),
    "place": ("shardwise.hardware", "place"),
    "plan_diff": ("shardwise.commands.plan_file.diff", "plan_diff"),
    "plan_schema": ("shardwise.commands.tables.plan_schema", "plan_schema"),
    "plan_serve": ("shardwise.commands.plan_serve.serve", "plan_serve"),
    "plan_show": ("shardwise.commands.plan_file.show", "plan_show"),
    "plan_sweep": ("shardwise.commands.plan_train.sweep", "plan_sweep"),
    "plan_train": ("shardwise.commands.plan_train.train", "plan_train"),
    "price": ("shardwise.roofline.price", "price"),
    "profile": ("shardwise.commands.program.profile", "profile"),
    "report": ("shardwise.commands.program.report", "report"),
    "resolve": ("shardwise.commands.shard.expression", "shard_expression"),
    "save_plan": ("shardwise.plans", "save_plan"),
    "schema": ("shardwise.commands.tables.schema", "schema"),
    "shard": ("shardwise.commands.shard.command", "shard"),
    "simulate": ("shardwise.commands.plan_serve.simulate", "simulate"),
    "slice_of": ("shardwise.hardware", "parse_slice"),
    "train": ("shardwise.commands.run.train", "train"),
    "validate": ("shardwise.commands.tables.validate", "validate"),
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
    "check",
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
