"""What `plan show` says of the program that runs a plan is what `export` does."""

from dataclasses import replace

from hypothesis import strategies as st
from tests.drawn import on_drawn
from tests.planner.export.exporting import plans
from tests.planner.export.test_round_trip import ANYTHING

from shardwise.errors import BadRequest
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.export import export_plan, target_for
from shardwise.plans.software import JAX, SOFTWARE
from shardwise.results.train import refused_by, runs_in


@on_drawn(60, data=st.data())
def test_plan_show_and_export_say_the_same_of_what_runs_a_plan(data):
    drawn, cfg, piece = data.draw(plans(tpu=data.draw(st.booleans()), **ANYTHING))
    try:
        priced = evaluate_train(drawn, cfg, piece)
    except BadRequest:
        return  # no plan of this model and slice
    for name in SOFTWARE:
        plan = replace(drawn, software=name)
        shown = replace(priced, plan=plan)
        if name == JAX.name:  # what it reads is the plan itself
            assert bool(runs_in(shown)) == (not refused_by(shown))
            continue
        try:
            export_plan(plan, cfg, piece, name)
            refused = ""
        except BadRequest as error:
            refused = str(error)
        assert refused_by(shown) == refused
        assert runs_in(shown) == ("" if refused else SOFTWARE[name].title)
        assert target_for(plan, cfg, piece) == ("" if refused else name)
