"""Compiled programs of whole plans, kept by `scripts/compiled_plans.py --dump`."""

import json
from pathlib import Path

from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import price_plan
from shardwise.commands.program.compiling import predicted_of, program_of
from shardwise.plans.files import plan_from
from shardwise.profiler.ahead.cache import read_entry
from shardwise.profiler.ahead.compile import compiled_of

DATA = Path(__file__).parent / "data" / "compiled"
NAMES = tuple(sorted(folder.name for folder in DATA.iterdir()))


def dumped(name, **changes):
    """(plan, what the compiler made of it); `changes` to the plan alone."""
    folder = DATA / name
    values = json.loads((folder / "plan.json").read_text())
    plan = plan_from({**values, **changes}, name)
    return plan, compiled_of(name, *read_entry(folder), cached=True)


def program(name, **changes):
    """(priced, program) of a dump, as `compile_plan` has them."""
    plan, compiled = dumped(name, **changes)
    priced = price_plan(plan, Hardware())
    said = predicted_of(priced, "train")
    return priced, program_of("train", compiled, priced.answer.piece, said)
