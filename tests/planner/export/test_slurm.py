"""A batch script of Slurm starts the plan's program with the very arguments that are read back."""

import shutil
import subprocess

import pytest
from tests.planner.export.exporting import MIXED, STORED_F32, a_plan

from shardwise.errors import BadRequest
from shardwise.planner.export import export_plan, parse_export
from shardwise.planner.export.script import launch_of
from shardwise.planner.export.trainer.files import parts

RECORD = '#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done >> "$RECORD"\n'
EIGHT = {"data": 8}
PLANS = {
    "megatron": {"mesh": EIGHT | {"tensor": 2}, "software": "megatron", "stack": "megatron"},
    "torchtitan": {"mesh": {"fsdp": 16}, "software": "torchtitan", "dtypes": STORED_F32, "zero": 0},
    "trl": {"mesh": {"data": 16}, "stack": "fsdp", "lora_rank": 8, "dtypes": MIXED},
    "maxtext": {"mesh": {"fsdp": 16}, "software": "maxtext", "dtypes": STORED_F32},
    "jax": {"mesh": {"fsdp": 16}, "software": "jax"},
}


@pytest.fixture
def srun(tmp_path):
    """The words that bash gives srun of a script, without srun's own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("srun", "scontrol"):
        (tools / name).write_text(RECORD if name == "srun" else "#!/bin/sh\necho node-0\n")
        (tools / name).chmod(0o755)
    for name in ("head", "cat"):
        (tools / name).symlink_to(shutil.which(name) or name)

    def run(text: str) -> list[str]:
        said = {"PATH": str(tools), "RECORD": str(tmp_path / "record")}
        script = ["bash", "-c", text]
        bash = shutil.which("bash")
        subprocess.run(script, executable=bash, cwd=tmp_path, env=said, check=True, timeout=20)
        return (tmp_path / "record").read_text().split("\0")[:-1]

    return run


@pytest.mark.parametrize("program", PLANS)
def test_srun_starts_the_program_with_what_is_read(program, srun, tmp_path):
    choices = dict(PLANS[program])
    plan, cfg, piece = a_plan("dense", "2*h100:8", choices.pop("mesh"), **choices)
    text = export_plan(plan, cfg, piece, "slurm")
    assert parse_export(text, "slurm") == plan
    assert f"# Slurm starts {program}." in text
    assert "#SBATCH --nodes=2\n" in text
    assert f"#SBATCH --ntasks-per-node={8 if program in ('jax', 'maxtext') else 1}\n" in text
    words = srun(text)
    main, held = parts(text)
    launch = launch_of(main)
    if launch is not None:
        assert words[-len(launch.arguments) :] == list(launch.arguments)
    for name, file in held.items():
        assert (tmp_path / name).read_text() == file
    if program in ("megatron", "torchtitan"):
        assert words[:5] == ["torchrun", "--nnodes", "2", "--nproc-per-node", "8"]
        assert "node-0:29500" in words


def test_what_slurm_does_not_start():
    plan, cfg, piece = a_plan("dense", "v5e:4x4", {"fsdp": 16})
    with pytest.raises(BadRequest, match="slurm cannot express slice v5e:4x4: it starts jobs on h"):
        export_plan(plan, cfg, piece, "slurm")
    plan, cfg, piece = a_plan("dense", "h100:8", EIGHT, optimizer="adafactor", software="megatron")
    with pytest.raises(BadRequest, match="megatron cannot express optimizer adafactor"):
        export_plan(plan, cfg, piece, "slurm")
    with pytest.raises(BadRequest, match="slurm: shardwise did not write the script"):
        parse_export("#SBATCH -N 2\nsrun torchrun pretrain_gpt.py --bf16", "slurm")
