"""`shardwise roofline`: one matmul on one chip, its bytes, intensity, times and critical batch."""

import math
import re
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.output import document, emit, json_option, table
from shardwise.boundary.numbers import shown
from shardwise.errors import BadRequest
from shardwise.hardware.catalogue import load_chip
from shardwise.hardware.chip import Chip
from shardwise.roofline import ElementBytes, MatmulRoofline, matmul_roofline
from shardwise.units import (
    format_bytes,
    format_flops,
    format_rate,
    format_seconds,
    sig,
)

Dims = tuple[int, int, int]
_DIMS = re.compile(r"(\d{1,18})[x×](\d{1,18})[x×](\d{1,18})", re.ASCII)


@click.command()
@click.option("--on", "on", required=True, metavar="CHIP", help="A chip, such as v5e or h100.")
@click.option(
    "--matmul", required=True, metavar="MxKxN", help="[M, K] x [K, N], as 240x8192x32768."
)
@click.option("--dtype", default="bf16", show_default=True, help="Compute, activations and result.")
@click.option(
    "--weights", metavar="DTYPE", help="How the [K, N] operand is stored, if not --dtype."
)
@click.option(
    "--constants",
    default="vendor",
    show_default=True,
    help="Numbers of the vendor, or of the book where it gives one.",
)
@click.option(
    "--hw",
    "hw_files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML or YAML file that adds or overrides a chip; may be repeated.",
)
@click.option(
    "--set",
    "set_",
    multiple=True,
    metavar="PATH=VALUE",
    help="Override a chip's number, such as hbm_bandwidth=3e12; may be repeated.",
)
@json_option
def roofline(
    on: str,
    matmul: str,
    dtype: str,
    weights: str | None,
    constants: str,
    hw_files: tuple[Path, ...],
    set_: tuple[str, ...],
    as_json: bool,
) -> None:
    """Whether a matmul is bound by math or by memory, on one chip."""
    m, k, n = dims = _parse_dims(matmul)
    stored = weights or dtype
    elements = ElementBytes.of(left=dtype, right=stored, result=dtype)
    chip = load_chip(on, constants=constants, hw_files=hw_files, set_=set_)
    roof = matmul_roofline(m, k, n, chip=chip, dtype=dtype, elements=elements)
    result = _result(roof)
    doc = document(
        inputs={"on": on, "matmul": dims, "dtype": dtype, "weights": weights, "set": set_},
        resolved={
            "chip": {"value": chip.id, "origin": "--on"},
            "constants": {"value": chip.constants, "origin": "--constants"},
            "weights": {"value": stored, "origin": "--weights" if weights else "--dtype"},
        },
        result=result,
        warnings=_warnings(result),
        provenance=_provenance(chip, dtype),
    )
    title = f"{dtype}[{m}, {k}] x {stored}[{k}, {n}] -> {dtype}[{m}, {n}] on {chip.id}"
    emit(doc, as_json, lambda: _render(result, f"{title}, computed in {dtype}"))


def _parse_dims(text: str) -> Dims:
    match = _DIMS.fullmatch(text.strip().replace(" ", ""))
    dims = tuple(int(d) for d in match.groups()) if match else ()
    if len(dims) != 3 or min(dims) < 1:
        rule = "write three whole sizes of at least 1 as MxKxN, such as 240x8192x32768"
        raise BadRequest(f"matmul {shown(text)} cannot be read; {rule}")
    return dims


def _provenance(chip: Chip, dtype: str) -> dict[str, Any]:
    """Every number of the chip that was used, with its source."""
    numbers = chip.numbers()
    paths = (f"peak_flops.{dtype}", "hbm_bandwidth", "efficiency.matmul", "efficiency.hbm")
    used = [path for path in paths if path in numbers]
    return {p: {"value": numbers[p], "source": chip.sources.get(p)} for p in used}


def _result(roof: MatmulRoofline) -> dict[str, Any]:
    return {
        "flops": roof.flops,
        "padded_flops": roof.padded_flops,
        "bytes": {"read": roof.bytes.read, "written": roof.bytes.written},
        "intensity": roof.intensity,
        "critical_intensity": roof.critical_intensity,
        "attainable_flops": roof.attainable_flops,
        "math_seconds": roof.at_peak.math_seconds,
        "comms_seconds": roof.at_peak.comms_seconds,
        "sum_at_peak_seconds": roof.at_peak.upper,
        "seconds": {"lower": roof.lower, "expected": roof.expected, "upper": roof.upper},
        "bound_by": roof.at_peak.bound,
        "critical_batch": {
            "exact": _finite(roof.critical_batch),
            "approximation": roof.critical_batch_approx,
            "first": _finite(roof.first_batch_at_peak),
        },
    }


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _warnings(result: dict[str, Any]) -> tuple[str, ...]:
    if result["critical_batch"]["first"] is not None:
        return ()
    return ("no batch reaches the peak: K and N are too small for the critical intensity",)


def _render(result: dict[str, Any], title: str) -> None:
    seconds, batch, moved = result["seconds"], result["critical_batch"], result["bytes"]
    first = "none" if batch["first"] is None else f"{batch['first']:,.0f}"
    derated = "derated rates, dims padded to the tile"
    rows = [
        ("FLOPs", format_flops(result["flops"]), ""),
        ("bytes read", format_bytes(moved["read"]), ""),
        ("bytes written", format_bytes(moved["written"]), ""),
        ("intensity", f"{sig(result['intensity'])} FLOP/B", ""),
        ("critical intensity", f"{sig(result['critical_intensity'])} FLOP/B", "peak / HBM rate"),
        ("attainable", format_rate(result["attainable_flops"], "FLOP/s"), "peak rates"),
        ("T_math", format_seconds(result["math_seconds"]), "peak rates"),
        ("T_comms", format_seconds(result["comms_seconds"]), "peak rates"),
        ("T_math + T_comms", format_seconds(result["sum_at_peak_seconds"]), "peak rates"),
        ("lower", format_seconds(seconds["lower"]), "full overlap, peak rates"),
        ("expected", format_seconds(seconds["expected"]), f"full overlap, {derated}"),
        ("upper", format_seconds(seconds["upper"]), f"no overlap, {derated}"),
        ("bound by", result["bound_by"], "peak rates"),
        ("critical batch", first, "smallest M that reaches the peak"),
        ("rule of thumb", sig(batch["approximation"]), "for M much smaller than K and N"),
    ]
    table(("", "value", "note"), rows, title=title, left=1)
