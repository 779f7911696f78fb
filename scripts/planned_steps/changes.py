"""How much of a difference the comparison notices: single changes of both lists, one by one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwise.models import ModelConfig
from shardwise.plans import TrainPlan
from shardwise.profiler.collectives.lines import Line
from shardwise.profiler.collectives.rules import SMALL, compare, is_counted


def noticed(
    plan: TrainPlan,
    cfg: ModelConfig,
    planned: Sequence[Line],
    compiled: Sequence[Line],
) -> tuple[int, int]:
    """After how many single changes of the lists something else is left, and of how many tried.

    The changes: each counted array of the program gone, run once less (where it runs more often),
    and there twice; each line of the plan gone.
    """
    before = compare(plan, cfg, planned, compiled).left
    found = [
        abs(compare(plan, cfg, *lists).left - before) > SMALL
        for lists in _single_changes(planned, compiled)
    ]
    return sum(found), len(found)


def _single_changes(
    planned: Sequence[Line], compiled: Sequence[Line]
) -> Iterator[tuple[list[Line], list[Line]]]:
    for i, line in enumerate(compiled):
        if is_counted(line):
            others = [*compiled[:i], *compiled[i + 1 :]]
            yield [*planned], others
            if line.count > 1:
                yield [*planned], [*others, replace(line, count=line.count - 1)]
            yield [*planned], [*compiled, line]
    for i in range(len(planned)):
        yield [*planned[:i], *planned[i + 1 :]], [*compiled]
