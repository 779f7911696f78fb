"""What a program is compiled of: a plan, or any JAX function, by name or live."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from shardwise.boundary import Command, number
from shardwise.boundary.options import Option, described, option, place, several, switch
from shardwise.commands.base.inputs import Hardware, Words, compiler_options, pairs
from shardwise.commands.pricing.plans import Priced, given_plan
from shardwise.commands.program.compiling import (
    CompiledPlan,
    PlanProgram,
    compile_function,
    compile_plan,
    limits_of,
)
from shardwise.commands.program.explaining import compile_live
from shardwise.commands.program.saved import saved_of, saved_on
from shardwise.errors import BadRequest
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.software import made_elsewhere
from shardwise.profiler.ahead import Limits
from shardwise.profiler.ahead.saved import SavedProgram
from shardwise.profiler.child import Watch
from shardwise.profiler.explain.cures import Cure
from shardwise.sharding import Mesh
from shardwise.units import parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Compiled programs, the plan with its price if they are a plan's, and warnings."""

    programs: tuple[PlanProgram, ...]
    priced: Priced | None
    warnings: Sequence[str]

    @property
    def plan(self) -> TrainPlan | ServePlan | None:
        """The plan, if it is one."""
        return self.priced and self.priced.plan


class HowCompiled(TypedDict):
    """What every compile takes, as keywords."""

    options: Mapping[str, str | int | float]
    limits: Limits
    watch: Watch | None


PHASES = ("train", "decode", "prefill")
SHAPES = (
    "MODULE:NAME, a function that returns them, such as jax.ShapeDtypeStruct((64, 512), 'bfloat16')"
)
FUNCTION_ARGS = Option(
    about="Function that makes the arguments.",
    metavar="MODULE:NAME",
    group="What is planned",
    meaning="MODULE:NAME that makes the arguments of a function",
)
PROGRAM_TIMEOUT = Option(
    about="Most seconds of the process.  [900]",
    default=900.0,
    kind="number",
    metavar="SECONDS",
    meaning="most seconds of the process that compiles or runs",
)
PLAN_SETS = Option(
    about="Change a field of the plan.",
    default=(),
    kind="several",
    flag="--set",
    metavar="PATH=VALUE",
)
MORE_CHIPS = Option(about="Add a chip.", default=(), kind="several", flag="--hw", metavar="FILE")
"""Options of several requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest(Command):
    """Keywords of every verb that compiles.

    `what` is a plan, its file or "audit:NAME". Or it is the name "MODULE:FUNCTION", and `args`
    names a function that makes its abstract arguments. Or it is a function of this process, and
    `args` is one abstract argument or a tuple of them. A function needs the slice `on`; a plan
    moves to it. `mesh` may be a jax mesh. `what` may also be an existing program: a
    `jax.stages.Lowered` or `Compiled`, StableHLO or HLO text in a file, or the folder of an
    `--xla_dump_to`.
    """

    READS_COMPILED: ClassVar[bool] = False
    """Whether a program that was compiled elsewhere is of use to it."""

    what: Any = field(kw_only=False, metadata=place("PLAN|MODULE:FUNCTION|PROGRAM"))
    args: Any = field(default=None, kw_only=False, metadata=described(FUNCTION_ARGS))
    on: str | None = option("Slice. Default: that of the plan.", metavar="SLICE", before="args")
    mesh: Any = option("Mesh of a function. Default: x, y, z.", metavar="X=4,Y=2", before="sets")
    xla: Words = several("Flag of XLA.", flag="--option", metavar="NAME=VALUE")
    timeout: float | str = option(PROGRAM_TIMEOUT)
    memory: float | str = option(
        "Most memory of the compiling process.  [12GiB]",
        default="12GiB",
        group="The machine",
        meaning="most memory of a child process",
    )
    no_cache: bool = switch("Compile again and cache nothing.", group="The machine")
    cache_size: float | str = option(
        "Size of the cache.  [2GiB]",
        default="2GiB",
        group="The machine",
        meaning="most bytes of kept programs",
    )
    sets: Words = option(PLAN_SETS)
    hw_files: Words = option(MORE_CHIPS)

    def programs(
        self,
        phases: Sequence[str],
        watch: Any = None,
        stages: Path | None = None,
        partition: bool = False,
    ) -> Programs:
        """Compile the phases of a plan, all where none is named, or the function; `stages` is a
        folder for the texts of all stages, `partition` goes no further (`Limits`)."""
        if partition and self.xla:
            raise BadRequest(
                "--option is for the chip's compiler, and --quick does not run it; leave out one "
                "of the two"
            )
        if (saved := saved_of(self.what)) is not None:
            if partition:
                raise BadRequest(
                    f"--quick partitions a function or a plan; {saved.origin} is "
                    "already a program: leave --quick out"
                )
            return self._saved(saved, phases, watch, stages)
        if not is_function(self.what):
            done = self.planned(phases, watch, stages, partition)
            warnings = [*done.notes, *done.priced.warnings, *made_elsewhere(done.priced.plan)]
            return Programs(programs=done.programs, priced=done.priced, warnings=warnings)
        for name, like in (("args", SHAPES), ("on", "SLICE")):
            if getattr(self, name) is None:
                raise BadRequest(f"function '{self.what}' lacks --{name}; give --{name} {like}")
        if self.sets or phases:
            raise BadRequest("--set and --phase are for plans; a function takes neither")
        spelling = self._hardware.slice(str(self.on))
        common = self._common(watch, stages, partition)
        if isinstance(self.what, str):
            degrees = mesh_of(self.mesh)
            program = compile_function(self.what, self.args, spelling.slice, degrees, **common)
        else:
            args = self.args if isinstance(self.args, tuple) else (self.args,)
            mesh = mesh_of(self.mesh) if isinstance(self.mesh, str) else self.mesh
            program = compile_live(self.what, args, spelling.slice, mesh, **common)
        return Programs(programs=(program,), priced=None, warnings=spelling.notes)

    def _saved(
        self, saved: SavedProgram, phases: Sequence[str], watch: Any, stages: Path | None
    ) -> Programs:
        if self.on is None:
            raise BadRequest(f"{saved.origin} names no chip; give its slice with --on SLICE")
        if self.sets or phases or self.args is not None:
            raise BadRequest(
                f"--set and --phase are for plans and --args for functions; {saved.origin} is a "
                "program and takes none of them"
            )
        if saved.kind == "hlo" and not self.READS_COMPILED:
            raise BadRequest(
                f"{saved.origin} is compiled already; `shardwise explain` shows where its time goes"
            )
        if stages is not None:
            raise BadRequest(
                f"--stages follows an op from JAX, and {saved.origin} has no JAX source; give "
                "MODULE:FUNCTION"
            )
        spelling = self._hardware.slice(str(self.on))
        program, notes = saved_on(
            saved, spelling.slice, mesh_of(self.mesh), **self._common(watch, stages)
        )
        return Programs(programs=(program,), priced=None, warnings=[*spelling.notes, *notes])

    def cured(self, cure: Cure, watch: Any = None, partition: bool = False) -> PlanProgram:
        """The function that is named, compiled as a cure calls it."""
        piece = self._hardware.slice(str(self.on)).slice
        common = self._common(watch, partition=partition)
        degrees = mesh_of(self.mesh)
        return compile_function(self.what, self.args, piece, degrees, cure=cure, **common)

    def planned(
        self,
        phases: Sequence[str],
        watch: Any = None,
        stages: Path | None = None,
        partition: bool = False,
    ) -> CompiledPlan:
        """Compile a plan's programs, with what it was priced as."""
        check_plans(self, ("args", "mesh"))
        changes = pairs(self.sets, "--set", "NAME=VALUE", "remat=block")
        plan, common = (
            given_plan(self.what, changes, hardware=self._hardware),
            self._common(watch, stages, partition),
        )
        whole = "batch" not in changes
        return compile_plan(
            plan, self._hardware, on=self.on, phases=phases, at_once=whole, **common
        )

    def _common(
        self, watch: Any, stages: Path | None = None, partition: bool = False
    ) -> HowCompiled:
        """What every compile takes."""
        kept = int(parse_bytes(self.cache_size, "--cache-size"))
        limits = limits_of(
            seconds=number(self.timeout, "--timeout", above=0, most=1e7, suffix=True),
            memory_bytes=int(parse_bytes(self.memory, "--memory")),
            cache_bytes=None if self.no_cache else kept,
        )
        if stages is not None:
            limits = replace(limits, stages=stages)
        limits = replace(limits, partition=partition)
        return HowCompiled(options=compiler_options(self.xla), limits=limits, watch=watch)

    @property
    def _hardware(self) -> Hardware:
        return Hardware(files=self.hw_files)


def is_function(what: Any) -> bool:
    """Whether it is a function, or names one: MODULE:NAME that is no file and no audited plan."""
    if isinstance(what, str):
        return ":" in what and not what.startswith("audit:") and not Path(what).exists()
    return not isinstance(what, Path | TrainPlan | ServePlan)


def check_plans(request: Any, names: Sequence[str]) -> None:
    """Raise BadRequest for a keyword that is of functions, where a plan is given."""
    for name in names:
        if getattr(request, name) is not None:
            raise BadRequest(f"--{name} is of functions; the plan '{request.what}' has its own")


def mesh_of(given: str | Mapping[str, int] | None) -> dict[str, int] | None:
    """Axes and degrees."""
    if given is None:
        return None
    return dict(Mesh.parse(given) if isinstance(given, str) else given)
