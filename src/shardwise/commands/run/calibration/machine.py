"""This machine as a hardware file: microbenchmarks of its devices, fitted to a chip's constants.

Every constant is measured with all devices at work, so that cores and memory that they share are
shared in it. A chip is one device; on virtual CPU devices, each its part of the machine.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from statistics import geometric_mean
from typing import Any

import numpy as np
from scipy.optimize import nnls

from shardwise.boundary.records import Record, part
from shardwise.errors import BadRequest
from shardwise.hardware.network import FullMesh
from shardwise.hardware.placement import place
from shardwise.hardware.record import chip_of
from shardwise.hardware.slices import Slice
from shardwise.profiler.child import Watch, run_here
from shardwise.profiler.micro.job import COLLECTIVES
from shardwise.roofline.collectives import collective_seconds
from shardwise.work import CollectiveKind

JOB = "shardwise.profiler.micro.job:machine_job"
KERNEL = "shardwise.runtime.attention.causal:causal_attention"
SECONDS = 900.0
"""Default time limit of a measurement."""
LARGE = 2**25
"""Bytes from which an array is taken to lie in main memory, beyond the caches of most CPUs."""
UNKNOWN_USE = 0.8
"""Share of the host's memory that a program can use: assumed, the rest is the system's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOp(Record):
    """One op that was timed on all devices at once; figures are per device."""

    what: str
    """The kind of op: matmul, memory, elementwise, attention, overhead or a collective."""
    dtype: str | None = part()
    """The dtype that it computes in."""
    size: Sequence[int | str]
    """Its sizes, or its name."""
    flops: float | None = part()
    """FLOPs."""
    bytes: float | None = part()
    """Bytes of memory traffic; of a collective V."""
    seconds: float
    """Seconds."""

    @property
    def amount(self) -> float:
        """Its FLOPs, else its bytes; 0 of an op whose start alone is timed."""
        return self.flops or self.bytes or 0.0

    @property
    def rate(self) -> float:
        """That over its seconds."""
        return self.amount / self.seconds

    @property
    def name(self) -> str:
        """The op in words."""
        size = "x".join(map(str, self.size))
        return " ".join(word for word in (self.what, self.dtype, size) if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTimes:
    """What `profiler.micro.job.machine_job` says of a machine."""

    rows: tuple[TimedOp, ...]
    kind: str
    platform: str
    devices: int
    memory_bytes: float
    cores: int
    versions: Mapping[str, str]
    reference_seconds: float = 0.0

    @classmethod
    def read(cls, rows: Sequence[Mapping[str, object]], **said: Any) -> "MachineTimes":
        """Read the values that the child sends."""
        return cls(rows=tuple(TimedOp(**row) for row in rows), **said)  # type: ignore[arg-type]

    @property
    def title(self) -> str:
        """The machine in words."""
        return f"{self.devices} x {self.kind} on {self.cores} cores, calibrated"

    @property
    def provenance(self) -> str:
        """When it was measured, and with what."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"shardwise calibrate on {date.today().isoformat()}: {self.title}; {versions}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRates:
    """What the devices of a machine do; rates are per device.

    `peaks` and `kept` by dtype: the rate of the best matmul, and the share of it that all sizes
    reach once `ramp` seconds of a kernel are taken off. `bandwidth` is that of one read and one
    write of a large array, `fused` the share of it that elementwise programs reach. `oneway` and
    `hop` price every collective as a full mesh of devices; None on one device. `errors` are medians
    of |fitted / measured - 1| by what was fitted.
    """

    peaks: Mapping[str, float]
    kept: Mapping[str, float]
    ramp: float
    attention: float
    bandwidth: float
    fused: float
    oneway: float | None
    hop: float
    overhead: float
    errors: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A measured machine: its rates, the times that they were fitted on, and the file's text."""

    name: str
    rates: MachineRates
    times: MachineTimes
    text: str


def calibrate_machine(
    name: str,
    *,
    cpu_devices: int | None = None,
    program_seconds: float = 0.1,
    seconds: float = SECONDS,
    watch: Watch | None = None,
) -> Calibration:
    """Measure the devices here, or `cpu_devices` virtual ones, and write them as chip `name`.

    Programs are made as long as `program_seconds`: on a machine with other work, long enough to
    share it as the programs do that are to be predicted.

    Raises BadRequest for a name that no slice could be spelt with, MissingPart without JAX.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise BadRequest(f"--name '{name}' is not a chip name; use small letters, digits, - and _")
    times = run_here(
        JOB,
        {"devices": cpu_devices, "attention": KERNEL, "program_seconds": program_seconds},
        cpu_devices=cpu_devices,
        seconds=seconds,
        watch=watch,
        what="calibrating",
    )
    return calibration(name, MachineTimes.read(**times))


def calibration(name: str, times: MachineTimes) -> Calibration:
    """The constants that fit what was timed, and the hardware file of them."""
    rates = fit(times.rows, times.devices)
    text = hardware_text(name, rates, times)
    return Calibration(name=name, rates=rates, times=times, text=text)


# ---- fitting -----------------------------------------------------------------------------------


def fit(rows: Sequence[TimedOp], devices: int) -> MachineRates:
    """The constants that price the rows best, in relative errors."""
    peaks: dict[str, float] = {}
    kept: dict[str, float] = {}
    ramps: list[float] = []
    errors: dict[str, float] = {}
    for dtype in dict.fromkeys(r.dtype or "" for r in _of("matmul", rows)):
        of = [r for r in _of("matmul", rows) if r.dtype == dtype]
        # seconds = ramp + flops / rate
        (ramp, inverse), error = _relative([[1.0, r.amount] for r in of], of)
        ramps.append(ramp)
        peaks[dtype] = max(1.0 / inverse, *(r.rate for r in of))
        kept[dtype] = min(1.0 / (inverse * peaks[dtype]), 1.0)
        errors[f"matmul {dtype}"] = error
    bandwidth = max(r.rate for r in _of("memory", rows) if int(r.size[0]) >= LARGE)
    fused = geometric_mean(r.rate for r in _of("elementwise", rows)) / bandwidth
    attention = geometric_mean(r.rate / peaks[r.dtype or ""] for r in _of("attention", rows))
    oneway, hop, error = fit_network(rows, devices)
    if oneway is not None:
        errors |= {"collectives": error}
    return MachineRates(
        peaks=peaks,
        kept=kept,
        ramp=ramps[0],
        attention=min(attention, 1.0),
        bandwidth=bandwidth,
        fused=min(fused, 1.0),
        oneway=oneway,
        hop=hop,
        overhead=geometric_mean(r.seconds for r in _of("overhead", rows)),
        errors=errors,
    )


def _of(what: str, rows: Sequence[TimedOp]) -> list[TimedOp]:
    return [row for row in rows if row.what == what]


def fit_network(rows: Sequence[TimedOp], devices: int) -> tuple[float | None, float, float]:
    """(bytes/s of a pair's link, seconds of a hop, median error) of a full mesh that price every
    collective best; None on one device. Its price is linear in both: A / oneway + B hop."""
    of: list[tuple[CollectiveKind, TimedOp]] = [
        (kind, row) for row in rows for kind in COLLECTIVES if row.what == kind
    ]
    if not of:
        return None, 0.0, 0.0
    links = _full_mesh(devices)
    terms = []
    for kind, row in of:
        found = collective_seconds(kind, row.amount, [links], measured=True)
        terms.append([float(found.bandwidth), float(found.latency)])
    (inverse, hop), error = _relative(terms, [row for _, row in of])
    if not inverse:
        raise BadRequest("collectives take the same time at every size here; calibrate when idle")
    return 1.0 / inverse, hop, error


SATURATED = 0.9
"""Share of the best rate from which a collective's size counts as large enough (book ch. 3.2: the
plot of measured gathers flattens there)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation(Record):
    """Where a collective is as fast as it gets."""

    bytes: float
    """The least V in bytes from which every measured size is nearly as fast."""
    bytes_per_second: float
    """Its best rate, in V per second."""


def saturation(rows: Sequence[TimedOp]) -> dict[str, Saturation]:
    """The best rate of each measured collective in V per second, and the least V from which
    every measured size reaches `SATURATED` of that rate."""
    found = {}
    for kind in COLLECTIVES:
        of = sorted(_of(kind, rows), key=lambda r: r.amount)
        if not of:
            continue
        rates = [r.rate for r in of]
        short = [i for i, rate in enumerate(rates) if rate < SATURATED * max(rates)]
        least = of[min(max(short, default=-1) + 1, len(of) - 1)]
        found[kind] = Saturation(bytes=float(least.amount), bytes_per_second=max(rates))
    return found


def _relative(terms: list[list[float]], rows: Sequence[TimedOp]) -> tuple[np.ndarray, float]:
    """Non-negative factors of the terms for which their sum is nearest each row's seconds, and the
    median relative error."""
    seconds = np.array([r.seconds for r in rows])
    a = np.array(terms) / seconds[:, None]
    scale = a.max(axis=0)
    found = nnls(a / scale, np.ones(len(rows)))[0] / scale
    return found, float(np.median(np.abs(a @ found - 1.0)))


def _full_mesh(devices: int) -> Any:
    """Links of one axis over all devices at 1 byte/s and 1 s a hop."""
    record = {
        "id": "unit",
        "name": "unit",
        "cores": 1,
        "matmul_tile": [1, 1, 1],
        "jax_devices_per_chip": 1,
        "chips_per_host": devices,
        "peak_flops": {"f32": 1.0},
        "efficiency": {"matmul": 1.0, "hbm": 1.0, "network": 1.0},
        "network": {
            "kind": "full_mesh",
            "domain": devices,
            "pair_oneway": 1.0,
            "hop_seconds": 1.0,
        },
    }
    chip = chip_of(record, "vendor")
    chip = replace(chip, network=FullMesh(domain=devices, pair_oneway=1.0, hop_seconds=1.0))
    return place(Slice(chip=chip, count=1, shape=(devices,)), {"x": devices}).axes["x"]


# ---- the file ----------------------------------------------------------------------------------


def hardware_text(name: str, rates: MachineRates, times: MachineTimes) -> str:
    """The hardware file (--hw): a source for every number, and every measured row as a comment."""
    first = next(iter(rates.peaks))
    memory = float(times.memory_bytes)
    host = times.platform == "cpu"
    usable = memory * UNKNOWN_USE if host else memory
    remark = f"; assumed: {UNKNOWN_USE:g} of the host's memory" if host else ""
    lines = [
        "# Made by `shardwise calibrate`; run it again on the machine that it describes.",
        f"id = {json.dumps(name)}",
        f"name = {json.dumps(times.title)}",
        f"core_kind = {json.dumps(f'{times.kind} device')}",
        'notes = ["One chip is one JAX device, with all of them at work."]',
        _entry("hbm_bytes", memory, "measured"),
        _entry("hbm_usable_bytes", usable, f"measured{remark}"),
        _entry("hbm_bandwidth", rates.bandwidth, "measured; one read and one write of an array"),
        _entry("cores", 1, "by definition: a device"),
        _entry("matmul_tile", [1, 1, 1], "by definition: padding is in the measured rates"),
        _entry("jax_devices_per_chip", 1, "by definition: a device"),
        _entry("chips_per_host", times.devices, "measured"),
        "",
        "[peak_flops]",
        *(_entry(d, rate, "measured; best matmul") for d, rate in rates.peaks.items()),
        "",
        "[efficiency]",
        _entry("matmul", rates.kept[first], "measured; fitted on all sizes"),
        *(_entry(f"matmul_{d}", r, "measured") for d, r in rates.kept.items() if d != first),
        _entry("matmul_ramp", rates.ramp, "measured; fitted on all sizes"),
        _entry("attention", rates.attention, "measured; causal, forward and backward"),
        _entry("hbm", rates.fused, "measured; elementwise programs over hbm_bandwidth"),
        _entry("network", 1.0, "by definition: links are fitted at what collectives reach"),
        _entry("sustained", 1.0, "by definition: rates are those of long runs"),
        _entry("clock", 1.0, "by definition: rates are measured at it"),
        "",
        *_network_lines(rates, times),
        "",
        "[sources]",
        f"measured = {json.dumps(times.provenance)}",
        "",
        *(f"# {_row_text(r)}" for r in times.rows),
    ]
    return "\n".join(lines) + "\n"


def _network_lines(rates: MachineRates, times: MachineTimes) -> list[str]:
    if rates.oneway is None:
        return ["[network]", 'kind = "alone"']
    return [
        "[network]",
        'kind = "full_mesh"',
        _entry("domain", times.devices, "by definition: all devices here"),
        _entry("pair_oneway", rates.oneway, "measured; fitted on all collectives"),
        _entry("hop_seconds", rates.hop, "measured; fitted on all collectives"),
    ]


def _entry(name: str, value: Any, source: str) -> str:
    number = value if isinstance(value, int | list) else float(f"{value:.4g}")
    return f"{name} = {{ value = {number!r}, source = {json.dumps(source)} }}"


def _row_text(row: TimedOp) -> str:
    per = "flops" if row.flops else "bytes"
    rate = f", {row.rate:.4g} {per}/s" if row.amount else ""
    return f"{row.name}: {row.seconds:.4g} s{rate}"


@dataclass(frozen=True, kw_only=True)
class MeasuredMachine(Record):
    """The rates of a device of this machine, all of them at work."""

    chip: str
    """The name that the chip has in the hardware file."""
    slice: str
    """All devices, as a slice of it."""
    kind: str
    """What JAX calls a device."""
    devices: int
    """Devices."""
    peak_flops: Mapping[str, float]
    """FLOPs per second of the best matmul, by dtype."""
    matmul: Mapping[str, float]
    """Share of that which matmuls of all sizes reach, by dtype."""
    matmul_ramp_seconds: float
    """Seconds that a matmul takes in addition to its FLOPs."""
    attention: float
    """Share of the peak that attention reaches."""
    hbm_bandwidth: float
    """Bytes per second of one read and one write of a large array."""
    hbm: float
    """Share of that which elementwise programs reach."""
    pair_oneway: float | None
    """Bytes per second one way between two devices; null of one device."""
    hop_seconds: float
    """Seconds of a hop between devices."""
    op_overhead_seconds: float
    """Seconds that an op takes in addition to its work."""
    saturation: Mapping[str, Saturation]
    """Of each collective the size from which it is as fast as it gets."""
    median_errors: Mapping[str, float]
    """Medians of |fitted / measured - 1|, by what was fitted."""
    rows: Sequence[TimedOp]
    """Measurements."""
    file: str | None = part()
    """The hardware file that was written (-o)."""


def measured_machine(c: Calibration) -> MeasuredMachine:
    """The rates, their errors and the measured rows."""
    return MeasuredMachine(
        chip=c.name,
        slice=f"{c.name}:{c.times.devices}",
        kind=c.times.kind,
        devices=c.times.devices,
        peak_flops=c.rates.peaks,
        matmul=c.rates.kept,
        matmul_ramp_seconds=c.rates.ramp,
        attention=c.rates.attention,
        hbm_bandwidth=c.rates.bandwidth,
        hbm=c.rates.fused,
        pair_oneway=c.rates.oneway,
        hop_seconds=c.rates.hop,
        op_overhead_seconds=c.rates.overhead,
        saturation=saturation(c.times.rows),
        median_errors=c.rates.errors,
        rows=c.times.rows,
    )
