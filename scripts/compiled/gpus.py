"""GPUs in docs/lab/compiled.md: published models on 1, 2 and 4 of the 8 GPUs of a node.

XLA's compiler for GPUs estimates no cycles, so memory, FLOPs and collectives stand beside what was
planned, and no seconds. Attention of training is cuDNN's, which compiles without a GPU.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from made import made, table

from compiled.plans import Serve, Train, phase_of, plan_of
from compiled.programs import compiled_case
from compiled.table import row_of
from shardwise.commands.base.inputs import Hardware
from shardwise.errors import ShardwiseError
from shardwise.plans.train import mesh_text
from shardwise.units import format_count

GPUS: Mapping[str, Train | Serve] = {
    "1B, H100": Train("llama-3.2-1b", "h100:1", {}, 8, 4096),
    "3B, FSDP, H100": Train("llama-3.2-3b", "h100:2", {"fsdp": 2}, 8, 4096),
    "8B, FSDP, H100": Train("llama-3-8b", "h100:4", {"fsdp": 4}, 16, 4096),
    "8B, FSDP + TP, H100": Train("llama-3-8b", "h100:4", {"fsdp": 2, "tensor": 2}, 8, 4096),
    "3B, B200": Train("llama-3.2-3b", "b200:1", {}, 8, 4096),
    "8B, FSDP, B200": Train("llama-3-8b", "b200:2", {"fsdp": 2}, 16, 4096),
    "13B, FSDP, B200": Train("llama-2-13b", "b200:4", {"fsdp": 4}, 16, 4096),
    "8B, decode, H100": Serve("llama-3-8b", "h100:1", {}, 64, 4096),
    "32B, decode, TP, H100": Serve("qwen3-32b", "h100:2", {"tensor": 2}, 32, 4096),
    "70B, decode, TP, H100": Serve("llama-3-70b", "h100:4", {"tensor": 4}, 32, 4096),
    "8B, decode, B200": Serve("llama-3-8b", "b200:1", {}, 128, 4096),
    "32B, decode, TP, B200": Serve("qwen3-32b", "b200:2", {"tensor": 2}, 64, 4096),
    "70B, decode, TP, B200": Serve("llama-3-70b", "b200:4", {"tensor": 4}, 128, 4096),
}
KERNELS = {"cuDNN": "__cudnn$fmha", "our Triton kernel": "paged_softmax_"}
"""Of attention, by what a program has of them."""
PACKAGES = ("jax", "jax-cuda12-plugin", "nvidia-cudnn-cu12")
HEADER = (
    *("plan", "model", "GPUs", "mesh", "peak predicted", "compiled", "error", "FLOPs predicted"),
    *("compiled", "ratio", "attention", "collectives as written", "left"),
)
SECTION = """## GPUs

Made by `python scripts/compiled_plans.py --gpus` on {date} at {commit} with {versions}: 1, 2 and 4
of the 8 GPUs of a node, at the compiler's own effort, with no GPU here. That compiler estimates no
cycles, so there are no seconds; memory and collectives as above, FLOPs of products and attention of
one device and step.

- **Peak memory** of {plans} plans: {near} predicted within 10 %.
- **FLOPs**: compiled over predicted from {low:.2f} to {high:.2f}.
- **Collectives** of the {exchanging} plans of more than one GPU: after the rewrites {equal} are as
  planned.

{table}
"""


def with_gpus(known: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The document with the rows of GPUs made anew; each is compiled once and kept in a folder."""
    rows, hardware = [], Hardware()
    for name, row in GPUS.items():
        try:
            case = compiled_case(plan_of(row, hardware), phase_of(row), hardware, root)
        except ShardwiseError as error:
            sys.exit(f"{name}: {error}")
        hlo, made_of = case.program.compiled.hlo, case.program.work.work
        planned = case.program.planned.flops
        rows.append(
            {
                **{k: v for k, v in row_of(name, row, case).items() if k != "step_seconds"},
                "effort": None,
                "flops": {"predicted": planned, "compiled": float(made_of.flops())},
                "attention": next((n for n, mark in KERNELS.items() if mark in hlo), "XLA"),
            }
        )
        print(f"{name}: peak {rows[-1]['memory']['error']:+.1%}", file=sys.stderr, flush=True)
    return {**known, "gpus": {**made(PACKAGES), "rows": rows}}


def section(found: Mapping[str, Any]) -> str:
    """The part of the page."""
    rows = found["rows"]
    ratios = [row["flops"]["compiled"] / row["flops"]["predicted"] for row in rows]
    moved = [row["collectives"] for row in rows if row["mesh"] and row["collectives"]]
    return SECTION.format(
        date=found["date"],
        commit=found["commit"],
        versions=", ".join(f"{name} {version}" for name, version in found["versions"].items()),
        plans=len(rows),
        near=sum(abs(row["memory"]["error"]) <= 0.1 for row in rows),
        low=min(ratios),
        high=max(ratios),
        exchanging=len(moved),
        equal=sum(one["equal"] for one in moved),
        table=table(HEADER, map(_cells, rows)),
    )


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    memory, flops, moved = row["memory"], row["flops"], row["collectives"]
    sizes = (f"{memory[name] / 2**30:.2f} GiB" for name in ("predicted", "compiled"))
    counts = (format_count(flops[name]) for name in ("predicted", "compiled"))
    both = ("", "")
    if row["mesh"] and moved:
        planned = sum(one["planned"] for one in moved["rows"])
        left = f"{moved['left'] / planned:.2%}" if planned else "0"
        both = (f"{moved['raw_bytes']:.0%}", left)
    return (
        *(row["name"], row["model"], row["slice"], mesh_text(row["mesh"]), *sizes),
        *(f"{memory['error']:+.1%}", *counts),
        f"{flops['compiled'] / flops['predicted']:.2f}",
        *(row["attention"], *both),
    )
