"""From a plan and a live server (or its records) to a hardware file and an engine file."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.boundary.records import Record, part
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import load_plan
from shardwise.commands.run.calibration.replay import (
    KNOBS,
    Machine,
    RequestLatencies,
    ServedRequest,
    calibrate,
    latencies,
    replay,
    values_of,
)
from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.plans import ServePlan
from shardwise.roofline.engines import ENGINE_CONSTANTS, EngineConstants, load_engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCalibration:
    """What `calibrate_plan` found: the machine before and after, and what both say of the load."""

    before: Machine
    after: Machine
    measured: RequestLatencies
    predicted: tuple[RequestLatencies, RequestLatencies]
    records: int


def machine_of_plan(
    path: Path, hardware: Hardware | None = None, *, kv_tokens: int = 0, engine: str = ""
) -> Machine:
    """The server that a plan file describes. `engine` replaces the plan's; `kv_tokens` is the size
    of the cache where the server's log states it."""
    plan = load_plan(path, hardware=hardware)
    if not isinstance(plan, ServePlan):
        raise BadRequest(f"'{path}' is a training plan; calibrate takes a serving plan")
    hardware = (hardware or Hardware()).of_plan(plan)
    return Machine(
        plan=plan,
        cfg=load_model(plan.model),
        piece=hardware.slice(plan.slice).slice,
        engine=load_engine(engine or plan.engine),
        batch=plan.batch,
        budget=plan.prefill_chunk,
        page_size=plan.scheduling.page_size,
        kv_tokens=kv_tokens,
    )


def calibrate_records(
    records: Sequence[ServedRequest],
    machine: Machine,
    progress: Callable[[int], None] | None = None,
) -> ServerCalibration:
    """Calibrate a machine on records, and say how well both states of it predict them."""
    after = calibrate(records, machine, progress)
    return ServerCalibration(
        before=machine,
        after=after,
        measured=latencies(records),
        predicted=(latencies(replay(records, machine)), latencies(replay(records, after))),
        records=len(records),
    )


@dataclass(frozen=True, kw_only=True)
class CalibratedValue(Record):
    """A constant of a chip or an engine."""

    before: float
    """Before the calibration."""
    after: float
    """As fitted."""


@dataclass(frozen=True, kw_only=True)
class LatencyErrors(Record):
    """Errors of what is predicted of the load, by latency: predicted / measured - 1."""

    before: Mapping[str, float]
    """With the constants before."""
    after: Mapping[str, float]
    """With the fitted constants."""


@dataclass(frozen=True, kw_only=True)
class CalibratedServer(Record):
    """A server's own constants."""

    chip: str
    """Its chip."""
    engine: str
    """The engine whose constants were fitted."""
    records: int
    """Requests that they were fitted on."""
    values: Mapping[str, CalibratedValue]
    """Each constant."""
    measured: RequestLatencies
    """Measured latencies of the load."""
    errors: LatencyErrors
    """How far predictions of it are off."""
    files: Sequence[str] | None = part()
    """Files that were written: the chip's, and its engine's (-o)."""


def calibrated_server(found: ServerCalibration) -> CalibratedServer:
    """What was fitted, and how well it predicts the load."""
    before, after = values_of(found.before), values_of(found.after)
    old, new = (latencies.errors(found.measured) for latencies in found.predicted)
    return CalibratedServer(
        chip=found.after.chip.id,
        engine=found.after.engine.name,
        records=found.records,
        values={n: CalibratedValue(before=before[n], after=after[n]) for n in KNOBS},
        measured=found.measured,
        errors=LatencyErrors(before=old, after=new),
    )


def hardware_text(found: ServerCalibration, source: str) -> str:
    """A hardware file (--hw) of the calibrated chip; every number says where it is from."""
    chip, values = found.after.chip, values_of(found.after)
    lines = [
        f'id = "{chip.id}"',
        f'base = "{chip.id}"',
        "",
        "[efficiency]",
        *(_entry(name, values[name], source) for name in ("hbm", "sustained", "network")),
    ]
    return "\n".join(lines) + "\n"


def engine_text(engine: EngineConstants, source: str) -> str:
    """An engine file (--engine) of the calibrated engine."""
    moved = {name for name in KNOBS if name in ENGINE_CONSTANTS}
    lines = [f"[{json.dumps(Path(engine.name).stem)}]"]
    for name in ENGINE_CONSTANTS:
        said = source if name in moved else engine.sources[name]
        lines.append(_entry(name, float(getattr(engine, name)), said))
    return "\n".join(lines) + "\n"


def _entry(name: str, value: float, source: str) -> str:
    return f"{name} = {{ value = {float(f'{value:.4g}')!r}, source = {json.dumps(source)} }}"
