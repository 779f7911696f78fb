"""Serving in the book's numbers: chapters 7 and 8 with the book's chip constants.

Expected values are oracle entries (id in each test), computed there from the book's text. The book
counts 70e9 or 13e9 parameters, whole tables of them, and no activations; here counts are exact, the
embedding table is only looked up in, and activations are moved too. Each tolerance is that gap.
"""

from math import ceil, floor

import pytest

from shardwise.hardware import load_chip, parse_slice
from shardwise.models import kv_bytes_per_token, load_model, weight_bytes
from shardwise.planner.serve.answer import evaluate_serve
from shardwise.planner.serve.choices import candidate_slices
from shardwise.planner.serve.request import Utilisation
from shardwise.plans import ServeDtypes, ServePlan, model_hash

DTYPES = {w: ServeDtypes(weights=w, kv=w) for w in ("bf16", "int8", "int4")}


def book_slice(text):
    return parse_slice(text, lambda name: load_chip(name, constants="book"))


def book_answer(model, slice_, batch, context, dtype, **changes):
    """A plan on the whole slice by tensor alone, priced with the book's constants."""
    piece = book_slice(slice_)
    plan = ServePlan(
        model=model,
        model_hash=model_hash(load_model(model)),
        slice=slice_,
        mesh={"tensor": piece.chips},
        box=piece.shape,
        batch=batch,
        input_length=context,
        output_length=1,
        dtypes=DTYPES[dtype],
        constants="book",
    )
    return evaluate_serve(plan, load_model(model), piece, **changes)


def plan_70b(dtype, pieces=None):
    """The largest batch of 8192 tokens per sequence in all, as in the book's tables, on the first
    slice that holds one."""
    pieces = pieces or candidate_slices(load_chip("v5e", constants="book"))
    for piece in pieces:
        found = 0
        while fitting(dtype, piece, found + 1) is not None:
            found += 1
        if found:
            return fitting(dtype, piece, found)
    raise AssertionError("no slice holds it")


def fitting(dtype, piece, batch):
    """The plan on a whole slice by tensor alone, priced; None where it does not fit."""
    plan = ServePlan(
        model="llama-3-70b",
        model_hash=model_hash(load_model("llama-3-70b")),
        slice=str(piece),
        mesh={"tensor": piece.chips},
        box=piece.shape,
        batch=batch,
        input_length=7680,
        output_length=512,
        dtypes=DTYPES[dtype],
        constants="book",
    )
    answer = evaluate_serve(plan, load_model("llama-3-70b"), piece)
    usable = piece.chip.require("hbm_usable_bytes")
    return answer if answer.peak_bytes_per_chip <= usable else None


@pytest.mark.parametrize(("dtype", "chips"), [("bf16", 16), ("int8", 8), ("int4", 4)])
def test_smallest_v5e_slices(dtype, chips):
    """table.8.min.*: 4x4 in bf16, 4x2 in int8, 2x2 in int4."""
    assert plan_70b(dtype).piece.chips == chips


@pytest.mark.parametrize(
    ("dtype", "chips", "fractional"), [("bf16", 16, 8.75), ("int8", 8, 4.375), ("int4", 4, 2.1875)]
)
def test_how_many_caches_fit(dtype, chips, fractional):
    """table.8.min.*: min_chips and n_caches = 43, from 70e9 parameters and nothing else in memory.

    70.55e9 parameters leave room for 42; the activations of an 8k prefill take the rest.
    """
    cfg, best = load_model("llama-3-70b"), plan_70b(dtype)
    cache = 8192 * kv_bytes_per_token(cfg, dtype)
    assert weight_bytes(cfg, dtype) / 16e9 == pytest.approx(fractional, rel=0.01)
    book = floor((chips * 16e9 - fractional * 16e9) / cache)
    exact = floor((chips * 16e9 - weight_bytes(cfg, dtype)) / cache)
    activations = best.memory_by_kind["activations"] * chips
    assert (book, exact) == (43, 42)
    assert exact - ceil(activations / cache) - 2 <= best.plan.batch < exact


def test_prefill_at_40_percent_on_16_v5e():
    """8.pd_ratio: 8192 tokens at 40 % MFU take 0.91 s; the ratio is prefill x batch / decode."""
    given = Utilisation(share=0.4, params=70e9)
    answer = book_answer("llama-3-70b", "v5e:4x4", 43, 8192, "bf16", utilisation=given)
    prefill = answer.prefill_seconds
    assert prefill.expected == pytest.approx(0.90964467, rel=1e-8)
    assert round(prefill.expected, 2) == 0.91
    step = answer.tpot_seconds.expected
    assert answer.prefill_servers_per_decode_server == pytest.approx(prefill.expected * 43 / step)


@pytest.mark.parametrize(
    ("slice_", "seconds", "rel"),
    [("v5e:2x4", 0.017217937951219512, 0.015), ("v5e:4x4", 0.008608968975609756, 0.015)],
)
def test_decode_steps_of_70b(slice_, seconds, rel):
    """8.step_4x2, 8.step_4x4: batch 32 x 8k in int8. The book counts the embedding's table, of
    which a step reads a few rows."""
    answer = book_answer("llama-3-70b", slice_, 32, 8192, "int8")
    assert answer.tpot_seconds.lower == pytest.approx(seconds, rel=rel)
    assert answer.tpot_seconds.lower <= seconds
    assert answer.decode.estimate.bound_by() == "HBM"


def test_a_full_chip_steps_in_its_hbm_time():
    """8.step_full: 16e9 / 8.2e11 = 19.5 ms when HBM is full; what is no weight and no cache of it
    (activations of a prefill, the embedding's table) is not read by every step."""
    for dtype in ("int8", "int4"):
        best = plan_70b(dtype)
        idle = best.memory_by_kind["activations"] + 128256 * 8192 / best.piece.chips
        seconds = (16e9 - idle) / 8.2e11
        assert best.tpot_seconds.lower == pytest.approx(seconds, rel=0.02)
        assert best.tpot_seconds.lower <= 0.01951219512195122


@pytest.mark.parametrize(
    ("batch", "seconds"),
    [
        (1, 0.004984756097560976),
        (8, 0.012134146341463415),
        (16, 0.02030487804878049),
        (32, 0.03664634146341463),
        (64, 0.06932926829268293),
        (240, 0.24908536585365854),
    ],
)
def test_theoretical_step_times_of_13b(batch, seconds):
    """table.7.mha.step: LLaMA-2 13B on 8 v5e, 8k of MHA cache, memory-bound formula."""
    answer = book_answer("llama-2-13b", "v5e:2x4", batch, 8192, "bf16")
    assert answer.tpot_seconds.lower == pytest.approx(seconds, rel=0.01)
    rate = answer.plan.batch / answer.tpot_seconds.lower
    assert rate == pytest.approx(batch / seconds, rel=0.01)  # table.7.mha.tput


def test_where_13b_runs_out_of_memory():
    """table.7.oom: 15 sequences of 8192 tokens on 8 x 16e9 B (16 with GiB), by weights and caches
    alone; prefill activations take the fifteenth."""
    answer = book_answer("llama-2-13b", "v5e:2x4", 15, 8191, "bf16")
    kinds, usable = answer.memory_by_kind, 16e9
    assert kinds["weights"] + kinds["kv"] < usable < kinds["weights"] + kinds["kv"] / 15 * 16
    assert answer.peak_bytes_per_chip > usable
    assert book_answer("llama-2-13b", "v5e:2x4", 14, 8191, "bf16").peak_bytes_per_chip < usable


@pytest.mark.parametrize(("dtype", "chips"), [("bf16", 16), ("int8", 8), ("int4", 4)])
def test_what_vendors_numbers_say(dtype, chips):
    """With 15.75 GiB usable of a real v5e the same slices hold the model."""
    pieces = candidate_slices(load_chip("v5e"))
    best = plan_70b(dtype, pieces)
    assert best.piece.chips == chips
    assert best.peak_bytes_per_chip <= 15.75 * 2**30
