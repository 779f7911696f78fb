"""What a cluster asks of a plan before it starts servers, whichever manifests it takes."""

from collections.abc import Iterator, Mapping

from shardwise.errors import BadRequest
from shardwise.hardware import Slice, load_chip
from shardwise.hardware.names import exported
from shardwise.models import ModelConfig
from shardwise.planner.export.notes import Fields, check_runs
from shardwise.planner.export.server_program import ServerPool, ServerProgram, pools_of
from shardwise.plans import ServePlan
from shardwise.plans.software import Obstacle

Programs = Mapping[str, ServerProgram]

MODEL = "EDIT: the checkpoint, a folder or a Hugging Face id"
"""What stands where only the user knows the model's weights."""


def checked_pools(
    target: str,
    programs: Programs,
    plan: ServePlan,
    cfg: ModelConfig,
    piece: Slice,
    own: Iterator[Obstacle],
) -> tuple[ServerProgram, tuple[ServerPool, ...]]:
    """The server that the plan is for, and its pools. BadRequest with every obstacle at once, those
    of the target's `own` included."""
    pools = pools_of(plan, piece)
    program = programs.get(plan.engine)
    found = list(own)
    if program is None:
        rule = f"it starts {' or '.join(p.title for p in programs.values())}"
        remedy = f"plan with --for {next(iter(programs))}"
        found.insert(0, Obstacle(field="engine", value=plan.engine, rule=rule, remedy=remedy))
    else:
        for pool in pools:
            found += program.obstacles(pool, cfg)
            found += _unpublished(program, pool)
    check_runs(target, [o for i, o in enumerate(found) if o not in found[:i]])
    assert program is not None
    return program, pools


def _unpublished(program: ServerProgram, pool: ServerPool) -> Iterator[Obstacle]:
    if program.image(pool.piece) is None:
        rule = f"no {program.title} is published for {pool.piece.chip.name}"
        yield Obstacle(
            field="engine", value=pool.plan.engine, rule=rule, remedy="plan with --for vllm"
        )


def unnamed(target: str, piece: Slice) -> Iterator[Obstacle]:
    """Chips that the target has no name for."""
    names = exported(target)
    if piece.chip.id not in names:
        rule = f"it supports {', '.join(names)}"
        remedy = f"plan on {next(iter(names))}"
        yield Obstacle(field="slice", value=str(piece), rule=rule, remedy=remedy)


def program_of(programs: Programs, target: str, words: list[str]) -> ServerProgram:
    """The server that a command starts."""
    for program in programs.values():
        if program.starts(words):
            return program
    marks = ", ".join(p.marks[0] for p in programs.values())
    raise BadRequest(f"{target}: no server's command in the text; give one of {marks}")


def chip_fields(target: str, name: str, each: int, hosts: int) -> Fields:
    """The fields of a plan that say its chips: `each` of them on so many hosts."""
    chips = {text: chip for chip, text in exported(target).items()}
    if name not in chips:
        known = ", ".join(chips)
        raise BadRequest(f"{target}: no chip is called '{name}'; it supports {known}")
    return slice_fields(Slice(chip=load_chip(chips[name]), count=hosts, shape=(each,)))


def slice_fields(piece: Slice) -> Fields:
    """The fields of a plan that uses a whole slice."""
    return {"slice": str(piece), "box": list(piece.shape)}
