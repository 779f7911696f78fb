"""`calibrate`: measure what runs here or elsewhere, and write it as a hardware file."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

from shardwise.boundary import Command, flag_of, number
from shardwise.boundary.options import described, option, place
from shardwise.boundary.records import hidden, plain
from shardwise.boundary.remote import server_at
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.inputs import ChipWords, whole_number
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.run.asking import KEY, KEY_IN_CLEAR
from shardwise.commands.run.calibration.endpoint import load, measure
from shardwise.commands.run.calibration.machine import (
    MeasuredMachine,
    calibrate_machine,
    measured_machine,
)
from shardwise.commands.run.calibration.replay import Machine, ServedRequest, read_records
from shardwise.commands.run.calibration.server import (
    CalibratedServer,
    calibrate_records,
    calibrated_server,
    engine_text,
    hardware_text,
    machine_of_plan,
)
from shardwise.errors import BadRequest
from shardwise.units import format_bytes, format_rate, format_seconds, sig

MACHINE = ("cpu_devices", "name", "timeout")
"""Keywords of a calibration of the devices here; the others are of a server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateRequest(ChipWords, Command):
    """Measure the devices here, or a server that runs a plan.

    Without `plan`: matmuls, memory, attention and collectives of this machine. With the file of a
    serving plan: constants of the chip and the engine, fitted on a short load on a live server or
    on records of one. `texts` of the answer are the files that the command writes.
    """

    COMMAND: ClassVar[str] = "calibrate"

    plan: str | Path | None = field(
        default=None, kw_only=False, metadata=place(kind="file", required=False)
    )
    cpu_devices: int | str | None = option(
        "Here: measure N virtual CPU devices.", kind="whole", metavar="N"
    )
    name: str = option(
        "Here: name of the chip in the file.",
        default="here",
        show_default=True,
        group="The machine",
        meaning="the name of the chip in the file that is written",
    )
    timeout: float | str = option(
        "Here: of the whole.  [900]", default=900.0, kind="number", metavar="SECONDS"
    )
    endpoint: str | None = option(
        "An OpenAI-compatible server that runs the plan.",
        metavar="URL",
        group="The load",
        meaning="the URL of an OpenAI-compatible server",
    )
    api_key: str | None = field(default=None, repr=False, metadata=described(KEY))
    key_in_clear: bool = option(KEY_IN_CLEAR)
    records_path: str | Path | None = option(
        "Records of its requests instead.",
        metavar="FILE",
        group="The load",
        meaning="a file of requests that were measured",
    )
    served_model: str | None = option(
        "Name of the model on the server. Default: as in the plan.",
        metavar="NAME",
        group="The load",
        meaning="the model's name on a server",
    )
    requests: int | str = option("Requests to send.", default=64, show_default=True, kind="whole")
    rate: float | str = option(
        "Requests per second.", default=4.0, show_default=True, kind="number"
    )
    kv_tokens: int | str = option(
        "Tokens that its cache holds. Default: by our count.",
        default=0,
        kind="whole",
        group="The load",
    )
    engine: str = option(
        "Engine constants to start from. Default: those of the plan.",
        default="",
        metavar="NAME",
        group="Files",
        meaning="the constants of a server to start from",
    )

    def answer(
        self, progress: Progress | None = None, watch: Any = None
    ) -> "MachineAnswer | ServerAnswer":
        """Measure and fit; `watch` hears what a child that measures here is at."""
        given = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        for name in given:
            if self.plan is None and name not in MACHINE:
                raise BadRequest(f"{flag_of(self, name)} is for servers; name their PLAN")
            if self.plan is not None and name in MACHINE:
                raise BadRequest(
                    f"{flag_of(self, name)} is for the devices of this machine; leave PLAN out"
                )
        return self._machine(watch) if self.plan is None else self._server(progress)

    def _machine(self, watch: Any) -> "MachineAnswer":
        devices = self.cpu_devices
        if devices is not None:
            devices = whole_number(devices, "--cpu-devices", least=1, most=4096)
        seconds = number(self.timeout, "--timeout", above=0, most=1e7, suffix=True)
        found = calibrate_machine(self.name, cpu_devices=devices, seconds=seconds, watch=watch)
        return MachineAnswer.of(measured_machine(found), texts=[found.text])

    def _server(self, progress: Progress | None) -> "ServerAnswer":
        if bool(self.endpoint) == bool(self.records_path):
            raise BadRequest("give either --endpoint URL or --records FILE")
        tokens = whole_number(self.kv_tokens, "--kv-tokens", most=10**12)
        machine = machine_of_plan(
            Path(str(self.plan)), self.hardware, kv_tokens=tokens, engine=self.engine
        )
        records = self._records(machine, progress)
        hear = (lambda n: progress(n, 0)) if progress else None
        found = calibrate_records(records, machine, hear)
        where = self.endpoint or self.records_path
        source = f"calibrated on {found.records} requests of {where} on {date.today().isoformat()}"
        texts = [hardware_text(found, source), engine_text(found.after.engine, source)]
        return ServerAnswer.of(calibrated_server(found), texts=texts)

    def _records(self, machine: Machine, progress: Progress | None) -> list[ServedRequest]:
        if self.records_path:
            return read_records(Path(self.records_path))
        plan = machine.plan
        many = whole_number(self.requests, "--requests", least=1, most=100_000)
        rate = number(self.rate, "--rate", above=0, most=1e6, suffix=True)
        asks = load(many, rate, plan.input_length, plan.output_length)
        name = self.served_model or plan.model
        vocabulary = machine.cfg.vocabulary
        server = server_at(str(self.endpoint), api_key=self.api_key, in_clear=self.key_in_clear)
        return measure(server, name, vocabulary, asks, progress=progress)


@dataclass(frozen=True, kw_only=True, repr=False)
class MachineAnswer(Answer, MeasuredMachine):
    """Rates measured on this machine; `texts` has its hardware file."""

    texts: Sequence[str] = hidden()

    def table(self) -> list[Row]:
        """One row."""
        return [self.result]

    def page(self) -> Page:
        """The figures."""
        return _machine_page(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class ServerAnswer(Answer, CalibratedServer):
    """Constants fitted on requests of a server; `texts` has a hardware file and an engine
    file."""

    texts: Sequence[str] = hidden()

    def table(self) -> list[Row]:
        """One row per constant."""
        return [{"value": name, **plain(both)} for name, both in self.values.items()]

    def page(self) -> Page:
        """The constants, and how well they predict the load."""
        return _server_page(self)


calibrate = verb("calibrate", CalibrateRequest)


def _machine_page(r: MeasuredMachine) -> Page:
    yield f"{r.devices} x '{r.kind}', measured with all at work"
    yield ""
    rows = [
        [f"matmul {dtype}, best", format_rate(rate, "FLOP/s")]
        for dtype, rate in r.peak_flops.items()
    ]
    rows += [[f"matmul {d}, of all sizes", f"{100 * s:.0f} %"] for d, s in r.matmul.items()]
    rows += [
        ["a matmul's ramp", format_seconds(r.matmul_ramp_seconds)],
        ["attention", f"{100 * r.attention:.0f} %"],
        ["memory", format_rate(r.hbm_bandwidth, "B/s")],
        ["elementwise work", f"{100 * r.hbm:.0f} %"],
        ["an op's overhead", format_seconds(r.op_overhead_seconds)],
    ]
    if r.pair_oneway:
        rows.append(["link of a pair", format_rate(r.pair_oneway, "B/s")])
        rows.append(["hop", format_seconds(r.hop_seconds)])
    for kind, at in r.saturation.items():
        size, rate = format_bytes(at.bytes), format_rate(at.bytes_per_second, "B/s")
        rows.append([f"{kind} saturates", f"from V = {size} on, at {rate}"])
    yield TextTable(["measured", "per device"], rows)


def _server_page(found: CalibratedServer) -> Page:
    yield (f"{found.chip} with {found.engine}, calibrated on {found.records} requests\n")
    values = found.values
    yield TextTable(
        ["value", "before", "after"],
        [[name, sig(v.before), sig(v.after)] for name, v in values.items()],
    )
    yield ""
    errors, measured = found.errors, plain(found.measured)
    yield TextTable(
        ["of the load", "measured", "predicted before", "after"],
        [
            [
                name,
                format_seconds(measured[name]),
                f"{errors.before[name]:+.1%}",
                f"{errors.after[name]:+.1%}",
            ]
            for name in measured
        ],
    )
