"""Shared test set-up: `tests/` is an import root, and every skip or xfail must be exempted.

A skipped or xfailed test whose id is not in `exempt.toml` fails the run.
"""

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
