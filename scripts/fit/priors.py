"""What each constant is expected to be before any training run is seen, and how surely.

Kernel timings and network benchmarks where they exist; the literature, or an assumption that says
so, elsewhere. `prior_values` gives every fitted constant a `Prior`.
"""

import csv
import gzip
import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from fit.constants import GENERATIONS, names
from fit.solve import Prior
from shardwise.hardware import load_chip

Table = Sequence[Mapping[str, str]]

SYSTEMS = {  # aliases of chips, under which the timings are tabled
    "ampere": ("a100_sxm",),
    "hopper": ("h100_sxm", "h200_sxm"),
    "blackwell": ("b200_sxm", "gb200"),
}
GEMM_WHERE = "best kernel per shape, ai-dynamo/aiconfigurator@095f58a"

ATTENTION = {
    "ampere": (0.55, 0.10, "FlashAttention-2 paper: 50 to 73 % of an A100's peak, least backward"),
    "hopper": (0.55, 0.10, "FlashAttention-3 paper: 75 % of an H100's peak forward, less backward"),
    "blackwell": (0.50, 0.15, "assumed: somewhat below hopper's, as its peak grew more"),
}
ASSUMED_ATTENTION = (0.50, 0.15, "assumed: no public kernel timing of this chip")

STACKS: Mapping[str, Mapping[str, tuple[float, float, str]]] = {
    "overlap": {"": (0.8, 0.15, "assumed: most of what order allows hides")},
    "attention": {
        "megatron": (
            0.95,
            0.05,
            "assumed: cuDNN's fused attention is the best kernel of most chips",
        ),
        "xla": (0.9, 0.1, "assumed: splash attention on TPU, cuDNN on GPU"),
        "": (0.6, 0.15, "FlashAttention-3 paper: version 2 reaches half of version 3 on an H100"),
    },
    "launch_seconds": {
        "xla": (5e-7, 1e-6, "assumed: one program per step, little per op"),
        "": (4e-6, 4e-6, "assumed: a kernel launch of CUDA takes 2 to 10 us of the host"),
    },
    "passes": {
        "xla": (1.3, 0.3, "assumed: XLA fuses nearly all elementwise work"),
        "": (2.0, 0.5, "assumed: eager frameworks fuse part of it"),
    },
}


def prior_values(microbench: Path, kernels: Path) -> dict[str, Prior]:
    """A prior for every fitted constant, from a table of microbenchmarks and kernel timings."""
    gemm = read_csv(kernels / "gemm_best.csv.gz")
    ramp = _ironwood_ramp(microbench)
    chips = {g: _generation(g, gemm, ramp) for g in GENERATIONS}
    found: dict[str, Prior] = {}
    for name in names():
        owner, _, constant = name.partition(".")
        if owner in chips:
            found[name] = chips[owner][constant]
        else:
            options = STACKS[constant]
            value, sigma, source = options.get(owner, options[""])
            found[name] = Prior(value=value, sigma=sigma, source=source)
    return found


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table, packed by gzip or not."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def _generation(generation: str, table: Table, ramp: Prior) -> dict[str, Prior]:
    value, sigma, source = ATTENTION.get(generation, ASSUMED_ATTENTION)
    priors = {
        "sustained": Prior(
            value=0.88, sigma=0.1, source="assumed: power limits and shared units cost a tenth"
        ),
        "attention": Prior(value=value, sigma=sigma, source=source),
        "outer_network": Prior(
            value=0.75,
            sigma=0.15,
            source="nccl-tests of large all-reduces over 2 and 4 nodes reach 0.4 to 0.95",
        ),
    }
    systems = SYSTEMS.get(generation, ())
    if systems:
        return priors | _gemm(table, systems)
    fp8 = Prior(value=0.7, sigma=0.1, source="assumed: somewhat below bf16's share of its peak")
    return priors | {"matmul_ramp": ramp, "matmul_fp8": fp8}


def _gemm(table: Table, systems: Sequence[str]) -> dict[str, Prior]:
    """Ramp and fp8 share: seconds = FLOPs / (peak x share) + ramp over products with m >= 256."""
    ramps, shares = [], []
    for system in systems:
        chip = load_chip(system)
        ramps.append(_two_terms(table, system, "bfloat16", chip.peak("bf16"))[1])
        if "fp8" in chip.peak_flops:
            shares.append(_large(table, system, "fp8", chip.peak("fp8")))
    priors = {
        "matmul_ramp": Prior(
            value=round(statistics.mean(ramps), 8),
            sigma=2e-6,
            source=f"measured: fit of bf16 matmuls with m >= 256, {GEMM_WHERE}",
        )
    }
    if shares:
        priors["matmul_fp8"] = Prior(
            value=round(statistics.mean(shares), 3),
            sigma=0.08,
            source=f"measured: median of fp8 matmuls with all dims >= 4096, {GEMM_WHERE}",
        )
    return priors


def _rows(table: Table, system: str, dtype: str, least_m: int, least: int) -> np.ndarray:
    found = [
        (float(r["m"]), float(r["n"]), float(r["k"]), float(r["latency"]) / 1e3)
        for r in table
        if r["system"] == system
        and r["gemm_dtype"] == dtype
        and int(r["m"]) >= least_m
        and min(int(r["n"]), int(r["k"])) >= least
    ]
    return np.array(found).T


def _two_terms(table: Table, system: str, dtype: str, peak: float) -> tuple[float, float]:
    m, n, k, seconds = _rows(table, system, dtype, 256, 512)
    flops = 2 * m * n * k

    def miss(x: np.ndarray) -> np.ndarray:
        return np.log((flops / (peak * x[0]) + x[1] * 1e-6) / seconds)

    share, ramp = least_squares(miss, [0.7, 5.0], loss="soft_l1", f_scale=0.1).x
    return float(share), float(ramp) * 1e-6


def _large(table: Table, system: str, dtype: str, peak: float) -> float:
    m, n, k, seconds = _rows(table, system, dtype, 4096, 4096)
    return float(np.median(2 * m * n * k / seconds) / peak)


def _ironwood_ramp(path: Path) -> Prior:
    """Seconds beyond FLOPs of the square products of one Ironwood core."""
    rows = [
        r
        for r in read_csv(path)
        if r["source"] == "tpu-recipes-microbench" and r["m"] and r["tflops"]
    ]
    m, n, k, rate = np.array([[float(r[c]) for c in ("m", "n", "k", "tflops")] for r in rows]).T
    flops, peak = 2 * m * n * k, load_chip("tpu7x").peak("bf16") / 2
    seconds = flops / (rate * 1e12)
    share = float(np.median((flops / seconds)[m >= 4096]) / peak)
    extra = seconds - flops / (peak * share)
    ramp = max(float(np.median(extra[m < 4096])) if np.any(m < 4096) else 1e-6, 0.0)
    return Prior(
        value=round(min(ramp, 5e-6), 8),
        sigma=1e-6,
        source="measured on Ironwood: matmuls below 4096, tpu-recipes microbenchmarks",
    )
