"""ServePlan: choices that cannot take effect are refused, and a file round-trips."""

from dataclasses import replace
from typing import get_args, get_type_hints

import pytest

from shardwise.errors import BadRequest
from shardwise.plans import (
    PrefillServer,
    ServeDtypes,
    ServePlan,
    ServeScheduling,
    load_plan,
    save_plan,
)
from shardwise.plans import serve as plans
from shardwise.scheduling import policies, requests, routing


def plan_of(**changes):
    values = {
        "model": "llama-3-8b",
        "model_hash": "0" * 16,
        "slice": "v5e:2x2",
        "mesh": {"data": 2, "tensor": 2},
        "box": (2, 2),
        "batch": 8,
        "input_length": 1024,
        "output_length": 128,
    }
    return ServePlan(**{**values, **changes})


def test_degrees_and_devices():
    plan = plan_of()
    assert (plan.devices, plan.degree("tensor"), plan.degree("expert")) == (4, 2, 1)


def test_a_file_round_trips(tmp_path):
    path = tmp_path / "plan.yaml"
    plan = plan_of(dtypes=ServeDtypes(weights="int8", kv="fp8"), kv_sharding="heads")
    save_plan(plan, path)
    assert path.read_text().startswith("kind: serve\n")
    assert load_plan(path) == plan
    assert load_plan(path, {"batch": "16"}).batch == 16


def test_a_misspelt_key_is_an_error(tmp_path):
    path = tmp_path / "plan.yaml"
    save_plan(plan_of(), path)
    path.write_text(path.read_text().replace("kv_sharding", "kv_shardin"))
    with pytest.raises(BadRequest, match="did you mean 'kv_sharding'"):
        load_plan(path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mesh": {"stage": 4}}, "mesh axis 'stage' of 4 cannot take effect in a serving plan"),
        ({"mesh": {"fsdp": 2, "expert": 2}}, "experts that lie apart are not cut along D, too"),
        ({"mesh": {"tensr": 4}}, "unknown mesh axis 'tensr'; did you mean 'tensor'"),
        ({"mesh": {"tensor": 2, "data": 2}}, "write them outermost first: data, tensor"),
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"prefill_chunk": -1}, "prefill_chunk is -1; it must be at least 1"),
    ],
)
def test_bad_choices_are_refused(changes, text):
    with pytest.raises(BadRequest) as error:
        plan_of(**changes)
    assert text in str(error.value)


def test_dtypes_are_checked_by_name():
    with pytest.raises(BadRequest, match="unknown dtype 'int9'; did you mean 'int8'"):
        ServeDtypes(kv="int9")
    with pytest.raises(BadRequest, match="unknown dtype 'checkpoint'"):
        ServeDtypes(kv="checkpoint")
    assert ServeDtypes().weights == "checkpoint"


def test_scheduling_is_a_table_of_the_file(tmp_path):
    path = tmp_path / "plan.yaml"
    plan = plan_of(replicas=3, routing="prefix_aware", scheduling=ServeScheduling(page_size=128))
    save_plan(plan, path)
    assert load_plan(path) == plan
    assert load_plan(path, {"scheduling.order": "deadline"}).scheduling.order == "deadline"
    with pytest.raises(BadRequest, match=r"did you mean 'scheduling\.page_size'"):
        load_plan(path, {"scheduling.page_sise": "64"})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"margin": 1.5}, "margin is 1.5; it is a share"),
        ({"page_size": 0}, "page_size is 0; it must be at least 1 and at most 1,048,576"),
        ({"policy": "static"}, "static batches share no prefixes and preempt nobody"),
        ({"acceptance": 0.5}, "acceptance and guess_cost take no effect without guesses"),
    ],
)
def test_bad_scheduling_is_refused(changes, text):
    with pytest.raises(BadRequest) as error:
        ServeScheduling(**changes)
    assert text in str(error.value)


def test_prefill_replicas_have_no_part_in_static_batches():
    static = ServeScheduling(policy="static", prefix_cache=False, admission="reserve")
    with pytest.raises(BadRequest, match="2 prefill replicas have no part in static batches"):
        plan_of(scheduling=static, prefill_replicas=2)


POOL = PrefillServer(slice="v5e:2x4", mesh={"data": 2, "tensor": 4}, box=(2, 4))


def test_a_prefill_pool_of_its_own_round_trips(tmp_path):
    path = tmp_path / "plan.yaml"
    plan = plan_of(prefill_replicas=3, prefill=POOL)
    save_plan(plan, path)
    assert load_plan(path) == plan
    own = plan.prefill_plan
    assert (own.slice, own.mesh, own.box, own.batch) == (POOL.slice, POOL.mesh, POOL.box, 8)
    assert plan_of(prefill_replicas=3).prefill_plan == plan_of(prefill_replicas=3)
    changed = load_plan(path, {"prefill.slice": "v5e:4x4", "prefill.box": "[2, 4]"})
    assert changed.prefill == replace(POOL, slice="v5e:4x4")
    path.write_text(path.read_text().replace("  box", "  boxx"))
    with pytest.raises(BadRequest, match=r"did you mean 'prefill\.box'"):
        load_plan(path)


def test_a_prefill_pool_that_cannot_take_effect_is_refused():
    with pytest.raises(BadRequest, match="prefill_replicas is 0; set it to 1 or more"):
        plan_of(prefill=POOL)
    with pytest.raises(BadRequest, match="mesh axis 'stage' of 2 cannot take effect"):
        PrefillServer(slice="v5e:2x4", mesh={"stage": 2, "tensor": 4}, box=(2, 4))


def test_choices_are_those_of_the_scheduler():
    assert {*plans.POLICIES, "prefill"} == set(policies.POLICIES)
    assert plans.ROUTINGS == routing.ROUTINGS
    hints = get_type_hints(ServeScheduling)
    assert get_args(hints["order"]) == requests.ORDERS
    assert get_args(hints["admission"]) == get_args(policies.Admission)
