"""Routed experts: what dispatch, capacity, imbalance and the tensor axis change."""

import pytest
from tests.planner.steps import ATTENTION, EXPERTS_PER_TOKEN, FE, D, E, L, moe, named, over, step

from shardwise.planner.price.working import layer_bytes
from shardwise.planner.step.work import train_work

TOKENS = 4 * 128
EXPERTS = 3 * 2 * 3 * TOKENS * EXPERTS_PER_TOKEN * D * FE
"""Training FLOPs of the experts of a layer on one device: 3 passes, 2 per multiply-add, 3
matrices."""


def work(choices=None, **degrees):
    return train_work(moe(), step(choices=choices or {}, **degrees))


def expert_flops(w):
    return w.where(lambda o: o.component == "routed_experts").flops()


def forward_wires(w):
    return w.where(
        lambda o: (
            o.component == "routed_experts" and o.collective is not None and o.phase == "forward"
        )
    )


def test_capacity_pays_for_slots_and_imbalance_for_the_busiest():
    base = work(expert=4)
    dense = work({"expert_capacity": 1.25}, expert=4)
    ragged = work({"expert_dispatch": "ragged", "expert_imbalance": 1.5}, expert=4)
    assert expert_flops(base) == pytest.approx(EXPERTS * L)
    assert expert_flops(dense) == pytest.approx(1.25 * EXPERTS * L)
    assert expert_flops(ragged) == pytest.approx(1.5 * EXPERTS * L)
    volume = forward_wires(base).collective_bytes("all_to_all")
    assert forward_wires(dense).collective_bytes("all_to_all") == pytest.approx(1.25 * volume)


def test_no_device_is_busier_than_all_tokens_make_it():
    """Alone a device has the mean load however uneven; of two one has at most twice the mean."""
    uneven = {"expert_dispatch": "ragged", "expert_imbalance": 3.0}
    assert expert_flops(work(uneven)) == pytest.approx(EXPERTS * L)
    assert expert_flops(work(uneven, expert=2)) == pytest.approx(2 * EXPERTS * L)
    assert expert_flops(work(uneven, expert=4)) == pytest.approx(3 * EXPERTS * L)


def test_a_ragged_dispatch_sends_a_token_once_per_device():
    """V is a copy of every token for every device, of which k are wanted (ch. 12, appendix)."""
    wires = forward_wires(work({"expert_dispatch": "ragged"}, expert=4))
    for o in wires.ops:
        assert o.collective.kind == "ragged_all_to_all"
        assert o.collective.fan_out == EXPERTS_PER_TOKEN
        assert o.collective.bytes == pytest.approx(4 * (4 * TOKENS * D * 2))


def test_experts_over_tensor_keep_their_width():
    """E_{expert,tensor}: two experts on each of four devices, whole; tokens travel over both axes,
    and the block needs no gather over tensor."""
    cut, spread = (work({"expert_over_tensor": over}, expert=2, tensor=2) for over in (False, True))
    assert expert_flops(cut) == pytest.approx(expert_flops(spread))
    up = named(spread, "experts.up").matmul
    assert (up.k, up.n) == (D, FE)
    assert up.batch == pytest.approx(E / 4)
    assert named(cut, "experts.up").matmul.n == FE / 2
    assert {o.collective.axes for o in forward_wires(spread).ops} == {("expert", "tensor")}
    gathers = [o for o in over(spread, "tensor").ops if o.name == "mlp.gather"]
    assert not gathers


def test_what_arrives_is_gathered_over_tensor_k_fold():
    """Tensor ranks dispatch a piece of the tokens each, and need all of them to cut F."""
    w = work(expert=4, tensor=2)
    gather = named(w, "experts.gather").collective
    assert gather.axes == ("tensor",)
    assert gather.bytes == pytest.approx(EXPERTS_PER_TOKEN * TOKENS * D * 2)
    alone = work(tensor=2)
    assert named(alone, "mlp.gather").collective.bytes == TOKENS * D * 2


def test_experts_reduce_over_their_own_replicas_only():
    """expert is no storage axis: it replicates attention, and holds experts apart."""
    w = work({"storage_axes": ("fsdp",)}, expert=4, data=2)
    reduced = {o.name: o.collective for o in w.ops if o.name.startswith("reduce.") and o.count}
    last = [o for o in w.ops if o.body == "backward_last.0"]
    layer = [o for o in last if o.name == "reduce.experts"]
    assert layer[0].collective.axes == ("replica", "data", "context")
    assert layer[0].collective.bytes == pytest.approx(E / 4 * 3 * D * FE * 2)
    assert reduced["reduce.params"].axes == ("replica", "data", "expert", "context")
    params = next(o for o in w.ops if o.body == "backward_last.0" and o.name == "reduce.params")
    assert params.collective.bytes == pytest.approx((ATTENTION + 2 * D + D * E) * 2)


def layer_in_flight(choices, **degrees):
    cfg = moe()
    return float(layer_bytes(cfg, step(choices=choices, remat="block", **degrees)))


def test_a_compiled_dropless_exchange_has_room_for_all_rows_of_its_group():
    """Static shapes: however even the load, rows of the experts are those of all four devices; each
    of these adds tokens sent and received, and two halves with gradients. What is received lies
    once more in the tiles of the products."""
    ragged = {"expert_dispatch": "ragged"}
    even, busy = (layer_in_flight({**ragged, "expert_imbalance": x}, expert=4) for x in (1.0, 1.5))
    assert even == busy
    rows, size = TOKENS * EXPERTS_PER_TOKEN, 2
    wide = D + 2 * D  # what is kept, and the exchange's buffers, in and out
    narrow = 2 * FE + 2 * FE  # kept, and gradients
    more = even - layer_in_flight({}, expert=4)
    assert more == pytest.approx(((4 - 1) * rows * (wide + narrow) + 4 * rows * D) * size)
    assert layer_in_flight(ragged) == pytest.approx(layer_in_flight({}))


def test_op_by_op_there_are_as_many_rows_as_came():
    ragged = {"expert_dispatch": "ragged", "stack": "fsdp"}
    even, busy = (layer_in_flight({**ragged, "expert_imbalance": x}, expert=4) for x in (1.0, 1.5))
    assert even == pytest.approx(layer_in_flight({"stack": "fsdp"}, expert=4))
    assert busy > even


def test_a_graph_of_a_whole_step_has_room_for_more_rows_than_come():
    """Half as many again in the exchange's buffers, in and out, and a fifth of what is kept."""
    ragged = {"expert_dispatch": "ragged", "stack": "megatron"}
    whole, parts = {"cuda_graph": ("full",)}, {"cuda_graph": ("moe_router",)}
    came = layer_in_flight(ragged, expert=4)
    busy = layer_in_flight({**ragged, "expert_imbalance": 1.5}, expert=4) - came
    buffers = 2 * TOKENS * EXPERTS_PER_TOKEN * D * 2
    kept = busy / 0.5 - buffers
    more = layer_in_flight({**ragged, **whole}, expert=4) - came
    assert kept > 0
    assert more == pytest.approx(0.5 * buffers + 0.2 * kept)
    assert layer_in_flight({**ragged, **parts}, expert=4) == came
    assert layer_in_flight({**ragged, **whole}) == layer_in_flight(ragged)
