"""`roofline`: one matmul on one chip, its bytes, intensity, times and critical batch."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.boundary.numbers import shown
from shardwise.errors import BadRequest, Remark
from shardwise.hardware.chip import Chip
from shardwise.roofline import ElementBytes, MatmulRoofline
from shardwise.roofline import matmul_roofline as roofline_of
from shardwise.units import format_bytes, format_flops, format_rate, format_seconds, sig
from shardwise.verbs.answer import Answer, Page, Row, TextTable
from shardwise.verbs.request import Progress, verb
from shardwise.workflows.inputs import ChipWords

Dims = tuple[int, int, int]
_DIMS = re.compile(r"(\d{1,18})[x×](\d{1,18})[x×](\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineRequest(ChipWords):
    """Whether a matmul is bound by math or by memory, on one chip.

    `on` is the chip, `matmul` the sizes M, K and N of [M, K] x [K, N] ("240x8192x32768" or three
    numbers), `dtype` that of compute, activations and result, `weights` how the [K, N] operand is
    stored, if not so.
    """

    on: str
    matmul: str | Dims
    dtype: str = "bf16"
    weights: str | None = None

    def dims(self) -> Dims:
        """M, K and N."""
        given = self.matmul
        return _parse_dims(given if isinstance(given, str) else "x".join(map(str, given)))

    def answer(self, progress: Progress | None = None) -> "MatmulAnswer":
        """Its roofline."""
        m, k, n = self.dims()
        stored, dtype = self.weights or self.dtype, self.dtype
        elements = ElementBytes.of(left=dtype, right=stored, result=dtype)
        chip = self.hardware.chip(self.on)
        result = _result(roofline_of(m, k, n, chip=chip, dtype=dtype, elements=elements))
        title = f"{dtype}[{m}, {k}] x {stored}[{k}, {n}] -> {dtype}[{m}, {n}] on {chip.id}"
        return MatmulAnswer(
            title=f"{title}, computed in {dtype}",
            result=result,
            resolved={
                "chip": {"value": chip.id, "origin": "--on"},
                "constants": {"value": chip.constants, "origin": "--constants"},
                "weights": {"value": stored, "origin": "--weights" if self.weights else "--dtype"},
            },
            warnings=_warnings(result),
            provenance=_provenance(chip, dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MatmulAnswer(Answer):
    """One matmul on one chip."""

    title: str

    def table(self) -> list[Row]:
        """Each figure with its note."""
        names = ("figure", "value", "note")
        found = _roofline_table(self.result, self.title)
        return [dict(zip(names, row, strict=True)) for row in found.rows]

    def page(self) -> Page:
        """The same, aligned."""
        yield _roofline_table(self.result, self.title)


matmul_roofline = verb("matmul_roofline", RooflineRequest)


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


def _warnings(result: Mapping[str, Any]) -> tuple[str, ...]:
    if result["critical_batch"]["first"] is not None:
        return ()
    return (Remark("no batch reaches the peak: K and N are too small for the critical intensity"),)


def _roofline_table(result: Mapping[str, Any], title: str) -> TextTable:
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
    return TextTable(("", "value", "note"), rows, title=title, left=1)
