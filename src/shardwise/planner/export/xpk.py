"""A plan as an XPK command: a MaxText job on TPU slices of a GKE cluster.

Names checked against AI-Hypercomputer/xpk src/xpk/parser/workload.py@01b05572. `--tpu-type` takes
Cloud's names, whose number is ambiguous (xpk#525), or `FAMILY-TOPOLOGY`: the name is used only
where it means this very shape, else the topology is spelt out. The job's command is MaxText's.
"""

import re
import shlex
from dataclasses import replace

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.hardware.cloud_names import families
from shardwise.hardware.shapes import shape_text
from shardwise.models import ModelConfig
from shardwise.planner.export import maxtext, maxtext_read
from shardwise.planner.export.flags import Flags, words_of
from shardwise.planner.export.hardware import (
    is_tpu,
    safe_names,
    slice_fields,
    slice_of_type,
)
from shardwise.planner.export.notes import Fields
from shardwise.plans import TrainPlan
from shardwise.plans.software import Obstacle

TARGET = "xpk"
LOST = maxtext.LOST


def write(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A shell script with one command; the cluster is a variable of the user's."""
    used = replace(piece, count=plan.slices)
    job = " ".join(maxtext.command(plan, cfg, piece))
    words = [
        "xpk workload create",
        f"--workload={job_name(cfg.name)}",
        '--cluster="${CLUSTER:?the name of the GKE cluster}"',
        f"--tpu-type={tpu_type(piece)}",
        f"--num-slices={used.count}",
        f"--command={shlex.quote(job)}",
    ]
    return "#!/usr/bin/env bash\n" + " \\\n  ".join(words) + "\n"


def obstacles(plan: TrainPlan, piece: Slice) -> list[Obstacle]:
    """What XPK itself cannot start."""
    if is_tpu(piece):
        return []
    told = "it starts jobs on TPUs", "export to skypilot, or plan for a TPU"
    return [Obstacle(field="slice", value=plan.slice, rule=told[0], remedy=told[1])]


def job_name(model: str) -> str:
    """A name that Kubernetes takes: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "plan"


def tpu_type(piece: Slice) -> str:
    """`v5litepod-16` where that is this slice, `v5p-4x8x16` where the name would not say so.

    XPK lists a topology once, its sizes in ascending order.
    """
    names = safe_names(piece)
    if names:
        return names[0]
    family = next(name for name, rule in families().items() if rule.chip == piece.chip.id)
    return f"{family}-{shape_text(tuple(sorted(piece.shape)))}"


def read(text: str, devices: int | None = None) -> Fields:
    """The slices from XPK's own flags, the rest from the command's."""
    words = words_of(TARGET, text)
    given = Flags(TARGET, dict(w.split("=", 1) for w in words if re.match(r"--[\w-]+=", w)))
    for flag in ("--tpu-type", "--command"):
        if flag not in given:
            raise BadRequest(f"{TARGET}: the flag {flag} is missing; give it")
    count = given.number("--num-slices", "1")
    said = maxtext_read.read(given.get("--command"), devices)
    if said["slices"] != count:
        raise BadRequest(
            f"{TARGET}: --num-slices is {count}, the command's dcn_* flags multiply to "
            f"{said['slices']}; make them equal"
        )
    return said | slice_fields(slice_of_type(given.get("--tpu-type"), count))
