"""Each optional part runs with what its extra installs, and no more."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from tests.tiers import spread

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
PARTS = {
    "": [
        "shardwise.apps.cli",
        "shardwise.commands.plan_train.train",
        "shardwise.commands.plan_serve.serve",
    ],
    "serve": ["shardwise.apps.server.run", "shardwise.runtime.engine.opening"],
    "run": ["shardwise.commands.run.training", "shardwise.runtime.trainer"],
}
"""Modules that a part's commands import as they run."""
BLOCK = """
import importlib, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
for module in MODULES:
    importlib.import_module(module)
"""


def normal(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")


def installed_with(extra: str) -> set[str]:
    """Distributions that `pip install '.[extra]'` brings, those that they need included."""
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, [])]
    found = set[str]()
    while wanted:
        name = normal(wanted.pop())
        if name in found:
            continue
        found.add(name)
        try:
            wanted += [r for r in requires(name) or [] if "extra ==" not in r]
        except PackageNotFoundError:
            continue
    return found


@pytest.mark.parametrize("extra", spread(PARTS, slow=2))
def test_a_part_needs_nothing_that_its_extra_does_not_install(extra):
    here = installed_with(extra)
    blocked = {
        module
        for module, names in packages_distributions().items()
        if not {name.lower().replace("_", "-") for name in names} & {*here, "shardwise"}
        and not module.startswith("_")
    }
    assert extra == "run" or "optax" in blocked
    code = f"BLOCKED, MODULES = {blocked!r}, {PARTS[extra]!r}\n{BLOCK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
