"""Explaining a compiled program: where its time goes, and what in it is a mistake.

`tables.py` adds up the timeline by source line, component and scope, `causes.py` why it
takes longer than its ops must, `graph.py` draws its ops. The rules read `evidence.py` (module,
timeline, buffers, how the arguments lie on the mesh) and give `finding.py`'s findings, each with
its cost per step and a remedy; they know nothing of any model. They lie by what they are about:
`rules_compute.py`, `rules_memory.py`, `rules_network.py`, `rules_cache.py` (what a step writes a
part of), `rules_reshard.py` (layouts that no one collective reaches), `rules_twice.py` (what is
done again, or for nothing), `rules_again.py` (what is exchanged again), `rules_wire.py` (what
crosses the network wider or smaller than it is read), `rules_larger.py` (what is made larger or
more often than it is read), `rules_kept.py` (what is kept, joined and handed back),
`rules_serial.py` (what runs row after row), `rules_partial.py` (sums over devices of what
is cut along its summed dim), `rules_apart.py` (what each device could compute alone)
and `rules_masks.py` (scores that a mask throws away, by `positions.py`). `flow.py` carries facts of
values through the program for them, `lineage.py` says which, `layouts.py` what only moves;
`barriers.py` takes out what stands between a value and its readers. `partitioned.py` says what can
be told of a program that was not compiled, `against.py` sets two programs beside each other and
`cures.py` says which findings a call can cure. Read `explain_program` below, then `evidence.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.hardware.slices import Slice
from shardwise.profiler.ahead.buffers import Buffer
from shardwise.profiler.explain import (
    rules_again,
    rules_apart,
    rules_cache,
    rules_compute,
    rules_kept,
    rules_larger,
    rules_masks,
    rules_memory,
    rules_network,
    rules_partial,
    rules_reshard,
    rules_serial,
    rules_twice,
    rules_wire,
)
from shardwise.profiler.explain.barriers import without_barriers
from shardwise.profiler.explain.causes import StepCauses, step_parts
from shardwise.profiler.explain.cures import Cure, cures
from shardwise.profiler.explain.evidence import Argument, Evidence
from shardwise.profiler.explain.finding import WORTH, Finding
from shardwise.profiler.explain.graph import OpGraph, op_graph
from shardwise.profiler.explain.partitioned import RULES as OF_PARTITIONED
from shardwise.profiler.explain.partitioned import LineCollective, line_collectives, must_do
from shardwise.profiler.explain.tables import (
    TimeShare,
    by_component,
    by_line,
    by_scope,
    users_place,
)
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.work import module_work
from shardwise.profiler.timeline import HloTimeline, schedule
from shardwise.sharding.mesh import Mesh

__all__ = ["Argument", "Explanation", "Finding", "TimeShare", "explain_program"]

RULES = (
    *rules_memory.RULES,
    *rules_network.RULES,
    *rules_partial.RULES,
    *rules_reshard.RULES,
    *rules_compute.RULES,
    *rules_cache.RULES,
    *rules_twice.RULES,
    *rules_again.RULES,
    *rules_larger.RULES,
    *rules_wire.RULES,
    *rules_kept.RULES,
    *rules_serial.RULES,
    *rules_apart.RULES,
    *rules_masks.RULES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A step's timeline, its seconds by line, component and scope, the arguments as they lie on the
    mesh, the findings that cost at least `WORTH` of the step, or memory, the dearest first, why
    it takes longer than its ops must, its dearest ops as a graph, its collectives by line, and the
    cures that a call can make."""

    timeline: HloTimeline
    lines: tuple[TimeShare, ...]
    components: tuple[TimeShare, ...]
    scopes: tuple[TimeShare, ...]
    arguments: tuple[Argument, ...]
    findings: tuple[Finding, ...]
    parts: StepCauses
    graph: OpGraph
    collectives: tuple[LineCollective, ...]
    cures: tuple[Cure, ...]


def explain_program(
    hlo: str,
    piece: Slice,
    mesh: Mesh | None = None,
    *,
    buffers: Sequence[Buffer] = (),
    fits: bool = True,
    partitioned: bool = False,
    packages: Sequence[str] = (),
) -> Explanation:
    """Explain the scheduled module of one device of a slice.

    `mesh` names its axes (`module_work`); `buffers` are those of the compile, without which nothing
    is said of what fills the memory. Of a module that is only `partitioned`, what must be done is
    counted (`must_do`). Lines of installed `packages` count as the user's. Raises BadRequest as
    `schedule`.
    """
    module = without_barriers(read_module(hlo))
    work = module_work(module, mesh)
    timeline = schedule(work, piece)
    evidence = Evidence(
        header=hlo[: hlo.find("\n")],
        module=module,
        work=work,
        timeline=timeline,
        piece=piece,
        buffers=buffers,
        capacity=piece.chip.usable_bytes_per_device,
        fits=fits,
        donors=partitioned,
        packages=tuple(packages),
    )
    if partitioned:
        work = must_do(evidence)
        timeline = schedule(work, piece)
        evidence = replace(evidence, work=work, timeline=timeline)
    rules = OF_PARTITIONED if partitioned else RULES
    found = [
        replace(f, where=users_place(evidence, f.where)) for rule in rules for f in rule(evidence)
    ]
    worth = [f for f in found if f.seconds >= WORTH * timeline.expected or f.frees]
    told = tuple(sorted(worth, key=lambda f: -f.seconds))
    return Explanation(
        timeline=timeline,
        lines=by_line(evidence),
        components=by_component(evidence),
        scopes=by_scope(evidence),
        arguments=evidence.arguments,
        findings=told,
        parts=step_parts(evidence),
        graph=op_graph(evidence),
        collectives=line_collectives(timeline.rows, evidence.where),
        cures=cures(evidence, told),
    )
