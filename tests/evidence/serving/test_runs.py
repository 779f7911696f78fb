"""Published serving rows: which are runs, what is inferred, and why the others are not."""

import csv

import pytest

from shardwise.errors import BadRequest
from shardwise.evidence.serving.notation import COLUMNS, degrees_of
from shardwise.evidence.serving.runs import (
    EXPLICIT,
    LATER,
    PUBLISHED_SERVING,
    collected_runs,
    read_serving,
    run_of,
    serving_runs,
)
from shardwise.evidence.serving.times import features, fitting
from shardwise.models.counts import weight_dtype
from shardwise.roofline.engines import load_engine

ROW = {
    "source": "aiconfigurator-silicon/vllm 0.12.0",
    "model": "Qwen/Qwen3-32B",
    "hardware": "h100_sxm",
    "num_devices": "4",
    "parallelism": "tp4 pp1 adp moe_tp1 moe_ep1",
    "dtype_weights": "fp8",
    "dtype_kv": "",
    "batch_or_concurrency": "16",
    "input_len": "1024",
    "output_len": "512",
    "metric": "tpot_mean",
    "value": "11.85",
    "unit": "ms",
    "notes": "agg; id=one",
}
FIRST = {**ROW, "metric": "ttft_mean", "value": "164"}
MIXTURE = {"model": "deepseek-ai/DeepSeek-R1"}


def only(**changes):
    """The run of a changed row."""
    table = collected_runs([{**ROW, **changes}])
    assert table.left_out == {}
    return table.runs[0]


def reason(**changes):
    table = collected_runs([{**ROW, **changes}])
    assert table.runs == ()
    return next(iter(table.left_out))


def test_a_run():
    run = collected_runs([ROW, FIRST]).runs[0]
    assert (run.family, run.version, run.release) == ("vllm", "0.12.0", "vllm 0.12")
    assert (run.model, run.chip, run.tensor, str(run.piece)) == ("qwen3-32b", "h100", 4, "h100:4")
    assert (run.tpot, run.ttft) == (pytest.approx(0.01185), pytest.approx(0.164))
    assert (run.kind, run.input_length, run.prefill) == ("served", 1024, None)


@pytest.mark.parametrize(
    ("engine", "weights", "kv"),
    [("vllm", "fp8", "bf16"), ("trtllm", "fp8", "fp8"), ("trtllm", "bf16", "bf16")],
)
def test_the_cache_of_an_engine_by_default(engine, weights, kv):
    assert only(source=f"a/{engine} 1.0.0", dtype_weights=weights).kv == kv
    assert only(source=f"a/{engine} 1.0.0", dtype_weights=weights, dtype_kv="int8").kv == "int8"


def test_quantized_weights_are_those_of_the_linear_layers():
    cfg = only(dtype_weights="fp8").cfg
    assert weight_dtype(cfg, "mlp_dense") == "fp8"
    assert weight_dtype(cfg, "lm_head") == "bf16"
    latent = only(**MIXTURE, dtype_weights="fp4").cfg
    assert weight_dtype(latent, "routed_experts") == "nvfp4"
    assert weight_dtype(latent, "attention", "attention.q_up") == "bf16"
    assert weight_dtype(latent, "attention", "attention.o") == "nvfp4"
    assert only(model="openai/gpt-oss-120b", dtype_weights="fp8").cfg.weight_dtypes == (
        only(model="openai/gpt-oss-120b", dtype_weights="fp4").cfg.weight_dtypes
    )


@pytest.mark.parametrize(
    ("parallelism", "degrees"),
    [
        ("TP8", (8, 1, 1)),
        ("tp2 pp1 adp0 moe_tp0 moe_ep0", (2, 1, 1)),
        ("tp8 pp1 adp1 moe_tp8 moe_ep1", (8, 1, 1)),
        ("tp8 pp1 adp1 moe_tp1 moe_ep8", (8, 1, 8)),
        ("tp1 pp1 adp8 moe_tp1 moe_ep8", (1, 8, 8)),
        ("tp2 pp1 adp4 moe_tp1 moe_ep8", (2, 4, 8)),
        ("tp64 pp1 adp1 moe_tp8 moe_ep8", (8, 1, 8)),
        ("tp1 pp1 adp16 moe_tp4 moe_ep4", (1, 4, 4)),
        ("tp4 pp1 adp4 moe_tp1 moe_ep16", (1, 4, 4)),
    ],
)
def test_degrees(parallelism, degrees):
    found = degrees_of(parallelism)
    assert tuple(int(found[c]) for c in ("tensor", "data", "expert")) == degrees
    assert found["workers"] == "0"


def test_two_pools_of_servers():
    run = only(**MIXTURE, parallelism="disagg 2P(tp1,dp4)+3D(tp8,dp1)", hardware="gb200")
    assert run.prefill is not None
    assert (run.prefill.workers, run.prefill.tensor, run.prefill.data) == (2, 1, 4)
    assert (run.workers, run.tensor, str(run.prefill.piece)) == (3, 8, "gb200:4")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"metric": "output_throughput"}, "no time per output token"),
        ({"parallelism": "disagg P(tp4,dp1)+D(tp8,dp1)"}, "without the number of servers"),
        ({"parallelism": "tp2 pp1 adp moe_tp4 moe_ep1"}, "degrees that contradict each other"),
        ({"parallelism": "TP4DP1"}, "another notation"),
        ({"model": "another/Model-1B"}, "a model that the zoo has not"),
        ({"hardware": "RTX PRO 9000"}, "a chip that the catalogue has not"),
        ({"hardware": "h100-80gb-pcap"}, "power-capped"),
        ({"input_len": "U(100,1024)"}, "no fixed lengths"),
        ({"parallelism": "TP24", "hardware": "gb200"}, "does not divide"),
    ],
)
def test_why_a_row_is_left_out(changes, why):
    assert why in reason(**changes)


def test_tensor_counts_devices_of_which_a_chip_may_have_two():
    run = only(hardware="TPU v7x", parallelism="TP8", dtype_weights="bf16")
    assert (run.tensor, run.piece.chips) == (8, 4)


def test_one_configuration_is_one_run():
    again = {**ROW, "notes": "agg; id=two"}
    near, far = {**again, "value": "11.9"}, {**again, "value": "14"}
    assert list(collected_runs([ROW, near]).left_out.values()) == [1]
    table = collected_runs([ROW, far])
    assert table.runs == ()
    assert next(iter(table.left_out)).startswith("two runs of one configuration")


def published():
    with PUBLISHED_SERVING.open() as file:
        return list(csv.DictReader(file))


def test_the_table_of_the_package():
    shipped = read_serving(PUBLISHED_SERVING)
    assert shipped.left_out == {}
    assert len(shipped.runs) >= 2400
    rows = published()
    assert all(row["citation"] for row in rows)
    assert set(EXPLICIT) - set(LATER) <= set(rows[0]) <= set(EXPLICIT)


def test_lengths_lie_between_the_shortest_and_the_stated():
    row = next(r for r in published() if r["shortest"] == "0.8")
    assert run_of(row).input_length == pytest.approx(0.9 * int(row["input_length"]))


def test_a_table_may_lack_the_steps_between_looks_at_the_queue():
    row = next(r for r in published() if r["queue_interval"] == "30")
    assert run_of(row).queue_interval == 30
    assert run_of({k: v for k, v in row.items() if k != "queue_interval"}).queue_interval == 1
    with pytest.raises(BadRequest, match="column 'queue_interval' is 'often'; it must be a whole"):
        run_of({**row, "queue_interval": "often"})


def test_a_table_says_which_benchmarks_began_cold():
    cold, warm = (next(r for r in published() if r["cold"] == told) for told in ("1", ""))
    assert run_of(cold).cold
    assert not run_of(warm).cold
    assert not run_of({k: v for k, v in cold.items() if k != "cold"}).cold
    with pytest.raises(BadRequest, match="column 'cold' is 'yes'; it must be a whole"):
        run_of({**cold, "cold": "yes"})


OWN = {
    **dict.fromkeys(EXPLICIT, ""),
    "engine": "vllm",
    "model": "llama-3.1-8b",
    "hardware": "h100",
    "tensor": "1",
    "data": "1",
    "expert": "1",
    "weights": "bf16",
    "concurrency": "1024",
    "input_length": "8192",
    "output_length": "1024",
    "kind": "served",
    "tpot_ms": "20",
}
"""A row with nothing that it may leave out."""


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ({"weights": "fp8_e4m3"}, ("fp8", "bf16")),
        ({"weights": "w4a16"}, ("int4", "bf16")),
        ({"kv": "fp8_e5m2"}, ("bf16", "fp8")),
        ({"kv": "auto"}, ("bf16", "bf16")),
    ],
)
def test_names_that_engines_have_for_dtypes(cell, told):
    run = run_of({**OWN, **cell})
    assert (run.weights, run.kv) == told


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ({"weights": "fp6"}, "column 'weights' is 'fp6'; it must be one of"),
        ({"hardware": "cpu", "tensor": "4"}, "'cpu'; 4 devices need its data-centre network"),
    ],
)
def test_a_row_that_cannot_be_read_leaves_the_others(cell, why):
    table = serving_runs([{**OWN, **cell}, OWN], (2, 3))
    assert len(table.runs) == 1
    assert why in next(iter(table.first.values()))


def test_a_model_that_does_not_fit_is_said_and_not_counted():
    large = {**OWN, "model": "llama-3.1-405b"}
    table = fitting(serving_runs([large, OWN]))
    assert [run.model for run in table.runs] == ["llama-3.1-8b"]
    assert list(table.left_out.values()) == [1]
    assert "756 GiB" in next(iter(table.first.values()))


def test_most_sequences_tokens_of_a_step_and_memory_can_be_stated():
    """Of 1,024 requests 16 run: a token takes as long as with 16 in flight, and the others wait."""
    engine = load_engine("vllm")

    def times(**cells):
        (counted,) = features([run_of({**OWN, **cells})])
        found = counted.times(engine)
        return float(found.tpot[0]), float(found.ttft[0])

    few = times(max_num_seqs="16")
    assert few[0] == times(concurrency="16")[0] < times()[0] / 1.5
    assert few[1] > 10 * times(concurrency="16")[1]
    assert times(max_num_batched_tokens="2048")[0] < times()[0]
    assert times(memory_share="0.5")[0] < times()[0]
    names = {run_of({**OWN, **c}).id for c in ({}, {"max_num_seqs": "16"}, {"memory_share": ".8"})}
    assert len(names) == 3


def test_names_and_prose_of_a_row_change_no_run():
    rows = published()[::50]
    told = [{**row, "source": "x", "citation": "y", "converted_from": "z"} for row in rows]
    for one, other in zip(serving_runs(rows).runs, serving_runs(told).runs, strict=True):
        assert one.id == other.id
        assert (one.tpot, one.kv, one.cfg) == (other.tpot, other.kv, other.cfg)


def test_a_table_without_the_columns_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("model,value\n")
    with pytest.raises(BadRequest, match="lacks the column"):
        read_serving(path)
    assert "parallelism" in COLUMNS
