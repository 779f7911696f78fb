"""Slices in the words of compilers."""

from dataclasses import replace

import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import load_chip, parse_slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead.compile import need_compiler
from shardwise.profiler.ahead.target import gpu_description, target_of


def target(text):
    piece = parse_slice(text)
    return target_of(piece, mesh_coordinates(piece, {"X": piece.devices}))


@pytest.mark.parametrize(
    ("text", "topology", "options"),
    [
        ("v5e:4x4", "v5e:4x4", {"wrap": [False, False, False]}),
        ("v5e:16x16", "v5e:16x16", {"wrap": [True, True, False]}),
        ("v5e:8x16", "v5e:8x16", {"wrap": [False, True, False]}),
        ("v5p:4x4x8", "v5p:4x4x8", {"wrap": [True, True, True]}),
        ("v5p:2x2x1", "v5p:2x2x1", {"wrap": [False, False, False]}),
        ("2*v6e:4x4", "v6e:4x4", {"wrap": [False, False, False], "num_slices": 2}),
        (
            "v5e:1x1",
            "v5e:1x1",
            {"wrap": [False, False, False], "chips_per_host_bounds": [1, 1, 1]},
        ),
        (
            "v4:4x4x4",
            "v4:4x4x4",
            {"wrap": [True, True, True], "chip_config_name": "megacore"},
        ),
    ],
)
def test_a_tpu_slice_is_a_topology_with_its_wraps(text, topology, options):
    found = target(text)
    assert (found.platform, found.topology, found.options) == ("tpu", topology, options)


def test_a_chip_of_two_devices_shares_its_memory():
    found = target("tpu7x:2x2x1")
    assert len(found.coordinates) == 8
    assert found.capacity == load_chip("tpu7x").hbm_usable_bytes / 2


@pytest.mark.parametrize(
    ("text", "topology"),
    [("h100:8", "1x1x8"), ("4*h200:8", "1x4x8"), ("b200:4", "1x1x4"), ("2*gb200:64", "1x32x4")],
)
def test_gpus_are_hosts_of_so_many(text, topology):
    found = target(text)
    assert (found.platform, found.topology) == ("cuda", topology)
    assert "cuda_compute_capability" in found.options["target_config"]


def test_the_description_of_a_gpu_has_the_catalogues_numbers():
    chip = load_chip("h100")
    text = gpu_description(chip)
    assert "cuda_compute_capability { major: 9 minor: 0 }" in text
    for line in (
        f"core_count: {chip.cores}",
        "memory_bandwidth: 3350000000000",
        "l2_cache_size: 52428800",
        "shared_memory_per_block_optin: 232448",  # NVIDIA H100: 227 KiB per block
        f"device_memory_size: {round(chip.hbm_usable_bytes)}",
    ):
        assert f"  {line}\n" in text
    twice = replace(chip, l2_bytes=2 * chip.l2_bytes)
    assert "l2_cache_size: 104857600" in gpu_description(twice)


@pytest.mark.parametrize("text", ["v4i:1x1", "mi300x:8", "l4:1"])
def test_a_chip_without_such_a_compiler_is_refused(text):
    with pytest.raises(BadRequest, match=r"cannot be compiled for: no compiler .* knows it; those"):
        need_compiler(target(text))


def test_a_part_of_a_domain_that_is_no_whole_host_is_refused():
    with pytest.raises(BadRequest, match=r"'gb200:6' is not a whole number of hosts of 4 chips"):
        target("gb200:6")
