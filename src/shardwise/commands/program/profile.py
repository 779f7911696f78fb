"""`profile`: run a plan or a function here, or read a capture, and say what took long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from shardwise.boundary import Command, number
from shardwise.boundary.options import described, option, place
from shardwise.boundary.records import hidden, plain
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.inputs import Hardware, Words, pairs, whole_number, words
from shardwise.commands.base.layout import percent
from shardwise.commands.base.request import verb
from shardwise.commands.pricing.plans import given_plan
from shardwise.commands.program.explaining import short_place
from shardwise.commands.program.profiling import (
    Profiled,
    profile_function,
    profile_plan,
    profile_result,
    profile_trace,
    trace_result,
)
from shardwise.commands.program.programs import (
    FUNCTION_ARGS,
    MORE_CHIPS,
    PHASES,
    PLAN_SETS,
    PROGRAM_TIMEOUT,
    check_plans,
    is_function,
    mesh_of,
)
from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.results.profiled import CapturedModule, PlaceTimes, ProfiledProgram
from shardwise.roofline.reached import impossible
from shardwise.units import format_rate, format_seconds

SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest(Command):
    """Time steps of a plan or of a function on the devices here, op by op.

    `what` is a plan, its file or "audit:NAME"; or the name "MODULE:FUNCTION" with `args` and a
    `mesh`. With `capture` nothing runs; `on` prices the ops of `hlo` on a slice, and the default
    `mesh` comes from its collectives.
    """

    COMMAND: ClassVar[str] = "profile"

    what: Any = field(
        default=None, kw_only=False, metadata=place("[PLAN|MODULE:FUNCTION]", required=False)
    )
    steps: int | str = option("Steps to time.", default=10, show_default=True, kind="whole")
    cpu_devices: int | str | None = option(
        "Run on N virtual CPU devices.", kind="whole", metavar="N"
    )
    phase: str | None = option("Step of a plan to time.", values=PHASES)
    args: str | None = field(default=None, metadata=described(FUNCTION_ARGS))
    mesh: str | Mapping[str, int] | None = option(
        "Mesh of a function. Default: x, all devices.", metavar="X=4,Y=2"
    )
    on: str | None = option(
        "Slice to price compiled ops on (with --capture: needs --hlo).", metavar="SLICE"
    )
    capture: str | Path | None = option(
        "Read a capture that was made elsewhere.", kind="path", metavar="FILE"
    )
    hlo: str | Path | None = option(
        "Compiled text of the captured program.",
        kind="path",
        metavar="FILE",
        group="Beside the answer",
    )
    sets: Words = option(PLAN_SETS)
    hw_files: Words = option(MORE_CHIPS)
    timeout: float | str = option(PROGRAM_TIMEOUT)
    out: str | Path | None = option(
        "Keep capture, tables and compiled text here.", kind="folder", metavar="DIR"
    )

    def answer(self, watch: Any = None) -> "Profile | CaptureRead":
        """Run, or read; `watch` hears what the child is at, and for how long."""
        if self.capture is not None:
            return self._captured(Path(self.capture))
        if self.what is None:
            raise BadRequest(
                "name a plan or MODULE:FUNCTION to run, or a capture with --capture FILE"
            )
        if self.hlo is not None:
            raise BadRequest("--hlo is the program of a capture; give --capture too")
        found = self._run(watch)
        return _profile(found)

    def _captured(self, trace: Path) -> "Profile | CaptureRead":
        others = ("cpu_devices", "phase", "args", "sets", "out")
        others += () if self.hlo else ("mesh", "on", "hw_files")
        clash = [f"--{name.replace('_', '-')}" for name in others if getattr(self, name)]
        clash = [str(self.what), *clash] if self.what is not None else clash
        if clash:
            of = " (--on and --mesh need its program: add --hlo FILE)" if not self.hlo else ""
            said = f"leave out {', '.join(clash)}{of}"
            raise BadRequest(f"--capture reads a file and runs nothing; {said}")
        piece = Hardware(files=self.hw_files).slice(self.on).slice if self.on else None
        hlo = None if self.hlo is None else Path(self.hlo)
        captured, found = profile_trace(trace, hlo, piece, mesh_of(self.mesh))
        if found is None:
            return CaptureRead.of(trace_result(captured))
        return _profile(found)

    def _run(self, watch: Any) -> Profiled:
        hardware, devices = Hardware(files=self.hw_files), self.cpu_devices
        if devices is not None:
            devices = whole_number(devices, "--cpu-devices", least=1, most=4096)
        run: dict[str, Any] = {
            "steps": whole_number(self.steps, "--steps", least=1, most=100_000),
            "cpu_devices": devices,
            "seconds": number(self.timeout, "--timeout", above=0, most=1e7, suffix=True),
            "keep": None if self.out is None else Path(self.out),
            "watch": watch,
        }
        if not is_function(self.what):
            check_plans(self, ("args", "mesh", "on"))
            changes = pairs(self.sets, "--set", "NAME=VALUE", "remat=block")
            plan = given_plan(self.what, changes, hardware=hardware)
            return profile_plan(plan, hardware, phase=self.phase, **run)
        if not self.args:
            need = (
                "give --args MODULE:NAME, a function that returns them, such as jax.numpy.ones(64)"
            )
            raise BadRequest(f"function '{self.what}' lacks --args; {need}")
        if words(self.sets) or self.phase:
            raise BadRequest("--set and --phase are for plans; a function takes neither")
        piece = hardware.slice(self.on).slice if self.on else None
        return profile_function(self.what, self.args, self._degrees(devices, piece), piece, **run)

    def _degrees(self, devices: int | str | None, piece: Slice | None) -> dict[str, int]:
        return mesh_of(self.mesh) or {"x": int(devices or (piece.devices if piece else 1))}


@dataclass(frozen=True, kw_only=True, repr=False)
class Profile(ProfiledProgram, Answer):
    """A program with the seconds of its ops."""

    profiled: Profiled = hidden()

    def table(self) -> list[Row]:
        """Seconds by op class."""
        return [plain(row) for row in self.by_class]

    def page(self) -> Page:
        """Seconds by op class, source line and scope."""
        yield self._headline()
        step = self.step_seconds
        if step.of_roofline is not None and step.compiled is not None:
            least = format_seconds(step.compiled.lower)
            yield f"{percent(step.of_roofline)} of the roofline ({least} at peak rates)"
        if len(self.mesh) > 1 or self.devices > 1:
            yield f"mesh {' x '.join(f'{axis}={n}' for axis, n in self.mesh.items())}"
        yield from _times_table("op class", self.by_class, [r.predicted for r in self.by_class])
        yield from _times_table("source line", self.by_line)
        yield from _times_table("scope", self.by_scope)
        if self.by_op:
            yield from _times_table("op", self.by_op)
        if self.arguments:
            yield ""
            yield TextTable(
                ["argument", "layout", "whole dims"],
                [
                    [short_place(a.name), f"{a.layout} {a.dtype}", "x".join(map(str, a.dims))]
                    for a in self.arguments[:SHOWN]
                ],
                left=3,
            )
        if self.unmatched:
            names = ", ".join(one.name for one in self.unmatched[:5])
            yield f"\n{format_seconds(self.unmatched_seconds)} matched no op: {names}"

    def _headline(self) -> str:
        step = self.step_seconds
        times = [f"{format_seconds(step.measured)} per step measured"]
        sides = (("compiled", step.compiled), ("predicted", step.predicted))
        times += [f"{format_seconds(of.expected)} {side}" for side, of in sides if of]
        return f"{self.phase} on {self.devices} of '{self.kind}': {', '.join(times)}"


@dataclass(frozen=True, kw_only=True, repr=False)
class CaptureRead(CapturedModule, Answer):
    """A capture whose program is not known."""

    def table(self) -> list[Row]:
        """Seconds by op class."""
        return [plain(row) for row in self.by_class]

    def page(self) -> Page:
        """Seconds by kind, source line and op."""
        seconds = format_seconds(self.step_seconds.traced)
        yield (
            f"{self.module}: {self.runs:g} runs on {self.devices} devices, {seconds} each (median)"
        )
        groups = (("kind", self.by_class), ("source line", self.by_line), ("op", self.by_op))
        for title, group in groups:
            yield ""
            rows = [[short_place(row.where), format_seconds(row.measured)] for row in group[:SHOWN]]
            yield TextTable([title, "per run"], rows)


def _profile(found: Profiled) -> Profile:
    result, at, notes = profile_result(found), found.priced, list(found.notes)
    if at is not None and 0 < found.step_seconds < at.lower:
        notes.append(impossible(found.step_seconds, at.lower, "its busiest resource"))
    return Profile.of(result, profiled=found, warnings=notes)


profile = verb("profile", ProfileRequest)


def _times_table(
    title: str, found: Sequence[PlaceTimes], predicted: Sequence[float | None] = ()
) -> Page:
    """The places of most seconds, as measured, compiled and predicted where any of them is."""
    columns = {"compiled": [row.compiled for row in found], "predicted": predicted}
    shown = {side: of for side, of in columns.items() if any(n is not None for n in of)}
    total = sum(row.measured for row in found) or 1.0
    sides = zip(*shown.values(), strict=True) if shown else ((),) * len(found)
    judged = any(row.of_roofline is not None for row in found)
    rows = [
        [
            short_place(row.where),
            format_seconds(row.measured),
            f"{100 * row.measured / total:.1f} %",
            *(format_seconds(n) for n in others),
            *[percent(row.of_roofline) if row.of_roofline else ""] * judged,
            _rate(row),
        ]
        for row, others in [*zip(found, sides, strict=True)][:SHOWN]
        if row.measured or any(others)
    ]
    yield ""
    yield TextTable([title, "measured", "of ops", *shown, *["of roofline"] * judged, "rate"], rows)


def _rate(row: PlaceTimes) -> str:
    counted = row.flops and row.measured
    return format_rate(row.flops / row.measured, "FLOP/s") if counted else ""
