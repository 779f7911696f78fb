"""Commands in an install without JAX and what comes with it: one message, or an answer."""

import gzip
import json
import subprocess
import sys

from tests.apps.test_profile import EVENTS

CODE = """
import json, sys
sys.modules |= dict.fromkeys(("jax", "jaxlib", "optax", "ml_dtypes", "scipy"))
from shardwise.apps.cli import main
for args in json.loads(sys.argv[1]):
    try:
        main(args)
    except SystemExit as end:
        print("ends with", end.code, flush=True)
"""


def without_jax(*commands):
    """What commands say and end with, one after the other in one process."""
    args = [sys.executable, "-c", CODE, json.dumps(commands)]
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert "Traceback" not in done.stdout, done.stdout
    return done.stdout


def test_what_needs_jax_names_the_install_command(tmp_path):
    said = without_jax(
        ["train", "plan.yaml", "--data", "text", "--steps", "2"],
        ["calibrate", "-o", str(tmp_path / "here.toml")],
        ["calibrate", "plan.yaml", "--records", "records.json"],
        ["profile", "audit:llama-3-405b-8k"],
        ["compile", "audit:llama-3-405b-8k"],
    )
    install = "pip install '.[run]'"
    lines = [line for line in said.splitlines() if not line.startswith("ends with")]
    assert lines[:3] == [
        f"error: training needs jax: {install}",
        f"error: calibrating needs scipy: {install}",
        f"error: calibrating needs scipy: {install}",
    ]
    assert all("error: compiling needs jax" in line and "pip install" in line for line in lines[3:])
    assert said.count("ends with 5") == 5


def test_a_capture_is_read_without_jax(tmp_path):
    path = tmp_path / "run.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": EVENTS}).encode()))
    said = without_jax(
        ["profile", "--capture", str(path)],
        ["profile", "nothere.yaml"],
        ["calibrate", "--rate", "3"],
    )
    assert "jit_step: 1 runs on 1 devices" in said
    assert "error: cannot read the plan 'nothere.yaml'" in said
    assert [line[-1] for line in said.splitlines() if line.startswith("ends with")] == list("022")
