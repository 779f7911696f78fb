"""Prefill pools on slices and meshes of their own: priced, chosen, and moved to other chips."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.commands.plan_serve.words import ServeWords
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.serve.answer import evaluate_serve
from shardwise.planner.serve.fleet import cheapest, search_fleets
from shardwise.planner.simulate.metrics import Objectives
from shardwise.plans import PrefillServer, ServePlan, model_hash


def asked(model, on, **words):
    asked = ServeWords(model, on, software="jax", pools="any", **words)
    return asked.requests(on, asked.demand())[0]


def test_prompts_are_priced_on_the_servers_of_their_pool():
    cfg, piece, wide = load_model("llama-3-8b"), parse_slice("v5e:2x2"), parse_slice("v5e:2x4")
    pool = PrefillServer(slice=str(wide), mesh={"tensor": 8}, box=wide.shape)
    alike = ServePlan(
        model="llama-3-8b",
        model_hash=model_hash(cfg),
        slice=str(piece),
        mesh={"tensor": 4},
        box=piece.shape,
        batch=8,
        input_length=1024,
        output_length=128,
        prefill_replicas=1,
    )
    mixed, apart = (
        evaluate_serve(plan, cfg, piece) for plan in (alike, replace(alike, prefill=pool))
    )
    alone = evaluate_serve(replace(alike, prefill=pool).prefill_plan, cfg, wide)
    assert apart.tpot_seconds == mixed.tpot_seconds
    assert apart.prefill_seconds == alone.prefill_seconds
    usd, same = apart.usd_per_million_tokens, alone.usd_per_million_tokens
    assert usd["input"] == pytest.approx(same["input"])
    assert usd["output"] == mixed.usd_per_million_tokens["output"]


def test_a_prefill_pool_takes_the_cheapest_server_for_prompts():
    """With a tight time per token decoding is cut over chips that prompts need not pay for."""
    goal = Objectives(ttft=2.0, tpot=0.012)
    request = asked("llama-3-8b", "h100", input=2048, output=256, kv="bf16")
    searched = search_fleets(request)
    fleet = cheapest(searched, goal, layouts=("disaggregated",))
    own = cheapest(replace(searched, prefillers=()), goal, layouts=("disaggregated",))
    other = fleet.prefiller
    assert other is not None
    assert own.prefiller is None
    assert fleet.chip_seconds < own.chip_seconds
    chips = fleet.piece.chips * fleet.replicas + other.server.piece.chips * fleet.prefill_replicas
    assert fleet.chips == chips
    assert fleet.chip_seconds == pytest.approx(chips / fleet.rate)
    # Nothing alike that was looked at answers a prompt for fewer chip-seconds.
    alike = [
        g.server.chips * g.prefill[np.asarray(g.load.chunk) == other.chunk]
        for g in searched.grids
        if g.server.dtypes == other.server.dtypes
    ]
    assert other.server.chips * other.seconds <= 1.02 * np.min(np.concatenate(alike))
    plan = fleet.plan()
    assert plan.prefill is not None
    assert (plan.prefill.slice, plan.prefill.mesh) == (str(other.server.piece), other.server.mesh)
    prompts = evaluate_serve(plan, request.cfg, fleet.piece).prefill_seconds.expected
    assert prompts == pytest.approx(other.seconds, rel=0.15)
    assert other.on(other.server.piece.chip).seconds == pytest.approx(other.seconds)


def test_a_server_too_slow_to_decode_may_prefill():
    dtypes = {"weights": "bf16", "kv": "bf16"}
    request = asked("llama-3-8b", "h100", input=2048, output=256, **dtypes)
    tight = search_fleets(replace(request, goal=Objectives(tpot=0.004)))
    decoding = {str(g.server.piece) for g in tight.grids}
    assert "h100:1" not in decoding
    assert {str(p.server.piece) for p in tight.prefillers} >= {"h100:1", *decoding}
