"""Export: a TrainPlan in the words of another framework or launcher, and back to the same plan.

One file per target: `maxtext.py`, `torchtitan.py`, `megatron.py`, `jax_mesh.py`, and the launchers
`xpk.py` and `skypilot.py` (`hardware.py` has the names of slices there). A ServePlan goes through
`serving.py` to `vllm.py` and `sglang.py`, which share `server_flags.py`; `flags.py` reads the flags
of all that write a command. Each target has `write(plan, cfg, piece)`, the target's own text, and
`read(text)`, the fields of the plan that this text says. What a target has no word for stands in
comment lines beside the text (`notes.py`); a choice that the target would run in another way is
refused. Nothing is run or installed here: Python is read as a tree (`python_text.py`), and what
came from outside is quoted for the language that it is written in. Read `notes.py` first.
"""

from collections.abc import Mapping

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export import jax_mesh, maxtext, megatron, skypilot, torchtitan, xpk
from shardwise.planner.export.notes import (
    Exporter,
    check_model,
    exporter_of,
    fields_read,
    with_notes,
    without_notes,
)
from shardwise.plans import TrainPlan

EXPORTERS: Mapping[str, Exporter] = {
    "maxtext": Exporter(write=maxtext.write, read=maxtext.read, lost=lambda _: maxtext.LOST),
    "torchtitan": Exporter(
        write=torchtitan.write, read=torchtitan.read, lost=lambda _: torchtitan.LOST
    ),
    "megatron": Exporter(write=megatron.write, read=megatron.read, lost=lambda _: megatron.LOST),
    "jax": Exporter(write=jax_mesh.write, read=jax_mesh.read, lost=lambda _: jax_mesh.LOST),
    "xpk": Exporter(write=xpk.write, read=xpk.read, lost=lambda _: xpk.LOST),
    "skypilot": Exporter(write=skypilot.write, read=skypilot.read, lost=skypilot.lost),
}
"""By the name that `--to` takes."""


def export_plan(plan: TrainPlan, cfg: ModelConfig, piece: Slice, target: str) -> str:
    """The plan as the text of a target; `parse_export` gives back the same plan.

    `cfg` and `piece` are the model and the slice that the plan names. Raises BadRequest for an
    unknown target, a model that is not the plan's, and a choice that the target cannot run.
    """
    exporter = exporter_of(EXPORTERS, target, "export target")
    check_model(plan, cfg)
    text = exporter.write(plan, cfg, piece)
    return with_notes(text, target, plan, cfg, exporter.read(text), exporter.lost(piece))


def parse_export(text: str, target: str) -> TrainPlan:
    """The plan that an exported text says: its own words first, its notes for the rest.

    Raises BadRequest for text that is no such export, or whose values make no plan.
    """
    said = fields_read(exporter_of(EXPORTERS, target, "export target").read, text, target)
    return without_notes(text, target, said)


__all__ = ["EXPORTERS", "export_plan", "parse_export"]
