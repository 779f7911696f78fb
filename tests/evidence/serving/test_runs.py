"""Published serving rows: which are runs, what is inferred, and why the others are not."""

import csv

import pytest

from shardwise.errors import BadRequest
from shardwise.evidence.serving.runs import (
    COLUMNS,
    PUBLISHED_SERVING,
    gating,
    read_serving,
    release_of,
    serving_runs,
    wide_rows,
)
from shardwise.models.counts import weight_dtype

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


def only(**changes):
    """The run of a changed row."""
    table = serving_runs([{**ROW, **changes}])
    assert table.left_out == {}
    return table.runs[0]


def reason(**changes):
    table = serving_runs([{**ROW, **changes}])
    assert table.runs == ()
    return next(iter(table.left_out))


def test_a_run():
    run = serving_runs([ROW, FIRST]).runs[0]
    assert (run.family, run.version, run.release) == ("vllm", "0.12.0", (0, 12, 0, 99, 0))
    assert (run.model, run.chip, run.tensor, str(run.piece)) == ("qwen3-32b", "h100", 4, "h100:4")
    assert (run.tpot, run.ttft) == (pytest.approx(0.01185), pytest.approx(0.164))
    assert run.kind == "served"


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
    latent = only(model="deepseek-ai/DeepSeek-R1", dtype_weights="fp4").cfg
    assert weight_dtype(latent, "routed_experts") == "nvfp4"
    assert weight_dtype(latent, "attention") == "bf16"
    assert only(model="openai/gpt-oss-120b", dtype_weights="fp8").cfg.weight_dtypes == (
        only(model="openai/gpt-oss-120b", dtype_weights="fp4").cfg.weight_dtypes
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"metric": "output_throughput"}, "no time per output token"),
        ({"parallelism": "disagg P(tp4,dp1)+D(tp8,dp1)"}, "disaggregated"),
        ({"parallelism": "tp4 pp1 adp4 moe_tp1 moe_ep1"}, "attention data parallel"),
        ({"parallelism": "tp4 pp1 adp1 moe_tp1 moe_ep4"}, "expert parallel"),
        ({"num_devices": "8"}, "not the number of devices"),
        ({"model": "MiniMaxAI/MiniMax-M2.5"}, "a model that the zoo has not"),
        ({"hardware": "RTX PRO 9000"}, "a chip that the catalogue has not"),
        ({"hardware": "h100-80gb-pcap"}, "power-capped"),
        ({"input_len": "U(100,1024)"}, "no fixed lengths"),
        ({"parallelism": "TP24", "hardware": "gb200", "num_devices": "24"}, "does not divide"),
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
    assert list(serving_runs([ROW, near]).left_out.values()) == [1]
    table = serving_runs([ROW, far])
    assert table.runs == ()
    assert next(iter(table.left_out)).startswith("two runs of one configuration")


def test_releases_compare():
    spelled = ["1.2.0rc2", "1.2.0rc2.post2", "1.2.0rc6", "1.2.0", "1.10.0"]
    assert sorted(spelled, key=release_of) == spelled
    assert release_of("") == release_of("nightly-dev") == release_of("2023") == ()


def test_the_newest_release_of_a_model_on_a_chip_gates():
    old = {**ROW, "source": "a/vllm 0.9.1", "value": "14", "notes": "id=old"}
    other = {**old, "hardware": "h200_sxm", "notes": "id=other"}
    table = serving_runs([ROW, old, other])
    assert [r.version for r in gating(table.runs)] == ["0.12.0", "0.9.1"]


def test_the_table_of_the_package_is_what_the_filter_keeps(tmp_path):
    rows = wide_rows([ROW, FIRST, {**ROW, "metric": "duration"}])
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert read_serving(path).runs == serving_runs([ROW, FIRST]).runs
    shipped = read_serving(PUBLISHED_SERVING)
    assert shipped.left_out == {}
    assert len(shipped.runs) == 1357
    with PUBLISHED_SERVING.open() as file:
        assert all(row["citation"] for row in csv.DictReader(file))


def test_a_table_without_the_columns_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("model,value\n")
    with pytest.raises(BadRequest, match="lacks the column"):
        read_serving(path)
    assert "parallelism" in COLUMNS
