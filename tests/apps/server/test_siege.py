"""Hostile clients beside honest ones, as `benchmarks/faults.py` has them, for a minute."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[3] / "benchmarks" / "faults.py"


@pytest.mark.alone
def test_a_thousand_hostile_clients_leave_room_for_honest_ones(tmp_path):
    """None fails, /health answers, and the first token is not late: within three times its time
    without them, server and clients on a core each."""
    record = tmp_path / "record.json"
    words = ["--hostile", "1000", "--seconds", "60", "--record", str(record)]
    done = subprocess.run([sys.executable, str(FAULTS), *words], capture_output=True, text=True)
    assert record.exists(), done.stderr[-3000:]
    found = json.loads(record.read_text())
    print(f"time to the first token: {found['ttft_ms']} ms, ratio {found['ratio']}")
    assert not found["wrong"], found["first_wrong"]
    assert not any(found["last_line"].values())
    under = [window for window in found["windows"] if window["hostile"]]
    assert sorted(window["health_p99_ms"] for window in under)[len(under) // 2] < 1000
    assert found["ratio"] < 3, found["windows"]
