"""`profile`: run a plan or a function here, or read a capture, and say what took long."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.boundary import number
from shardwise.commands.base.answer import LooseAnswer, Page, Row, TextTable
from shardwise.commands.base.inputs import Hardware, Words, pairs, whole_number, words
from shardwise.commands.base.request import verb
from shardwise.commands.pricing.plans import given_plan
from shardwise.commands.program.profiling import (
    Profiled,
    profile_function,
    profile_plan,
    profile_result,
    profile_trace,
    trace_result,
)
from shardwise.commands.program.programs import check_plans, is_function, mesh_of
from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.units import format_rate, format_seconds

SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """Time steps of a plan or of a function on the devices here, op by op.

    `what` is a plan, its file or "audit:NAME", of which `phase` picks a program; or the name
    "MODULE:FUNCTION" with `args`, the name of what makes its arguments, on a `mesh` ("X=4,Y=2");
    `on` is a slice on which its compiled ops are priced. `steps` are timed, on `cpu_devices`
    virtual devices where given, within `timeout` seconds; `out` is a folder for the capture. With
    `capture`, one that was made elsewhere, nothing is run; `hlo` is its program's compiled
    text, priced `on` a slice, its `mesh` read from its collectives where none is given. `sets`
    change a plan, `hw_files` add chips.
    """

    what: Any = field(default=None, kw_only=False)
    steps: int | str = 10
    cpu_devices: int | str | None = None
    phase: str | None = None
    args: str | None = None
    mesh: str | Mapping[str, int] | None = None
    on: str | None = None
    capture: str | Path | None = None
    hlo: str | Path | None = None
    sets: Words = ()
    hw_files: Words = ()
    timeout: float | str = 900.0
    out: str | Path | None = None

    def answer(self, watch: Any = None) -> "Profile":
        """Run, or read; `watch` hears what the child is at, and for how long."""
        if self.capture is not None:
            return self._captured(Path(self.capture))
        if self.what is None:
            raise BadRequest(
                "name a plan or MODULE:FUNCTION to run, or a capture with --capture FILE"
            )
        if self.hlo is not None:
            raise BadRequest("--hlo is the program of a capture; give it with --capture")
        found = self._run(watch)
        return Profile(profiled=found, result=profile_result(found), warnings=list(found.notes))

    def _captured(self, trace: Path) -> "Profile":
        others = ("cpu_devices", "phase", "args", "sets", "out")
        others += () if self.hlo else ("mesh", "on", "hw_files")
        clash = [f"--{name.replace('_', '-')}" for name in others if getattr(self, name)]
        clash = [str(self.what), *clash] if self.what is not None else clash
        if clash:
            of = " (--on and --mesh are of its program: add --hlo FILE)" if not self.hlo else ""
            said = f"leave out {', '.join(clash)}{of}"
            raise BadRequest(f"--capture reads a file and runs nothing; {said}")
        piece = Hardware(files=self.hw_files).slice(self.on).slice if self.on else None
        hlo = None if self.hlo is None else Path(self.hlo)
        captured, found = profile_trace(trace, hlo, piece, mesh_of(self.mesh))
        if found is None:
            return Profile(profiled=None, result=trace_result(captured))
        return Profile(profiled=found, result=profile_result(found), warnings=list(found.notes))

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
            need = "give --args MODULE:NAME, which makes its arguments"
            raise BadRequest(f"function '{self.what}' lacks --args; {need}")
        if words(self.sets) or self.phase:
            raise BadRequest("--set and --phase are of plans; a function takes neither")
        piece = hardware.slice(self.on).slice if self.on else None
        return profile_function(self.what, self.args, self._degrees(devices, piece), piece, **run)

    def _degrees(self, devices: int | str | None, piece: Slice | None) -> dict[str, int]:
        return mesh_of(self.mesh) or {"x": int(devices or (piece.devices if piece else 1))}


@dataclass(frozen=True, kw_only=True, repr=False)
class Profile(LooseAnswer):
    """A program that ran; `profiled` is None for a capture without its program."""

    profiled: Profiled | None

    def table(self) -> list[Row]:
        """Seconds by op class."""
        return self.result["by_class"]

    def page(self) -> Page:
        """Seconds by op class, source line and scope."""
        return (_trace_page if self.profiled is None else _profiled_page)(self.result)


profile = verb("profile", ProfileRequest)


def _profiled_page(r: Mapping[str, Any]) -> Page:
    step = r["step_seconds"]
    times = [f"{format_seconds(step['measured'])} per step measured"]
    times += [f"{format_seconds(step[k]['expected'])} {k}" for k in _sides(step)]
    yield f"{r['phase']} on {r['devices']} of '{r['kind']}': {', '.join(times)}"
    if len(r["mesh"]) > 1 or r["devices"] > 1:
        yield f"mesh {' x '.join(f'{axis}={n}' for axis, n in r['mesh'].items())}"
    for title, key in (("op class", "by_class"), ("source line", "by_line"), ("scope", "by_scope")):
        yield ""
        sides = ("compiled", "predicted") if key == "by_class" else ("compiled",)
        shown = [s for s in sides if any(row.get(s) is not None for row in r[key])]
        total = sum(row["measured"] for row in r[key]) or 1.0
        rows = [
            [
                _short(row["where"]),
                format_seconds(row["measured"]),
                f"{100 * row['measured'] / total:.1f} %",
                *(format_seconds(row[s]) for s in shown),
                _rate(row),
            ]
            for row in r[key][:SHOWN]
            if row["measured"] or any(row[s] for s in shown)
        ]
        yield TextTable([title, "measured", "of ops", *shown, "rate"], rows)
    if r["arguments"]:
        yield ""
        yield TextTable(
            ["argument", "layout", "whole dims"],
            [
                [_short(a["name"]), f"{a['layout']} {a['dtype']}", "x".join(map(str, a["dims"]))]
                for a in r["arguments"][:SHOWN]
            ],
            left=3,
        )
    if r["unmatched"]:
        names = ", ".join(row["name"] for row in r["unmatched"][:5])
        yield f"\n{format_seconds(r['unmatched_seconds'])} matched no op: {names}"


def _rate(row: Mapping[str, Any]) -> str:
    counted = row["flops"] and row["measured"]
    return format_rate(row["flops"] / row["measured"], "FLOP/s") if counted else ""


def _sides(step: Mapping[str, Any]) -> list[str]:
    return [side for side in ("compiled", "predicted") if step[side]]


def _trace_page(r: Mapping[str, Any]) -> Page:
    seconds = format_seconds(r["step_seconds"]["traced"])
    yield (f"{r['module']}: {r['runs']:g} runs on {r['devices']} devices, {seconds} each (median)")
    for title, key in (("kind", "by_class"), ("source line", "by_line"), ("op", "by_op")):
        yield ""
        rows = [[_short(row["where"]), format_seconds(row["measured"])] for row in r[key][:SHOWN]]
        yield TextTable([title, "per run"], rows)


def _short(where: str) -> str:
    return where if len(where) <= 60 else "..." + where[-57:]
