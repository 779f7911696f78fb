"""`plan train --compile N --tune`: which compiler flags make the best plan's step shorter.

Each set of flags (`plans/software/xla_flags.py`) that our trainer has not on is compiled by itself
on top of the options asked for; those that pay are compiled together, and the fastest of all is
what to run with. The line to run with names the trainer's own too, for other software.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.boundary.at_once import at_once, places_for
from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.base.inputs import numbers
from shardwise.commands.base.layout import wrapped
from shardwise.commands.program.candidate import CompiledCandidate
from shardwise.errors import BadRequest
from shardwise.hardware import Chip
from shardwise.plans.software.xla_flags import FlagSet, together, trained_flags, tried_sets
from shardwise.results.compiled import TriedFlags, TunedStep
from shardwise.units import format_seconds

PAYS = 0.01
"""Share of a step below which a difference of two schedules is none: the two differ by as much
where the compiler only orders equal work otherwise (docs/lab/log.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One set of flags and the step that the compiler makes with it."""

    name: str
    about: str
    options: Mapping[str, str]
    step: CompiledCandidate[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The sets that were tried on one plan, whose step takes `seconds` without them; `own` are the
    flags that our trainer has on."""

    seconds: float
    tried: Sequence[Tried]
    own: Mapping[str, str]

    @property
    def paying(self) -> list[Tried]:
        """Those that fit and shorten the step by more than PAYS."""
        return [t for t in self.tried if self.change(t) < -PAYS]

    @property
    def best(self) -> Tried | None:
        """The shortest step of those that pay."""
        return min(self.paying, key=self.change, default=None)

    def change(self, tried: Tried) -> float:
        """Of the step, as a share; 0 for one that does not fit or was not compiled."""
        step = tried.step
        return step.seconds / self.seconds - 1 if step.fits and step.seconds else 0.0

    def result(self) -> TunedStep:
        """As a document has it."""
        best = self.best
        return TunedStep(
            seconds=self.seconds,
            own=self.own,
            tried=[
                TriedFlags(
                    name=t.name,
                    about=t.about,
                    options=t.options,
                    seconds=t.step.seconds,
                    change=self.change(t),
                    refusal=t.step.refusal,
                )
                for t in self.tried
            ],
            best=best and best.name,
            libtpu_init_args=init_args({**self.own, **(best.options if best else {})}),
        )

    def page(self) -> Page:
        """A row for each set, and the line to run with."""
        yield ""
        yield TextTable(
            ["flags", "what they do", "step", "change"],
            [_shown(t, self.change(t)) for t in self.tried],
            left=2,
            spare=("what they do",),
            ruled=False,
        )
        if self.best is None:
            yield wrapped("No set of flags shortens this step by more than 1 %.", 2, 4)
        if self.own:
            yield wrapped(f"shardwise train already sets: {init_args(self.own)}", 2, 4)
        if self.best is not None:
            args = init_args({**self.own, **self.best.options})
            yield wrapped(f"Run it with: export LIBTPU_INIT_ARGS='{args}'", 2, 4)


def tuned(
    base: CompiledCandidate[Any],
    chip: Chip,
    compiled: Callable[[Mapping[str, object]], CompiledCandidate[Any]],
    room: int,
) -> Tuning:
    """Compile the plan of `base` with each set of its chip, in parallel as memory allows.

    Raises BadRequest for a chip that has no sets.
    """
    assert base.seconds is not None
    sets, own = tried_sets(chip.id), trained_flags(chip.id)
    steps = at_once(lambda one: compiled(numbers(one.options)), sets, places_for(room))
    alone = Tuning(seconds=base.seconds, tried=list(map(_tried, sets, steps)), own=own)
    names = {t.name for t in alone.paying}
    paying = [one for one in sets if one.name in names]
    if len(paying) < 2:
        return alone
    options = together(paying)
    about = "all of the above that help"
    step = compiled(numbers(options))
    last = Tried(name="together", about=about, options=options, step=step)
    return Tuning(seconds=base.seconds, tried=[*alone.tried, last], own=own)


def check_tunable(chip: Chip) -> None:
    """Raise BadRequest for a chip whose compiler estimates no cycles."""
    if chip.vendor != "google":
        raise BadRequest(
            f"--tune compares steps by the compiler's cycles, and that of {chip.id} gives none; "
            "leave out --tune, or plan for a TPU"
        )


def init_args(options: Mapping[str, str]) -> str:
    """As the environment variable LIBTPU_INIT_ARGS takes them.

    >>> init_args({"xla_enable_async_all_gather": "true"})
    '--xla_enable_async_all_gather=true'
    """
    return " ".join(f"--{name}={value}" for name, value in options.items())


def _tried(one: FlagSet, step: CompiledCandidate[Any]) -> Tried:
    return Tried(name=one.name, about=one.about, options=one.options, step=step)


def _shown(tried: Tried, change: float) -> list[str]:
    step = tried.step
    if not step.fits or step.seconds is None:
        return [tried.name, step.refusal, "does not fit" if step.program else "refused", "-"]
    said = f"{100 * change:+.1f} %" if change else "none"
    return [tried.name, tried.about, format_seconds(step.seconds), said]
