"""`roofline` of attention, of a collective and of a copy: seconds at peak rates, those of a good
kernel, and how good a measured time is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

from shardwise.boundary.numbers import shown
from shardwise.boundary.records import Record, hidden, part
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.tables.measured import NOTHING, reached_rows
from shardwise.errors import BadRequest, check_known
from shardwise.hardware.chip import Chip
from shardwise.hardware.misfits import place_or_refuse
from shardwise.hardware.placement import Placement, place
from shardwise.hardware.slices import Slice, slices_of
from shardwise.roofline import price_op
from shardwise.roofline.attention_kernels import FORWARD, forward_rate
from shardwise.roofline.bodies import OpTime
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.chip_roofline import CHANNELS, level_bandwidth, level_latency, level_path
from shardwise.roofline.reached import Reached, impossible, reached, rest_of, stays_in
from shardwise.roofline.rests import Rest, rests_on
from shardwise.roofline.stacks import IDEAL
from shardwise.units import dtype_bytes, format_bytes, format_flops, format_seconds, parse_bytes
from shardwise.work import CollectiveKind, Op, exchange, make_op

RATES = {"hbm": "hbm", "link": "network", "dcn": "outer_network"}
"""A level -> the share of its rate that large transfers reach."""
AXIS = "x"
"""The mesh axis of all devices of a slice."""
KINDS: Mapping[str, CollectiveKind] = {
    kind: kind for kind in get_args(CollectiveKind) if kind != "ragged_all_to_all"
}
_BOUND = {"hbm": "HBM", "network": "chip link", "outer_network": "data-centre network"}
"""What bounds an op whose rate rests on a share of a chip; math where it is another."""


@dataclass(frozen=True, kw_only=True)
class OpFigures(Record):
    """What an op does and takes."""

    flops: float
    """FLOPs, a multiply-add counting as two."""
    bytes: float
    """Bytes through HBM or from the level; of a collective the array of its group: gathered, before
    it is scattered, or summed; of an all-to-all that of all devices, of a permute that of one."""
    seconds: Bounds
    """Seconds at peak rates, of a good kernel, and of one that overlaps nothing."""
    bound_by: str
    """What takes a good kernel longest."""


@dataclass(frozen=True, kw_only=True, repr=False)
class OpRoofline(Answer, OpFigures):
    """Attention, a collective or a copy on a chip or a slice."""

    measured: Reached | None = part()
    """How good a time is that was measured (--measured)."""
    title: str = hidden()
    chip: str = hidden()
    stays: str = hidden("")
    good: Rest = hidden()

    def table(self) -> list[Row]:
        """Each figure with its note."""
        names = ("figure", "value", "note")
        return [dict(zip(names, row, strict=True)) for row in self._rows()]

    def page(self) -> Page:
        """The same, aligned."""
        yield TextTable(("", "value", "note"), self._rows(), title=self.title, left=1)

    def _rows(self) -> list[tuple[str, str, str]]:
        flops = [("FLOPs", format_flops(self.flops), "")] if self.flops else []
        seconds, rest = self.seconds, self.good
        return [
            *flops,
            ("bytes", format_bytes(self.bytes), ""),
            ("lower", format_seconds(seconds.lower), "peak rates"),
            ("expected", format_seconds(seconds.expected), rest.constant or NOTHING),
            ("upper", format_seconds(seconds.upper), "no overlap"),
            ("bound by", self.bound_by, ""),
            *(reached_rows(self.measured, self.bound_by) if self.measured else ()),
        ]

    def judged(self, seconds: float | None) -> "OpRoofline":
        """The answer with a measured time."""
        if seconds is None:
            return self
        least, bound = self.seconds.lower, self.bound_by
        found = reached(
            seconds,
            least=least,
            good=self.seconds.expected,
            rest=self.good,
            flops=self.flops,
            moved=self.bytes,
        )
        said = (
            ()
            if found.of_roofline is not None
            else (impossible(seconds, least, bound, self.stays),)
        )
        return replace(self, measured=found, warnings=(*self.warnings, *said))


def attention_roofline(text: str, chip: Chip, dtype: str, *, causal: bool) -> OpRoofline:
    """Attention forward, its scores on the chip: 4 B N H FLOPs for each pair of a query and a key;
    queries, keys, values and the result cross HBM once."""
    b, t, s, n, k, h = _sizes(text)
    if n % k:
        raise BadRequest(f"--attention {shown(text)} has {n} heads for {k} of keys; K divides N")
    if causal and t > s:
        raise BadRequest(f"--causal with {t} queries and {s} keys; the queries are the last keys")
    pairs = t * s - (t * (t - 1) / 2 if causal else 0)
    moved = 2 * b * h * (t * n + s * k) * dtype_bytes(dtype)
    flops = {dtype: 4.0 * b * n * h * pairs}
    op = make_op("attention", "core", "attention", flops=flops, hbm_bytes=moved, hbm_least=moved)
    op = replace(op, head_dims=(h, h))
    kernel, best = _best_forward(chip, dtype)
    nowhere = place(min(slices_of(chip), key=lambda piece: piece.chips), {})
    priced, rest = _priced(op, kernel, nowhere)
    masked = "causal " if causal else ""
    return _answer(
        priced,
        best if best is not None and rest.constant == "efficiency.attention" else rest,
        title=f"{masked}{dtype} attention forward of {b} x {t} queries and {s} keys, {n} heads of "
        f"{h}, {k} of keys and values, on {chip.id}",
        moved=moved,
        chip=chip,
    )


def _sizes(text: str) -> tuple[int, ...]:
    found = re.fullmatch(r"[x×]".join([r"(\d{1,12})"] * 6), text.strip().replace(" ", ""), re.ASCII)
    sizes = tuple(int(size) for size in found.groups()) if found else ()
    if not sizes or min(sizes) < 1:
        raise BadRequest(
            f"--attention {shown(text)} cannot be read; write sequences, queries, keys, heads, "
            "heads of keys and their width as BxTxSxNxKxH, such as 8x4096x4096x32x8x128"
        )
    return sizes


def _best_forward(chip: Chip, dtype: str) -> tuple[Chip, Rest | None]:
    """The whole chip at the rates of one kernel, which no long run throttles (`sustained`): of the
    best of its generation where that was measured in 16 bits and no --set says otherwise."""
    rates, best = replace(chip.efficiency, sustained=1.0), None
    own = "--set" in chip.sources.get("efficiency.attention", "")
    if dtype_bytes(dtype) == 2 and chip.constants != "book" and not own:
        best = forward_rate(chip.generation)
    if best is None:
        return replace(chip, efficiency=rates, jax_devices_per_chip=1), None
    value, source = best
    rates = replace(rates, attention=value)
    rest = Rest(constant=FORWARD, value=value, basis="measured", source=source)
    return replace(chip, efficiency=rates, jax_devices_per_chip=1), rest


def collective_roofline(text: str, piece: Slice) -> OpRoofline:
    """A collective over all devices of a slice: its least is what its bytes take at peak rates, and
    a good one pays ramp and hops."""
    name, _, size = text.partition("=")
    kind = name.strip().replace("-", "_")
    check_known("collective", kind, KINDS, "write it as KIND=BYTES, such as all-gather=512MiB")
    moved = parse_bytes(size.strip(), "--collective")
    if piece.devices < 2:
        raise BadRequest(f"--collective over '{piece}' has one device; give two, such as h100:8")
    op = exchange(kind, KINDS[kind], "collective", (AXIS,), moved)
    t, rest = _priced(op, piece.chip, place_or_refuse(piece, {AXIS: piece.devices}))
    title = f"{name.strip()} of {format_bytes(moved)} over the {piece.devices:,} devices of {piece}"
    return _answer(t, rest, title=title, moved=moved, chip=piece.chip)


def copy_roofline(text: str | float, chip: Chip, level: str) -> OpRoofline:
    """A copy: HBM reads it and writes it, over a link and from a faster memory it goes once."""
    size = parse_bytes(text, "--copy")
    moved, rate = size * (2 if level == "hbm" else 1), level_bandwidth(chip, level)
    rest, hop = rest_of(chip, RATES.get(level, "")), level_latency(chip, level)
    least, good = moved / rate, moved / (rate * rest.value) + hop
    where = "within HBM" if level == "hbm" else f"from {CHANNELS[level]}"
    path = level_path(chip, level)
    return OpRoofline(
        flops=0.0,
        bytes=moved,
        seconds=Bounds(lower=least, expected=good, upper=good),
        bound_by="latency" if hop > good / 2 else CHANNELS[level],
        title=f"copy of {format_bytes(size)} {where} on {chip.id}",
        chip=chip.id,
        stays=stays_in(chip, CHANNELS[level], moved),
        good=rest,
        provenance=_sources(chip, path, rest=rest),
    )


def _priced(op: Op, chip: Chip, placement: Placement) -> tuple[OpTime, Rest]:
    """The op alone, and the constant that it takes longest by: that which, halved, costs most."""
    t = price_op(op, chip, placement)
    rests = [r for r in rests_on(t, chip, placement, IDEAL) if r.constant != _SUSTAINED]

    def halved(rest: Rest) -> float:
        name = rest.constant.removeprefix("efficiency.")
        rates = replace(chip.efficiency, **{name: rest.value / 2})
        return float(price_op(op, replace(chip, efficiency=rates), placement).derated)

    return t, max(rests, key=halved) if len(rests) > 1 else (rests or [rest_of(chip, "")])[0]


_SUSTAINED = "efficiency.sustained"


def _answer(t: OpTime, rest: Rest, *, title: str, moved: float, chip: Chip) -> OpRoofline:
    least = max(float(seconds) for seconds in t.peak.values())
    good = float(t.derated)
    name = rest.constant.removeprefix("efficiency.")
    bound = _BOUND.get(name, "math")
    if t.op.collective is not None and good > 2 * least / (rest.value or 1.0):
        bound = "latency"
    return OpRoofline(
        flops=float(sum(t.op.flops.values())),
        bytes=moved,
        seconds=Bounds(lower=least, expected=good, upper=float(t.serial)),
        bound_by=bound,
        title=title,
        chip=chip.id,
        stays=stays_in(chip, bound, moved),
        good=rest,
        provenance=_sources(chip, *(f"peak_flops.{dtype}" for dtype in t.op.flops), rest=rest),
    )


def _sources(chip: Chip, *paths: str, rest: Rest) -> Mapping[str, object]:
    numbers = chip.numbers()
    used = {p: {"value": numbers[p], "source": chip.sources.get(p)} for p in paths if p in numbers}
    own = {rest.constant: {"value": rest.value, "source": rest.source}} if rest.constant else {}
    return {**used, **own}
