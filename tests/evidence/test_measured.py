"""What published runs measured, beside what is predicted of their plans."""

import csv

import pytest

import shardwise as sw
from shardwise.evidence.training.table import PUBLISHED
from shardwise.plans import TrainPlan
from shardwise.plans.named import audit_measured, audit_names

TRAINED = [n for n in audit_names() if isinstance(sw.load_plan(f"audit:{n}"), TrainPlan)]
"""Audited plans that train."""


@pytest.fixture(scope="module")
def runs():
    """Seconds of the table's runs by layers, width, chips, degrees and batch."""
    columns = ("layers", "d_model", "num_devices", "pp", "tp", "global_batch_seqs", "seq_len")
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["step_seconds"]]
    return {tuple(row[name] for name in columns): float(row["step_seconds"]) for row in rows}


def _job(answer):
    plan, cfg = answer.plan, answer.cfg
    degrees = plan.degree("stage"), plan.degree("tensor")
    batch = plan.global_batch_sequences, plan.sequence_length
    numbers = (cfg.layers, cfg.d_model, answer.piece.chips, *degrees, *batch)
    return tuple(map(str, numbers))


@pytest.mark.parametrize("name", TRAINED)
def test_an_audit_says_what_its_run_measured_and_where_that_is_published(name, runs):
    """The same seconds as the table of runs has, where it has the run."""
    shown = sw.plan_show(f"audit:{name}")
    measured, predicted = shown.result["measured"], shown.result
    assert measured["published"]
    assert measured["source"]
    assert measured["source"] in " ".join(str(shown).split())
    plan = shown.best.plan
    assert plan.constants == "vendor"
    assert predicted["expected_80"] is not None
    if measured["step_seconds"] is None:
        return
    assert measured["step_seconds"] == pytest.approx(runs[_job(shown.best)])
    times = measured["step_seconds"] / predicted["step_seconds"]["expected"]
    assert measured["times_predicted"] == pytest.approx(times)
    assert measured["mfu"] == pytest.approx(predicted["mfu"] / times)
    assert measured["mfu_dtype"] == predicted["mfu_dtype"] == plan.dtypes.compute
    if measured["published_mfu"]:
        # The sources count attention in full, which is a tenth of a small model's FLOPs.
        assert measured["mfu"] == pytest.approx(measured["published_mfu"], rel=0.12)


def test_each_plan_is_in_the_precision_and_recompute_of_its_run():
    deepseek = sw.load_plan("audit:deepseek-v3-2048")
    assert (deepseek.dtypes.compute, deepseek.dtypes.moments) == ("fp8", "bf16")
    assert (deepseek.remat, deepseek.mtp_layers) == ("none", 1)
    megatron = [n for n in TRAINED if n.startswith("megatron")]
    assert {sw.load_plan(f"audit:{n}").remat for n in megatron} == {"none"}


def test_another_job_than_the_run_had_is_held_against_nothing():
    name = "audit:megatron-16b"
    assert sw.plan_show(name, sets={"remat": "block"}).result["measured"] is not None
    sets = {"global_batch_sequences": 384, "microbatches": 8}
    assert sw.plan_show(name, sets=sets).result["measured"] is None
    assert audit_measured("plan.yaml") is None
    assert audit_measured("audit:llama-3-70b-served") is None


def test_the_book_s_rates_are_there_on_request():
    book = sw.plan_show("audit:llama-3-405b-8k", constants="book").result
    assert book["expected_80"] is None
    assert book["mfu"] > 0.8
    assert sw.plan_show("audit:llama-3-405b-8k").result["mfu"] < 0.55


@pytest.mark.slow
def test_a_plan_beside_the_best_says_what_its_run_measured():
    found = sw.plan_train(
        "llama-3.1-405b", "1024*h100:8", batch="2048seq", seq=8192, remat="none",
        pins={"stage": 16, "tensor": 8, "data": 64}, against="audit:llama-3-405b-8k",
    )  # fmt: skip
    measured = found.result["against"]["measured"]
    assert measured["step_seconds"] == pytest.approx(12.5045)
    said = " ".join(str(found).split())
    assert "s, measured 12.5 s)" in said
    assert (
        f"theirs measured: 12.5 s, {100 * (measured['times_predicted'] - 1):.1f} % slower" in said
    )
    assert found.result["against"]["mfu_dtype"] == "bf16"
