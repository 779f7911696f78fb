"""Memory that is freed stays with the process."""

import os
import subprocess
import sys

import pytest

ENV = {**os.environ, "JAX_PLATFORMS": "cpu"}
CODE = """
import resource
from shardwise.runtime.trainer.loop import keep_freed_memory
assert keep_freed_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytes([1]) * int("67108864")  # not folded into a constant
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
def test_freed_memory_is_not_faulted_in_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=ENV
    )
    assert int(done.stdout) < 2**26 // 4096 // 10  # of 64 MiB, a tenth of the pages
