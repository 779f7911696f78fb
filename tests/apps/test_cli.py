"""The command line as a whole: help without numpy, exit codes in a real process, no tracebacks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.apps.commands import run
from tests.apps.test_plan_train import HELD
from tests.apps.test_plan_train import SMALL as REQUEST

from shardwise.apps.cli import COMMANDS, main

SMALL = [*REQUEST, *HELD]
START = "from shardwise.apps.cli import main; main()"


def process(*args) -> subprocess.CompletedProcess[str]:
    """One command in a process of its own, as the console script runs it."""
    return subprocess.run(
        [sys.executable, "-c", START, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )


HEAVY = ("numpy", "pydantic", "rich", "yaml", "jax", "scipy", "shardwise.models")


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom shardwise.apps.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as done:\n    assert not done.code\n"
        f"loaded = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "sys.exit('loaded ' + ', '.join(loaded) if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage: shardwise" in done.stdout


PLANS = Path(__file__).parents[2] / "benchmarks" / "plans"
SIMULATE = ["simulate", str(PLANS / "simulate_azure.yaml"), "--rate", "5", "--requests", "20"]


@pytest.mark.parametrize("command", [SMALL, SIMULATE], ids=lambda command: command[0])
def test_planning_imports_no_jax_and_no_rich(command):
    code = (
        "import sys\nfrom shardwise.apps.cli import main\n"
        f"try:\n    main({[*command, '--json']!r})\nexcept SystemExit as done:\n"
        "    assert not done.code\n"
        "loaded = [m for m in ('jax', 'jaxlib', 'rich', 'scipy') if m in sys.modules]\n"
        "sys.exit('loaded ' + ', '.join(loaded) if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["plan", "train", "--model", "nothing"], 2, "error: Missing option '--on'. Slice"),
        ([*SMALL, "--pin", "tensor=3"], 2, "error: mesh axis 'tensor' of 3 does not divide"),
        ([*SMALL, "--max-hbm", "1GB"], 3, "error: no plan with stage=1 pinned fits v5e:4x4"),
        (["plan", "show", "missing.yaml"], 2, "error: cannot read the plan 'missing.yaml'"),
        (["plna"], 2, "error: unknown command 'plna'; did you mean 'plan'?"),
    ],
)
def test_refusals_in_a_process(args, code, said):
    done = process(*args)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


def test_one_document_and_nothing_else_on_stdout():
    done = process(*SMALL, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["schema_version"] == 1


def test_a_reader_that_stops_early_is_no_error():
    """`shardwise plan train ... | head -1` prints no traceback."""
    command = f"{sys.executable} -c '{START}' {' '.join(SMALL)} --top 50 | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


def test_the_verbs_of_planning_are_there():
    pinned = {"plan", "simulate", "validate", "calibrate", "export", "roofline", "shard", "book"}
    assert pinned | {"train", "hw", "model"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_has_help(name, capsys):
    about = COMMANDS[name]
    code, out, err = run(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert f"Usage: shardwise {name}" in out
    assert about.endswith(".")


def test_help_lists_every_command(capsys):
    _, out, _ = run(capsys, "--help")
    for name, about in COMMANDS.items():
        assert name in out
        assert about.split()[0] in out


def test_no_command_shows_help_without_calling_it_an_error(capsys):
    code, out, err = run(capsys, "plan")
    assert code == 2
    assert out == ""
    assert err.startswith("Usage: shardwise plan")


def test_the_version(capsys):
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("shardwise, version ")


def test_an_interrupt_exits_130(monkeypatch):
    import click

    def interrupted(*_, **__):
        raise click.Abort

    monkeypatch.setattr("shardwise.apps.cli.cli.main", interrupted)
    with pytest.raises(SystemExit) as done:
        main(["plan"])
    assert done.value.code == 130
