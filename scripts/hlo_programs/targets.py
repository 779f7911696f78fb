"""Compiling one program for one chip: the slices, a GPU's description, the dump that is kept."""

import json
import os
from pathlib import Path

import jax
import numpy as np
from jax.experimental import topologies

from hlo_programs.base import EVERYTHING, PROGRAMS

SLICES = {
    "v4": ("v4:2x2x2", {"chip_config_name": "megacore"}),
    "v5e": ("v5e:2x4", {}),
    "v5p": ("v5p:2x2x2", {}),
    "v6e": ("v6e:2x4", {}),
    "tpu7x": ("tpu7x:2x2x1", {}),
}
GPU = "1x1x8"

# The target of a compile for H100 with no GPU, a GpuTargetConfigProto with the numbers of the
# vendor's data sheet (H100 SXM: 132 SMs, 228 KiB of shared memory each, 50 MiB of L2, 3.35 TB/s).
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132
  fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def compile_one(name, chip, folder):
    """Compile one program for one chip and write its scheduled module; prints a JSON line."""
    devices, options = _devices(chip, slices=2 if name.startswith("multi_slice") else 1)
    mesh = jax.sharding.Mesh(devices.reshape(2, 2, 2), EVERYTHING)
    function, arguments, extra = PROGRAMS[name](mesh)
    compiled = jax.jit(function, **extra).lower(*arguments).compile(compiler_options=options)
    text = compiled.as_text() or ""
    dumped = sorted(Path(os.environ["DUMP"]).glob("*jit_*.after_codegen.txt"))
    if dumped:
        text = max(dumped, key=lambda path: path.stat().st_size).read_text()
    Path(folder, f"{name}.{chip}.txt").write_text(text)
    memory = compiled.memory_analysis()
    print(json.dumps({"peak_bytes": memory.peak_memory_in_bytes if memory else None}))


def _devices(chip, slices):
    if chip == "cpu":
        return np.array(jax.devices()[:8]), {}
    if chip == "h100":
        topology = topologies.get_topology_desc(platform="cuda", topology=GPU, target_config=H100)
        return np.array(topology.devices), {}
    name, options = SLICES[chip]
    if slices > 1:
        if chip == "tpu7x":
            raise ValueError("two slices of tpu7x are 16 devices at least, and the mesh has 8")
        name = name.replace("2x2x2", "2x2x1").replace("2x4", "2x2")
        options = {**options, "num_slices": slices}
    topology = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    dump = {"xla_dump_to": os.environ["DUMP"], "xla_dump_hlo_as_text": True}
    return np.array(topology.devices), dump
