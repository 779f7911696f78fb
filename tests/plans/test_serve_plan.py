"""ServePlan: choices that cannot take effect are refused, and a file round-trips."""

from dataclasses import replace
from typing import get_args, get_type_hints

import pytest

from shardwise.commands.pricing.plans import load_plan
from shardwise.errors import BadRequest
from shardwise.plans import (
    PrefillServer,
    ServeDtypes,
    ServePlan,
    ServeScheduling,
    Workload,
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


def test_one_of_two_servers_may_be_lost():
    plan = plan_of(replicas=2, workload=plans.Workload(rate=1.0, spare=1))
    assert plan.worst.replicas == 1
    assert plan.worst.worst == plan.worst


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
        ({"mesh": {"stage": 4}}, "mesh axis 'stage' of 4: engine ideal has no pipeline stages"),
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
    with pytest.raises(BadRequest, match="mesh axis 'context' of 2 cannot take effect"):
        PrefillServer(slice="v5e:2x4", mesh={"context": 2, "tensor": 4}, box=(2, 4))


def test_choices_are_those_of_the_scheduler():
    assert {*get_args(plans.Policy), "prefill"} == set(policies.POLICIES)
    assert get_args(plans.Routing) == routing.ROUTINGS
    hints = get_type_hints(ServeScheduling)
    assert get_args(hints["order"]) == requests.ORDERS
    assert get_args(hints["admission"]) == get_args(policies.Admission)


BY_HAND = """kind: serve
model: llama-3-8b
slice: h100:2
mesh: {tensor: 2}
input: 1024
output: 256
rate: 10
tpot: 30ms
"""


def by_hand(tmp_path, text=BY_HAND):
    path = tmp_path / "hand.yaml"
    path.write_text(text)
    return load_plan(path)


def test_a_plan_by_hand_is_worked_out_as_a_search_would(tmp_path):
    plan = by_hand(tmp_path)
    assert isinstance(plan, ServePlan)
    assert (plan.box, plan.mesh, plan.engine, plan.kv_sharding) == (
        (2,),
        {"tensor": 2},
        "vllm",
        "heads",
    )
    assert plan.dtypes.matmuls == "stored"
    assert plan.workload == Workload(rate=10.0, ttft=2.0, tpot=0.03)
    paced = by_hand(tmp_path, BY_HAND + "interactivity: 40\n")
    assert paced.workload == Workload(rate=10.0, ttft=2.0, tpot=0.03, interactivity=40)
    whole = tmp_path / "whole.yaml"
    save_plan(plan, whole)
    assert load_plan(whole) == plan


def test_a_plan_by_hand_may_leave_the_load_out_and_say_more(tmp_path):
    text = BY_HAND.replace("rate: 10\ntpot: 30ms\n", "batch: 24\ndtypes: {kv: fp8}\n")
    plan = by_hand(tmp_path, text)
    assert (plan.workload, plan.batch) == (None, 24)
    assert (plan.dtypes.kv, plan.dtypes.matmuls) == ("fp8", "stored")


def test_words_of_a_server_say_the_kind_and_the_lengths_have_two_names(tmp_path):
    named = BY_HAND.replace("kind: serve\n", "").replace("put:", "put_length:")
    assert by_hand(tmp_path, named) == by_hand(tmp_path)
    with pytest.raises(BadRequest, match="lacks input, output; a serving plan"):
        by_hand(tmp_path, named.replace("input_length: 1024\noutput_length: 256\n", ""))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("input: 1024\noutput: 256\n", "", "lacks input, output; a serving plan written by hand"),
        ("mesh: {tensor: 2}\n", "", "lacks mesh;"),
        ("tensor: 2", "tensor: 3", "a mesh of 3 devices does not fit h100:2, which has 2"),
        ("rate: 10\n", "", "tpot of a load without a rate; give the key 'rate'"),
    ],
)
def test_what_a_plan_by_hand_lacks_is_named_at_once(tmp_path, old, new, said):
    with pytest.raises(BadRequest, match=said):
        by_hand(tmp_path, BY_HAND.replace(old, new))


@pytest.mark.parametrize("choice", [{"release": "0.15"}, {"graphs": False}])
def test_our_own_server_has_no_releases_and_no_graphs(choice):
    scheduling = ServeScheduling(**choice)
    assert plan_of(engine="vllm", scheduling=scheduling).scheduling == scheduling
    with pytest.raises(BadRequest, match="take no effect with engine ideal"):
        plan_of(scheduling=scheduling)
