"""A plan as a batch script of Slurm: `srun` starts the program that runs it, on hosts of GPUs.

The program's own export is inside, with its notes: a launch line, in front of which srun comes, or
a file that the script writes first. torchrun and accelerate run once a node and meet at the first;
JAX runs once a device, as it numbers its processes by Slurm's tasks (jax/_src/clusters/
slurm_cluster.py). Options are those of sbatch's manual.
"""

import re

from shardwise.boundary import parse_yaml
from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export.hardware import is_tpu, nodes
from shardwise.planner.export.notes import Fields, plan_fields
from shardwise.planner.export.trainer.files import parts
from shardwise.planner.export.xpk import job_name
from shardwise.plans import TrainPlan
from shardwise.plans.files import plan_dict, plan_from
from shardwise.plans.software import Obstacle

TARGET = "slurm"
_FILES = {"torchtitan": "plan.py", "jax": "plan.yaml"}
"""Programs whose export is a file, which the script writes."""
_MEET = '--rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$head:29500"'
_ACCELERATE = '--rdzv_backend c10d --main_process_ip "$head" --main_process_port 29500'
_PER_DEVICE = ("jax", "maxtext")
"""Programs of which each device has a process."""
_FOR = re.compile(r"^# Slurm starts (?P<program>\w+)\.$", re.MULTILINE)


def write(plan: TrainPlan, cfg: ModelConfig, piece: Slice, program: str, inner: str) -> str:
    """The script that starts a program, whose own export is `inner`."""
    count, each = nodes(plan, piece)
    options = {
        "job-name": job_name(cfg.name),
        "nodes": count,
        "ntasks-per-node": each if program in _PER_DEVICE else 1,
        "gpus-per-node": each,
    }
    head = ["#!/usr/bin/env bash", *(f"#SBATCH --{k}={v}" for k, v in options.items())]
    lines = [*head, f"# Slurm starts {program}.", _FIRST_NODE]
    return "\n".join([*lines, _started(plan, piece, program, inner)])


_FIRST_NODE = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'


def _started(plan: TrainPlan, piece: Slice, program: str, inner: str) -> str:
    """The program's part of the script."""
    import yaml

    count, each = nodes(plan, piece)
    torchrun = f"torchrun --nnodes {count} --nproc-per-node {each}"
    body = inner.removeprefix("#!/usr/bin/env bash\n")
    if program == "jax":
        held = yaml.safe_dump(plan_dict(plan), sort_keys=False)
        return _file(program, held) + "srun shardwise train plan.yaml --data FILE --steps N\n"
    if program == "torchtitan":
        run = f"srun {torchrun} {_MEET} -m torchtitan.train --module plan --config plan\n"
        return _file(program, inner) + run
    if program == "megatron":
        return body.replace(torchrun, f"srun {torchrun} {_MEET}", 1)
    if program == "trl":
        return body.replace("accelerate launch", f"srun accelerate launch {_ACCELERATE}", 1)
    return re.sub(r"^(python3? )", r"srun \1", body, count=1, flags=re.MULTILINE)


def _file(program: str, held: str) -> str:
    return f"cat > {_FILES[program]} <<'END'\n{held}END\n"


def inside(text: str) -> tuple[str, str]:
    """The program that a script starts, and its own text."""
    found = _FOR.search(text)
    if found is None:
        raise BadRequest(
            f"{TARGET}: shardwise did not write the script; name the program that it starts with "
            "--from"
        )
    program = found["program"]
    return program, parts(text)[1].get(_FILES.get(program, ""), text)


def read_own(text: str) -> Fields:
    """The fields of the plan that our own trainer is given."""
    plan = plan_from(parse_yaml(text, f"{TARGET}: plan.yaml"), f"the {TARGET} export")
    return plan_fields(plan)


def obstacles(plan: TrainPlan, piece: Slice) -> list[Obstacle]:
    """That it starts jobs on GPUs."""
    if not is_tpu(piece):
        return []
    told = "it starts jobs on hosts of GPUs", "export to xpk, or plan for GPUs"
    return [Obstacle(field="slice", value=plan.slice, rule=told[0], remedy=told[1])]
