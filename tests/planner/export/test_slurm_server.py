"""Servers as jobs of Slurm: what srun starts on each host is the server's own command."""

import shutil
import subprocess
from dataclasses import replace

import pytest
from tests.planner.export.test_serving import a_plan

from shardwise.errors import BadRequest
from shardwise.planner.export.serving import export_serve, parse_serve

RECORD = '#!/bin/sh\nfor word in "$0" "$@"; do printf "%s\\0" "$word"; done >> "$RECORD"\n'
SRUN = '#!/bin/sh\nfor NODE in $NODES; do SLURM_NODEID=$NODE "$@"; done\n'


@pytest.fixture
def started(tmp_path):
    """The words of every program that a script starts on so many hosts, as task `at` of its array;
    stand-ins for srun and scontrol, as no Slurm is here."""
    tools = tmp_path / "tools"
    tools.mkdir()
    scripts = {
        "vllm": RECORD,
        "python3": RECORD,
        "srun": SRUN,
        "scontrol": "#!/bin/sh\necho node-0\n",
    }
    for name, held in scripts.items():
        (tools / name).write_text(held)
        (tools / name).chmod(0o755)
    for name in ("bash", "sh", "head", "cat", "seq"):
        (tools / name).symlink_to(shutil.which(name) or name)

    def run(text: str, hosts: int = 1, at: int = 0) -> list[str]:
        record = tmp_path / f"record-{at}"
        said = {"PATH": str(tools), "RECORD": str(record), "MODEL": "m", "SLURM_JOB_NODELIST": "n"}
        said |= {"SLURM_ARRAY_TASK_ID": str(at), "NODES": " ".join(map(str, range(hosts)))}
        script = ["bash", "-c", text]
        subprocess.run(script, cwd=tmp_path, env=said, check=True, timeout=20)
        return record.read_text().split("\0")[:-1]

    return run


def test_servers_of_a_host_each_are_tasks_of_an_array(started):
    plan, cfg, piece = a_plan(engine="vllm", replicas=3)
    text = export_serve(plan, cfg, piece, "slurm")
    for option in ("nodes=1", "ntasks-per-node=1", "gpus-per-node=8", "array=0-2"):
        assert f"#SBATCH --{option}\n" in text
    assert parse_serve(text, "slurm") == plan
    assert parse_serve(text.replace("array=0-2", "array=0-4"), "slurm").replicas == 5
    words = started(text)
    assert words.count("serve") == 1
    assert "--tensor-parallel-size=8" in words


def test_a_server_of_two_hosts_knows_its_first(started):
    plan, cfg, piece = a_plan("moe", "2*h100:8", {"expert": 8}, engine="vllm")
    plan = replace(plan, mesh={"tensor": 16}, batch=64)
    text = export_serve(plan, cfg, piece, "slurm")
    assert "#SBATCH --nodes=2\n" in text
    assert "--array" not in text
    assert parse_serve(text, "slurm") == plan
    words = started(text, hosts=2)
    assert words.count("--master-addr=node-0") == 2
    assert {"--node-rank=0", "--node-rank=1"} <= set(words)


def test_two_pools_are_one_array_with_the_prompts_first(started):
    plan, cfg, piece = a_plan(engine="sglang", replicas=2, prefill_replicas=1)
    text = export_serve(plan, cfg, piece, "slurm")
    assert "#SBATCH --array=0-2\n" in text
    assert parse_serve(text, "slurm") == plan
    roles = ["--disaggregation-mode=prefill" in started(text, at=at) for at in range(3)]
    assert roles == [True, False, False]


def test_servers_that_share_a_host_are_one_job(started):
    plan, cfg, piece = a_plan("dense", "h100:2", {"tensor": 2}, engine="vllm", replicas=2)
    text = export_serve(plan, cfg, piece, "slurm")
    assert "#SBATCH --gpus-per-node=4\n" in text
    assert "--array" not in text
    assert parse_serve(text, "slurm") == plan
    assert started(text).count("serve") == 2


def test_what_slurm_does_not_start():
    plan, cfg, piece = a_plan("moe", "v5e:4x4", {"expert": 16}, engine="vllm", batch=64)
    with pytest.raises(BadRequest, match="slurm cannot express slice v5e:4x4: it starts jobs on h"):
        export_serve(plan, cfg, piece, "slurm")
    with pytest.raises(BadRequest, match="engine ideal: it starts vLLM, SGLang"):
        export_serve(*a_plan(engine="ideal"), "slurm")
    plan, cfg, piece = a_plan(engine="vllm")
    text = export_serve(plan, cfg, piece, "slurm")
    with pytest.raises(BadRequest, match="shardwise did not write the script"):
        parse_serve(text.replace("# Slurm starts", "#"), "slurm")
    with pytest.raises(BadRequest, match="unknown server 'vlm'; did you mean 'vllm'"):
        parse_serve(text.replace("server vllm", "server vlm"), "slurm")
