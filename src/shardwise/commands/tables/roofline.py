"""`roofline`: one matmul on one chip, its bytes, intensity, times and critical batch."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from shardwise.boundary import Command, flag_of
from shardwise.boundary.numbers import shown
from shardwise.boundary.options import option, required, switch
from shardwise.boundary.records import Record, hidden, part, plain
from shardwise.commands.base.answer import Answer, Page, Resolved, Row, TextTable
from shardwise.commands.base.inputs import ChipWords, whole_number
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.tables.measured import reached_rows
from shardwise.commands.tables.roofline_ops import (
    RATES,
    OpRoofline,
    attention_roofline,
    collective_roofline,
    copy_roofline,
)
from shardwise.errors import BadRequest, Remark
from shardwise.hardware.chip import Chip
from shardwise.roofline import ElementBytes, MatmulRoofline
from shardwise.roofline import matmul_roofline as roofline_of
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.chip_roofline import CHANNELS, level_bandwidth, level_named, level_path
from shardwise.roofline.reached import Reached, impossible, reached, rest_of, stays_in
from shardwise.roofline.rests import matmul_constant
from shardwise.units import (
    format_bytes,
    format_flops,
    format_rate,
    format_seconds,
    parse_seconds,
    sig,
)

Dims = tuple[int, int, int]
_OPS = ("matmul", "attention", "collective", "copy")
_TAKEN_BY: Mapping[str, tuple[object, tuple[str, ...]]] = {
    "causal": (False, ("attention",)),
    "dtype": ("bf16", ("matmul", "attention")),
    "weights": (None, ("matmul",)),
    "level": ("hbm", ("matmul", "copy")),
    "batch": (None, ("matmul",)),
}
"""An option -> its default, and the ops that take it."""
_DIMS = re.compile(r"(\d{1,18})[x×](\d{1,18})[x×](\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineRequest(ChipWords, Command):
    """Whether math or memory bounds a matmul on one chip, and how good a measured time is.

    `matmul` may be three numbers, and `batch` a list: a row for each, and "FIRST:LAST:POINTS" at
    equal ratios. `level` "pcie" reads from the host, "ici" (or "nvlink") from the next chip, "dcn"
    from another slice. `attention`, `collective` or `copy` replace the matmul.
    """

    COMMAND: ClassVar[str] = "roofline"

    on: str = field(
        metadata=required("A chip, such as v5e or h100; a slice with --collective.", metavar="CHIP")
    )
    matmul: str | Dims | None = option(
        "[M, K] x [K, N], as 240x8192x32768.",
        metavar="MxKxN",
        group="What is planned",
        meaning="the matrix product, as MxKxN",
    )
    attention: str | None = option(
        "Attention forward of B sequences, T queries, S keys, N heads, K of keys, width H.",
        metavar="BxTxSxNxKxH",
        group="What is planned",
    )
    causal: bool = switch("With --attention: no query sees later keys.", group="What is planned")
    collective: str | None = option(
        "A collective over all devices of a slice (--on), as all-gather=512MiB.",
        metavar="KIND=BYTES",
        group="What is planned",
    )
    copy: float | str | None = option(
        "A copy within HBM, or from --level.", metavar="BYTES", group="What is planned"
    )
    dtype: str = option(
        "Dtype of compute, activations and result.", default="bf16", show_default=True
    )
    weights: str | None = option(
        "Dtype of the stored [K, N] operand. Default: --dtype.", metavar="DTYPE"
    )
    level: str = option(
        "Memory or link that the operands come from.",
        default="hbm",
        show_default=True,
        metavar="hbm|vmem|l2|pcie|ici|dcn",
        group="What is planned",
        meaning="the memory or link that operands come from",
    )
    batch: str | Sequence[int] | int | None = option(
        "Tokens M, in place of M in --matmul.", metavar="M,..|FIRST:LAST:POINTS"
    )
    measured: float | str | None = option(
        "Measured time, such as 1.4ms: shows its share of the roofline.",
        metavar="TIME",
        group="Targets",
    )

    def dims(self) -> Dims:
        """M, K and N."""
        given = self.matmul
        if given is None:
            raise BadRequest("give --matmul MxKxN, such as 240x8192x32768")
        return _parse_dims(given if isinstance(given, str) else "x".join(map(str, given)))

    def answer(self, progress: Progress | None = None) -> "MatmulAnswer | OpRoofline":
        """Its roofline."""
        self._check()
        return self._product() if self.matmul is not None else self._op()

    def _check(self) -> None:
        """One op, and of the options those that it takes. Raises BadRequest."""
        asked = [name for name in _OPS if getattr(self, name) is not None]
        if len(asked) != 1:
            said = " and ".join(flag_of(self, name) for name in asked) or "none of them"
            ops = ", ".join(flag_of(self, name) for name in _OPS)
            raise BadRequest(f"roofline takes one of {ops}; {said} given")
        for name, (usual, ops) in _TAKEN_BY.items():
            if getattr(self, name) != usual and asked[0] not in ops:
                of = " and ".join(flag_of(self, op) for op in ops)
                raise BadRequest(
                    f"{flag_of(self, name)} has no effect with {flag_of(self, asked[0])}; it "
                    f"belongs to {of}: leave it out"
                )

    def _op(self) -> OpRoofline:
        seconds = None if self.measured is None else parse_seconds(self.measured, "--measured")
        if self.collective is not None:
            found = collective_roofline(self.collective, self.hardware.slice(self.on).slice)
            return replace(found.judged(seconds), resolved=self._resolved(found.chip))
        chip = self.hardware.chip(self.on)
        if self.attention is not None:
            found = attention_roofline(self.attention, chip, self.dtype, causal=self.causal)
        else:
            assert self.copy is not None, "_check counts"
            found = copy_roofline(self.copy, chip, level_named(self.level))
        return replace(found.judged(seconds), resolved=self._resolved(chip.id))

    def _resolved(self, chip: str) -> dict[str, Resolved]:
        return {
            "chip": Resolved(value=chip, origin="--on"),
            "constants": Resolved(value=self.constants, origin="--constants"),
        }

    def _product(self) -> "MatmulAnswer":
        m, k, n = self.dims()
        stored, dtype = self.weights or self.dtype, self.dtype
        elements = ElementBytes.of(left=dtype, right=stored, result=dtype)
        chip, level = self.hardware.chip(self.on), level_named(self.level)

        def at(m: int) -> MatmulRoofline:
            return roofline_of(m, k, n, chip=chip, dtype=dtype, elements=elements, level=level)

        sizes = None if self.batch is None else batches(self.batch)
        roof = at(m)
        found, measured = _figures(roof), self._reached(roof, chip, level)
        rows = "M" if self.batch is not None else m
        title = f"{dtype}[{rows}, {k}] x {stored}[{k}, {n}] -> {dtype}[{rows}, {n}] on {chip.id}"
        come = "" if level == "hbm" else f", operands from {CHANNELS[level]}"
        return MatmulAnswer.of(
            found,
            level=level,
            bandwidth=level_bandwidth(chip, level),
            rows=sizes and [RooflineRow.of(_figures(at(one)), m=one) for one in sizes],
            measured=measured,
            title=f"{title}, computed in {dtype}{come}",
            peak_flops=chip.peak(dtype),
            resolved={
                **self._resolved(chip.id),
                "weights": Resolved(
                    value=stored, origin="--weights" if self.weights else "--dtype"
                ),
                "level": Resolved(value=level, origin="--level"),
            },
            warnings=(*_warnings(found), *_too_fast(found, measured, chip)),
            provenance=_provenance(chip, dtype, level, measured),
        )

    def _reached(self, roof: MatmulRoofline, chip: Chip, level: str) -> Reached | None:
        if self.measured is None:
            return None
        if self.batch is not None:
            raise BadRequest("--measured is the time of one product; leave out --batch")
        name, ramp = RATES.get(level, ""), chip.efficiency.matmul_ramp
        if roof.derated.math_seconds + ramp >= roof.derated.comms_seconds:
            by_flops = roof.derated.math_seconds >= ramp
            name = matmul_constant(chip, self.dtype) if by_flops else "matmul_ramp"
        return reached(
            parse_seconds(self.measured, "--measured"),
            least=float(roof.lower),
            good=float(roof.good(ramp)),
            rest=rest_of(chip, name),
            flops=float(roof.flops),
            moved=float(roof.bytes.total),
        )


@dataclass(frozen=True, kw_only=True)
class BytesMoved(Record):
    """Bytes that a matmul reads and writes, each operand once."""

    read: float
    """Bytes read."""
    written: float
    """Bytes written."""


@dataclass(frozen=True, kw_only=True)
class CriticalBatch(Record):
    """The sizes M at which math takes as long as moving bytes."""

    exact: float | None
    """M at which both take as long; null where none does."""
    approximation: float
    """The rule of thumb, for M much smaller than K and N."""
    first: float | None
    """The smallest whole M that reaches the peak; null where none does."""


@dataclass(frozen=True, kw_only=True)
class RooflineFigures(Record):
    """The figures of a matmul on a chip."""

    flops: int
    """FLOPs, a multiply-add counting as two."""
    padded_flops: float
    """FLOPs with dims padded to the chip's tile."""
    bytes: BytesMoved
    """Bytes that it moves."""
    intensity: float
    """FLOPs per byte moved."""
    critical_intensity: float
    """Peak FLOP/s over bytes per second."""
    attainable_flops: float
    """FLOP/s at its intensity, at peak rates."""
    math_seconds: float
    """Seconds of math at the peak rate."""
    comms_seconds: float
    """Seconds of moving bytes at the peak rate."""
    latency_seconds: float
    """Seconds of one hop; 0 for memories."""
    sum_at_peak_seconds: float
    """Seconds of all three, one after another."""
    seconds: Bounds
    """Seconds with three bounds."""
    bound_by: str
    """What takes longest at peak rates: math, what bytes move over, or latency."""
    critical_batch: CriticalBatch
    """The sizes M from which math takes longest."""


@dataclass(frozen=True, kw_only=True)
class RooflineRow(RooflineFigures):
    """The figures at one of several sizes M."""

    m: int
    """The size M."""


@dataclass(frozen=True, kw_only=True, repr=False)
class MatmulAnswer(Answer, RooflineFigures):
    """One matmul on one chip."""

    level: str
    """Memory or link that the operands come from."""
    bandwidth: float
    """Bytes per second from there."""
    rows: Sequence[RooflineRow] | None = part()
    """Each size M (--batch)."""
    measured: Reached | None = part()
    """How good a time is that was measured (--measured)."""

    title: str = hidden()
    peak_flops: float = hidden()

    def table(self) -> list[Row]:
        """Each figure with its note; of several M a row each."""
        if self.rows is not None:
            return [_flat(row) for row in self.rows]
        names = ("figure", "value", "note")
        return [dict(zip(names, row, strict=True)) for row in _roofline_table(self).rows]

    def page(self) -> Page:
        """The same, aligned."""
        if self.rows is None:
            yield _roofline_table(self)
            return
        yield _batch_table(self.rows, self.title)
        first = self.critical_batch.first
        said = "no M" if first is None else f"M = {first:,.0f}"
        about, critical = sig(self.critical_batch.approximation), sig(self.critical_intensity)
        yield f"  critical intensity {critical} FLOP/B: {said} (rule of thumb {about})"


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


def _flat(row: RooflineRow) -> Row:
    """A row of a sweep in one line of cells."""
    return {
        "m": row.m,
        "intensity": row.intensity,
        "attainable_flops": row.attainable_flops,
        "math_seconds": row.math_seconds,
        "comms_seconds": row.comms_seconds,
        **plain(row.seconds),
        "bound_by": row.bound_by,
    }


def _batch_table(rows: Sequence[RooflineRow], title: str) -> TextTable:
    header = ("M", "intensity", "attainable", "T_math", "T_comms", "expected", "bound by")
    cells = [
        [
            f"{row.m:,}",
            f"{sig(row.intensity)} FLOP/B",
            format_rate(row.attainable_flops, "FLOP/s"),
            format_seconds(row.math_seconds),
            format_seconds(row.comms_seconds),
            format_seconds(row.seconds.expected),
            row.bound_by,
        ]
        for row in rows
    ]
    return TextTable(header, cells, title=title, left=0)


def _provenance(chip: Chip, dtype: str, level: str, measured: Reached | None) -> dict[str, object]:
    numbers = chip.numbers()
    paths = (f"peak_flops.{dtype}", level_path(chip, level), "efficiency.matmul")
    paths += ("efficiency.hbm",) if level == "hbm" else ()
    paths += (measured.good_constant, "efficiency.matmul_ramp") if measured else ()
    used = [path for path in paths if path in numbers]
    return {p: {"value": numbers[p], "source": chip.sources.get(p)} for p in used}


def _figures(roof: MatmulRoofline) -> RooflineFigures:
    """The figures of one M as plain numbers."""
    times = roof.at_peak
    return RooflineFigures(
        flops=int(roof.flops),
        padded_flops=float(roof.padded_flops),
        bytes=BytesMoved(read=float(roof.bytes.read), written=float(roof.bytes.written)),
        intensity=float(roof.intensity),
        critical_intensity=roof.critical_intensity,
        attainable_flops=float(roof.attainable_flops),
        math_seconds=float(times.math_seconds),
        comms_seconds=float(times.comms_seconds),
        latency_seconds=float(times.latency_seconds),
        sum_at_peak_seconds=float(times.upper),
        seconds=Bounds(
            lower=float(roof.lower), expected=float(roof.expected), upper=float(roof.upper)
        ),
        bound_by=times.bound,
        critical_batch=CriticalBatch(
            exact=_finite(roof.critical_batch),
            approximation=float(roof.critical_batch_approx),
            first=_finite(roof.first_batch_at_peak),
        ),
    )


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _warnings(found: RooflineFigures) -> tuple[str, ...]:
    if found.critical_batch.first is not None:
        return ()
    return (Remark("no batch reaches the peak: K and N are too small for the critical intensity"),)


def _too_fast(found: RooflineFigures, measured: Reached | None, chip: Chip) -> tuple[str, ...]:
    """A warning of a time that cannot be."""
    if measured is None or measured.of_roofline is not None:
        return ()
    stays = stays_in(chip, found.bound_by, found.bytes.read + found.bytes.written)
    return (impossible(measured.seconds, found.seconds.lower, found.bound_by, stays),)


def _latency_row(found: MatmulAnswer) -> list[tuple[str, str, str]]:
    """One hop, and the bytes from which it is no longer what takes longest; nothing of memories."""
    hop = found.latency_seconds
    if not hop:
        return []
    size = format_bytes(hop * found.bandwidth)
    return [("latency", format_seconds(hop), f"one hop; below {size} it binds")]


def _roofline_table(found: MatmulAnswer) -> TextTable:
    seconds, batch = found.seconds, found.critical_batch
    first = "none" if batch.first is None else f"{batch.first:,.0f}"
    derated = "derated rates, dims padded to the tile"
    rows = [
        ("FLOPs", format_flops(found.flops), ""),
        ("bytes read", format_bytes(found.bytes.read), ""),
        ("bytes written", format_bytes(found.bytes.written), ""),
        ("intensity", f"{sig(found.intensity)} FLOP/B", ""),
        (
            "critical intensity",
            f"{sig(found.critical_intensity)} FLOP/B",
            f"peak / {CHANNELS[found.level]} rate",
        ),
        ("attainable", format_rate(found.attainable_flops, "FLOP/s"), "peak rates"),
        ("T_math", format_seconds(found.math_seconds), "peak rates"),
        ("T_comms", format_seconds(found.comms_seconds), "peak rates"),
        *_latency_row(found),
        ("T_math + T_comms", format_seconds(found.sum_at_peak_seconds), "peak rates"),
        ("lower", format_seconds(seconds.lower), "full overlap, peak rates"),
        ("expected", format_seconds(seconds.expected), f"full overlap, {derated}"),
        ("upper", format_seconds(seconds.upper), f"no overlap, {derated}"),
        ("bound by", found.bound_by, "peak rates"),
        ("critical batch", first, "smallest M that reaches the peak"),
        ("rule of thumb", sig(batch.approximation), "for M much smaller than K and N"),
        *(reached_rows(found.measured, found.bound_by) if found.measured else ()),
    ]
    return TextTable(("", "value", "note"), rows, title=found.title, left=1)
