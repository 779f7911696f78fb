"""Three processes on one cache of limited size, damaged at random: all is right, nothing raises."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.profiler.ahead.cache import CompileCache

PROCESSES = 3


@pytest.mark.parametrize(
    "operations", [100, pytest.param(500, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_processes_that_share_a_damaged_cache_get_what_they_stored(tmp_path, operations):
    script, root = Path(__file__).with_name("stress.py"), tmp_path / "compiled"
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(root), str(seed), str(operations)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(PROCESSES)
    ]
    answers = [json.loads(process.communicate(timeout=300)[0]) for process in started]
    for said in answers:
        assert said["raised"] == []
        assert said["wrong"] == 0
        assert said["hit"] + said["stored"] == operations
        assert min(said["hit"], said["stored"], said["damaged"]) > operations // 50
    cache = CompileCache(root=root, limit=60_000)
    cache.prune()
    assert cache.size() <= cache.limit
