"""Rates that benchmarks of kernels and links measure, and the priors that follow from them.

No training run is read here. All sources are tables beside this file: nccl-tests over nodes
(`links.csv`) and other timings of collectives (`collectives.csv.gz`), matmuls of the best shape
(`best_products.csv`) and of the best kernel for every shape (`products.csv.gz`: milliseconds of
six digits, all dims >= 1024, a column for each chip and dtype), and libtpu's own schedules
(`tpu_compiler.csv`, which `scripts/tpu_rates.py` collects). `scripts/measured_rates.py` writes what
they say into docs/lab/rates.md.
"""

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from fit.hierarchy import Prior
from shardwise.hardware import Chip, load_chip

Table = Sequence[Mapping[str, str]]
HERE = Path(__file__).parent
LINKS = HERE / "links.csv"
COMPILED = HERE / "tpu_compiler.csv"
BEST = HERE / "best_products.csv"
PRODUCTS = HERE / "products.csv.gz"
COLLECTIVES = HERE / "collectives.csv.gz"

SYSTEMS: Mapping[str, tuple[str, ...]] = {  # aliases of chips, under which the timings are tabled
    "ampere": ("a100_sxm",),
    "hopper": ("h100_sxm", "h200_sxm"),
    "blackwell": ("b200_sxm", "gb200"),
}
GEMM_WHERE = "best kernel per shape, ai-dynamo/aiconfigurator@095f58a"
BEST_WHERE = "stas00/ml-engineering@744d01e"
LARGE, SMALL = 4096, 2048
"""All dims of a large product are at least, all of a small one at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Values of one quantity: how many, their median and their tenth and ninetieth percentile."""

    n: int
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> "Spread":
        """The spread of at least one value."""
        low, median, high = np.quantile(np.asarray(values, float), (0.1, 0.5, 0.9))
        return cls(n=len(values), median=float(median), low=float(low), high=float(high))


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table, packed by gzip or not."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def measured_priors() -> dict[str, Prior]:
    """Every prior "generation.constant" that kernels or a compiler's schedules give."""
    return {**gemm_priors(read_csv(PRODUCTS)), **compiled_priors(read_csv(COMPILED))}


# Links between nodes.


def nic_share(row: Mapping[str, str]) -> float:
    """The part of its nodes' NICs that a collective of nccl-tests uses, by the bytes that cross.

    `busbw` is what every link of a ring carries, those between nodes included. Over two nodes a
    tree crosses with half as much: there busbw beyond the NICs is a tree's. In an all-to-all each
    device sends 1/n of its buffer to every device, and `busbw` leaves out the part for itself.
    """
    busbw, nics = float(row["busbw"]), float(row["nics_oneway"])
    if row["collective"] == "all_to_all":
        devices, nodes = float(row["devices"]), float(row["nodes"])
        sent = busbw * devices / (devices - 1) * devices / nodes
        return sent * (nodes - 1) / nodes / nics
    if row["collective"] == "all_reduce" and row["nodes"] == "2" and busbw > nics:
        devices = float(row["devices"])
        return busbw * devices / (2 * (devices - 1)) / nics
    return busbw / nics


def nic_shares(table: Table | None = None) -> dict[str, Spread]:
    """The share of the NICs by fabric, and of all under ""; tables of a faulty set-up left out."""
    sound = [r for r in (table or read_csv(LINKS)) if not r["fault"]]
    found = {"": Spread.of([nic_share(r) for r in sound])}
    for fabric in dict.fromkeys(r["fabric"] for r in sound if r["fabric"]):
        found[fabric] = Spread.of([nic_share(r) for r in sound if r["fabric"] == fabric])
    return found


def ring_step(row: Mapping[str, str], chip: Chip, share: float = 1.0) -> float:
    """Seconds per step of a gather's ring over nodes beyond those of its bytes at a share of the
    NICs."""
    nodes, devices, size = (float(row[c]) for c in ("nodes", "devices", "bytes"))
    assert chip.data_centre is not None
    wire = size * (devices - 1) / devices / (devices / nodes * chip.data_centre.chip_oneway * share)
    return (float(row["time_us"]) * 1e-6 - wire) / (devices - 1)


# Matmuls of GPUs.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRate:
    """seconds = FLOPs / (peak x share) + ramp + (cast bytes per element of the inputs and results
    over the memory's rate): what best describes the products of a table, and the median error."""

    share: float
    ramp: float
    cast_bytes: float
    error: float
    n: int


def product_rate(table: Table, system: str, dtype: str, peak: float, *, cast: bool) -> ProductRate:
    """Fitted to the products with all dims of at least 1,024, of the larger of that and memory."""
    m, n, k, seconds = _products(table, system, dtype, 1024)
    chip = load_chip(system)
    bandwidth = chip.require("hbm_bandwidth") * chip.efficiency.hbm
    width = 1 if cast else 2
    moved = (width * k * (m + n) + 2 * m * n) / bandwidth

    def miss(x: np.ndarray) -> np.ndarray:
        math = 2 * m * n * k / (peak * x[0]) + x[1] * 1e-6
        return np.log(np.maximum(math + (x[2] * m * k / bandwidth if cast else 0), moved) / seconds)

    found = least_squares(miss, [0.7, 5.0, 1.0], loss="soft_l1", f_scale=0.1)
    share, ramp, cast_bytes = (float(v) for v in found.x)
    error = float(np.median(np.abs(np.expm1(miss(found.x)))))
    cast_bytes = cast_bytes if cast else 0.0
    return ProductRate(
        share=share, ramp=ramp * 1e-6, cast_bytes=cast_bytes, error=error, n=len(seconds)
    )


def large_share(table: Table, system: str, dtype: str, peak: float) -> Spread:
    """The share of the peak of products with all dims of at least 4,096, casts included."""
    m, n, k, seconds = _products(table, system, dtype, LARGE)
    return Spread.of(2 * m * n * k / seconds / peak)


def best_shares(dtype: str) -> dict[str, float]:
    """The share of the peak of the best of many shapes by chip, as cuBLAS and hipBLASLt reach it
    (MAMF, stas00/ml-engineering)."""
    found = {}
    for row in read_csv(BEST):
        if row["dtype"] == dtype:
            chip = load_chip(row["chip"])
            found[chip.id] = float(row["tflops"]) * 1e12 / chip.peak(dtype)
    return found


def gemm_priors(table: Table) -> dict[str, Prior]:
    """Ramp of bf16 products, and share of fp8 ones without the cast of an input: the best shape in
    the library that training calls, as nothing more of it is public."""
    found: dict[str, Prior] = {}
    best = best_shares("fp8")
    for generation, systems in SYSTEMS.items():
        plain = [
            product_rate(table, s, "bfloat16", load_chip(s).peak("bf16"), cast=False)
            for s in systems
        ]
        found[f"{generation}.matmul_ramp"] = Prior(
            value=round(float(np.mean([p.ramp for p in plain])), 8),
            sigma=2e-6,
            source=f"measured: fit of bf16 matmuls with all dims >= 1024, {GEMM_WHERE}",
        )
        shares = [share for chip, share in best.items() if load_chip(chip).generation == generation]
        if shares:
            found[f"{generation}.matmul_fp8"] = Prior(
                value=round(float(np.mean(shares)), 3),
                sigma=0.05,
                source=f"measured: best fp8 shape of {len(shares)} chips (MAMF, {BEST_WHERE})",
            )
    return found


def _products(table: Table, system: str, dtype: str, least: int) -> np.ndarray:
    """m, n, k and seconds of products with all dims of at least `least`."""
    column = f"{system} {dtype}"
    found = [
        (float(r["m"]), float(r["n"]), float(r["k"]), float(r[column]) / 1e3)
        for r in table
        if r[column] and _least(r) >= least
    ]
    return np.array(found).T


# TPUs, as libtpu schedules them.


def compiled_share(table: Table, chip: str, dtype: str) -> Spread | None:
    """The share of the peak of large products in the compiler's estimates; None without any."""
    shares = [float(r["share"]) for r in _compiled(table, chip, dtype) if _least(r) >= LARGE]
    return Spread.of(shares) if shares else None


def compiled_ramp(table: Table, chip: Chip) -> float:
    """Median seconds of small bf16 products beyond their FLOPs at the share of large ones."""
    large = compiled_share(table, chip.id, "bf16")
    assert large is not None
    clock = chip.require("compiler_clock_hz")
    rate = chip.peak("bf16") / chip.jax_devices_per_chip * large.median
    small = [r for r in _compiled(table, chip.id, "bf16") if _least(r) <= SMALL]
    return float(np.median([float(r["cycles"]) / clock - float(r["flops"]) / rate for r in small]))


def compiled_attention(table: Table, chip: str, head: int = 128) -> float | None:
    """The share of the peak of splash attention, forward and backward, at a width of heads.

    The kernels multiply 9 times per block, 2 forward, 4 and 3 for the gradients; a step counts 6.
    """
    splash = [r for r in table if r["chip"] == chip and r["kind"].startswith("splash")]
    rows = [r for r in splash if int(r["k"]) == head]
    if not rows:
        return None
    seconds_at_peak = sum(float(r["flops"]) for r in rows) * 6 / 9
    return seconds_at_peak / sum(float(r["flops"]) / float(r["share"]) for r in rows)


def compiled_priors(table: Table) -> dict[str, Prior]:
    """Ramp and fp8 products of every generation that libtpu compiles for.

    Its attention is no prior: as one it raises the left-out error of TPUs from 0.095 to 0.110 (mean
    log), as published runs use other kernels and blocks (docs/lab/rates.md).
    """
    found: dict[str, Prior] = {}
    for name in dict.fromkeys(r["chip"] for r in table):
        chip, said = load_chip(name), f"{table[0]['compiler']}, scripts/tpu_rates.py"
        found[f"{chip.generation}.matmul_ramp"] = Prior(
            value=round(compiled_ramp(table, chip), 8),
            sigma=1e-6,
            source=f"compiler's estimate: bf16 products up to {SMALL}, {said}",
        )
        narrow = compiled_share(table, name, "fp8")
        if narrow is not None:
            found[f"{chip.generation}.matmul_fp8"] = Prior(
                value=round(narrow.median, 3),
                sigma=0.05,
                source=f"compiler's estimate: fp8 products from {LARGE}, {said}",
            )
    return found


def _compiled(table: Table, chip: str, dtype: str) -> list[Mapping[str, str]]:
    return [r for r in table if (r["chip"], r["kind"], r["dtype"]) == (chip, "matmul", dtype)]


def _least(row: Mapping[str, str]) -> int:
    return min(int(row[c]) for c in ("m", "n", "k"))
