"""How a server's step in our engine differs from the plan's list."""

from dataclasses import replace

import pytest

from shardwise.models import load_model
from shardwise.plans.serve import ServePlan
from shardwise.profiler.collectives.lines import Line
from shardwise.profiler.collectives.rules import compare
from shardwise.profiler.collectives.served import SERVED, as_served

PLAN = ServePlan(
    model="llama-3-70b",
    model_hash="",
    slice="v4:2x2x4",
    mesh={"data": 1, "tensor": 16},
    box=(2, 2, 4),
    batch=28,
    input_length=4000,
    output_length=100,
)
CFG = load_model("llama-3-70b")


def line(name, kind="all_gather", axes=("tensor",), size=1000.0):
    return Line(kind=kind, axes=axes, bytes=size, count=1.0, name=name, dtype="bf16")


def differences(plan, *planned):
    return {name: (gone, more) for name, gone, more in as_served(plan, CFG, planned)}


def test_rows_that_decode_are_padded_and_can_be_drawn():
    found = differences(PLAN, line("decode.layers.0/mlp.gather"))
    assert set(found) <= set(SERVED)
    # 28 rows are 14 in each of two pools of pages, and 16 there.
    assert [x.bytes for x in found["padded"][1]] == [pytest.approx(1000 * 32 / 28)]
    (rows,) = found["whole rows"][1]
    assert (rows.kind, rows.bytes) == ("all_to_all", 32 * 128256 * 4)


def test_a_prompt_lies_in_one_pool():
    plan = replace(PLAN, mesh={"data": 2, "tensor": 8}, input_length=4096)
    own = line("prefill.layers.0/attention.kv", axes=("data",))
    found = differences(plan, own, line("prefill.layers.0/mlp.gather"))
    assert found["own prompts"] == ((own,), ())
    assert "padded" not in found
    (rows,) = found["whole rows"][1]
    assert (rows.kind, rows.bytes) == ("all_gather", 2 * 128256 * 4)


def test_what_a_step_moves_so_is_no_difference_and_a_byte_more_is():
    planned = [line("decode.layers.0/mlp.gather", size=28 * 8192 * 2.0)]
    made = [
        line("a", size=32 * 8192 * 2.0),
        line("b", "all_to_all", size=32 * 128256 * 2.0),
    ]
    made = [replace(x, elements=100.0) for x in made]
    assert compare(PLAN, CFG, planned, made).left == 0
    more = [replace(made[0], bytes=made[0].bytes + 100), made[1]]
    assert compare(PLAN, CFG, planned, more).left == pytest.approx(100)
