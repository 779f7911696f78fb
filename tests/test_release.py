"""A release: one version everywhere, all data in its wheel, and CI installs the wheel."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = PROJECT["project"]["version"]


def test_the_version_is_one():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", changes, re.MULTILINE)
    assert newest
    assert cited["version"] == VERSION == newest[1]
    assert cited["license"] == PROJECT["project"]["license"]


def test_every_file_of_the_package_is_in_its_wheel():
    """Models, chips, books, schemas, the page's bundle and its grid: what is not Python is named by
    `package-data`."""
    package = ROOT / "src" / "shardwise"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["shardwise"]
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    files = {path for path in package.rglob("*") if path.is_file()}
    assert {p for p in files if p.suffix not in (".py", ".pyc")} - shipped == set()
    folders = {path.parent for path in files if path.suffix == ".py"}
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_ci_does_the_readmes_job_by_a_wheel():
    """In an environment and a folder in which nothing of the clone is in reach."""
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    job = re.search(r"^job='(.+)'$", run, re.MULTILINE)
    assert job
    assert f"pip install . && {job[1]}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert run.index("pip wheel --no-deps") < run.index("beside wheel wheel")
    assert re.search(r"pip install --no-compile \./\*\.whl && \$job", run)
    assert "ended wheel\n" in run
