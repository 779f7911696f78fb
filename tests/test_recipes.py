"""The recipes of CONTRIBUTING.md: what one adds, in a copy of the tree, passes what it names."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEFT_OUT = shutil.ignore_patterns(".*", "_build", "__pycache__", "node_modules", "venv", "build")
CONFIG = """{"architectures": ["CopiedForCausalLM"], "model_type": "copied", "hidden_size": 64,
"intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512}"""

INSTALLED = "tests/hardware/test_names.py::test_one_chip_reads_its_own_files_only"
"""A test whose child process reads the installed package, not the copy."""

pytestmark = pytest.mark.slow


@pytest.fixture
def tree(tmp_path):
    """A copy of the repository, whose package comes before the installed one."""
    tree = Path(shutil.copytree(ROOT, tmp_path / "tree", ignore=LEFT_OUT))
    first = tmp_path / "first"
    first.mkdir()
    package = f"import sys\nsys.path.insert(0, {str(tree / 'src')!r})\n"
    (first / "sitecustomize.py").write_text(package, encoding="utf-8")
    return tree


def changed(file: Path, old: str, new: str) -> None:
    """One edit of a recipe: `new` in place of `old`, which must be there."""
    text = file.read_text(encoding="utf-8")
    assert old in text, f"{file.name} has no {old!r}"
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def commands(section: str) -> list[str]:
    """The scripts and tests that a section of CONTRIBUTING.md runs; not those for any NAME."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    body = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^    (python \S.*)$|`(python -m pytest [^`]+)`", body, re.MULTILINE)
    return [" ".join((a or b).split()) for a, b in found if "NAME" not in a + b]


def run(tree: Path, command: str) -> str:
    """What a command prints in the copy; it must end well."""
    env = {**os.environ, "PYTHONPATH": str(tree.parent / "first")}
    env.pop("PYTEST_XDIST_WORKER", None)
    words = shlex.split(command)
    words[:1] = [sys.executable] if words[0] == "python" else [sys.executable, "-m", *words[:1]]
    done = subprocess.run(words, cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
    return done.stdout


def test_a_chip(tree):
    data = tree / "src" / "shardwise" / "hardware" / "data"
    shutil.copy(data / "h100.toml", data / "h100x.toml")
    changed(data / "h100x.toml", 'id = "h100"', 'id = "h100x"')
    changed(data / "h100x.toml", 'name = "H100 SXM5 80GB"', 'name = "H100 X"')
    text = (data / "h100x.toml").read_text(encoding="utf-8")
    text = re.sub(r"^(aliases|exports) = .*\n", "", text, flags=re.MULTILINE)
    (data / "h100x.toml").write_text(text, encoding="utf-8")
    for command in commands("A chip"):
        run(tree, f"{command} --deselect {INSTALLED}")
    assert "H100 X" in run(tree, "shardwise hw show h100x")
    assert "h100x" in run(
        tree, "shardwise plan train --model llama-3.2-1b --on h100x:1 --batch 8seq --seq 2048"
    )


def test_a_model_architecture(tree):
    with (tree / "src/shardwise/models/data/architectures.toml").open(
        "a", encoding="utf-8"
    ) as rows:
        rows.write('\n[CopiedForCausalLM]\nmodel_type = "copied"\n')
        rows.write('source = "analytic: a Llama by another name"\nlike = ["LlamaForCausalLM"]\n')
    (tree / "model").mkdir()
    (tree / "model" / "config.json").write_text(CONFIG, encoding="utf-8")
    assert "parameters" in run(tree, "shardwise model show model")
    run(tree, "python -m pytest -n0 tests/models/test_variants.py -k Ernie4_5")


def test_a_pipeline_schedule(tree):
    folder = tree / "src" / "shardwise" / "scheduling" / "pipeline"
    shutil.copy(folder / "gpipe.py", folder / "gpipe_copy.py")
    changed(folder / "gpipe_copy.py", 'name="gpipe"', 'name="gpipe_copy"')
    changed(folder / "gpipe_copy.py", "GPIPE =", "GPIPE_COPY =")
    changed(folder / "rows.py", '"dualpipe"]', '"dualpipe", "gpipe_copy"]')
    changed(folder / "rows.py", "ZB_V, DUALPIPE)", "ZB_V, DUALPIPE, GPIPE_COPY)")
    line = "from shardwise.scheduling.pipeline.interleaved import INTERLEAVED\n"
    added = "from shardwise.scheduling.pipeline.gpipe_copy import GPIPE_COPY\n"
    changed(folder / "rows.py", line, added + line)
    changed(folder / "__init__.py", "(`gpipe.py`, ", "(`gpipe.py`, `gpipe_copy.py`, ")
    test = tree / "tests" / "scheduling" / "test_pipeline.py"
    changed(test, 'kind == "gpipe" else 1]', 'kind.startswith("gpipe") else 1]')
    changed(test, 'elif schedule.kind == "gpipe":', 'elif schedule.kind.startswith("gpipe"):')
    asked = commands("A pipeline schedule or a strategy")
    assert asked[0] == "python scripts/options.py"
    for command in asked[:3]:
        run(tree, command)


def test_a_remat_policy(tree):
    file = tree / "src" / "shardwise" / "models" / "remat.py"
    changed(file, '"block", "offload"]', '"block", "offload", "attention"]')
    kinds = '_kinds(keep=("block_input", "qkv", "attention"))'
    row = f'    RematRow(name="attention", kinds={kinds}),\n)\n'
    changed(file, ")\n_BY_NAME", row + "_BY_NAME")
    book = tree / "tests" / "models" / "test_activations.py"
    changed(book, '"offload": 0}', '"offload": 0, "attention": 0}')
    for command in commands("A remat policy"):
        run(tree, command)
