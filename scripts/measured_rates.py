#!/usr/bin/env python3
"""docs/lab/rates.md: what benchmarks measured of links and kernels, and what the catalogue makes of
it.

    python scripts/measured_rates.py [--date DAY]

The tables lie beside `fit/rates.py`.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from fit import rates
from fit.rates import Spread, Table

from shardwise.hardware import Chip, load_chip, parse_slice, place
from shardwise.roofline.collectives import collective_seconds
from shardwise.work import CollectiveKind

PAGE = Path(__file__).parents[1] / "docs" / "lab" / "rates.md"
KINDS: Mapping[str, CollectiveKind] = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
}
FAR_SIZES: Mapping[str, tuple[float, float]] = {
    "1 to 32 MiB": (2**20, 2**25),
    "32 to 512 MiB": (2**25, 2**29),
    "512 MiB and more": (2**29, float("inf")),
}
SIZES: Mapping[str, tuple[float, float]] = {
    "below 1 MiB": (0, 2**20),
    "1 to 32 MiB": (2**20, 2**25),
    "32 MiB and more": (2**25, float("inf")),
}

INTRODUCTION = """# Rates that benchmarks measured

Made by `scripts/measured_rates.py` on {date}; do not edit by hand. No training run is read for it.
What stands in a chip's file as measured comes from these tables, and so do the priors of the
constants that are fitted (docs/lab/fit.md). A range is the tenth to the ninetieth percentile.
"""
NICS = """## The data-centre network

The share of its nodes' NICs that a large collective of nccl-tests uses. NCCL gathers, scatters and
mostly reduces over one ring of all N devices, whose every link carries (N-1)/N of the array, those
between nodes included, so `busbw` over the NICs is that share; over two nodes a tree needs half.
The median of all is `efficiency.outer_network` of every chip. A cluster of one's own is told by
`--set chip.efficiency.outer_network=SHARE`, a run in a table by its column `hw`.

The share falls with the fabric and its set-up more than with the nodes: 0.95 over 2, 3 and 5 nodes
and 0.85 and 0.88 over 32 and 248, but 0.6 and 0.75 over two that were not tuned.
"""
STEPS = """## A step over the network

Seconds per step of the ring of a gather or scatter beyond those of its bytes at a share s of the
NICs, (t - V (N-1)/N / (s NICs)) / (N-1), in jobs on AWS p5 (nanotron's playbook, means of noisy
probes of 256 MiB) at EFA's share, {share:.3f}: {median:.0f} us. Runs whose source names EFA have
both (`efficiency.outer_network` and `data_centre.hop_seconds` in the column `hw`). NCCL's own model
has 14 us, which every chip has; an all-gather of 2 GiB over 256 H100 on RoCE takes 17 us at 0.85 of
the NICs (NVIDIA/nccl issue 1218).
"""
OVER = """## Over nodes, by size

Seconds of the model at the catalogue's rates over those measured, median and range. Large messages
agree within 6 %, whatever binds: over two nodes that is NVLink. Messages from 1 to 256 MiB take 0.1
to 0.3 ms more than the model has on every fabric, 1 ms on GPUDirect-TCPXO: the pipeline over nodes
fills, which is no term of the model, as few steps reduce such messages over nodes.
"""
INSIDE = """## Inside a domain

Seconds of the model at the catalogue's `network`, `ramp_bytes` and `hop_seconds` over those of
nccl-tests (data/measured/collectives.csv), median and range. `network` is fitted to gathers and
scatters of 512 MiB; all-reduces with NVLS and all-to-alls follow from the formulas. All-reduces of
less than 1 MiB take less than the model has, by a quarter over 8 GPUs and a third over 4.
"""
GEMM = """## Matmuls of GPUs

Best kernel per shape (ai-dynamo/aiconfigurator@095f58a). `large`: share of the dense peak with all
dims of 4,096 and more. `share`, `ramp` and `cast`: seconds = FLOPs / (peak x share) + ramp + cast
bytes per element of the left input, fitted to all dims from 1,024. The timings of fp8 include the
cast of the left input, which a step pays apart: `matmul_fp8` means the share without it. These are
kernels of inference engines. `best` is the best of many shapes in PyTorch (MAMF,
stas00/ml-engineering@744d01e), whose library training calls too: what is expected of fp8 there.
"""
TPU = """## TPUs as libtpu schedules them

`scripts/tpu_rates.py` on {date}, {compiler}: cycles that the compiler expects of products of
training with all dims of 4,096 and more, each alone in a program so that the scheduler has VMEM to
fetch operands ahead, over the peak; what products below take beyond that; and splash attention at
heads of 128 dims in blocks of 512, forward and backward, from the bundles of its final schedule. On
the one chip with a public benchmark, Ironwood, it has 0.81 where 0.82 was measured, 0.72 for 0.59
at 2,048 and 0.29 for 0.30 at 1,024. The median is `matmul` of the other four. In one program with
others, operands in HBM, the same products reach 0.88 on a v5e and 0.70 on a v6e: published steps
are faster than that (v5e 0.89 of the peak in all, recomputation included). The attention is a lower
bound and used nowhere: blocks of 1,024 reach 0.27 on a v6e in place of 0.24, and runs of 131,072
tokens need 0.4 of an Ironwood's peak. Heads of 64 dims take as many bundles as those of 128, half
the share, so heads are filled up to the tile (`roofline/price.py`).
"""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--date", default=date.today().isoformat())
    asked = parser.parse_args()
    PAGE.write_text(page(asked.date), encoding="utf-8")


def page(day: str) -> str:
    """The whole page."""
    collectives, gemm = rates.read_csv(rates.COLLECTIVES), rates.read_csv(rates.PRODUCTS)
    compiled = rates.read_csv(rates.COMPILED)
    told = {"date": compiled[0]["date"], "compiler": compiled[0]["compiler"]}
    parts = [
        INTRODUCTION.format(date=day),
        NICS,
        *_lines(("network", "tables", "median", "range"), _fabrics()),
        *_lines(("network", "chip", "nodes", "collective", "share", "source"), _nics()),
        STEPS.format(**_efa(collectives)),
        *_lines(("nodes", "collective", "us per step"), _steps(collectives)),
        OVER,
        *_lines(("cluster", "nodes", "collective", *FAR_SIZES), _over(collectives)),
        INSIDE,
        *_lines(("chip", "devices", "collective", *SIZES), _inside(collectives)),
        GEMM,
        *_lines(
            ("chip", "dtype", "n", "large", "range", "share", "ramp", "cast", "error", "best"),
            _gemm(gemm),
        ),
        TPU.format(**told),
        *_lines(
            ("chip", "dtype", "n", "median", "range", "ramp", "attention", "64 dims"),
            _tpus(compiled),
        ),
    ]
    return "\n".join(parts) + "\n"


def _lines(head: Sequence[str], rows: Iterator[Sequence[str]]) -> list[str]:
    table = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return [table[0], "|" + "---|" * len(head), *table[1:], ""]


def _range(spread: Spread) -> str:
    return f"{spread.low:.3g} to {spread.high:.3g}"


def _fabrics() -> Iterator[Sequence[str]]:
    for fabric, spread in rates.nic_shares().items():
        yield fabric or "all", str(spread.n), f"{spread.median:.3f}", _range(spread)


def _nics() -> Iterator[Sequence[str]]:
    for row in rates.read_csv(rates.LINKS):
        share = f"{rates.nic_share(row):.2f}" + (" (a fault)" if row["fault"] else "")
        yield row["fabric"], row["chip"], row["nodes"], row["collective"], share, row["source"]


def _probes(table: Table) -> Iterator[tuple[Mapping[str, str], float]]:
    """Gathers and scatters over four nodes and more in jobs on EFA, with seconds per step."""
    share = rates.nic_shares()["EFA"].median
    for row in table:
        far = row["nodes"] not in ("", "1", "2")
        if row["source"] == "ultrascale-playbook" and far and row["collective"] != "all_reduce":
            yield row, rates.ring_step(row, load_chip("h100"), share)


def _efa(table: Table) -> dict[str, float]:
    steps = [seconds * 1e6 for _, seconds in _probes(table)]
    return {"share": rates.nic_shares()["EFA"].median, "median": Spread.of(steps).median}


def _steps(table: Table) -> Iterator[Sequence[str]]:
    for row, seconds in _probes(table):
        yield row["nodes"], row["collective"], f"{seconds * 1e6:.0f}"


def _over(table: Table) -> Iterator[Sequence[str]]:
    tests = ("nccl-tests-output", "rccl-tests-output", "ml-engineering-all_reduce_bench")
    far = [r for r in table if r["source"] in tests and r["nodes"] not in ("", "1")]
    for (name, nodes, kind), rows in _grouped(far, "nodes").items():
        chip = load_chip(name.split(" (")[0].replace("SXM-40GB", "40GB"))
        yield name, nodes, kind, *_ratios(chip, rows, FAR_SIZES)


def _inside(table: Table) -> Iterator[Sequence[str]]:
    near = [r for r in table if r["source"] == "aiconfigurator-nccl"]
    for (name, devices, kind), rows in _grouped(near, "devices").items():
        chip = load_chip(name.split(" (")[0])
        yield chip.id, devices, kind, *_ratios(chip, rows, SIZES)


def _grouped(table: Table, by: str) -> dict[tuple[str, str, str], list[Mapping[str, str]]]:
    groups: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for row in table:
        groups.setdefault((row["hardware"], row[by], row["collective"]), []).append(row)
    return groups


def _ratios(chip: Chip, rows: Table, sizes: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    """Predicted over measured seconds by size of the message."""
    for least, most in sizes.values():
        chosen = [r for r in rows if least <= float(r["bytes"]) < most]
        ratios = [_predicted(chip, r) / (float(r["time_us"]) * 1e-6) for r in chosen]
        spread = Spread.of(ratios) if ratios else None
        yield f"{spread.median:.2f} ({_range(spread)})" if spread else ""


def _predicted(chip: Chip, row: Mapping[str, str]) -> float:
    """Seconds of a collective over all devices of some nodes, as a step is priced."""
    devices, nodes = int(row["devices"]), int(row["nodes"])
    kind, rated = KINDS[row["collective"]], chip.efficiency
    piece = parse_slice(f"{nodes}*{chip.id}:{devices // nodes}")
    axis = place(piece, {"x": devices}).axes["x"]
    derated = replace(
        axis,
        parts=tuple(replace(p, oneway=p.oneway * rated.network) for p in axis.parts),
        outer=replace(axis.outer, oneway=axis.outer.oneway * rated.outer_network),
    )
    size = float(row["bytes"]) * (devices if kind == "all_to_all" else 1)
    return float(collective_seconds(kind, size, [derated], measured=True).total)


def _gemm(table: Table) -> Iterator[Sequence[str]]:
    for system in (s for systems in rates.SYSTEMS.values() for s in systems):
        chip = load_chip(system)
        for dtype, name in (("bfloat16", "bf16"), ("fp8", "fp8")):
            if name not in chip.peak_flops:
                continue
            large = rates.large_share(table, system, dtype, chip.peak(name))
            fit = rates.product_rate(table, system, dtype, chip.peak(name), cast=name == "fp8")
            cast = f"{fit.cast_bytes:.1f} B" if fit.cast_bytes else ""
            ramp = f"{fit.ramp * 1e6:.1f} us"
            share, error = f"{fit.share:.3f}", f"{fit.error:.1%}"
            median, spread = f"{large.median:.3f}", _range(large)
            top = rates.best_shares(name).get(chip.id)
            best = f"{top:.3f}" if top else ""
            yield chip.id, name, str(fit.n), median, spread, share, ramp, cast, error, best


def _tpus(table: Table) -> Iterator[Sequence[str]]:
    for name in dict.fromkeys(r["chip"] for r in table):
        chip = load_chip(name)
        for dtype in ("bf16", "int8", "fp8"):
            spread = rates.compiled_share(table, name, dtype)
            if spread is None:
                continue
            ramp, attention = "", ["", ""]
            if dtype == "bf16":
                ramp = f"{rates.compiled_ramp(table, chip) * 1e6:.1f} us"
                heads = (rates.compiled_attention(table, name, head) for head in (128, 64))
                attention = [f"{share:.3f}" for share in heads]
            yield (
                name,
                dtype,
                str(spread.n),
                f"{spread.median:.3f}",
                _range(spread),
                ramp,
                *attention,
            )


if __name__ == "__main__":
    main()
