"""xpk and SkyPilot: their commands for known plans, and hardware that they cannot name."""

from dataclasses import replace

import pytest
import yaml
from tests.planner.export.exporting import a_plan
from tests.planner.export.flags import words

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.planner.export import export_plan, parse_export
from shardwise.planner.export.hardware import safe_names


def test_xpk_command(two_slices):
    given = words(export_plan(*two_slices, "xpk"))
    assert given[:3] == ["xpk", "workload", "create"]
    assert {"--tpu-type=v5litepod-64", "--num-slices=2", "--workload=dense"} <= set(given)
    command = next(w for w in given if w.startswith("--command="))
    assert "python3 -m maxtext.trainers.pre_train.train" in command
    assert "ici_fsdp_parallelism=16" in command


@pytest.mark.parametrize(
    ("slice_text", "tpu_type"),
    [
        ("v5p:4x4x4", "v5p-128"),  # the name counts TensorCores, two per chip
        ("v5e:4x4", "v5litepod-16"),  # here it counts chips
        ("v5p:8x8x8", "v5p-1024"),
        ("v5p:16x8x4", "v5p-4x8x16"),  # XPK lists the sizes in ascending order
        ("v5p:4x8x16", "v5p-4x8x16"),  # 512 chips too: v5p-1024 would be read as 8x8x8
        ("tpu7x:4x4x4", "tpu7x-128"),
        ("tpu7x:4x8x16", "tpu7x-4x8x16"),  # tpu7x-1024 names several topologies
    ],
)
def test_a_cloud_name_is_used_only_where_it_means_the_slice(slice_text, tpu_type):
    piece = parse_slice(slice_text)
    plan, cfg, _ = a_plan("dense", slice_text, {"fsdp": piece.devices}, global_batch_sequences=2048)
    text = export_plan(plan, cfg, piece, "xpk")
    assert f"--tpu-type={tpu_type} " in text
    assert parse_export(text, "xpk") == plan
    assert bool(safe_names(piece)) == ("x" not in tpu_type.partition("-")[2])


def test_xpk_slices_come_from_its_own_flags(two_slices):
    text = export_plan(*two_slices, "xpk")
    smaller = text.replace("v5litepod-64", "v5litepod-4x8").replace("_fsdp_parallelism=16", "X")
    smaller = smaller.replace("iciX", "ici_fsdp_parallelism=8").replace(
        "per_device_batch_size=2.0", "per_device_batch_size=4.0"
    )
    smaller = smaller.replace("compile_topology=v5e-64", "compile_topology=v5e-32")
    read = parse_export(smaller, "xpk")
    assert (read.slice, read.box) == ("2*v5e:4x8", (4, 8))
    assert read.mesh == {"replica": 2, "fsdp": 8, "tensor": 4}
    with pytest.raises(BadRequest, match="--num-slices is 3, the command's"):
        parse_export(text.replace("--num-slices=2", "--num-slices=3"), "xpk")


def test_skypilot_tpu_task():
    plan, cfg, piece = a_plan("dense", "v5p:4x4x4", {"fsdp": 64})
    task = yaml.safe_load(export_plan(plan, cfg, piece, "skypilot"))
    assert task["resources"] == {"accelerators": "tpu-v5p-128"}
    assert task["num_nodes"] == 1
    assert task["run"].startswith("python3 -m maxtext.trainers.pre_train.train")


def test_skypilot_gpu_task(megatron_plan):
    text = export_plan(*megatron_plan, "skypilot")
    task = yaml.safe_load(text)
    assert task["resources"] == {"accelerators": "H100:8"}
    assert task["num_nodes"] == 4
    assert "pretrain_gpt.py" in task["run"]
    edited = text.replace("num_nodes: 4", "num_nodes: 2").replace("batch-size 8", "batch-size 16")
    read = parse_export(edited, "skypilot")
    assert (read.slice, read.slices) == ("2*h100:8", 2)
    assert read.mesh == {"data": 2, "expert": 4, "tensor": 2}


@pytest.mark.parametrize(
    ("target", "slice_text", "mesh", "field"),
    [
        ("skypilot", "v5p:4x8x16", {"fsdp": 512}, "slice"),
        ("skypilot", "2*v5e:4x4", {"replica": 2, "fsdp": 16}, "slices"),
        ("skypilot", "mi355x:8", {"fsdp": 8}, "slice"),
        ("xpk", "h100:8", {"fsdp": 8}, "slice"),
    ],
)
def test_hardware_that_a_launcher_cannot_name_is_refused(target, slice_text, mesh, field):
    with pytest.raises(BadRequest, match=f"{target} cannot express {field} "):
        export_plan(*a_plan("dense", slice_text, mesh, zero=0), target)


def test_part_of_a_slice_is_refused_by_launchers():
    plan, cfg, _ = a_plan("dense", "v5e:4x4", {"fsdp": 16})
    piece = parse_slice("v5e:4x8")
    with pytest.raises(BadRequest, match=r"xpk|maxtext cannot express box \[4, 4\]"):
        export_plan(replace(plan, slice=str(piece)), cfg, piece, "xpk")


@pytest.mark.parametrize(
    ("target", "on", "mesh", "said"),
    [
        ("xpk", "h100:8", {"fsdp": 8}, ["slice h100:8: it starts jobs on TPUs", "remat none"]),
        (
            "skypilot",
            "2*v5p:4x8x16",
            {"replica": 2, "fsdp": 512},
            ["slices 2: it starts one", "none means this shape", "remat none", "zero 1: with fsdp"],
        ),
    ],
)
def test_a_launcher_lists_its_own_obstacles_with_those_of_what_it_starts(target, on, mesh, said):
    found = a_plan("dense", on, mesh, global_batch_sequences=2048, remat="none")
    with pytest.raises(BadRequest) as error:
        export_plan(*found, target)
    assert f"{target} cannot express {len(said)} choices" in str(error.value)
    for line in said:
        assert line in str(error.value)
