"""`plan serve --coarse`: the same servers by short runs, without what else would do."""

import pytest

import shardwise as sw
from shardwise.errors import BadRequest

LOAD = {"input": 512, "output": 64, "ttft": "1s"}


@pytest.mark.parametrize("rate", [None, 40])
def test_short_runs_name_the_same_servers(rate):
    quick = sw.plan_serve("llama-3.2-1b", "h100:1", rate=rate, coarse=True, **LOAD)
    assert [one.name for one in quick.instead] == ["this"]
    assert any("short runs" in str(line) for line in quick.warnings)
    assert len(quick.serving.served.held.runs) == 1


def test_a_compile_is_not_quick():
    with pytest.raises(BadRequest, match="coarse asks for short runs and compile for compiles"):
        sw.plan_serve("llama-3.2-1b", "h100:1", coarse=True, compile=1, **LOAD)
