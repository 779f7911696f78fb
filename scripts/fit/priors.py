"""What each constant is expected to be before any training run is seen.

Kernel timings where they exist; the literature, or an assumption that says so (`constants.py`),
elsewhere. `prior_values` gives every fitted constant a `Prior`.
"""

import csv
import gzip
import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from fit.constants import GENERATIONS, VENDORS, kind_of, names
from fit.hierarchy import Prior
from shardwise.hardware import load_chip

Table = Sequence[Mapping[str, str]]

SYSTEMS = {  # aliases of chips, under which the timings are tabled
    "ampere": ("a100_sxm",),
    "hopper": ("h100_sxm", "h200_sxm"),
    "blackwell": ("b200_sxm", "gb200"),
}
GEMM_WHERE = "best kernel per shape, ai-dynamo/aiconfigurator@095f58a"

ATTENTION: Mapping[str, tuple[float, str]] = {
    "ampere.attention": (
        0.55,
        "FlashAttention-2 paper: 50 to 73 % of an A100's peak, least backward",
    ),
    "hopper.attention": (
        0.55,
        "FlashAttention-3 paper: 75 % of an H100's peak forward, less backward",
    ),
    "blackwell.attention": (0.50, "assumed: somewhat below hopper's, as its peak grew more"),
}
STACKS: Mapping[str, tuple[float, str]] = {
    "megatron.attention": (
        0.95,
        "assumed: cuDNN's fused attention is the best kernel of most chips",
    ),
    "xla.attention": (0.9, "assumed: splash attention on TPU, cuDNN on GPU"),
    "xla.launch_seconds": (5e-7, "assumed: one program per step, little per op"),
    "xla.passes": (1.3, "assumed: XLA fuses nearly all elementwise work"),
}
"""Where a stack is expected to differ from the others."""


def prior_values(microbench: Path, kernels: Path) -> dict[str, Prior]:
    """A prior for every fitted constant, from a table of microbenchmarks and kernel timings."""
    known = _kernels(read_csv(kernels / "gemm_best.csv.gz")) | _ironwood_ramp(microbench)
    for name, (value, source) in {**ATTENTION, **STACKS}.items():
        known[name] = Prior(value=value, source=source)
    return {name: known.get(name) or _assumed(name) for name in names()}


def _assumed(name: str) -> Prior:
    kind = kind_of(name)
    return Prior(value=kind.expected, source=kind.source)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a table, packed by gzip or not."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def _kernels(table: Table) -> dict[str, Prior]:
    """Ramp and fp8 share: seconds = FLOPs / (peak x share) + ramp over products with m >= 256."""
    found = {}
    for generation, systems in SYSTEMS.items():
        chips = {system: load_chip(system) for system in systems}
        ramps = [_two_terms(table, s, "bfloat16", c.peak("bf16"))[1] for s, c in chips.items()]
        found[f"{generation}.matmul_ramp"] = Prior(
            value=round(statistics.mean(ramps), 8),
            source=f"measured: fit of bf16 matmuls with m >= 256, {GEMM_WHERE}",
        )
        narrow = {s: c for s, c in chips.items() if "fp8" in c.peak_flops}
        if narrow:
            shares = [_large(table, s, "fp8", c.peak("fp8")) for s, c in narrow.items()]
            found[f"{generation}.matmul_fp8"] = Prior(
                value=round(statistics.mean(shares), 3),
                source=f"measured: median of fp8 matmuls with all dims >= 4096, {GEMM_WHERE}",
            )
    return found


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


def _ironwood_ramp(path: Path) -> dict[str, Prior]:
    """Seconds beyond FLOPs of the square products of one Ironwood core, for all TPUs."""
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
    prior = Prior(
        value=round(min(ramp, 5e-6), 8),
        source="measured on Ironwood: matmuls below 4096, tpu-recipes microbenchmarks",
    )
    return {f"{g}.matmul_ramp": prior for g in GENERATIONS if VENDORS[g] == "google"}
