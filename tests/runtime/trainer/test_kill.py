"""The command itself, in processes of its own: killed, out of disk, several at once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from runtime.trainer.made import TRAINER, make_plan, make_text
from shardwise.models import load_model
from shardwise.plans import save_plan
from shardwise.runtime import load, shapes
from shardwise.runtime.trainer import read_metrics
from shardwise.runtime.trainer.checkpoint import read_params

START = [sys.executable, "-c", "from shardwise.apps.cli import main; main()", "train"]
PROVE = Path(__file__).parents[3] / "scripts" / "prove_stops"
QUIET = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def command(folder, out, *flags, plan=None, steps=30, every=1):
    path = folder / f"{out}.yaml"
    save_plan(plan or make_plan(folder), path)
    flags = ["--steps", steps, "--save-every", every, "--cpu-devices", 1, "--resume", *flags]
    where = ["--data", make_text(folder), "--out", folder / out]
    return [*START, path, *where, *flags]


def call(args, **options):
    return subprocess.run(list(map(str, args)), env=TRAINER, **QUIET, **options)


def started(args):
    return subprocess.Popen(list(map(str, args)), env=TRAINER, **QUIET)


def steps_done(out):
    path = out / "metrics.jsonl"
    return len(read_metrics(path)) if path.exists() else 0


def wait_for(done, child, seconds=120):
    until = time.monotonic() + seconds
    while not done():
        assert child.poll() is None, child.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.01)


def losses(out):
    return [(m["step"], m["loss"], m["grad_norm"]) for m in read_metrics(out / "metrics.jsonl")]


def last(out, steps=30):
    return next((out / "checkpoints" / f"step-{steps:08}").glob("*.safetensors")).read_bytes()


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_bit_identical(tmp_path):
    """`scripts/prove_training` does this 20 times to a model of a million parameters, and
    `scripts/prove_stops` with two processes and SIGTERM, too."""
    whole = call(command(tmp_path, "whole"))
    assert whole.returncode == 0, whole.stderr
    draw, out = random.Random(0), tmp_path / "killed"
    for target in (2, 10, 18):
        child = started(command(tmp_path, "killed"))
        wait_for(lambda target=target: steps_done(out) >= target, child)
        time.sleep(draw.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        child.communicate()
    done = call([*command(tmp_path, "killed"), "--json"])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["from_step"] >= 10
    assert losses(out) == losses(tmp_path / "whole")
    assert last(out) == last(tmp_path / "whole")


@pytest.mark.slow
def test_a_file_that_cannot_grow_is_told(tmp_path):
    """RLIMIT_FSIZE stands in for a full disk: a write fails in the middle of a checkpoint."""
    first = call(command(tmp_path, "out", steps=5), timeout=200)
    assert first.returncode == 0, first.stderr
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)); "
    args = command(tmp_path, "full", steps=5)
    args[2] = limit + args[2]
    found = call(args)
    assert found.returncode == 1
    assert "error: no room for the checkpoint of step 1" in found.stderr
    assert "there is none before: free space and start again with --resume" in found.stderr
    assert "Traceback" not in found.stderr
    again = call(command(tmp_path, "full", steps=5))
    assert again.returncode == 0, again.stderr
    assert last(tmp_path / "full", 5) == last(tmp_path / "out", 5)


@pytest.mark.long
def test_stops_of_two_processes_change_nothing():
    """What docs/stops_proof.json says of 20 SIGKILLs and 10 SIGTERMs, in small."""
    flags = ["--processes", 2, "--kills", 2, "--terms", 1, "--steps", 60, "--check"]
    done = call([sys.executable, PROVE, *flags], timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads(done.stdout)["runs"][0]
    assert (run["kills"], run["terms"], run["second_trainings_refused"]) == (2, 1, 2)
    assert run["bit_identical"] == {"every_loss": True, "last_checkpoint": True}


@pytest.mark.slow
def test_four_processes_follow_one(tmp_path):
    one = call(command(tmp_path, "one", steps=16, every=8))
    assert one.returncode == 0, one.stderr
    plan = make_plan(tmp_path, {"data": 2, "fsdp": 2})
    flags = ["--processes", 4, "--save-hf", tmp_path / "hf"]
    four = call(command(tmp_path, "four", *flags, plan=plan, steps=16, every=8))
    assert four.returncode == 0, four.stderr
    a, b = losses(tmp_path / "one"), losses(tmp_path / "four")
    assert len(a) == len(b) == 16
    np.testing.assert_allclose([x[1] for x in a], [x[1] for x in b], rtol=1e-4)
    names = [p.name for p in (tmp_path / "four" / "checkpoints" / "step-00000016").iterdir()]
    assert len(names) == 5  # four files of shards and the manifest
    cfg = load_model(plan.model)
    kept = read_params(tmp_path / "four" / "checkpoints" / "step-00000016", shapes(cfg))
    saved = load(tmp_path / "hf", cfg)
    jax.tree.map(np.testing.assert_array_equal, saved, kept)


@pytest.mark.slow
def test_a_lost_process_is_named_and_the_run_goes_on(tmp_path):
    plan = make_plan(tmp_path, {"data": 2})
    args = command(tmp_path, "two", "--processes", 2, plan=plan, steps=400, every=5)
    child = started(args)
    out = tmp_path / "two"
    saved = out / "checkpoints" / "step-00000010"  # in the background: later than step 12 at times
    wait_for(lambda: steps_done(out) >= 12 and saved.exists(), child)
    victim = _worker(child.pid, "1")
    os.kill(victim, signal.SIGKILL)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "error: process 1 of 2 on" in err
    assert "was killed by SIGKILL after step" in err
    assert "Traceback" not in err
    found = sorted(p.name for p in (out / "checkpoints").glob("step-*"))
    assert found[-1] >= "step-00000010"


def _worker(parent, index):
    """The child of a supervisor with this index, by its last argument."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat, open(f"/proc/{name}/cmdline") as line:
                ppid = int(stat.read().rpartition(")")[2].split()[1])
                if ppid == parent and line.read().strip("\0").endswith(f"\0{index}"):
                    return int(name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError("no such worker")


EVERY_MOMENT = """
import os, signal, sys
from pathlib import Path
import jax
import numpy as np
from shardwise.runtime.trainer.checkpoint import Keeper, steps_in, whole

folder, moment = Path(sys.argv[1]), 0
names = ("mkdir", "write_text", "rename", "unlink")

def dying(f, left):
    def call(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return f(*args, **kwargs)
    return call

def save(step, left=None):
    keeper = Keeper(folder=folder, identity={}, keep=1)
    if left:
        os.fsync = dying(os.fsync, left)
        for name in names:
            setattr(Path, name, dying(getattr(Path, name), left))
    keeper._write(step, {"w@0": np.full(1000, step, np.float32)}, {})
    keeper.check()

save(1)
while True:
    moment += 1
    child = os.fork()
    if child == 0:
        save(moment + 1, [moment])
        os._exit(0)
    _, status = os.waitpid(child, 0)
    keeper = Keeper(folder=folder, identity={})
    newest = keeper.newest()
    assert newest is not None and newest >= moment - 1, (moment, newest)
    assert all(whole(keeper.path(s)) for s in steps_in(folder)), moment
    keeper.clean()
    if status == 0:
        break
    save(moment)  # what the resumed run would do
print(moment)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_of_a_save_leaves_a_whole_checkpoint(tmp_path):
    """Before each call that touches the disk, one after the other."""
    args = [sys.executable, "-W", "ignore", "-c", EVERY_MOMENT, tmp_path / "checkpoints"]
    done = call(args)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
