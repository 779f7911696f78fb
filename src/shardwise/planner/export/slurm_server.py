"""A ServePlan as a batch script of Slurm: the server's own script (`serving.py`), held in a
variable that `srun` brings to the hosts of a server.

Servers that take hosts of their own are tasks of a job array, those of prompts first; servers that
share hosts are one job. Options are those of sbatch's manual.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.planner.export.hardware import is_tpu
from shardwise.planner.export.notes import Fields, check_runs
from shardwise.planner.export.one_host import SharedHost, hosts_of
from shardwise.planner.export.server_program import ServerPool, pools_of
from shardwise.planner.export.xpk import job_name
from shardwise.plans import ServePlan
from shardwise.plans.software import Obstacle

TARGET = "slurm"
_FOR = re.compile(r"^# Slurm starts the server (?P<program>\w+)\.$", re.MULTILINE)
_HELD = re.compile(r"^IFS= read [^\n]*<<'END'[^\n]*\n(?P<held>.*?)^END$", re.MULTILINE | re.DOTALL)
_ARRAY = re.compile(r"^#SBATCH --array=0-(?P<last>\d{1,6})$", re.MULTILINE)
_PROMPTS = re.compile(r"\"\$SLURM_ARRAY_TASK_ID\" -lt (?P<many>\d{1,6}) ")
_HEAD = """export MODEL=${MODEL:?the checkpoint: sbatch --export=ALL,MODEL=FOLDER}
export LEADER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export SERVER
IFS= read -r -d '' SERVER <<'END' || true
"""


def write(plan: ServePlan, piece: Slice, program: str, name: str, inner: str) -> str:
    """The script that starts a server's program, whose own script is `inner`."""
    pools = pools_of(plan, piece)
    shared = hosts_of(pools)
    check_runs(TARGET, obstacles(plan, piece, pools, shared))
    count, each, array = _hosts(pools, shared)
    options = {
        "job-name": job_name(name),
        "nodes": count,
        "ntasks-per-node": 1,
        "gpus-per-node": each,
        **({"array": f"0-{array - 1}"} if array > 1 else {}),
    }
    head = ["#!/usr/bin/env bash", *(f"#SBATCH --{k}={v}" for k, v in options.items())]
    head.append(f"# Slurm starts the server {program}.")
    return "\n".join([*head, f"{_HEAD}{inner}END\n{_run(pools, shared)}"])


def _hosts(pools: Sequence[ServerPool], shared: Mapping[str, SharedHost]) -> tuple[int, int, int]:
    """Hosts of a job, chips on each, and how many such jobs there are."""
    first = pools[0]
    if not shared:
        return first.hosts, first.chips_per_host, sum(pool.servers for pool in pools)
    devices = first.piece.chip.jax_devices_per_chip
    used = sum(min(one.servers, one.per_host) * one.each for one in shared.values())
    last = max(math.ceil(one.servers / one.per_host) for one in shared.values())
    return last, max(1, used // devices), 1


def _run(pools: Sequence[ServerPool], shared: Mapping[str, SharedHost]) -> str:
    """The line that starts the servers of a job."""
    start = 'RANK=$SLURM_NODEID exec bash -c "$SERVER" server'
    if len(pools) == 1:
        return f"srun bash -c '{start}'\n"
    if shared:
        both = " & ".join(f'bash -c "$SERVER" server {pool.role}' for pool in pools)
        return f"srun bash -c '{both} & wait'\n"
    prompts, answers = pools
    return (
        f"role={answers.role}\n"
        f'[ "$SLURM_ARRAY_TASK_ID" -lt {prompts.servers} ] && role={prompts.role}\n'
        f'srun bash -c \'{start} "$0"\' "$role"\n'
    )


def obstacles(
    plan: ServePlan,
    piece: Slice,
    pools: Sequence[ServerPool],
    shared: Mapping[str, SharedHost],
) -> list[Obstacle]:
    """That a job has hosts of GPUs, and all of them alike."""
    if is_tpu(piece):
        told = "it starts jobs on hosts of GPUs", "export to k8s, or plan for GPUs"
        return [Obstacle(field="slice", value=plan.slice, rule=told[0], remedy=told[1])]
    together = len(shared) == len(pools) and all(one.alone for one in shared.values())
    together = together and any(one.first for one in shared.values())
    alike = not shared and len({(pool.hosts, pool.chips_per_host) for pool in pools}) == 1
    if len(pools) == 1 or together or alike:
        return []
    told = "hosts of a job are alike", "plan with --pools one, or export to k8s"
    return [
        Obstacle(
            field="prefill_replicas", value=plan.prefill_replicas, rule=told[0], remedy=told[1]
        )
    ]


def read(text: str, inner: Callable[[str, str], Fields]) -> Fields:
    """The fields that a script says: those of the server's own script, as `inner` reads it of a
    program, and how many servers the job array has."""
    found, held = _FOR.search(text), _HELD.search(text)
    if found is None or held is None:
        raise BadRequest(
            f"{TARGET}: shardwise did not write the script; name the server that it starts with "
            "--from"
        )
    said = inner(found["program"], held["held"])
    array, prompts = _ARRAY.search(text), _PROMPTS.search(text)
    if array is not None:
        first = int(prompts["many"]) if prompts else 0
        said |= {"replicas": int(array["last"]) + 1 - first}
        said |= {"prefill_replicas": first} if first else {}
    return said
