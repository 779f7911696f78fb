"""`shardwise train`: what it prints, and requests that it refuses before anything runs."""

import json
import re
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace

import pytest
from tests.apps.commands import refused as refusal
from tests.apps.documents import check

from runtime.trainer.made import TRAINER, make_plan
from shardwise.boundary.typed import record_of
from shardwise.commands.run.training import RunSeconds, TrainedRun, TrainRunRequest, run_of
from shardwise.plans import save_plan

PLAN = "plan.yaml"


def refused(capsys, *args):
    """The message of a refused run."""
    return refusal(capsys, ("train", *args))


@pytest.fixture
def plan(tmp_path):
    """A plan for sixteen devices."""
    path = tmp_path / PLAN
    made = make_plan(tmp_path)
    wide = replace(made, slice="v5e:4x4", mesh={"fsdp": 16}, box=(4, 4), global_batch_sequences=16)
    save_plan(wide, path)
    return path


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("some words " * 1000)
    return path


def test_devices_that_are_not_the_mesh_are_refused(capsys, plan, text, tmp_path):
    err = refused(capsys, plan, "--data", text, "--steps", 1, "--out", tmp_path / "out")
    assert "has 16 device(s) and" in err
    assert "--cpu-devices 16 for virtual ones" in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--set", "remat=blok"], "key 'remat'"),
        (["--set", "remat"], "is not PATH=VALUE"),
        (["--processes", 2, "--process", 0], "--process is given without --coordinator"),
        (["--coordinator", "nowhere"], "is not HOST:PORT"),
        (["--warmup", 5], "--warmup 5 is outside 0..1"),
        (["--save-every", -1], "--save-every is -1"),
        (["--set", "mesh.fsdp=8", "--tensor-matmul", "one_way"], "over tensor, and tensor is 1"),
    ],
)
def test_requests_that_make_no_sense_are_refused(capsys, plan, text, tmp_path, flags, said):
    out = tmp_path / "out"
    assert said in refused(capsys, plan, "--data", text, "--steps", 1, "--out", out, *flags)
    assert not out.exists()


def test_a_plan_that_is_none_is_refused(capsys, tmp_path, text):
    assert "cannot read the plan" in refused(
        capsys, tmp_path / "none.yaml", "--data", text, "--steps", 1
    )
    (tmp_path / "bad.yaml").write_text("kind: train\nmesch: {}\n")
    assert "did you mean 'mesh'" in refused(
        capsys, tmp_path / "bad.yaml", "--data", text, "--steps", 1
    )


def test_a_plan_for_another_model_is_refused(capsys, plan, text):
    err = refused(capsys, plan, "--data", text, "--steps", 1, "--set", "model_hash=x")
    assert "(hash x, now" in err


@pytest.mark.slow
def test_a_small_run_in_a_process_of_its_own(tmp_path, text):
    """From a plan file to a document, on one virtual CPU device."""
    save_plan(make_plan(tmp_path), tmp_path / PLAN)
    start = [sys.executable, "-c", "from shardwise.apps.cli import main; main()", "train"]
    flags = ["--data", text, "--steps", "2", "--cpu-devices", "1", "--json"]
    done = subprocess.run(
        [*start, PLAN, *flags],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
        env=TRAINER,
    )
    found = json.loads(done.stdout)
    check("train", found)
    result = found["result"]
    assert (result["steps"], result["from_step"]) == (2, 0)
    assert result["step_seconds"]["predicted"] is None
    assert "no predicted step time: chip 'v5e' has no peak for dtype 'f32'" in found["warnings"][0]
    assert result["step_seconds"]["measured"] > 0
    assert (result["devices"], result["devices_are_the_plans"]) == ("1 x cpu", False)
    warning, compiling = "warning: no predicted step time", "compiling the step (0 of 2 done)"
    assert 0 <= done.stderr.index(warning) < done.stderr.index(compiling)
    assert result["checkpoint"] == "plan.run/checkpoints/step-00000002"
    assert "step 1/2  loss 5." in done.stderr
    assert (tmp_path / result["checkpoint"] / "manifest.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_says_where_to_go_on(tmp_path, text, number):
    save_plan(make_plan(tmp_path), tmp_path / PLAN)
    # A shell's background jobs, CI's perhaps, are started with SIGINT ignored.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{listening}; from shardwise.apps.cli import main; main()"
    flags = ["--data", text, "--steps", "1000000", "--cpu-devices", "1", "--save-every", "0"]
    start = [sys.executable, "-c", code, "train", PLAN, *flags]
    with subprocess.Popen(
        start, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=TRAINER
    ) as run:
        assert run.stderr
        too_late = threading.Timer(300, run.kill)
        too_late.daemon = True
        too_late.start()
        said = next((line for line in run.stderr if line.startswith("step ")), "no step")
        run.send_signal(number)
        rest = run.stderr.read()
        too_late.cancel()
    assert run.returncode == 128 + number, said + rest
    last = rest.splitlines()[-1]
    found = re.fullmatch(
        r"stopped at step (\d+); newest checkpoint plan.run/checkpoints/step-0*\1 \(step \1\); "
        "continue with --resume",
        last,
    )
    assert found, rest
    assert "Traceback" not in rest


@pytest.mark.parametrize(
    ("changes", "warns"),
    [({}, True), ({"expert_capacity": 4.0}, False), ({"expert_dispatch": "ragged"}, False)],
)
def test_dropped_rows_are_said_before_the_first_step(tmp_path, text, changes, warns):
    """8 experts of which a token takes 2: 4 times the mean is the most that one can get."""
    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    save_plan(make_plan(tmp_path, config=config, **changes), tmp_path / PLAN)
    asked = TrainRunRequest(plan=str(tmp_path / PLAN), data=str(text), steps=1, out=str(tmp_path))
    found = [w for w in run_of(asked).warnings if "are dropped, so losses depend on" in w]
    assert bool(found) is warns
    assert all("ragged drops none, nor does expert_capacity 4" in w for w in found)


def test_what_a_worker_sends_is_read_back_with_its_notes():
    done = TrainedRun(
        steps=2,
        from_step=1,
        loss=1.5,
        tokens_per_second=None,
        step_seconds=RunSeconds(predicted=0.1, measured=None),
        mfu_dtype="bf16",
        mfu=None,
        devices="1 x cpu",
        slice="v5e:1x1",
        devices_are_the_plans=False,
        hf_checkpoint=None,
        checkpoint="run/checkpoints/step-00000002",
        metrics="run/metrics.jsonl",
        notes=["expert_capacity 1"],
    )
    assert record_of(TrainedRun, json.loads(json.dumps(asdict(done)))) == done
