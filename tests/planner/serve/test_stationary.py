"""Weights cut along D and F that stay in place (ch. 7.6.2): what moves, what a device holds."""

from dataclasses import replace

import numpy as np
import pytest
from tests.planner.steps import rows_of

from shardwise.book.rules.serving import weight_stationary_chips
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.serve.count import decode_work, prefill_work, step_work
from shardwise.planner.serve.fleet import cheapest, search_fleets
from shardwise.planner.serve.memory import kv_bytes_per_device, weight_bytes_per_device
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.server import legal_degrees
from shardwise.planner.serve.shape import ServeShape
from shardwise.planner.step.layer import matmul_op
from shardwise.plans.serve import ServeDtypes
from shardwise.scheduling.step import StepShape

OPT = "opt-6.7b"  # D = 4,096, F = 4 D, one matrix in and one out
MODELS = (OPT, "llama-3.1-8b", "deepseek-v2-lite", "gpt-oss-20b", "qwen3-next-80b-a3b")
BATCH = 64.0


def server(**degrees):
    return ServeShape(
        degrees={axis: float(d) for axis, d in degrees.items()},
        batch=BATCH,
        input_length=1024,
        output_length=256,
        prefill_chunk=8192,
        kv_sharding="heads",
        dtypes=ServeDtypes(weights="bf16"),
    )


def moved(work, name):
    return {
        op.id.rpartition("/")[2]: float(op.collective.bytes)
        for op in work.ops
        if op.collective is not None and f"/{name}." in op.id
    }


def test_bytes_of_an_mlp_are_the_books():
    """2 B D / X twice and 2 B F / (Y Z) twice, in bf16."""
    cfg = load_model(OPT)
    ours = moved(decode_work(cfg, server(fsdp=4, tensor=8)), "mlp")
    d, f = cfg.d_model, 4 * cfg.d_model
    assert ours == {
        "mlp.gather": 2 * BATCH * d / 4,
        "mlp.sums": 2 * BATCH * f / 8,
        "mlp.parts": 2 * BATCH * f / 8,
        "mlp.scatter": 2 * BATCH * d / 4,
    }


def test_two_ways_move_less_from_the_books_number_of_chips_on():
    """With the book's links (one way over X, two over YZ and three over all) at its best X."""

    def seconds(chips, x):
        work = decode_work(load_model(OPT), server(fsdp=x, tensor=chips / x))
        links = {"mlp.gather": 2, "mlp.scatter": 2, "mlp.sums": 1, "mlp.parts": 1}
        if x == 1:
            links = dict.fromkeys(links, 3)
        return sum(size / links[name] for name, size in moved(work, "mlp").items())

    even = weight_stationary_chips()
    for chips in (even / 1.3, even * 1.3):
        # d/dX of B D / X + 2 B 4D X / N.
        best = np.sqrt(chips / 8)
        assert (seconds(chips, best) < seconds(chips, 1.0)) == (chips > even)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("work", [decode_work, prefill_work])
def test_a_device_does_its_share_of_the_flops(model, work):
    """A quarter, more where tensor leaves something whole (routers, latents); fsdp cuts that, too,
    and rows without D multiply sequences of its own."""
    cfg = load_model(model)
    all_of_them, one, two = (
        work(cfg, server(**degrees)).flops()
        for degrees in ({}, {"tensor": 4}, {"fsdp": 2, "tensor": 2})
    )
    assert all_of_them / 4 * (1 - 1e-9) <= two <= one * (1 + 1e-9)
    if model in (OPT, "llama-3.1-8b"):
        assert two == pytest.approx(all_of_them / 4)


def test_memory_is_cut_both_ways():
    cfg = load_model(OPT)
    one, two = server(tensor=8), server(fsdp=4, tensor=8)
    assert weight_bytes_per_device(cfg, two) == pytest.approx(
        weight_bytes_per_device(cfg, one) / 4, rel=0.01
    )
    assert kv_bytes_per_device(cfg, two) == pytest.approx(kv_bytes_per_device(cfg, one) / 4)
    # A single sequence has its cache on one of the four.
    alone = [kv_bytes_per_device(cfg, replace(s, batch=1.0)) for s in (one, two)]
    assert alone[0] == alone[1]


def test_a_matmul_by_hand():
    cfg = load_model(OPT)
    seen = server(fsdp=4, tensor=8).seen(BATCH, 1.0)
    rows = [r for r in rows_of(cfg, 0) if r.component == "mlp_dense"]
    into, out = sorted(rows, key=lambda row: "D" not in row.contracts)
    for row, k, n in ((into, 1024, 2048), (out, 2048, 1024)):
        found = matmul_op(row, seen)
        assert found.matmul is not None
        assert (found.matmul.m, found.matmul.k, found.matmul.n) == (BATCH, k, n)
        assert found.flops == {"bf16": 2 * BATCH * k * n}


def test_a_step_of_decodes_is_the_decode_step_of_a_plan():
    cfg, shape = load_model("llama-3.1-8b"), server(fsdp=2, tensor=4)
    n = BATCH
    step = StepShape(decodes=n, decode_tokens=n, decode_context=n * shape.context, samples=n)
    ours, plan = step_work(cfg, shape, step), decode_work(cfg, shape)
    assert ours.flops() == pytest.approx(plan.flops())
    assert ours.collective_bytes() == pytest.approx(plan.collective_bytes())


def asked(model, on, **changes):
    return ServeRequest(
        cfg=load_model(model),
        model=model,
        pieces=(parse_slice(on),),
        input_length=128,
        output_length=128,
        dtypes=(ServeDtypes(),),
        **changes,
    )


def test_a_model_of_few_heads_fits_a_pod():
    """BLOOM has 112 heads: tensor goes to 16 on 256 chips, and 16 copies do not fit."""
    copies = asked("bloom-176b", "v5e:16x16", pins={"fsdp": 1, "data": 16})
    assert not search_fleets(copies).grids
    whole = asked("bloom-176b", "v5e:16x16")
    assert cheapest(search_fleets(whole), whole.within).server.mesh["fsdp"] > 1


def test_the_search_has_them_where_experts_lie_together():
    def meshes(model):
        request = asked(model, "v5e:4x4")
        return legal_degrees(request, request.pieces[0], request.pieces[0].shape)

    dense, experts = meshes("llama-3.1-70b"), meshes("gpt-oss-120b")
    assert (4, 4) in set(zip(dense["fsdp"], dense["tensor"], strict=True))
    for found in (dense, experts):
        product = found["data"] * found["fsdp"] * found["expert"] * found["tensor"]
        assert set(product.tolist()) == {16}
        assert not np.any((found["fsdp"] > 1) & (found["expert"] > 1))
