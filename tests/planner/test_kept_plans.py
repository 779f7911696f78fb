"""What is kept of searches and runs."""

import gc
import weakref

import pytest

from shardwise.errors import NoFeasiblePlan
from shardwise.planner.kept_plans import KeptPlans, plans_kept, searched_once


class Columns:
    """What a search has in its frames."""


def test_a_search_without_a_plan_leaves_nothing_but_its_message():
    """An error that was raised holds its frames; some hundred of these took gigabytes."""
    held: list[weakref.ref[Columns]] = []

    def fails():
        columns = Columns()
        held.append(weakref.ref(columns))
        raise NoFeasiblePlan("nothing fits")

    def asked():
        columns = Columns()
        held.append(weakref.ref(columns))
        searched_once("a slice", fails)

    with plans_kept(kept := KeptPlans()):
        for _ in range(3):
            with pytest.raises(NoFeasiblePlan, match="nothing fits"):
                asked()
    gc.collect()
    assert len(held) == 4, "one search, asked for three times"
    assert [one() for one in held] == [None] * 4
    assert [str(error) for _, error in kept.found] == ["nothing fits"]
