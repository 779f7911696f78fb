"""The book's rules beside a plan: which rows a network and a model get, and their numbers."""

from dataclasses import replace

import pytest

from shardwise.book.thresholds import BookSays, book_result
from shardwise.commands.base.inputs import Hardware
from shardwise.hardware import read_slice
from shardwise.models import load_model
from shardwise.planner.evaluate import evaluate_train
from shardwise.plans import TrainPlan, model_hash


def rules(piece, mesh, model="llama-3-70b", sequences=1024, hardware=None):
    """The book's result for a hand-written plan, its rows by name and mode."""
    hardware = hardware or Hardware()
    cfg, found = load_model(model), read_slice(piece, hardware.chip).slice
    plan = TrainPlan(
        model=model,
        model_hash=model_hash(cfg),
        slice=piece,
        mesh=mesh,
        slices=found.count,
        box=found.shape,
        global_batch_sequences=sequences,
        sequence_length=4096,
        microbatches=1,
        layers_per_stage=(cfg.layers,),
    )
    result = book_result(
        evaluate_train(plan, cfg, found), replace(hardware, constants="book").chip(found.chip.id)
    )
    return result, {(r.name, r.mode): r for r in result.rules or ()}


def test_a_torus_has_both_modes():
    result, rows = rules("v5p:16x16x16", {"fsdp": 1024, "tensor": 4})
    assert rows["data_1_axes", None].value == 2550
    assert rows["data_3_axes", None].value == 850
    assert rows["data_3_axes", None].have == 1024
    assert rows["mixed", "sum"].value == pytest.approx(4 * rows["mixed", "max"].value)
    assert rows["mixed", "max"].value == pytest.approx(2550**2 / (2 * 28672))
    assert rows["dcn", None].value == pytest.approx(73_440)
    assert rows["x_opt", None].value == result.x["latest"]
    assert len(result.lines) == 2


def test_slices_are_ruled_one_by_one():
    """Four slices with a quarter of the batch each are ruled like one, and ask for the DCN rule."""
    one, _ = rules("v5p:8x8x8", {"fsdp": 512}, sequences=512)
    four, rows = rules("4*v5p:8x8x8", {"replica": 4, "fsdp": 512}, sequences=2048)
    assert four.x == one.x
    assert rows["dcn", None].have == 512 * 4096
    assert "of each slice" in four.lines[0]
    assert "73,440" in four.lines[2]


def test_a_flat_torus_has_two_axes():
    _, rows = rules("v5e:16x16", {"fsdp": 256}, "llama-3-8b")
    assert rows["data_2_axes", None].value == pytest.approx(1.97e14 / 9e10 / 2)
    assert rows["mixed", "max"].value == pytest.approx((1.97e14 / 9e10) ** 2 / 14336)


def test_gpus_have_a_node_and_what_is_beyond():
    result, rows = rules("8*h100:8", {"fsdp": 8, "tensor": 8})
    assert rows["data_node", None].value == 2200
    assert rows["data_scale_out", None].value == 2475
    assert rows["tensor_degree", None].value == pytest.approx(28672 / 2200)
    assert rows["tensor_degree_across_nodes", None].value == pytest.approx(8 + 28672 / 2475)
    assert result.mesh is None


def test_experts_multiply_the_thresholds():
    """E/k = 128/4 for gpt-oss-120b: 79,200 tokens per GPU beyond a node."""
    _, rows = rules("8*h100:8", {"fsdp": 1, "expert": 64}, "gpt-oss-120b")
    assert rows["moe_factor", None].value == 32
    assert rows["data_scale_out", None].value == 79_200
    _, torus = rules("v5p:4x4x4", {"fsdp": 1, "expert": 64}, "gpt-oss-120b")
    assert torus["data_3_axes", None].value == 32 * 850
    assert ("mixed", "max") not in torus


def test_no_rules_for_a_full_mesh():
    assert rules("mi300x:8", {"fsdp": 8}, "llama-3-8b")[0] == BookSays(lines=[])


def test_one_axis_is_ruled_once(tmp_path):
    """A chip of one's own with one axis: no second threshold, no mix."""
    (tmp_path / "line.toml").write_text('id = "v5p"\nnetwork = { pod = [16], wrap = "never" }\n')
    result, rows = rules(
        "v5p:16", {"fsdp": 16}, "llama-3-8b", hardware=Hardware(files=[str(tmp_path / "line.toml")])
    )
    assert [name for name, _ in rows] == ["data_1_axes", "dcn"]
    assert result.lines[0].count("(one axis)") == 1
