"""Serving engines: what is read, what is refused, and what each constant does to a priced step."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import load_chip, parse_slice, place
from shardwise.roofline import price
from shardwise.roofline.engines import (
    ARRIVAL_CONSTANTS,
    BYTE_READS,
    COMPILED_ENGINE_CONSTANTS,
    DISPATCH_SECONDS,
    ENGINE_CONSTANTS,
    IDEAL_ENGINE,
    ahead,
    engine_names,
    engine_of,
    first_token_class,
    first_token_range,
    load_engine,
)
from shardwise.work import Collective, Matmul, Op, Work

DOCS = Path(__file__).parents[2] / "docs" / "lab"
RECORD = {name: {"value": 0.0, "source": "a test"} for name in ENGINE_CONSTANTS}
EXPERTS = Op(
    id="experts",
    name="experts",
    phase="step",
    component="routed_experts",
    op_class="matmul",
    flops={"bf16": 2.0 * 8 * 64 * 64 * 128},
    hbm_bytes=8 * 64 * 64 * 2.0,
    matmul=Matmul(m=8, k=64, n=64, batch=128),
    body="layer",
    count=3.0,
)
REDUCE = Op(
    id="reduce",
    name="reduce",
    phase="step",
    component="mlp",
    op_class="collective",
    collective=Collective(kind="all_reduce", axes=("tensor",), bytes=1e5),
    stream="net:tensor",
    body="layer",
    count=3.0,
    after=("experts",),
)


LOOP = (replace(EXPERTS, after=("reduce",)), REDUCE)
"""A layer: its collective waits for its experts, and the next one's experts for that."""


def seconds(engine, *ops):
    piece = parse_slice("h100:8")
    placement = place(piece, {"tensor": 8})
    return float(price(Work(ops), piece.chip, placement, stack=engine.stack).expected)


def test_every_engine_has_four_constants_with_sources():
    assert {"vllm", "sglang", "trtllm", "others"} <= set(engine_names())
    assert len(ENGINE_CONSTANTS) <= 4
    for name in engine_names():
        assert set(load_engine(name).sources) == set(ENGINE_CONSTANTS)
        assert all(load_engine(name).sources.values())


def test_the_experts_of_a_layer_are_one_kernel_and_a_collective_is_one_too():
    slow = replace(IDEAL_ENGINE, kernel_seconds=1e-3)
    added = seconds(slow, EXPERTS) - seconds(IDEAL_ENGINE, EXPERTS)
    assert added == pytest.approx(3e-3)
    added = seconds(slow, *LOOP) - seconds(IDEAL_ENGINE, *LOOP)
    assert added == pytest.approx(6e-3)


@pytest.mark.parametrize("size", [2.0, 1.0, 0.5625])
def test_weights_of_a_byte_are_read_more_slowly(size):
    """Others are as before; 128 experts of [4096, 4096] are bound by memory."""
    weights = Matmul(m=1, k=4096, n=4096, batch=128, weight_bytes=size)
    read = replace(EXPERTS, flops={"bf16": 1e6}, hbm_bytes=128 * 4096**2 * size, matmul=weights)
    slower = replace(IDEAL_ENGINE, byte_reads=BYTE_READS)
    times = seconds(IDEAL_ENGINE, read) / seconds(slower, read)
    assert times == pytest.approx(BYTE_READS if size == 1 else 1.0)


def test_hops_scale_the_latency_alone():
    none, one, two = (seconds(replace(IDEAL_ENGINE, hops=h), *LOOP) for h in (0.0, 1.0, 2.0))
    assert two - one == pytest.approx(one - none)
    # 2 x (2 x log2(8) + 1) steps of an H100's measured hop, three times.
    hop = load_chip("h100").network.hop_seconds
    assert one - none == pytest.approx(3 * 2 * 7 * hop)


def test_our_own_engine_has_constants_of_compiled_steps():
    ours = load_engine("jax")
    assert set(ours.sources) == set(COMPILED_ENGINE_CONSTANTS)
    assert all("compiled steps" in source for source in ours.sources.values())
    assert ours.sequence_seconds == IDEAL_ENGINE.sequence_seconds
    assert ours.name not in engine_names()  # it was not fitted on published runs
    learned = json.loads((DOCS / "fit_jax_serving.json").read_text())["constants"]
    for name in COMPILED_ENGINE_CONSTANTS:
        assert getattr(ours, name) == pytest.approx(learned[name], rel=1e-3)


def test_a_constant_of_our_own_engine_belongs_to_its_ops():
    read = replace(EXPERTS, hbm_bytes=1e9)  # which takes longer than its math

    def added(op, **constants):
        return seconds(replace(IDEAL_ENGINE, **constants), op) / seconds(IDEAL_ENGINE, op)

    assert added(read, streams=0.5) == pytest.approx(2)
    assert added(read, narrow=0.5) == pytest.approx(1)
    narrow = replace(read, matmul=replace(read.matmul, weight_bytes=1.0))
    assert added(narrow, narrow=0.5) == pytest.approx(2)
    assert added(read, products=0.5) == pytest.approx(1)
    assert added(read, exchanges=3.0) == pytest.approx(1)
    assert added(EXPERTS, products=0.5) > 1
    assert added(REDUCE, exchanges=3.0) == pytest.approx(3)
    assert added(REDUCE, streams=0.5) == pytest.approx(1)
    norm = replace(EXPERTS, op_class="elementwise", matmul=None, flops={}, hbm_bytes=1e9)
    assert added(norm, passes=3.0) == pytest.approx(3)
    assert added(norm, streams=0.5) == pytest.approx(1)


def test_an_unknown_engine_is_named():
    with pytest.raises(BadRequest, match="unknown serving engine 'vlm'"):
        load_engine("vlm")


def test_a_record_must_be_whole_and_within_bounds():
    assert engine_of("mine", RECORD).hops == 0.0
    with pytest.raises(BadRequest, match="engine 'mine' lacks 'hops'"):
        engine_of("mine", {k: v for k, v in RECORD.items() if k != "hops"})
    with pytest.raises(BadRequest, match="it must be a number from 0 to 5"):
        engine_of("mine", {**RECORD, "hops": {"value": 9, "source": "a test"}})
    with pytest.raises(BadRequest, match="it must be a number"):
        engine_of("mine", {**RECORD, "hops": {"value": "1", "source": "a test"}})


def test_how_requests_arrive_is_a_table_of_its_own():
    assert engine_of("mine", RECORD).arrival.poll_steps == 0.5
    told = {name: {"value": 5e-4, "source": "a test"} for name in ARRIVAL_CONSTANTS}
    assert engine_of("mine", {**RECORD, "arrival": told}).arrival.crowd == 5e-4
    with pytest.raises(BadRequest, match="the arrival of engine 'mine' lacks 'crowd'"):
        engine_of("mine", {**RECORD, "arrival": {k: v for k, v in told.items() if k != "crowd"}})


def test_the_host_runs_ahead_of_the_device():
    """Launches hide behind kernels that take longer, and kernels behind launches that do."""
    assert ahead(0.1, 0.01) == pytest.approx(0.1, rel=1e-3)
    assert ahead(0.01, 0.1) == pytest.approx(0.1, rel=1e-3)
    assert 0.1 < ahead(0.1, 0.1) < 0.15
    device, host = np.meshgrid(np.linspace(0, 1, 21), np.linspace(0, 1, 21))
    found = ahead(device, host)
    assert (found >= np.maximum(device, host)).all()
    assert (found <= device + host + 1e-12).all()
    assert (np.diff(found, axis=0) >= -1e-12).all()


def test_a_measured_range_is_read_and_checked():
    assert engine_of("mine", RECORD).range is None
    assert engine_of("mine", {**RECORD, "range": {"low": 0.8, "high": 1.5}}).range == (0.8, 1.5)
    for wrong in ({"low": 2, "high": 1}, {"low": 0.5}, 3):
        with pytest.raises(BadRequest, match="'range' of engine 'mine'"):
            engine_of("mine", {**RECORD, "range": wrong})
    low, high = load_engine("vllm").range
    assert 0.5 < low < 1 < high < 2


def test_a_chip_of_which_no_run_is_known_has_a_wide_range():
    engine = load_engine("vllm")
    assert engine.range_on("h100") == engine.range
    for chip in ("mi350x", "tpu7x"):  # two runs of the second are too few
        assert not engine.knows(chip)
        least, most = engine.range_on(chip)
        assert least < engine.range[0] < engine.range[1] < most
    assert engine_of("mine", {**RECORD, "range": {"low": 0.8, "high": 1.5}}).range_on("l4") == (
        0.8,
        1.5,
    )


def test_an_exchange_with_experts_takes_its_signals_beside_few_bytes():
    engine = load_engine("trtllm")
    free = replace(engine, dispatch_seconds=0.0)
    exchange = replace(REDUCE, component="routed_experts", after=(), count=1.0)
    for size in (1e3, 1e9):
        sent = Collective(kind="all_to_all", axes=("tensor",), bytes=size)
        more = seconds(engine, replace(exchange, collective=sent))
        more -= seconds(free, replace(exchange, collective=sent))
        assert more == pytest.approx(DISPATCH_SECONDS)
    assert seconds(engine, REDUCE) == seconds(free, REDUCE)
    assert IDEAL_ENGINE.dispatch_seconds == 0


def latent(chip, dtype, widths=(576, 512)):
    """Seconds of a teraFLOP of decode attention."""
    op = Op(
        id="core",
        name="core",
        phase="step",
        component="attention_core",
        op_class="attention",
        flops={dtype: 1e12},
        head_dims=widths,
    )
    piece = parse_slice(f"{chip}:1")
    placement = place(piece, {"tensor": 1})
    return float(price(Work((op,)), piece.chip, placement, stack=IDEAL_ENGINE.stack).expected)


def test_decode_meets_a_latent_cache_at_the_rate_that_was_measured():
    assert 1e12 / latent("b200", "bf16") == pytest.approx(1170e12, rel=0.01)
    assert 1e12 / latent("b200", "fp8") == pytest.approx(2250e12, rel=0.02)
    assert 1e12 / latent("h200", "bf16") == pytest.approx(574e12, rel=0.01)
    assert latent("b200", "bf16") < latent("b200", "bf16", (256, 256)), "no latent cache"
    assert latent("a100", "bf16") == latent("a100", "bf16", (256, 256)), "nothing was measured"


def test_first_tokens_have_a_class_by_pools_load_and_engine():
    """An engine's own up to 100 requests in flight at a server of one pool, and ranges of all."""
    few = {name: first_token_class(name, pools=False, in_flight=100) for name in ("vllm", "jax")}
    assert few["vllm"].name == "vllm, one pool, at most 100"
    assert few["jax"].name == "others, one pool, at most 100"
    many = first_token_class("vllm", pools=False, in_flight=101)
    assert (many.name, many) == (
        "one pool, over 100",
        first_token_class("jax", pools=False, in_flight=200),
    )
    two = first_token_class("sglang", pools=True, in_flight=8)
    assert two.name == "two pools, at most 100"
    assert two.any_load().holds(first_token_class("trtllm", pools=True, in_flight=500))
    assert not two.holds(few["vllm"])
    for kind in (*few.values(), many, two):
        low, high = first_token_range(kind)
        assert 0 < low < 1 < high
