"""README and docs/examples.md show what the code prints now; the Python examples run."""

import importlib.util
import re
import shutil
from ast import literal_eval
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from runtime.trainer.made import make_plan
from shardwise.models import load_model
from shardwise.runtime import generate, initialise, load, save

pytestmark = pytest.mark.usefixtures("answers_kept")

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("readme", ROOT / "scripts" / "readme.py")
assert spec
assert spec.loader
readme = importlib.util.module_from_spec(spec)
spec.loader.exec_module(readme)
README, *_ = PAGES = [page.read_text(encoding="utf-8") for page in readme.PAGES]
EXAMPLES = [example for text in PAGES for example in readme.examples(text)]
PAGE_PICTURE = "site/static/page.png"
"""Drawn by scripts/page_picture.py, in a browser."""
LONG = (
    *("shardwise explain", "shardwise plan sweep", "shardwise validate", "v5p:16x20x28"),
    *("--objective cost", "--on h100,v6e"),
)
"""What compiles for a TPU, or searches and validates for many seconds."""


def example(command, output):
    marks = pytest.mark.slow if any(words in command for words in LONG) else ()
    return pytest.param(command, output, marks=marks, id=command)


def test_there_are_examples_and_the_first_page_is_short():
    assert len(EXAMPLES) >= 12
    assert len(README.splitlines()) <= 200


@pytest.mark.parametrize(("command", "output"), [example(*e) for e in EXAMPLES])
def test_output_is_current(command, output, tmp_path):
    (tmp_path / "docs" / "img").mkdir(parents=True)
    for folder in ("benchmarks", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    assert readme.run(command, tmp_path) == output, "run `python scripts/readme.py`"
    plotted = re.search(r"--plot (\S+)", command)
    assert plotted is None or (tmp_path / plotted[1]).stat().st_size > 10_000


def test_pictures_shown_are_plotted_by_examples():
    shown = re.findall(r"!\[.*?\]\((?:docs/)?(.*?)\)", "\n".join(PAGES))
    plotted = re.findall(r"--plot docs/(\S+)", "\n".join(c for c, _ in EXAMPLES))
    assert set(shown) == {*plotted, PAGE_PICTURE}
    assert (ROOT / "docs" / PAGE_PICTURE).stat().st_size <= 150_000
    assert all((ROOT / "docs" / picture).exists() for picture in shown)


PYTHON = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.DOTALL
)


def test_python_example_runs(capsys):
    assert PYTHON[0] in README
    exec(PYTHON[0], {})
    assert "fsdp" in capsys.readouterr().out


def test_python_example_of_the_runtime_runs(capsys, tmp_path, monkeypatch):
    folder = tmp_path / "checkpoint"
    plan = make_plan(tmp_path)
    cfg = load_model(plan.model)
    save(folder, initialise(cfg, jax.random.key(0)), cfg)
    shutil.copy(Path(plan.model) / "config.json", folder)
    monkeypatch.chdir(tmp_path)
    exec(PYTHON[1], {})
    shape, tokens = capsys.readouterr().out.split("\n", 1)
    assert shape == f"(1, 4, {cfg.vocabulary})"
    assert len(re.findall(r"\d+", tokens)) == 8


@pytest.mark.slow
def test_python_examples_of_the_engine_run(capsys, tmp_path, monkeypatch):
    """Slots go on as the contiguous cache does, where they were and where they were moved to."""
    folder = tmp_path / "checkpoint"
    plan = make_plan(tmp_path)
    cfg = load_model(plan.model)
    save(folder, initialise(cfg, jax.random.key(0)), cfg)
    shutil.copy(Path(plan.model) / "config.json", folder)
    monkeypatch.chdir(tmp_path)
    exec(PYTHON[2], {})
    *steps, last = map(literal_eval, capsys.readouterr().out.splitlines())
    params, prompt = load(folder, cfg), jnp.array([[3, 14, 15, 92]])
    whole = generate(params, prompt, cfg, 6)[0].tolist()
    assert [step[0] for step in steps] == whole[1:5]
    assert all(set(step) == {0, 1} for step in steps)
    assert last == {0: whole[5], 2: whole[5]}
    exec(PYTHON[3], {})
    first, second = literal_eval(capsys.readouterr().out)
    assert len(first) == len(second) == 8


def test_python_examples_of_the_book_run(capsys):
    exec(PYTHON[-2], {})
    assert "235.188" in capsys.readouterr().out
    exec(PYTHON[-1], {})
    assert "'side': 4" in capsys.readouterr().out
