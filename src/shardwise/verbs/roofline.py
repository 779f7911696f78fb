"""`roofline`: one matmul on one chip, its bytes, intensity, times and critical batch."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.boundary.numbers import shown
from shardwise.errors import BadRequest, Remark
from shardwise.hardware.chip import Chip
from shardwise.roofline import ElementBytes, MatmulRoofline
from shardwise.roofline import matmul_roofline as roofline_of
from shardwise.roofline.chip_roofline import (
    CHANNELS,
    level_bandwidth,
    level_named,
    level_path,
)
from shardwise.units import format_bytes, format_flops, format_rate, format_seconds, sig
from shardwise.verbs.answer import LooseAnswer, Page, Row, TextTable
from shardwise.verbs.request import Progress, verb
from shardwise.workflows.inputs import ChipWords, whole_number

Dims = tuple[int, int, int]
_DIMS = re.compile(r"(\d{1,18})[x×](\d{1,18})[x×](\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineRequest(ChipWords):
    """Whether a matmul is bound by math or by memory, on one chip.

    `on` is the chip, `matmul` the sizes M, K and N of [M, K] x [K, N] ("240x8192x32768" or three
    numbers), `dtype` that of compute, activations and result, `weights` how the [K, N] operand is
    stored, if not so. The operands come from `level`: "hbm", "vmem" (or "smem"), "l2", "pcie" from
    the host, "ici" (or "nvlink") from the next chip, "dcn" from another slice. `batch` are sizes M
    in place of that of `matmul`, a row each: "1,64,240" or "FIRST:LAST:POINTS" at equal ratios.
    """

    on: str
    matmul: str | Dims
    dtype: str = "bf16"
    weights: str | None = None
    level: str = "hbm"
    batch: str | Sequence[int] | int | None = None

    def dims(self) -> Dims:
        """M, K and N."""
        given = self.matmul
        return _parse_dims(given if isinstance(given, str) else "x".join(map(str, given)))

    def answer(self, progress: Progress | None = None) -> "MatmulAnswer":
        """Its roofline."""
        m, k, n = self.dims()
        stored, dtype = self.weights or self.dtype, self.dtype
        elements = ElementBytes.of(left=dtype, right=stored, result=dtype)
        chip, level = self.hardware.chip(self.on), level_named(self.level)

        def at(m: int) -> dict[str, Any]:
            return _result(
                roofline_of(m, k, n, chip=chip, dtype=dtype, elements=elements, level=level)
            )

        result = {**at(m), "level": level, "bandwidth": level_bandwidth(chip, level)}
        if self.batch is not None:
            result["rows"] = [{"m": m, **at(m)} for m in batches(self.batch)]
        rows = "M" if self.batch is not None else m
        title = f"{dtype}[{rows}, {k}] x {stored}[{k}, {n}] -> {dtype}[{rows}, {n}] on {chip.id}"
        come = "" if level == "hbm" else f", operands from {CHANNELS[level]}"
        return MatmulAnswer(
            title=f"{title}, computed in {dtype}{come}",
            peak_flops=chip.peak(dtype),
            result=result,
            resolved={
                "chip": {"value": chip.id, "origin": "--on"},
                "constants": {"value": chip.constants, "origin": "--constants"},
                "weights": {"value": stored, "origin": "--weights" if self.weights else "--dtype"},
                "level": {"value": level, "origin": "--level"},
            },
            warnings=_warnings(result),
            provenance=_provenance(chip, dtype, level),
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class MatmulAnswer(LooseAnswer):
    """One matmul on one chip."""

    title: str
    peak_flops: float

    def table(self) -> list[Row]:
        """Each figure with its note; of several M a row each."""
        if "rows" in self.result:
            return [_flat(row) for row in self.result["rows"]]
        names = ("figure", "value", "note")
        found = _roofline_table(self.result, self.title)
        return [dict(zip(names, row, strict=True)) for row in found.rows]

    def page(self) -> Page:
        """The same, aligned."""
        if "rows" not in self.result:
            yield _roofline_table(self.result, self.title)
            return
        yield _batch_table(self.result["rows"], self.title)
        first, about = (self.result["critical_batch"][n] for n in ("first", "approximation"))
        said = "no M" if first is None else f"M = {first:,.0f}"
        critical = sig(self.result["critical_intensity"])
        yield f"  critical intensity {critical} FLOP/B: {said} (rule of thumb {sig(about)})"


matmul_roofline = verb("matmul_roofline", RooflineRequest)


def _parse_dims(text: str) -> Dims:
    match = _DIMS.fullmatch(text.strip().replace(" ", ""))
    dims = tuple(int(d) for d in match.groups()) if match else ()
    if len(dims) != 3 or min(dims) < 1:
        rule = "write three whole sizes of at least 1 as MxKxN, such as 240x8192x32768"
        raise BadRequest(f"matmul {shown(text)} cannot be read; {rule}")
    return dims


def batches(given: str | Sequence[int] | int) -> list[int]:
    """Sizes M: "1,64,240", "FIRST:LAST:POINTS" at equal ratios, or numbers."""
    if isinstance(given, int):
        return [whole_number(given, "--batch", least=1)]
    if not isinstance(given, str):
        return [whole_number(one, "--batch", least=1) for one in given]
    if ":" not in given:
        return [whole_number(word, "--batch", least=1) for word in given.split(",")]
    words = given.split(":")
    if len(words) != 3:
        rule = "it is FIRST:LAST:POINTS, such as 1:4096:13, or sizes with commas"
        raise BadRequest(f"--batch is {shown(given)}; {rule}")
    first, last = (whole_number(word, "--batch", least=1) for word in words[:2])
    points = whole_number(words[2], "--batch", least=2, most=1000)
    if last <= first:
        raise BadRequest(f"--batch is {shown(given)}; LAST must be above FIRST")
    ratio = (last / first) ** (1 / (points - 1))
    return list(dict.fromkeys(round(first * ratio**i) for i in range(points)))


def _flat(row: Mapping[str, Any]) -> Row:
    """A row of a sweep in one line of cells."""
    return {
        "m": row["m"],
        "intensity": row["intensity"],
        "attainable_flops": row["attainable_flops"],
        "math_seconds": row["math_seconds"],
        "comms_seconds": row["comms_seconds"],
        **row["seconds"],
        "bound_by": row["bound_by"],
    }


def _batch_table(rows: Sequence[Row], title: str) -> TextTable:
    header = ("M", "intensity", "attainable", "T_math", "T_comms", "expected", "bound by")
    cells = [
        [
            f"{row['m']:,}",
            f"{sig(row['intensity'])} FLOP/B",
            format_rate(row["attainable_flops"], "FLOP/s"),
            format_seconds(row["math_seconds"]),
            format_seconds(row["comms_seconds"]),
            format_seconds(row["seconds"]["expected"]),
            row["bound_by"],
        ]
        for row in rows
    ]
    return TextTable(header, cells, title=title, left=0)


def _provenance(chip: Chip, dtype: str, level: str) -> dict[str, Any]:
    """Every number of the chip that was used, with its source."""
    numbers = chip.numbers()
    paths = (f"peak_flops.{dtype}", level_path(chip, level), "efficiency.matmul")
    paths += ("efficiency.hbm",) if level == "hbm" else ()
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
        "latency_seconds": roof.at_peak.latency_seconds,
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


def _latency_row(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """One hop, and the bytes from which it is no longer what takes longest; nothing of memories."""
    hop = result["latency_seconds"]
    if not hop:
        return []
    size = format_bytes(hop * result["bandwidth"])
    return [("latency", format_seconds(hop), f"one hop; below {size} it binds")]


def _roofline_table(result: Mapping[str, Any], title: str) -> TextTable:
    seconds, batch, moved = result["seconds"], result["critical_batch"], result["bytes"]
    first = "none" if batch["first"] is None else f"{batch['first']:,.0f}"
    derated = "derated rates, dims padded to the tile"
    rows = [
        ("FLOPs", format_flops(result["flops"]), ""),
        ("bytes read", format_bytes(moved["read"]), ""),
        ("bytes written", format_bytes(moved["written"]), ""),
        ("intensity", f"{sig(result['intensity'])} FLOP/B", ""),
        (
            "critical intensity",
            f"{sig(result['critical_intensity'])} FLOP/B",
            f"peak / {CHANNELS[result['level']]} rate",
        ),
        ("attainable", format_rate(result["attainable_flops"], "FLOP/s"), "peak rates"),
        ("T_math", format_seconds(result["math_seconds"]), "peak rates"),
        ("T_comms", format_seconds(result["comms_seconds"]), "peak rates"),
        *_latency_row(result),
        ("T_math + T_comms", format_seconds(result["sum_at_peak_seconds"]), "peak rates"),
        ("lower", format_seconds(seconds["lower"]), "full overlap, peak rates"),
        ("expected", format_seconds(seconds["expected"]), f"full overlap, {derated}"),
        ("upper", format_seconds(seconds["upper"]), f"no overlap, {derated}"),
        ("bound by", result["bound_by"], "peak rates"),
        ("critical batch", first, "smallest M that reaches the peak"),
        ("rule of thumb", sig(batch["approximation"]), "for M much smaller than K and N"),
    ]
    return TextTable(("", "value", "note"), rows, title=title, left=1)
