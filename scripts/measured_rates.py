"""Fractions of peak behind "expected", from the measurements that make_catalogue.py is given.

Matmul and HBM rates from kernel timings, network rates, ramps and hop latencies from nccl-tests.
A chip without a measurement of its own takes its nearest relative's, and the source says so.
"""

import csv
import gzip
import io
import itertools
import json
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

GIB = 2**30
Entry = dict[str, Any]

# Which measured system stands for a chip, and whether it is that chip itself.
GEMM = {"a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm"} | {
    "gb200": "gb200"
}
MAMF = {
    "gh200": "GH200",
    "b300": "B300-SXM",
    "mi300x": "MI300X",
    "mi325x": "MI325X",
    "mi355x": "MI355X",
}
MAMF_OF_GEMM = {"a100": "A100-SXM", "h100": "H100-SXM", "b200": "B200-SXM", "gb200": "GB200"}
NCCL = {
    "a100": ("A100-SXM-80GB", "8"),
    "h100": ("H100-SXM-80GB", "8"),
    "h200": ("H200-SXM", "8"),
    "b200": ("B200-SXM", "8"),
    "b300": ("B300-SXM", "8"),
}
STANDS_FOR = {  # chips without a measurement of their own -> the nearest relative that has one
    "v100": "a100",
    "a100-40gb": "a100",
    "l4": "a100",
    "l40s": "a100",
    "a10g": "a100",
    "rtx4090": "a100",
    "rtxpro6000": "a100",
    "h100-pcie": "h100",
    "h800": "h100",
    "h20": "h100",
    "gh200": "h100",
    "gb200": "b200",
    "b300": "b200",
    "gb300": "gb200",
    "mi250x": "mi300x",
}
TORCH = {  # chip -> issue, TFLOP/s of bf16 squares of 4096, 8192 and 10240 with f32 accumulation
    "rtx4090": (78, (151.50, 160.17, 158.54)),
    "rtxpro6000": (162, (399.93, 417.34, 387.01)),
}
"""Cards with tensor cores of half rate for f32 accumulation come nearer to that peak: what feeds
them is built for the whole rate."""
FP8_FROM = ("h100", "b200", "gb200")  # relatives of the same generation that have fp8 timings
TPU_MATMUL = {
    "v2": (0.99, "the book's profiling chapter: 95.6 ms at peak, 96 ms measured on v2-8"),
    "v6e": (0.70, "assumed: libtpu's own estimate for large matmuls is 1.15 to 1.7 x roofline"),
}
ASSUMED_TPU_MATMUL = (
    0.92,
    "assumed: libtpu's own estimate for matmuls of 2048 and more is 1.03 to 1.15 x roofline",
)


def read_csv(path: Path) -> list[dict[str, str]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def add_efficiency(records: dict[str, Entry], data: Path) -> None:
    """Fractions behind "expected", and the ramp and hop latency of NVLink domains."""
    matmul, fp8, hbm = gemm_rates(records, data)
    add_mamf(matmul, records, data)
    add_torch(matmul, records)
    add_tpu(matmul, hbm, data, records)
    network, ramps = nccl_rates(records, data)
    for chip, record in records.items():
        record["efficiency"] = {
            "matmul": pick(chip, matmul, 0.75, "assumed: no measurement; a careful 0.75"),
            "hbm": pick(chip, hbm, 0.80, "assumed: no measurement; below every GPU measured"),
            "network": network_rate(chip, record, network),
        }
        if "fp8" in record["peak_flops"] and (chip in fp8 or STANDS_FOR.get(chip) in FP8_FROM):
            record["efficiency"]["matmul_fp8"] = pick(chip, fp8, 0.0, "")
        record["efficiency"] |= fitted_rates(chip, record)
        for name, entry in record["efficiency"].items():
            book = 0.0 if name == "matmul_ramp" else 1.0
            entry |= {"book": book, "book_source": "the book derates nothing"}
        if record["network"]["kind"] == "switched":
            ramp = ramps.get(chip) or relative(chip, ramps)
            record["network"] |= {key: dict(entry) for key, entry in ramp.items()}


def fitted_rates(chip: str, record: Entry) -> dict[str, Entry]:
    """What scripts/fit_efficiency.py found for the chip's generation, or for all chips."""
    table = tomllib.loads((Path(__file__).parent / "efficiency.toml").read_text())
    own = [g for g in table["generations"].values() if chip in g["chips"]]
    entries = dict(own[0] if own else table["others"])
    entries.pop("chips", None)
    if "fp8" not in record["peak_flops"]:
        entries.pop("matmul_fp8", None)
    return {name: dict(entry) for name, entry in entries.items()}


def pick(chip: str, found: Mapping[str, Entry], value: float, source: str) -> Entry:
    """The chip's own measurement, that of its nearest relative, or the assumption."""
    if chip in found:
        return dict(found[chip])
    if chip in STANDS_FOR and (STANDS_FOR[chip] in found or STANDS_FOR[chip] in STANDS_FOR):
        return relative(chip, found)
    return {"value": value, "source": source}


def relative(chip: str, found: Mapping[str, Any]) -> Entry:
    other = STANDS_FOR[chip]
    while other not in found:
        other = STANDS_FOR[other]
    entry = json.loads(json.dumps(found[other]))
    for part in [entry] if "source" in entry else entry.values():
        part["source"] = f"assumed: as {other} ({part['source']})"
    return entry


def gemm_rates(records: Mapping[str, Entry], data: Path) -> tuple[dict, dict, dict]:
    """matmul, fp8: median share of the dense peak over shapes with every dim >= 4096.

    hbm: median share of the memory bandwidth over skinny products (m <= 16) of 256 MB and more,
    which stream their weights.
    """
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    streams: dict[str, list[float]] = defaultdict(list)
    for row in read_csv(data / "measured" / "kernels" / "gemm_best.csv.gz"):
        m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
        seconds = float(row["latency"]) / 1e3
        moved = 2.0 * (n * k + m * k + m * n)
        if min(m, n, k) >= 4096:
            rates[row["system"], row["gemm_dtype"]].append(2.0 * m * n * k / seconds)
        if m <= 16 and moved >= 256e6 and row["gemm_dtype"] == "bfloat16":
            streams[row["system"]].append(moved / seconds)
    where = "best kernel per shape, ai-dynamo/aiconfigurator@095f58a"

    def share(chip: str, dtype: str, name: str) -> Entry:
        found = rates[GEMM[chip], name]
        peak = records[chip]["peak_flops"][dtype]["value"]
        return {
            "value": round(statistics.median(found) / peak, 3),
            "source": f"measured: median of {len(found)} {dtype} matmuls with all dims >= 4096, "
            f"{where}",
        }

    hbm = {
        chip: {
            "value": round(
                statistics.median(streams[system]) / records[chip]["hbm_bandwidth"]["value"], 3
            ),
            "source": f"measured: median of {len(streams[system])} bf16 matmuls with m <= 16 and "
            f">= 256 MB, {where}",
        }
        for chip, system in GEMM.items()
    }
    matmul = {chip: share(chip, "bf16", "bfloat16") for chip in GEMM}
    fp8 = {c: share(c, "fp8", "fp8") for c in GEMM if "fp8" in records[c]["peak_flops"]}
    return matmul, fp8, hbm


def add_mamf(matmul: dict[str, Entry], records: Mapping[str, Entry], data: Path) -> None:
    """Chips with only a best-shape figure (MAMF): that x the others' median over their best."""
    best = {
        row["hardware"]: float(row["tflops"]) * 1e12
        for row in read_csv(data / "measured" / "microbench.csv")
        if row["source"] == "ml-engineering-mamf" and row["dtype"] == "bf16"
    }

    def share(chip: str, name: str) -> float:
        return best[name] / records[chip]["peak_flops"]["bf16"]["value"]

    below = statistics.median(matmul[c]["value"] / share(c, n) for c, n in MAMF_OF_GEMM.items())
    for chip, name in MAMF.items():
        matmul[chip] = {
            "value": round(below * share(chip, name), 3),
            "source": f"measured: best shape {share(chip, name):.3f} of peak (MAMF, "
            f"stas00/ml-engineering@744d01e) x {below:.2f}, the median of typical over best "
            "where both are known",
        }


def add_torch(matmul: dict[str, Entry], records: Mapping[str, Entry]) -> None:
    """Median of a benchmark that users of a chip ran."""
    for chip, (issue, rates) in TORCH.items():
        peak = records[chip]["peak_flops"]["bf16"]["value"]
        matmul[chip] = {
            "value": round(statistics.median(rates) * 1e12 / peak, 3),
            "source": f"measured: median of {len(rates)} bf16 squares of 4096 and more in torch "
            f"2.7, zzc0721/torch-performance-test-data issue {issue}",
        }


def add_tpu(matmul: dict, hbm: dict, data: Path, records: Mapping[str, Entry]) -> None:
    """Ironwood is measured; for other TPUs the compiler's own estimate, and Ironwood's memory."""
    rows = [
        row
        for row in read_csv(data / "measured" / "microbench.csv")
        if row["source"] == "tpu-recipes-microbench"
    ]
    chip = records["tpu7x"]
    where = "AI-Hypercomputer/tpu-recipes@c8cfe2f microbenchmarks/ironwood"
    half = chip["peak_flops"]["bf16"]["value"] / 2
    big = [float(r["tflops"]) * 1e12 for r in rows if r["m"] and int(r["m"]) >= 4096]
    copies = [float(r["gbps"]) * 1e9 for r in rows if r["gbps"] and int(r["bytes"]) >= GIB]
    matmul["tpu7x"] = {
        "value": round(statistics.median(big) / half, 3),
        "source": f"measured: median of {len(big)} bf16 matmuls with all dims >= 4096, {where}",
    }
    hbm["tpu7x"] = {
        "value": round(statistics.median(copies) / chip["hbm_bandwidth"]["value"], 3),
        "source": f"measured: median of {len(copies)} copies of 1 GiB and more, {where}",
    }
    for name, record in records.items():
        if record["vendor"] == "google" and name != "tpu7x":
            value, source = TPU_MATMUL.get(name, ASSUMED_TPU_MATMUL)
            matmul[name] = {"value": value, "source": source}
            hbm[name] = {**hbm["tpu7x"], "source": f"assumed: as tpu7x ({hbm['tpu7x']['source']})"}


def nccl_rates(records: Mapping[str, Entry], data: Path) -> tuple[dict, dict]:
    """Large-message rate of all-gather and reduce-scatter, ramp and hop latency, per NVLink domain.

    rate: mean bus bandwidth at 512 MiB over the link rate. ramp: the size at which the all-gather
    reaches half of its largest rate, interpolated. hop: the 1 KiB all-gather over its N - 1 steps.
    """
    where = "nccl-tests, ai-dynamo/aiconfigurator@095f58a"
    rows = [
        r
        for r in read_csv(data / "measured" / "collectives.csv")
        if "aiconfigurator" in r["source"]
    ]
    network, ramps = {}, {}

    def curve(hardware: str, devices: str, kind: str) -> list[tuple[float, float, float]]:
        return sorted(
            (float(r["bytes"]), float(r["time_us"]) * 1e-6, float(r["busbw"]) * 1e9)
            for r in rows
            if (r["hardware"], r["devices"], r["collective"]) == (hardware, devices, kind)
        )

    for chip, (hardware, devices) in NCCL.items():
        gather = curve(hardware, devices, "all_gather")
        scatter = curve(hardware, devices, "reduce_scatter")
        link = records[chip]["network"]["chip_oneway"]["value"]
        network[chip] = {
            "value": round((gather[-1][2] + scatter[-1][2]) / 2 / link, 3),
            "source": f"measured: all-gather and reduce-scatter of 512 MiB over {devices} GPUs, "
            f"{where}",
        }
        ramps[chip] = {
            "ramp_bytes": {
                "value": round(half_size(gather), -5),
                "source": f"measured: all-gather over {devices} GPUs reaches half of its rate, "
                f"{where}",
            },
            "hop_seconds": {
                "value": round(gather[0][1] / (int(devices) - 1), 8),
                "source": f"measured: 1 KiB all-gather over {devices} GPUs, per step, {where}",
            },
        }
    return network, ramps


def half_size(curve: Iterable[tuple[float, float, float]]) -> float:
    """The message size at which the rate first passes half of its largest, linear in log size."""
    points = list(curve)
    half = max(rate for _, _, rate in points) / 2
    for (b0, _, r0), (b1, _, r1) in itertools.pairwise(points):
        if r0 < half <= r1:
            return b0 * (b1 / b0) ** ((half - r0) / (r1 - r0))
    raise ValueError("no ramp in the curve")


def network_rate(chip: str, record: Entry, measured: Mapping[str, Entry]) -> Entry:
    kind = record["network"]["kind"]
    if kind == "torus":
        ici = "the book's chapter 3 figure: plateau 42.2 GB/s of a v5e link"
        if chip == "v5e":
            return {"value": 0.844, "source": f"measured: {ici}, over the vendor's 50"}
        return {"value": 0.844, "source": f"assumed: as v5e ({ici}, over the vendor's 50)"}
    if kind == "switched":
        return pick(chip, measured, 0.75, "assumed")
    if kind == "full_mesh" and record["vendor"] == "amd":
        rate = "all-reduce of 256 MiB over 8 MI350X at 347 GB/s of 7 x 76.8, rccl-tests"
        return {"value": 0.645, "source": f"assumed: as MI350X ({rate})"}
    if kind == "full_mesh":
        return {"value": 0.75, "source": "assumed: no measurement; as NVLink domains"}
    return {"value": 1.0, "source": "no network"}
