"""Lower is what no implementation beats: the book's bound for decode, the state's for training; and
the search's columns say of every server what its plan says, all three bounds."""

import numpy as np
import pytest
from hypothesis import strategies as st

from shardwise.book.rules.serving import step_seconds
from shardwise.boundary.records import plain
from shardwise.commands.pricing.predict import plan_training
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.hardware import load_chip, parse_slice
from shardwise.models import kv_bytes_per_token, load_model, params_text, state_bytes, weight_bytes
from shardwise.planner.serve.answer import ServeAnswer, evaluate_serve
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.server import servers
from shardwise.plans import ServeDtypes, ServePlan, model_hash
from shardwise.roofline.price import HBM

MODELS = (
    "llama-3-8b",
    "llama-3-70b",
    "gemma-4-e4b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "qwen3-next-80b-a3b",
)
SLICES = ("v5e:2x2", "v5e:4x4", "v5p:2x2x2", "tpu7x:2x2x2", "h100:8", "2*h200:8")
CLOSE = 1 + 1e-9


@st.composite
def requests(draw):
    model, on = draw(st.sampled_from(MODELS)), draw(st.sampled_from(SLICES))
    return ServeRequest(
        cfg=load_model(model),
        model=model,
        pieces=(parse_slice(on),),
        input_length=draw(st.integers(1, 20_000)),
        output_length=draw(st.integers(1, 2_000)),
        chunks=(draw(st.sampled_from((512, 8192))),),
        dtypes=(
            ServeDtypes(
                weights=draw(st.sampled_from(("bf16", "int8", "checkpoint"))),
                kv=draw(st.sampled_from(("bf16", "fp8"))),
            ),
        ),
        batch=draw(st.integers(1, 600)),
    )


def book_seconds(answer: ServeAnswer, bandwidth: float, peak: float) -> float:
    """The book's step (ch. 7.1.7) of the devices that work on the same sequences, the fullest."""
    cfg, plan = answer.cfg, answer.plan
    groups = plan.degree("data") * plan.degree("expert")
    devices = plan.degree("tensor") * plan.degree("fsdp")
    cached = plan.input_length + plan.output_length / 2 + 1
    stored = plan.dtypes.weights
    return float(
        step_seconds(
            np.ceil(plan.batch / groups),
            param_bytes=weight_bytes(cfg, None if stored == "checkpoint" else stored),
            kv_bytes=cached * kv_bytes_per_token(cfg, plan.dtypes.kv) + 2 * state_bytes(cfg),
            bandwidth=devices * bandwidth,
            params=params_text(cfg),
            peak=devices * peak,
        )
    )


@pytest.mark.parametrize(("model", "on"), [("llama-3-8b", "v5e:4x4"), ("deepseek-v3", "v5p:2x2x2")])
def test_every_server_of_a_slice_takes_what_the_search_said(model, on):
    """Meshes that cut D, whose sums stand between products, do not change what the others take."""
    request = ServeRequest(
        cfg=load_model(model),
        model=model,
        pieces=(parse_slice(on),),
        input_length=4096,
        output_length=1024,
        dtypes=(ServeDtypes(),),
        batch=145,
    )
    for columns in servers_on(request):
        tpot = columns.decode(145.0).bounds
        for i in range(len(columns)):
            plan = columns.at(i).plan(batch=145, chunk=8192)
            answer = evaluate_serve(plan, request.cfg, request.pieces[0])
            assert plain(tpot.take(i).one()) == pytest.approx(plain(answer.tpot_seconds), rel=1e-12)


def servers_on(request):
    """The meshes of the request's slice, for each way to cut the cache."""
    piece = request.pieces[0]
    return servers(request, piece, piece.shape, request.dtypes[0])


def test_a_decode_step_is_bound_by_weights_and_cache_alone():
    """70e9 bytes of weights and 120 caches of 2,048 tokens on 16 x 8.2e11 bytes/s: 8.4 ms."""
    cfg, dtypes = load_model("llama-3-70b"), ServeDtypes(weights="int8", kv="int8")
    plan = ServePlan(
        model="llama-3-70b",
        model_hash=model_hash(cfg),
        slice="v5e:4x4",
        mesh={"tensor": 16},
        box=(4, 4),
        batch=120,
        input_length=2048,
        output_length=1,
        dtypes=dtypes,
        constants="book",
    )
    piece = parse_slice("v5e:4x4", lambda name: load_chip(name, constants="book"))
    lower = evaluate_serve(plan, cfg, piece).tpot_seconds.lower
    assert lower == pytest.approx((69.5e9 + 120 * 2049.5 * 163840) / (16 * 8.2e11), rel=1e-3)
    assert lower < 8.4e-3


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_tiny_training_step_moves_its_state_alone(optimizer):
    """8 chips, a batch of 8 tokens: every parameter is read and written, master copy and two
    moments in f32 as well; activations and gradients may stay on the chip."""
    choices = TrainChoices(optimizer=optimizer)
    planning = plan_training("llama-3-8b", "v5p:2x2x2", batch="8seq", seq=1, choices=choices)
    answer = planning.best
    traffic = float(answer.estimate.resources[HBM]) * 2.765e12
    dtypes = answer.plan.dtypes
    assert (dtypes.param, dtypes.master) in (("f32", "none"), ("bf16", "f32"))
    each = {"adam": 16, "sgd": 0}[optimizer] + (8 if dtypes.master == "none" else 10)
    cut = answer.plan.devices / answer.plan.degree("data")
    assert traffic == pytest.approx(each * params_text(answer.cfg) / cut, rel=0.02)
    assert answer.estimate.lower <= answer.estimate.expected <= answer.estimate.upper
