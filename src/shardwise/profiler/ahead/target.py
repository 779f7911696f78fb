"""What a compiler is told about a slice: a TPU topology, or the description of a GPU. No JAX.

TPU topologies are names such as `v5p:16x16x16`, with which axes wrap (libtpu assumes none), how
many slices and how many devices a chip is. GPUs are `1 x hosts x GPUs`, with the text of XLA's
GpuTargetConfigProto, made from the catalogue and `data/gpu_targets.toml`.
"""

import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardwise.errors import BadRequest, entry_of
from shardwise.hardware.chip import Chip
from shardwise.hardware.slices import Slice

DATA = Path(__file__).parent / "data" / "gpu_targets.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileTarget:
    """A slice in the compiler's words; plain values, so that it can be sent to a child.

    `coordinates` [devices of the mesh, 2 + axes] are slice, physical axes and device of the chip
    (for GPUs domain, place in the domain, 0), in the order of the mesh. `domain` is the chips of
    one fast network, `capacity` the usable HBM of one device. Of "cpu" are chips that no compiler
    here knows: XLA's partitioner alone can be asked about them.
    """

    slice: str
    platform: Literal["tpu", "cuda", "cpu"]
    topology: str
    options: dict[str, Any] = field(default_factory=dict)
    coordinates: tuple[tuple[int, ...], ...]
    domain: int
    capacity: float

    @property
    def extra(self) -> str:
        """The extra that brings its compiler."""
        return "tpu-compile" if self.platform == "tpu" else "gpu-compile"


def target_of(piece: Slice, coordinates: np.ndarray) -> CompileTarget:
    """The target of a mesh on a slice (`hardware.device_order`)."""
    chip = piece.chip
    order = tuple(tuple(row) for row in coordinates.reshape(-1, coordinates.shape[-1]).tolist())
    capacity = chip.usable_bytes_per_device
    topology, options = "", {}
    if chip.compiler is None:
        pass
    elif chip.compiler.platform == "tpu":
        topology = f"{chip.compiler.name}:{'x'.join(map(str, piece.shape))}"
        options = _tpu_options(piece, chip.compiler.one_device)
    else:
        topology = _gpu_topology(piece)
        options = {"target_config": gpu_description(chip)}
    return CompileTarget(
        slice=str(piece),
        platform=chip.compiler.platform if chip.compiler else "cpu",
        topology=topology,
        options=options,
        coordinates=order,
        domain=piece.chips_each,
        capacity=capacity,
    )


def _tpu_options(piece: Slice, one_device: str) -> dict[str, Any]:
    """libtpu takes three wraps, and one chip per host where a slice is one chip."""
    wraps = (*piece.wraps, False, False)[:3]
    options: dict[str, Any] = {"wrap": list(wraps)}
    if piece.count > 1:
        options["num_slices"] = piece.count
    if piece.chips_each == 1:
        options["chips_per_host_bounds"] = [1, 1, 1]
    if one_device and piece.chip.jax_devices_per_chip == 1:
        options["chip_config_name"] = one_device
    return options


def _gpu_topology(piece: Slice) -> str:
    """slices x hosts x GPUs; a domain may span several hosts."""
    each = min(piece.chips_each, piece.chip.chips_per_host)
    if piece.chips_each % each:
        raise BadRequest(
            f"'{piece}' is not a whole number of hosts of {each} chips, which the compiler wants; "
            f"use {piece.chips_each // each * each} chips of a domain"
        )
    return f"1x{piece.chips // each}x{each}"


def gpu_description(chip: Chip) -> str:
    """XLA's description of a GPU, as text of its protocol buffer."""
    assert chip.compiler is not None
    table, name = _table(), chip.compiler.name
    kind = entry_of(f"architecture of chip '{chip.id}'", name, table["architectures"])
    major, minor = kind["capability"]
    fields: dict[str, Any] = {
        **table["all"],
        **{name: value for name, value in kind.items() if name != "capability"},
        "shared_memory_per_block_optin": kind["shared_memory_per_core"] - 1024,
        "core_count": chip.cores,
        "memory_bandwidth": round(chip.require("hbm_bandwidth")),
        "l2_cache_size": round(chip.require("l2_bytes")),
        "clock_rate_ghz": chip.require("clock_hz") / 1e9,
        "device_memory_size": round(chip.require("hbm_usable_bytes")),
    }
    lines = [f"  {name}: {value}" for name, value in fields.items()]
    lines.append(f"  cuda_compute_capability {{ major: {major} minor: {minor} }}")
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            "}",
            'platform_name: "CUDA"',
            "dnn_version_info { major: 9 minor: 10 patch: 0 }",
            f'device_description_str: "{chip.name}"',
        ]
    )


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return tomllib.loads(DATA.read_text(encoding="utf-8"))
