"""Shared test set-up: `tests/` is an import root, and every skip or xfail must be exempted.

A skipped or xfailed test whose id is not in `exempt.toml` fails the run.
"""

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
EXEMPT = {e["id"] for e in tomllib.loads((HERE / "exempt.toml").read_text())["exempt"]}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if (report.skipped or hasattr(report, "wasxfail")) and item.nodeid not in EXEMPT:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} is skipped or xfailed without a row in tests/exempt.toml"
        if hasattr(report, "wasxfail"):
            del report.wasxfail
    return report


def pytest_collection_modifyitems(config, items):
    """Tests marked `torch` run where torch and transformers are installed; CI has them."""
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        return
    left_out = [item for item in items if "torch" in item.keywords]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
