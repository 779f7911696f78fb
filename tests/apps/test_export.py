"""`shardwise export`: to every target and back, what is said on the way, and every refusal."""

import json
from pathlib import Path

import pytest
import yaml
from tests.apps.commands import document, refused, run

from shardwise.models import load_model
from shardwise.plans import model_hash

PLAN = {
    "kind": "train",
    "model": "llama-3-8b",
    "slice": "v5e:4x4",
    "mesh": {"fsdp": 8, "tensor": 2},
    "box": [4, 4],
    "global_batch_sequences": 32,
    "sequence_length": 2048,
    "microbatches": 1,
    "layers_per_stage": [32],
}


@pytest.fixture
def path(tmp_path):
    """A plan file of 16 chips of v5e."""
    return written(tmp_path, {})


def written(tmp_path, changes: dict):
    path = tmp_path / "plan.yaml"
    hashed = {"model_hash": model_hash(load_model("llama-3-8b"))}
    path.write_text(yaml.safe_dump(PLAN | hashed | changes, sort_keys=False))
    return path


@pytest.mark.parametrize("target", ["maxtext", "jax", "xpk", "skypilot"])
def test_a_plan_goes_out_and_comes_back(target, path, tmp_path, capsys):
    out, again = tmp_path / "exported", tmp_path / "again.yaml"
    assert run(capsys, "export", path, "--to", target, "-o", out)[:2] == (0, f"wrote {out}\n")
    code, said, err = run(capsys, "export", out, "--from", target, "-o", again)
    assert (code, err) == (0, "")
    words = " ".join(said.replace("\\\n", "").split())
    assert words.startswith(f"wrote {again} next: shardwise plan show {again} next: what would")
    assert words.endswith(f"--against {again}")
    assert run(capsys, "plan", "diff", path, again)[0] == 0
    changed = document(capsys, "plan", "diff", path, again)["result"]["changed"]
    assert changed == {}


@pytest.mark.parametrize("target", ["torchtitan", "megatron"])
def test_gpu_targets(target, tmp_path, capsys):
    gpus = {"slice": "2*h100:8", "slices": 2, "box": [8]}
    dtypes = {"param": "bf16", "compute": "bf16", "grad": "f32", "master": "f32", "moments": "f32"}
    path = written(tmp_path, gpus | {"dtypes": dtypes})
    text = document(capsys, "export", path, "--to", target)["result"]["text"]
    (tmp_path / "exported").write_text(text)
    code, out, _ = run(capsys, "export", tmp_path / "exported", "--from", target)
    assert code == 0
    back = yaml.safe_load(out)
    assert back["mesh"] == PLAN["mesh"]
    assert {k: back[k] for k in gpus} == gpus


def test_the_document(path, capsys):
    code, out, err = run(capsys, "export", path, "--to", "maxtext", "--json")
    assert (code, err) == (0, "")
    doc = json.loads(out)
    assert doc["inputs"] == {"path": str(path), "to": "maxtext"}
    assert "ici_fsdp_parallelism=8" in doc["result"]["text"]
    assert doc["resolved"]["mesh.fsdp"] == {"value": 8, "origin": "file"}
    lost = doc["result"]["not_expressed"]
    assert [line.partition(" ")[0] for line in lost] == ["dtypes.param", "dtypes.master"]
    assert doc["warnings"] == [f"the maxtext file cannot say {line}" for line in lost]


def test_text_alone_on_stdout(path, capsys):
    code, out, err = run(capsys, "export", path, "--to", "skypilot")
    assert code == 0
    assert yaml.safe_load(out)["resources"] == {"accelerators": "tpu-v5litepod-16"}
    assert "warning: the skypilot file cannot say dtypes.master" in err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--to", "maxtex"], "unknown export target 'maxtex'; did you mean 'maxtext'?"),
        ([], "give either --to or --from, one of maxtext|torchtitan"),
        (["--to", "jax", "--from", "jax"], "give either --to or --from"),
        (["--to", "megatron"], "megatron cannot express slice v5e:4x4: it runs on GPUs"),
        (["--from", "xpk"], "xpk: the"),
    ],
)
def test_requests_that_are_refused(args, said, path, capsys):
    assert said in refused(capsys, ["export", path, *args])


def test_a_choice_that_the_target_would_run_otherwise(tmp_path, capsys):
    stages = {"mesh": {"stage": 2, "fsdp": 8}, "layers_per_stage": [16, 16], "microbatches": 2}
    said = refused(capsys, ["export", written(tmp_path, stages), "--to", "maxtext"])
    assert "maxtext cannot express pipeline_schedule 1f1b: it supports gpipe, interleaved" in said
    assert "set pipeline_schedule to gpipe; change the plan, or export to another target" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mesh": {"fsdp": 8}}, "has 8 devices"),
        ({"layers_per_stage": [31]}, "adds up to 31 layers"),
        ({"model_hash": "0" * 16}, "was made for another 'llama-3-8b'"),
    ],
)
def test_a_plan_that_does_not_suit_its_model_or_slice(changes, said, tmp_path, capsys):
    path = written(tmp_path, changes)
    assert said in refused(capsys, ["export", path, "--to", "maxtext"])


def test_files_that_cannot_be_read_or_written(path, tmp_path, capsys):
    assert "cannot read" in refused(capsys, ["export", tmp_path / "no", "--from", "jax"])
    there = tmp_path / "none" / "out"
    assert "cannot write" in refused(capsys, ["export", path, "--to", "jax", "-o", there])
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert "UTF-8" in refused(capsys, ["export", tmp_path / "bytes", "--from", "jax"])


def test_flags_of_a_server_become_a_plan_with_what_is_given_besides(tmp_path, capsys):
    flags, plan = tmp_path / "flags.sh", tmp_path / "plan.yaml"
    flags.write_text("vllm serve some/model --tensor-parallel-size 8 --max-num-seqs 64\n")
    asked = ["export", str(flags), "--from", "vllm", "--model", "llama-3-8b", "--on", "h100:8"]
    assert "give it with --input" in refused(capsys, asked)
    assert run(capsys, *asked, "--input", "2Ki", "--output", "256", "-o", str(plan))[0] == 0
    read = yaml.safe_load(plan.read_text())
    assert (read["mesh"], read["batch"], read["input_length"]) == ({"tensor": 8}, 64, 2048)
    out = tmp_path / "serve.yaml"
    assert run(capsys, "export", str(plan), "--to", "k8s", "-o", str(out))[0] == 0
    assert "kind: Deployment" in out.read_text()


MAXTEXT = """model_name: llama3-8b
per_device_batch_size: 2
max_target_length: 8192
remat_policy: full
ici_fsdp_parallelism: {}
"""


def test_a_mesh_that_is_not_the_slice_is_refused_when_read(tmp_path, capsys):
    file, out = tmp_path / "run.yml", tmp_path / "plan.yaml"
    file.write_text(MAXTEXT.format(32))
    asked = ["export", str(file), "--from", "maxtext", "--on", "v5p:4x4x4", "-o", str(out)]
    assert "the mesh fsdp=32 has 32 devices" in refused(capsys, asked)
    assert not out.exists()


def test_a_mesh_over_slices_names_the_slices_to_give(tmp_path, capsys):
    file = tmp_path / "run.yml"
    file.write_text(MAXTEXT.format(64) + "dcn_data_parallelism: 2\n")
    asked = ["export", str(file), "--from", "maxtext", "--on"]
    assert "give --on '2*v5p:4x4x4'" in refused(capsys, [*asked, "v5p:4x4x4"])
    assert run(capsys, *asked, "2*v5p:4x4x4")[0] == 0


def test_a_model_given_wins_over_a_name_that_maxtext_does_not_know(tmp_path, capsys):
    file = tmp_path / "run.yml"
    file.write_text(MAXTEXT.format(64).replace("llama3-8b", "llama3-8b-mine"))
    asked = ["export", str(file), "--from", "maxtext", "--on", "v5p:4x4x4"]
    said = refused(capsys, asked)
    assert "unknown model_name of MaxText 'llama3-8b-mine'" in said
    assert "give the model with --model" in said
    code, out, err = run(capsys, *asked, "--model", "llama-3-8b")
    assert (code, "model: llama-3-8b" in out) == (0, True)
    assert "not read, because the model is given" in " ".join(err.split())


def test_a_plan_that_does_not_fit_is_read_back_with_a_warning(tmp_path, capsys):
    file = tmp_path / "run.yml"
    file.write_text(MAXTEXT.format(4).replace("full", "minimal"))
    asked = ["export", str(file), "--from", "maxtext", "--on"]
    assert "the plan does not fit" in run(capsys, *asked, "v5e:2x2")[2]
    own = ["--model", "llama-3-8b", "--on", "v5p:2x2x1", "--batch", "64seq", "--seq", "8192"]
    file.write_text(file.read_text().replace("size: 2", "size: 16"))
    code, out, err = run(capsys, "plan", "train", *own, "--against", str(file))
    assert code == 0, err
    assert ", but does not fit: " in out


def test_a_file_without_its_slice_names_the_command_that_takes_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = Path("run.yml")
    file.write_text(MAXTEXT.format(-1))
    said = refused(capsys, ["plan", "show", str(file)])
    assert f"shardwise export {file} --from maxtext --on h100:8 -o plan.yaml" in said
    assert "give the slice with --on" not in said
    job = ["--model", "llama-3-8b", "--on", "v5p:4x4x4", "--batch", "128seq", "--seq", "8192"]
    code, out, _ = run(capsys, "plan", "train", *job, "--against", str(file))
    assert code == 0
    rows = out.split("theirs with ours")[1].splitlines()
    assert rows[1].split()[0] == "remat"  # before what changes nothing
