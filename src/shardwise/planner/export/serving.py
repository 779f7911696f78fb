"""A ServePlan in the words of an inference server, and back to the same plan.

`vllm.py` and `sglang.py` each have `write(plan, cfg, piece)`, a shell script that starts one
replica, and `read(text)`, the fields that its flags say. As for training (`notes.py`), flags come
first and comment lines hold the rest; a choice that the server would run in another way is refused
by the name of its field.
"""

from collections.abc import Mapping

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export import sglang, vllm
from shardwise.planner.export.notes import (
    Exporter,
    changed,
    check_model,
    exporter_of,
    fields_read,
    heading,
    in_front,
    note_lines,
    noted_plan,
    plan_fields,
    unsaid,
)
from shardwise.planner.export.server_flags import check_length
from shardwise.plans import ServePlan

LOST: Mapping[str, str] = {
    "replicas": "start so many of these behind a router",
    "prefill_replicas": "start so many of these besides, behind a router that knows both roles",
    "routing": "set it in the router",
    "scheduling.acceptance": "it is measured, not chosen",
}
"""What no flag of one server says."""

SERVE_EXPORTERS: Mapping[str, Exporter] = {
    "vllm": Exporter(write=vllm.write, read=vllm.read, lost=lambda _: LOST),
    "sglang": Exporter(write=sglang.write, read=sglang.read, lost=lambda _: LOST),
}
"""By the name that `--to` takes."""


def export_serve(plan: ServePlan, cfg: ModelConfig, piece: Slice, target: str) -> str:
    """The plan as a script for a target; `parse_serve` gives back the same plan. Raises BadRequest
    for an unknown target, another model, and a choice that the target cannot run."""
    exporter = exporter_of(SERVE_EXPORTERS, target, "export target for serving plans")
    check_model(plan, cfg)
    text = exporter.write(plan, cfg, piece)
    said = exporter.read(text)
    lines = note_lines(changed(plan_fields(plan), said, ServePlan), said, exporter.lost(piece))
    return in_front([*heading("serving", target), *lines, *_remarks(plan, cfg)], text)


def _remarks(plan: ServePlan, cfg: ModelConfig) -> list[str]:
    """What runs otherwise although every flag is set."""
    if plan.degree("data") * plan.degree("expert") > 1:
        why = "the plan cuts a prompt's tokens over data and expert, the server gives it to one"
        return [unsaid("mesh", dict(plan.mesh), f"{why}; TTFT is longer")]
    return []


def parse_serve(text: str, target: str) -> ServePlan:
    """The plan that a script says: its flags first, its notes for the rest. Raises BadRequest."""
    exporter = exporter_of(SERVE_EXPORTERS, target, "export target for serving plans")
    said = fields_read(exporter.read, text, target)
    plan = noted_plan("serve", text, target, said)
    assert isinstance(plan, ServePlan)
    check_length(target, text, plan)
    return plan
