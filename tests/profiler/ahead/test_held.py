"""What a compile does with the cache: damage, and entries that go meanwhile, cost one compile."""

import json
from pathlib import Path

import pytest

from shardwise.profiler.ahead import compile as ahead
from shardwise.profiler.ahead.cache import CompileCache, write_entry
from shardwise.profiler.ahead.compile import Limits, compile_ahead
from shardwise.profiler.ahead.target import CompileTarget

RECORD = {
    "slice": "v5e:1x1",
    "platform": "tpu",
    "devices": 1,
    "mesh": {"x": 1},
    "options": {},
    "versions": {},
    "seconds": {"compile": 1.0},
    "process_peak_bytes": 1,
    "fits": True,
    "refusal": "",
    "needed_bytes": 8,
    "capacity_bytes": 1e9,
    "memory": {},
    "buffers": [],
    "flops_once": None,
}
HLO = "HloModule a\n"
TARGET = CompileTarget(
    slice="v5e:1x1",
    platform="tpu",
    topology="v5e:1x1",
    options={},
    coordinates=((0, 0, 0, 0),),
    capacity=1e9,
    domain=1,
)


@pytest.fixture
def cache(tmp_path):
    return CompileCache(root=tmp_path / "compiled")


@pytest.fixture
def compiles(monkeypatch, cache):
    """The compiler stood in for: its calls, by whether they had a cache to look in."""
    calls = []

    def run(_, arguments, **__):
        calls.append(arguments["cache"] is not None)
        if (
            arguments["cache"]
            and CompileCache(root=Path(arguments["cache"])).load("key") is not None
        ):
            for stands in gone:
                stands(cache)
            return {"key": "key", "hit": True}
        write_entry(Path(arguments["folder"]), RECORD, HLO)
        return {"key": "key", "hit": False}

    gone = []
    run.gone, run.calls = gone, calls
    monkeypatch.setattr(ahead, "need_libtpu", lambda: None)
    monkeypatch.setattr(ahead, "run_function", run)
    return run


def compiled(cache, settled=True):
    return compile_ahead(TARGET, "m:f", {}, settled=settled, limits=Limits(cache=cache))


def test_a_program_is_compiled_once(cache, compiles):
    assert [compiled(cache).cached for _ in range(3)] == [False, True, True]
    assert compiled(cache, settled=False).cached
    assert compiles.calls == [True, True]


@pytest.mark.parametrize(
    "record",
    [
        {},
        RECORD | {"fits": "yes"},
        RECORD | {"buffers": [1]},
        RECORD | {"buffers": [{"kind": "argument"}]},
        RECORD | {"occupancy": [1]},
        RECORD | {"more": 1},
        {k: v for k, v in RECORD.items() if k != "memory"},
        json.loads('{"slice": null}'),
    ],
)
@pytest.mark.parametrize("settled", [True, False])
def test_a_whole_entry_that_is_no_program_is_compiled_again(cache, compiles, record, settled):
    compiled(cache)
    cache.store("key", record, HLO)
    found = compiled(cache, settled)
    assert (found.fits, found.hlo, found.cached) == (True, HLO, False)
    assert compiled(cache, settled).cached


def test_an_entry_that_goes_between_child_and_parent_is_compiled_again(cache, compiles):
    compiled(cache)
    compiles.gone.append(lambda c: c.drop("key"))
    found = compiled(cache, settled=False)
    assert (found.hlo, found.cached) == (HLO, False)
    assert compiles.calls == [True, True, False]
    assert compiled(cache).cached
