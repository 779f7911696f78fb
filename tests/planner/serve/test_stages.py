"""Servers whose layers lie on stages one after the other."""

from dataclasses import replace

import pytest

from shardwise.commands.run import serving
from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export.serving import export_serve, parse_serve
from shardwise.planner.serve.memory import serve_memory
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.server import legal_degrees, server_of
from shardwise.plans import ServePlan, model_hash
from shardwise.plans.servers import JAX, VLLM
from shardwise.scheduling.step import StepShape

CFG = load_model("llama-3.1-70b")


def a_plan(place, mesh, **changes):
    values = {
        "model": "llama-3.1-70b",
        "model_hash": model_hash(CFG),
        "slice": place,
        "mesh": mesh,
        "box": parse_slice(place).shape,
        "batch": 64,
        "input_length": 2048,
        "output_length": 256,
        "kv_sharding": "heads",
        "engine": "vllm",
    }
    return ServePlan(**{**values, **changes})


def server(place, mesh, **changes):
    return server_of(a_plan(place, mesh, **changes), CFG, parse_slice(place))


def decode(n):
    return StepShape(decodes=n, decode_tokens=n, decode_context=2176 * n, samples=n)


def test_a_token_takes_every_stage_and_half_of_the_batch_is_on_each():
    """A pass of 64 sequences over two stages takes what 32 take on the devices of one, and the
    stream's way between."""
    two, one = server("2*h100:8", {"stage": 2, "tensor": 8}), server("h100:8", {"tensor": 8})
    passed = float(two.seconds(decode(64))[()])
    alone = float(one.seconds(decode(32))[()])
    wire = 32 / 8 * CFG.d_model * 2 / 50e9
    assert alone < passed < alone + 20 * wire + 1e-4
    assert float(two.seconds(decode(1))[()]) == pytest.approx(
        float(one.seconds(decode(1))[()]), rel=0.02
    )


def test_a_device_holds_the_layers_of_its_stage():
    two, one = server("2*h100:8", {"stage": 2, "tensor": 8}), server("h100:8", {"tensor": 8})
    ((_, half),) = serve_memory(CFG, two.shape(64.0)).points
    ((_, whole),) = serve_memory(CFG, one.shape(64.0)).points
    assert half["weights"] == pytest.approx(whole["weights"] / 2)
    assert half["kv"] == pytest.approx(whole["kv"] / 2)
    shape = two.shape(64.0)
    held = float(two.cache_tokens(shape, 0.9))
    each = CFG.layers / 2 * 2 * 128 * 2  # K and V of one head in bf16, of half of the layers
    assert held == pytest.approx(float(two.cache_bytes(shape, 0.9)) / each)
    assert float(two.line_tokens(shape, 0.9)) == pytest.approx(held)


def test_a_prompt_is_not_cut_over_stages():
    """Its first token comes after both of them, not after the half of it that a step counts."""
    two, one = server("2*h100:8", {"stage": 2, "tensor": 8}), server("h100:8", {"tensor": 8})
    later = two.lag().seconds - one.lag().seconds
    whole = StepShape(prefills=1, prefill_tokens=2048, prefill_pairs=2048**2 // 2, samples=1)
    assert later == pytest.approx(float(one.seconds(whole)[()]) / 2, rel=0.1)


def test_stages_are_laid_out_where_they_are_pinned():
    piece = parse_slice("2*h100:8")
    asked = ServeRequest(
        cfg=CFG, model="m", pieces=(piece,), input_length=8, output_length=8, software=VLLM
    )
    assert set(legal_degrees(asked, piece, piece.shape)["stage"].tolist()) == {1}
    pinned = replace(asked, pins={"stage": 2})
    found = legal_degrees(pinned, piece, piece.shape)
    assert (found["stage"].tolist(), found["tensor"].tolist()) == ([2], [8])
    for other in (replace(pinned, software=JAX), replace(asked, pins={"stage": 3})):
        assert not len(legal_degrees(other, piece, piece.shape)["tensor"])


@pytest.mark.parametrize(
    ("target", "flags"),
    [
        ("vllm", ("--pipeline-parallel-size=2 ", "--max-num-batched-tokens=4096 ", "--nnodes=2")),
        ("sglang", ("--pp-size=2 ", "--tp-size=8 ", "--chunked-prefill-size=4096 ")),
    ],
)
def test_stages_are_said_by_flags_and_read_back(target, flags):
    """A step of theirs is one part of the batch, so its tokens are half of the plan's."""
    piece = parse_slice("2*h100:8")
    policy = "chunked"
    plan = a_plan("2*h100:8", {"stage": 2, "tensor": 8}, engine=target)
    assert plan.scheduling.policy == policy
    text = export_serve(plan, CFG, piece, target)
    assert all(flag in text for flag in flags), text
    assert "--data-parallel" not in text
    assert parse_serve(text, target) == plan


def test_stages_beside_other_cuts_and_of_our_server_are_refused():
    with pytest.raises(BadRequest, match="'stage' of 2 and 'expert' of 4: stages of a server are"):
        a_plan("h100:8", {"stage": 2, "expert": 4})
    with pytest.raises(BadRequest, match="engine ideal has no pipeline stages; name the engine"):
        a_plan("h100:8", {"stage": 2, "tensor": 4}, engine="ideal")


def test_our_server_refuses_a_plan_of_stages():
    plan = a_plan("2*h100:8", {"stage": 2, "tensor": 8})
    with pytest.raises(BadRequest, match="pipeline stages, and this server has none; plan with"):
        serving._check_slices(plan, ())
