"""Launch scripts: the arguments that are read are those that bash gives the program."""

import shutil
import subprocess
from pathlib import Path

import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.planner.export import parse_export
from shardwise.planner.export.known_flags import target_of, unread_notes
from shardwise.planner.export.script import launch_of

SCRIPTS = Path(__file__).parent / "scripts"
STUBS = ("torchrun", "python", "srun")
TOOLS = ("dirname", "mkdir", "tee", "true", "cat")
SBATCH = '#!/bin/sh\nif [ $# -gt 0 ]; then exec {bash} "$@"; fi\nexec {bash}\n'
RECORD = '#!/bin/sh\nfor word in "$0" "$@"; do printf "%s\\0" "$word"; done >> "$RECORD"\n'


@pytest.fixture
def started(tmp_path):
    """What bash gives torchrun, python or srun of a script that it calls with $1, $2, ..."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in STUBS:
        (tools / name).write_text(RECORD)
        (tools / name).chmod(0o755)
    for name in TOOLS:
        (tools / name).symlink_to(shutil.which(name) or name)
    bash = shutil.which("bash")
    assert bash
    (tools / "bash").symlink_to(bash)
    (tools / "sbatch").write_text(SBATCH.format(bash=bash))
    (tools / "sbatch").chmod(0o755)

    def run(path: Path) -> list[str]:
        (tmp_path / "pretrain_gpt.py").touch()
        record = tmp_path / "record"
        said = {"PATH": str(tools), "RECORD": str(record)}
        left = ["$1", "$2", "$3", "$4", "$5"] if "175b" in path.stem or "8x7b" in path.stem else []
        subprocess.run([bash, str(path), *left], cwd=tmp_path, env=said, check=True, timeout=20)
        return record.read_text().split("\0")[:-1]

    return run


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.stem)
def test_what_is_read_is_what_bash_starts(started, tmp_path, path):
    launch = launch_of(path.read_text())
    assert launch is not None
    got = started(path)
    if got[-2] == "-c":  # which srun hands to a bash of its own
        got = got[-1].split()
    words = [word.replace(str(tmp_path), "$PWD") for word in got]
    assert words[-len(launch.arguments) :] == list(launch.arguments)
    assert launch.program.endswith("pretrain_gpt.py")
    assert launch.program in words


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        *(("gpt3_175b", "1"), ("mixtral_8x7b", "4"), ("slurm", "4"), ("srun", "2")),
        *(("srun_bash", "2"), ("sbatch_here", "2"), ("sbatch_file", "4")),
    ],
)
def test_how_many_processes_there_are(name, nodes):
    launch = launch_of((SCRIPTS / f"{name}.sh").read_text())
    assert launch is not None
    assert (launch.nodes, launch.each) == (nodes, "8")


@pytest.mark.parametrize(
    ("spelt", "counts"),
    [
        ("torchrun --nproc_per_node=4 --nnodes=2 t.py", ("2", "4")),
        ("torchrun --standalone --nproc-per-node 4 -m pkg.train", ("", "4")),
        ("python3 -m torch.distributed.launch --nproc_per_node 4 --use_env t.py", ("", "4")),
        ("A=1 exec /usr/bin/python3.11 -u -X dev -m torch.distributed.run --nnodes 2:4 t.py", "4"),
        ("srun -N4 --gres=gpu:h100:8 python t.py", ("4", "8")),
        ("srun --nodes 2 -n 16 --container-image x python3 t.py", ("2", "8")),
        ("mpirun -np 16 --allow-run-as-root python t.py", ("", "16")),
        ("accelerate launch --num_machines 2 --num_processes 16 --multi_gpu t.py", ("2", "8")),
        ("deepspeed --num_gpus 4 t.py", ("", "4")),
        ("nohup nsys profile -o out torchrun --nproc_per_node $((2*2)) t.py", ("", "4")),
    ],
)
def test_a_launcher_in_every_spelling(spelt, counts):
    launch = launch_of(f"{spelt} --lr 1 > log.txt 2>&1 &")
    assert launch is not None
    assert launch.arguments == ("--lr", "1")
    assert counts in ((launch.nodes, launch.each), launch.nodes)


ARGUMENTS = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --micro-batch-size 1 "
    "--global-batch-size 64 --seq-length 2048 --bf16"
)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("--tensor-model-parallel-size $TP", "is $TP, which .*; add a line TP=VALUE above it"),
        ("--tensor-model-parallel-size ${1}", "is $1, which .*; write its value in its place"),
        ("--tensor-model-parallel-size $(nproc)", "is $(nproc), which .*; write its value"),
    ],
)
def test_what_a_script_leaves_to_its_caller_is_asked_for_by_name(script, said):
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {ARGUMENTS} {script}"
    with pytest.raises(BadRequest) as error:
        parse_export(text, "megatron")
    assert all(part in str(error.value) for part in said.split(".*"))


def test_flags_that_are_not_read_are_said():
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {ARGUMENTS} $MORE\ntorchrun b.py"
    said = unread_notes(text, "megatron")
    assert any("takes $MORE from its caller: read as empty" in line for line in said)
    assert any("starts 1 more program" in line for line in said)


@pytest.mark.parametrize(
    "text",
    [
        "A=12345678\nfor i in " + "1 " * 20 + "; do A=$A$A; done",
        "while true; do :; done",
        "f() { f; }; f",
        "A='eval $A'; eval $A",
        "A=(x",
        "if true; then x",
        'echo "x',
        "A=$((9**9**9)); " + "(" * 3000,
    ],
)
def test_a_script_without_end_is_refused(text):
    with pytest.raises(BadRequest):
        launch_of(text + "\ntorchrun a.py")


def test_the_scripts_are_megatrons():
    for path in SCRIPTS.glob("*.sh"):
        assert target_of(path.read_text()) == "megatron"


def test_a_script_of_fewer_processes_than_its_degrees_takes_the_slice_that_is_given():
    text = (SCRIPTS / "mixtral_8x7b.sh").read_text().replace('"4"', '"1"')
    with pytest.raises(BadRequest, match="starts 8 processes, and its degrees need 32"):
        parse_export(text, "megatron")
    assert parse_export(text, "megatron", piece=parse_slice("8*h100:8")).mesh["data"] == 2
    with pytest.raises(BadRequest, match="--seq-length is missing; give it"):
        parse_export(
            text.replace("--seq-length 4096", ""), "megatron", piece=parse_slice("4*h100:8")
        )
