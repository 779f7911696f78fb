"""A file beside the answer that cannot be written: the answer is printed all the same."""

from pathlib import Path

import pytest
from tests.apps.commands import SERVED, run
from tests.evidence.training.test_runs import TABLE
from tests.tiers import spread

from shardwise.apps.cli import pictures
from shardwise.errors import BadRequest

AZURE = Path(__file__).parents[2] / "benchmarks" / "plans" / "simulate_azure.yaml"
SWEEP = ("plan", "sweep", "--model", "llama-3.2-1b", "--on", "v5e:2x2", "--batch", "8seq")
TRAIN = ("plan", "train", "--model", "llama-3.2-1b", "--on", "v5e:2x2", "--batch", "8seq")
LOAD = ("--rate", "2", "--requests", "20", "--input", "100", "--output", "10")
SERVE = ("plan", "serve", *SERVED)
COMMANDS = (
    (*SWEEP, "--seq", "1024"),
    (*TRAIN, "--seq", "1024", "--remat", "block"),
    SERVE,
    ("simulate", str(AZURE), *LOAD),
    ("validate", TABLE),
    ("book", "figure", "fig.5.math_comms"),
)


@pytest.fixture
def full_disk(monkeypatch):
    """Nothing can be written any more, which no check before the work could know."""

    def full(path, *_, option, **__):
        raise BadRequest(f"cannot write '{path}' ({option}): no space left on device")

    monkeypatch.setattr(pictures, "write_bytes", full)
    monkeypatch.setattr("shardwise.boundary.write_table", full)


@pytest.mark.parametrize("flag", ["--plot", "--csv"])
@pytest.mark.parametrize(
    "words", spread(COMMANDS, quick=[3, 5], slow=[0, 4]), ids=lambda words: f"{words[0]} {words[1]}"
)
def test_an_extra_that_fails_leaves_the_answer(full_disk, capsys, tmp_path, words, flag):
    path = tmp_path / {"--plot": "a.svg", "--csv": "a.csv"}[flag]
    code, out, err = run(capsys, *words, flag, path)
    assert code == 2
    assert f"error: cannot write '{path}' ({flag})" in err
    assert len(out.splitlines()) > 3
