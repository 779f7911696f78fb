"""When the last pass ends, against the events of the timeline."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import BadRequest
from shardwise.planner.price.pipeline import costs_of, last_pass
from shardwise.planner.price.timeline import timeline
from shardwise.scheduling import pipeline_schedule
from shardwise.scheduling.pipeline import PIPELINE_KINDS

CHUNKS = {"interleaved": 3, "zb_v": 2, "dualpipe": 2}
SECONDS = st.floats(0.0, 5.0, allow_subnormal=False)


@st.composite
def pipelines(draw):
    """A schedule with uneven stages and uneven, perhaps slow, transfers."""
    kind = draw(st.sampled_from(PIPELINE_KINDS))
    S, rounds = 2 * draw(st.integers(1, 3)), draw(st.integers(2, 3))
    schedule = pipeline_schedule(kind, S, rounds * S, CHUNKS.get(kind, 1))

    def some(n):
        return draw(st.lists(SECONDS, min_size=n, max_size=n))

    costs = costs_of(
        schedule,
        forward=some(S),
        backward=some(S),
        weight=some(S),
        transfer=some(schedule.global_stages - 1),
    )
    return schedule, costs


@settings(max_examples=150)
@given(pipelines())
def test_it_is_when_the_last_pass_of_the_timeline_ends(pipeline):
    schedule, costs = pipeline
    assert last_pass(schedule, costs) == timeline(schedule, costs).makespan


@pytest.mark.parametrize("kind", PIPELINE_KINDS)
def test_reductions_and_updates_come_after_it(kind):
    schedule = pipeline_schedule(kind, 4, 8, CHUNKS.get(kind, 1))
    costs = costs_of(schedule, forward=1.0, backward=1.0, weight=1.0, transfer=0.25)
    alone = timeline(schedule, costs).makespan
    costs = replace(costs, reduction=(3.0,) * len(costs.forward))
    assert last_pass(schedule, costs) == alone < timeline(schedule, costs).makespan


def test_costs_of_another_pipeline_are_refused():
    costs = costs_of(pipeline_schedule("1f1b", 4, 8), forward=1.0, backward=1.0, weight=1.0)
    with pytest.raises(BadRequest, match="forward has 4 entries"):
        last_pass(pipeline_schedule("1f1b", 2, 8), costs)
