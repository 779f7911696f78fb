"""A ServePlan in the words of an inference server, and back to the same plan.

`vllm.py` and `sglang.py` each have `write(plan, cfg, piece)`, a shell script that starts one
replica, and `read(text)`, the fields that its flags say. As for training (`notes.py`), flags come
first and comment lines hold the rest; a choice that the server would run in another way is refused
by the name of its field.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwise.errors import unknown
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export import sglang, vllm
from shardwise.planner.export.notes import (
    Fields,
    changed,
    check_model,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeExporter:
    """How a target is written and read."""

    write: Callable[[ServePlan, ModelConfig, Slice], str]
    read: Callable[[str], Fields]


SERVE_EXPORTERS: Mapping[str, ServeExporter] = {
    "vllm": ServeExporter(write=vllm.write, read=vllm.read),
    "sglang": ServeExporter(write=sglang.write, read=sglang.read),
}
"""By the name that `--to` takes."""

LOST: Mapping[str, str] = {
    "replicas": "start so many of these behind a router",
    "prefill_replicas": "start so many of these besides, behind a router that knows both roles",
    "routing": "set it in the router",
    "scheduling.acceptance": "it is measured, not chosen",
}
"""What no flag of one server says."""


def export_serve(plan: ServePlan, cfg: ModelConfig, piece: Slice, target: str) -> str:
    """The plan as a script for a target; `parse_serve` gives back the same plan. Raises BadRequest
    for an unknown target, another model, and a choice that the target cannot run."""
    exporter = _exporter(target)
    check_model(plan, cfg)
    text = exporter.write(plan, cfg, piece)
    said = exporter.read(text)
    lines = note_lines(changed(plan_fields(plan), said, ServePlan), said, LOST)
    return in_front([*heading("serving", target), *lines, *_remarks(plan, cfg)], text)


def _remarks(plan: ServePlan, cfg: ModelConfig) -> list[str]:
    """What runs otherwise although every flag is set."""
    if plan.degree("data") * plan.degree("expert") > 1:
        why = "the plan cuts a prompt's tokens over data and expert, the server gives it to one"
        return [unsaid("mesh", dict(plan.mesh), f"{why}; TTFT is longer")]
    return []


def parse_serve(text: str, target: str) -> ServePlan:
    """The plan that a script says: its flags first, its notes for the rest. Raises BadRequest."""
    said = fields_read(_exporter(target).read, text, target)
    plan = noted_plan("serve", text, target, said)
    assert isinstance(plan, ServePlan)
    check_length(target, text, plan)
    return plan


def _exporter(target: str) -> ServeExporter:
    if target not in SERVE_EXPORTERS:
        raise unknown("export target for serving plans", target, SERVE_EXPORTERS)
    return SERVE_EXPORTERS[target]
