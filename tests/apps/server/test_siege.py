"""Hostile clients beside honest ones, as `benchmarks/faults.py` has them, for a minute."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

FAULTS = Path(__file__).parents[3] / "benchmarks" / "faults.py"


@pytest.mark.alone
def test_a_thousand_hostile_clients_leave_room_for_honest_ones(tmp_path):
    """None fails, /health answers, and the first token is not late: within three times its time
    without them, server and clients on a core each. What else a machine does can only add to the
    times: a second minute may show them where a first one did not."""
    assert any(_in_time(tmp_path / f"{number}.json") for number in range(2))


def _in_time(record: Path) -> bool:
    """Whether a minute was in time. No answer may be wrong, whatever the machine does."""
    words = ["--hostile", "1000", "--seconds", "60", "--record", str(record)]
    done = subprocess.run([sys.executable, str(FAULTS), *words], capture_output=True, text=True)
    assert record.exists(), done.stderr[-3000:]
    found = json.loads(record.read_text())
    assert not found["wrong"], found["first_wrong"]
    assert not any(found["last_line"].values())
    health = median(w["health_p99_ms"] for w in found["windows"] if w["hostile"])
    print(f"time to the first token: {found['ttft_ms']} ms, ratio {found['ratio']}")
    print(f"/health: {health} ms at the 99th percentile; windows: {found['windows']}")
    return health < 1000 and found["ratio"] < 3
