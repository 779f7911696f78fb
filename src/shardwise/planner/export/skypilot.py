"""A plan as a SkyPilot task: MaxText on one TPU slice, or Megatron-LM on hosts of GPUs.

Fields checked against docs.skypilot.co's YAML reference. `accelerators` takes `tpu-v5p-128`, so
only slices that such a name of Cloud's means, or `H100:8`, GPUs per host of `num_nodes` hosts.
"""

from typing import Any

from shardwise.boundary import parse_yaml, whole
from shardwise.errors import BadRequest
from shardwise.hardware import Slice, load_chip, parse_slice
from shardwise.hardware.names import exported
from shardwise.hardware.slices import domain_of
from shardwise.models import ModelConfig
from shardwise.planner.export import maxtext, maxtext_read, megatron, megatron_read
from shardwise.planner.export.hardware import is_tpu, nodes, safe_names, slice_fields
from shardwise.planner.export.notes import Fields, Lost, meant, number
from shardwise.planner.export.xpk import job_name
from shardwise.plans import TrainPlan
from shardwise.plans.software import Obstacle, SoftwareRow
from shardwise.plans.software.maxtext import MAXTEXT
from shardwise.plans.software.megatron import MEGATRON

TARGET = "skypilot"


def lost(piece: Slice) -> Lost:
    """What the framework that runs on this slice has no word for."""
    return maxtext.LOST if is_tpu(piece) else megatron.LOST


def runner(piece: Slice) -> SoftwareRow:
    """The framework that runs on this slice."""
    return MAXTEXT if is_tpu(piece) else MEGATRON


_LAUNCH = (
    'torchrun --nnodes "$SKYPILOT_NUM_NODES" --nproc-per-node "$SKYPILOT_NUM_GPUS_PER_NODE"',
    '--node-rank "$SKYPILOT_NODE_RANK" --master-addr "$(echo "$SKYPILOT_NODE_IPS" | head -n1)"',
    "pretrain_gpt.py",
)


def write(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """The YAML of one task."""
    import yaml

    if is_tpu(piece):
        accelerators, hosts = f"tpu-{safe_names(piece)[0]}", 1
        words = maxtext.command(plan, cfg, piece)
    else:
        hosts, each = nodes(plan, piece)
        accelerators = f"{exported(TARGET)[piece.chip.id]}:{each}"
        words = [*megatron.environment(plan), *_LAUNCH, *megatron.arguments(plan, cfg, piece)]
    task = {
        "name": job_name(cfg.name),
        "num_nodes": hosts,
        "resources": {"accelerators": accelerators},
    }
    run = " \\\n    ".join(words)  # on one line each: no word holds a line break
    return yaml.safe_dump(task, sort_keys=False) + f"run: |\n  {run}\n"


def obstacles(plan: TrainPlan, piece: Slice) -> list[Obstacle]:
    """What SkyPilot itself cannot start."""
    found = []
    if is_tpu(piece):
        if plan.slices > 1:
            told = "it starts one TPU slice", "export to xpk, or use one slice"
            found.append(Obstacle(field="slices", value=plan.slices, rule=told[0], remedy=told[1]))
        if not safe_names(piece):
            rule = "it names slices as Cloud does, and none means this shape"
            near = "export to xpk, or plan for a slice of another shape"
            found.append(Obstacle(field="slice", value=plan.slice, rule=rule, remedy=near))
    elif piece.chip.id not in exported(TARGET):
        rule = f"of GPUs it supports {', '.join(exported(TARGET))}"
        remedy = "plan for one of them"
        found.append(Obstacle(field="slice", value=plan.slice, rule=rule, remedy=remedy))
    return found


def read(text: str, devices: int | None = None) -> Fields:
    """The hardware from `resources`, the rest from the command that runs."""
    task = _yaml(text)
    try:
        accelerators = str(task["resources"]["accelerators"])
        run = str(task["run"])
    except (KeyError, TypeError):
        raise BadRequest(
            f"{TARGET}: the task needs resources.accelerators, num_nodes and run"
        ) from None
    hosts = whole(task.get("num_nodes", 1), f"{TARGET}: num_nodes", least=1, most=1e6)
    if accelerators.startswith("tpu-"):
        said = maxtext_read.read(run, devices)
        if said["slices"] != hosts:
            raise BadRequest(
                f"{TARGET}: num_nodes is {hosts}, the command's dcn_* flags multiply to "
                f"{said['slices']} slices; make them equal"
            )
        return said | slice_fields(parse_slice(accelerators.removeprefix("tpu-")))
    name, _, each = accelerators.partition(":")
    per_host = number(TARGET, "accelerators", each or "1")
    chip = load_chip(meant(TARGET, "accelerators", name, exported(TARGET)))
    said = megatron_read.read(run, devices=hosts * per_host * chip.jax_devices_per_chip)
    domain = min(per_host, domain_of(chip))
    each_slice = Slice(chip=chip, count=hosts * per_host // domain, shape=(domain,))
    return said | slice_fields(each_slice)


def _yaml(text: str) -> Any:
    task = parse_yaml(text, f"{TARGET}: the task")
    if not isinstance(task, dict):
        raise BadRequest(f"{TARGET}: the task is not a mapping of keys to values")
    return task
