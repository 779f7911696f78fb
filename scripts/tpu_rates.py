#!/usr/bin/env python3
"""What libtpu's own schedules say of products and of flash attention, per TPU generation.

    python scripts/tpu_rates.py [--out scripts/fit/tpu_compiler.csv] [--date DAY] [CHIP ...]

No TPU is needed. Products of training, forward and for the weights' gradients, are compiled one by
one, so that the scheduler has all of VMEM to fetch their operands ahead, as it does within a step;
`estimated_cycles` of their fusions are read from the scheduled HLO. Splash attention (JAX's Pallas
kernel, heads of 64 and 128 dims) is compiled forward and backward, and the bundles of the final
schedule in which a matrix or vector unit works are counted for one block of queries and keys: a
core issues a bundle per cycle and multiplies no faster than its peak, so the larger of both is the
least that a block takes. Both are lines of one table: cycles of a JAX device, FLOPs, and their
share of the peak at the catalogue's `compiler_clock_hz`. Five chips take some eight CPU minutes.
"""

import argparse
import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardwise.hardware import Chip, Torus, load_chip, parse_slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import CompileTarget, target_of
from shardwise.profiler.ahead.compile import environment
from shardwise.profiler.child import run_function
from shardwise.profiler.hlo.door import read_module

OUT = Path(__file__).parent / "fit" / "tpu_compiler.csv"
CHIPS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
DTYPES = ("bf16", "int8", "fp8")
SIZES = (512, 1024, 2048, 4096, 8192)
TRAINED = ((4096, 6144), (4096, 14336), (8192, 28672))
"""k and n of weights: an 8B's projections and MLP, a 70B's MLP."""
TOKENS = 8192
BLOCK, HEADS = 512, (64, 128)
MATMULS = {"fwd": 2, "dkv": 4, "dq": 3}
"""Products of block x block x head in each kernel; a step counts 2 forward and 4 backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One line: what a compiler says of one product or one block of attention on one device."""

    chip: str
    kind: str
    dtype: str
    m: int
    n: int
    k: int
    cycles: float
    flops: float
    share: float
    compiler: str
    date: str


def main() -> None:
    """Compile for every chip and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("chips", nargs="*", default=CHIPS)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--date", default=date.today().isoformat())
    asked = parser.parse_args()
    rows = [row for name in asked.chips for row in estimates(load_chip(name), asked.date)]
    with asked.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def estimates(chip: Chip, day: str) -> Iterator[Estimate]:
    """Every line of one chip."""
    for dtype in DTYPES:
        if dtype == "bf16" or _faster(chip, dtype):
            yield from _products(chip, dtype, day)
    for head in HEADS:
        yield from _attention(chip, head, day)


def shapes() -> tuple[tuple[int, int, int], ...]:
    """m, n, k: squares, weights under 8,192 tokens, and those weights' gradients."""
    squares = [(n, n, n) for n in SIZES]
    forward = [(TOKENS, n, k) for k, n in TRAINED]
    return tuple(dict.fromkeys((*squares, *forward, *((k, n, m) for m, n, k in forward))))


def products(
    target: dict[str, Any], dtype: str, sizes: Sequence[Sequence[int]]
) -> tuple[list[float], str]:
    """Cycles that the compiler expects of each product, alone in a program; its version."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from shardwise.profiler.ahead.cache import versions
    from shardwise.profiler.ahead.job import topology_devices

    kind: Any = {"bf16": jnp.bfloat16, "int8": jnp.int8, "fp8": jnp.float8_e4m3fn}[dtype]
    made = jnp.int32 if dtype == "int8" else jnp.bfloat16
    mesh = jax.sharding.Mesh(np.array(topology_devices(target)[:1]), ("one",))
    whole = jax.sharding.NamedSharding(mesh, jax.P())
    multiply = jax.jit(lambda x, w: jax.lax.dot(x, w, preferred_element_type=made))
    found = []
    for m, n, k in sizes:
        given = [jax.ShapeDtypeStruct(s, kind, sharding=whole) for s in ((m, k), (k, n))]
        module = read_module(multiply.lower(*given).compile().as_text() or "")
        every = (i for c in module.computations.values() for i in c.instructions)
        found.append(sum(i.cycles for i in every if i.cycles))
    return found, versions()["libtpu"] or ""


def splash(target: dict[str, Any], head: int) -> str:
    """Compile splash attention with its gradient, whose schedules libtpu writes down; its name."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    from shardwise.profiler.ahead.job import topology_devices

    length, heads = 4096, 4
    mask = masks.MultiHeadMask([masks.CausalMask((length, length)) for _ in range(heads)])
    names = [n for n in kernel.BlockSizes.__dataclass_fields__ if n.startswith("block_")]
    sizes: Any = dict.fromkeys(names, BLOCK)
    attend: Any = kernel.make_splash_mha(
        mask, head_shards=1, q_seq_shards=1, block_sizes=kernel.BlockSizes(**sizes)
    )
    mesh = jax.sharding.Mesh(np.array(topology_devices(target)[:1]), ("one",))
    whole = jax.sharding.NamedSharding(mesh, jax.P())
    given = [jax.ShapeDtypeStruct((heads, length, head), jnp.bfloat16, sharding=whole)] * 3

    def loss(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v).astype(jnp.float32).sum()

    jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*given).compile()
    return jax.__version__


def _faster(chip: Chip, dtype: str) -> bool:
    return chip.peak_flops.get(dtype, 0.0) > chip.peak("bf16")


def _target(chip: Chip) -> CompileTarget:
    assert isinstance(chip.network, Torus)
    piece = parse_slice(f"{chip.id}:2x2x1" if len(chip.network.pod) == 3 else f"{chip.id}:2x2")
    devices = piece.chips * chip.jax_devices_per_chip
    return target_of(piece, mesh_coordinates(piece, {"one": devices})[:1])


def _products(chip: Chip, dtype: str, day: str) -> Iterator[Estimate]:
    target, sizes = _target(chip), shapes()
    cycles, version = run_function(
        "tpu_rates:products",
        {"target": asdict(target), "dtype": dtype, "sizes": sizes},
        devices=1,
        seconds=900.0,
        environment=environment(target),
    )
    for (m, n, k), found in zip(sizes, cycles, strict=True):
        flops, libtpu = 2.0 * m * n * k, f"libtpu {version}"
        yield _line(chip, "matmul", dtype, (m, n, k), found, flops, libtpu, day)


def _attention(chip: Chip, head: int, day: str) -> Iterator[Estimate]:
    target = _target(chip)
    with TemporaryDirectory(prefix="shardwise-llo-") as folder:
        dumps = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        jax = run_function(
            "tpu_rates:splash",
            {"target": asdict(target), "head": head},
            devices=1,
            environment={**environment(target), "LIBTPU_INIT_ARGS": dumps},
        )
        for kernel, matmuls in MATMULS.items():
            flops = 2.0 * matmuls * BLOCK * BLOCK * head
            cores = chip.cores / chip.jax_devices_per_chip  # each works on a block of its own
            cycles = max(
                busy_bundles(Path(folder), kernel), flops * cores / _per_cycle(chip, "bf16")
            )
            sizes = (BLOCK, BLOCK, head)
            kind = f"splash {kernel}"
            yield _line(chip, kind, "bf16", sizes, cycles / cores, flops, f"jax {jax}", day)


def busy_bundles(folder: Path, kernel: str) -> int:
    """Bundles of a kernel's final schedule in which a matrix, transpose or vector unit works."""
    (path,) = folder.glob(f"*splash_mha_{kernel}_*final_hlo-static-per-bundle-utilization.txt")
    text = path.read_text().partition("== UTILIZATION:")[2]
    rows = [[int(n) for n in line.split()] for line in text.splitlines() if line.strip()]
    return sum(any(row[i] for i in _BUSY) for row in rows)


_BUSY = (0, 1, 2, 4)
"""Columns of the matrix, transpose, vector and transcendental units."""


def _per_cycle(chip: Chip, dtype: str) -> float:
    """FLOPs per cycle of one JAX device at its peak."""
    return chip.peak(dtype) / chip.jax_devices_per_chip / chip.require("compiler_clock_hz")


def _line(
    chip: Chip,
    kind: str,
    dtype: str,
    sizes: tuple[int, int, int],
    cycles: float,
    flops: float,
    compiler: str,
    day: str,
) -> Estimate:
    m, n, k = sizes
    share = round(flops / cycles / _per_cycle(chip, dtype), 4) if cycles else 0.0
    return Estimate(
        chip=chip.id,
        kind=kind,
        dtype=dtype,
        m=m,
        n=n,
        k=k,
        cycles=cycles,
        flops=flops,
        share=share,
        compiler=compiler,
        date=day,
    )


if __name__ == "__main__":
    main()
