"""Published runs: rows of a table become models, slices, plans and seconds; or a reason why not."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.every import over_every

from shardwise.errors import BadRequest
from shardwise.evidence.training.models import model_of
from shardwise.evidence.training.plans import (
    inferences,
    plan_of,
    slice_of,
    spread,
    stack_of,
)
from shardwise.evidence.training.runs import (
    extra,
    measured_seconds,
    read_run,
    read_runs,
    read_table,
    stated_flops_per_token,
)
from shardwise.models import load_model, params_total
from shardwise.models.specs import LatentAttention

TABLE = Path(__file__).parent / "data" / "training_rows.csv"
"""Rows of public tables; each cites where its facts stand."""
ROWS = {row["id"]: row for row in read_table(TABLE)}

GPT = {
    "id": "mine",
    "source": "megatron-mine",
    "model": "gpt-small",
    "layers": "24",
    "d_model": "2048",
    "d_ff": "8192",
    "heads": "16",
    "hardware": "A100",
    "num_devices": "16",
    "dp": "2",
    "tp": "4",
    "pp": "2",
    "micro_batch": "2",
    "global_batch_seqs": "64",
    "seq_len": "1024",
    "recompute": "full",
    "compute_dtype": "bf16",
    "metric": "step_time",
    "value": "2.5",
}


def row(**changes) -> dict[str, str]:
    """A run of a small GPT on two nodes, with some columns replaced."""
    return {**GPT, **{k: str(v) for k, v in changes.items()}}


# Plans --------------------------------------------------------------------------------------------

PLANS = {
    "mosaic-h100-3b-s2048-g512-bf16-13": {
        "slice": "64*h100:8",
        "mesh": {"fsdp": 512},
        "microbatches": 1,
        "reshard_after_forward": False,  # SHARD_GRAD_OP
        "stack": "fsdp",
        "remat": "none",
    },
    "nanotron-1b-g8-dp2-tp2-pp2-mbs8-z1-0012": {
        "slice": "h100:8",
        "mesh": {"stage": 2, "data": 2, "tensor": 2},
        "microbatches": 16,  # 256 / (2 x 8)
        "zero": 1,
        "stack": "nanotron",
        "pipeline_schedule": "1f1b",
    },
    "maxtext-v4-52b-2x384": {
        "slice": "2*v4:4x4x12",
        "mesh": {"replica": 2, "fsdp": 192},
        "microbatches": 1,
        "remat": "block",
        "stack": "xla",
    },
    "maxtext-v5p-32b-2x128": {
        "slice": "2*v5p:4x4x4",
        "mesh": {"replica": 2, "fsdp": 16, "tensor": 4},
        "microbatches": 1,  # the micro-batch of 8 is per chip: 8 x 4 sequences per shard
        "remat": "matmul_outputs",
        "sequence_parallel": True,
    },
    "tpurec-ironwood-llama3.1-70b-256c-s131072-fp8_full": {
        "slice": "tpu7x:4x8x8",
        "mesh": {"fsdp": 64, "context": 8},  # devices, two per chip
        "microbatches": 1,
        "context_method": "all_gather",
        "remat_kinds": {"attention": "keep", "qkv": "keep", "mlp_out": "keep"},
    },
    "bridge-26.04-llama3.1-405b-gb200-g256-nvfp4-009": {
        "slice": "4*gb200:64",
        "mesh": {"stage": 16, "data": 4, "tensor": 4},
        "microbatches": 384,
        "layers_per_stage": (7, *[8] * 14, 7),  # embedding and head count as a layer each
        "pipeline_schedule": "interleaved",
        "remat": "none",
        "storage_axes": ("fsdp",),
    },
    "bridge-25.11-llama3-70b-gb200-g64-fp8-095": {
        "mesh": {"fsdp": 64},
        "remat": "none",
        "remat_kinds": {"mlp_in": "offload"},  # 40 of 80 layers
        "stack": "megatron",
    },
    "bridge-25.11-deepseek-v3-b200-g256-mxfp8-104": {
        "mesh": {"stage": 16, "data": 2, "expert": 8},
        "mtp_layers": 1,
        "remat_kinds": {"qkv": "recompute"},
        "expert_dispatch": "ragged",
    },
    "bridge-25.11-qwen3-235b-a22b-h100-g256-fp8-113": {
        "mesh": {"stage": 8, "expert": 16, "tensor": 2},  # ep 32 = dp 16 x tp 2
        "expert_over_tensor": True,
        "virtual_stages": 4,
        "layers_per_stage": (11, *[12] * 6, 11),
    },
    "nemo-cp-llama2-7b-s32k": {
        "mesh": {"data": 8, "context": 2, "tensor": 2},
        "microbatches": 16,
        "context_method": "ring",
        "zero": 1,
    },
    "sc21-529.6b": {
        "slice": "315*a100:8",
        "mesh": {"stage": 35, "data": 9, "tensor": 8},
        "microbatches": 280,
        "virtual_stages": 3,
        "attention_kernel": "scores",
        "sequence_parallel": False,
    },
    "sc21t2-zero3-174.6b-g768": {"mesh": {"fsdp": 768}, "microbatches": 1, "stack": "fsdp"},
    "korthikanti-175b-selective": {
        "mesh": {"stage": 8, "tensor": 8},
        "remat": "none",
        "remat_kinds": {"attention": "recompute"},
        "sequence_parallel": True,
        "virtual_stages": 3,
    },
    "palm-540b": {
        "slice": "2*v4:12x16x16",
        "mesh": {"replica": 2, "fsdp": 256, "tensor": 12},
        "attention_kernel": "scores",
        "remat": "block",
    },
    "deepseek-v3-h800": {
        "mesh": {"stage": 16, "data": 2, "expert": 64},
        "pipeline_schedule": "dualpipe",
        "virtual_stages": 2,
        "remat_kinds": {"norm": "recompute", "qkv": "recompute"},
        "mtp_layers": 1,
    },
    "jaxtoolbox-h100-5b-te-bf16": {"mesh": {"fsdp": 256}, "microbatches": 1, "stack": "xla"},
}


@over_every(PLANS)
def test_the_plan_says_what_the_row_says(name):
    plan = read_run(ROWS[name]).plan
    for field, value in PLANS[name].items():
        found = getattr(plan, field)
        assert (dict(found) if isinstance(value, dict) else found) == value, field


def test_every_row_of_the_table_is_a_run_or_has_a_reason():
    runs, left_out = read_runs(read_table(TABLE))
    assert len(runs) + len(left_out) == len(ROWS)
    assert not left_out
    broken = {**ROWS["vtrain-s-0210"], "pp": "3"}
    runs, left_out = read_runs([broken])
    assert not runs
    assert left_out[0].id == "vtrain-s-0210"
    assert left_out[0].reason


@over_every(sorted(ROWS))
def test_no_rule_reads_a_row_s_id(name):
    run, other = read_run(ROWS[name]), read_run({**ROWS[name], "id": "another", "grade": "C"})
    assert (other.plan, other.measured_seconds) == (run.plan, run.measured_seconds)


def test_micro_batch_is_per_device_where_the_source_accumulates_nothing():
    both = {"dp": 1, "tp": 2, "pp": 1, "fsdp": 8, "micro_batch": 2, "global_batch_seqs": 32}
    assert read_run(row(source="maxtext-mine", **both)).plan.microbatches == 1
    assert read_run(row(source="mosaicml-mine", **both)).plan.microbatches == 2


def test_an_unstated_micro_batch():
    assert read_run(row(micro_batch="")).plan.microbatches == 32  # pipelined: one sequence
    flat = read_run(row(micro_batch="", pp=1, dp=4))
    assert flat.plan.microbatches == 2  # 8,192 tokens are 8 sequences of 1,024
    assert (
        read_run(row(micro_batch="", pp=1, dp=4, source="jax-toolbox-mine")).plan.microbatches == 1
    )
    assert any("micro-batch not stated" in said for said in flat.inferred)


def test_expert_parallelism_takes_ranks_of_dp_then_of_fsdp_or_is_a_factor():
    moe = {"experts": 8, "top_k": 2, "gated_mlp": "true", "pp": 1, "micro_batch": 1, "tp": 1}

    def mesh(**degrees):
        return dict(read_run(row(model="mixed", **moe, **degrees)).plan.mesh)

    assert mesh(dp=16, ep=8) == {"data": 2, "expert": 8}
    assert mesh(dp=2, fsdp=8, ep=4) == {"fsdp": 4, "expert": 4}
    assert mesh(dp=1, fsdp=4, ep=4) == {"fsdp": 4, "expert": 4}


@pytest.mark.parametrize(
    ("text", "remat", "kinds"),
    [
        ("full", "block", {}),
        ("none", "none", {}),
        ("none (no such key)", "none", {}),
        ("selective(core_attn)", "none", {"attention": "recompute"}),
        ("selective(mlp)", "none", {"mlp_in": "recompute", "activation": "recompute"}),
        ("maxtext:minimal (save all matmul outputs)", "matmul_outputs", {}),
        ("maxtext:minimal_flash", "matmul_outputs", {"attention": "keep"}),
        ("maxtext:custom offload(layer input,mlpwo)", "offload", {"mlp_out": "offload"}),
        ("full for 5 layers", "none", {}),
        ("full for 20 layers", "block", {}),
        ("none + cpu offload of 6 layers activations", "none", {"activation": "offload"}),
    ],
)
def test_recompute_texts(text, remat, kinds):
    plan = read_run(row(recompute=text)).plan
    assert (plan.remat, dict(plan.remat_kinds)) == (remat, kinds)


def test_without_a_host_link_offloaded_counts_as_kept_and_says_so():
    given = ROWS["tpurec-ironwood-gpt-oss-120b-64c-s8192-bf16"]
    cfg, piece = model_of(given), slice_of(given)
    without = replace(piece, chip=replace(piece.chip, host_link_oneway=None))
    plan = plan_of(given, cfg, without)
    assert (plan.remat, dict(plan.remat_kinds)) == ("block", {"mlp_out": "keep"})
    assert any("host copies count as hidden" in said for said in inferences(given, plan, without))
    linked = replace(piece, chip=replace(piece.chip, host_link_oneway=64e9))
    plan = plan_of(given, cfg, linked)
    assert (plan.remat, dict(plan.remat_kinds)) == ("offload", {"mlp_out": "offload"})
    assert not any("host copies" in said for said in inferences(given, plan, linked))


def test_unstated_recompute_is_the_least_that_fits():
    small = read_run(row(recompute="")).plan
    large = read_run(row(recompute="", micro_batch=16, seq_len=32768, pp=1, dp=4)).plan
    assert (small.remat, large.remat) == ("none", "block")
    on_xla = read_run(row(recompute="", source="jax-toolbox-mine", pp=1, dp=4)).plan
    assert on_xla.remat == "matmul_outputs"


def test_dtypes_by_software():
    def dtypes(**changes):
        return read_run(row(**changes)).plan.dtypes

    assert (dtypes().param, dtypes().grad, dtypes().master) == ("bf16", "f32", "f32")
    assert dtypes(compute_dtype="fp16").grad == dtypes(compute_dtype="").compute == "f16"
    assert dtypes(source="nemo-mine").grad == "bf16"
    sharded = {"pp": 1, "dp": 4}
    maxtext = dtypes(source="maxtext-mine", **sharded)
    assert (maxtext.param, maxtext.master) == ("f32", "none")
    pure = dtypes(source="mosaicml-mine", notes="FSDP mixed_precision=PURE", **sharded)
    assert pure.grad == "bf16"


@pytest.mark.parametrize(
    ("notes", "oneway"),
    [
        ("inter-node bandwidth 800 (Gb/s)", 12.5e9),
        ("A100 nodes on 1600 Gbps RoCE", 25e9),
        ("GPUDirect-TCPX, 8x100Gb+ per VM", 12.5e9),
    ],
)
def test_a_fabric_named_in_the_notes_replaces_the_catalogue_s(notes, oneway):
    centre = slice_of(row(notes=notes)).chip.data_centre
    assert centre is not None
    assert centre.chip_oneway == oneway


def test_layers_are_spread_with_the_ends_short():
    assert spread(94, 8) == (11, 12, 12, 12, 12, 12, 12, 11)
    assert spread(61, 16)[0] == spread(61, 16)[-1] == 3
    for layers, stages in [(61, 16), (61, 2), (105, 35), (7, 4)]:
        assert sum(spread(layers, stages)) == layers
        assert max(spread(layers, stages)) - min(spread(layers, stages)) <= 1


# Models -------------------------------------------------------------------------------------------


@over_every([n for n in ROWS if "n_params" in ROWS[n]["extra_metrics"]])
def test_parameters_are_those_that_the_source_counts(name):
    counted = params_total(model_of(ROWS[name]))
    assert counted == pytest.approx(extra(ROWS[name])["n_params"], rel=1e-3)


def test_a_gpt_has_positions_biases_and_a_tied_head():
    cfg = model_of(row())
    d, f, v = 2048, 8192, 51200
    layer = 4 * d * d + 4 * d + 2 * d * f + f + d + 4 * d
    assert params_total(cfg) == 24 * layer + v * d + 1024 * d + 2 * d


def test_words_of_the_notes_shape_the_model():
    plain = model_of(row(model="llama-mine", gated_mlp="true"))
    assert (plain.tied_embeddings, plain.position_rows, plain.norm_bias) == (False, 0, False)
    tied = model_of(row(model="llama-mine", gated_mlp="true", notes="tied embeddings=True"))
    assert tied.tied_embeddings
    untied = model_of(row(model="llama-mine", gated_mlp="true", notes="tied embeddings=False"))
    assert not untied.tied_embeddings
    assert model_of(ROWS["palm-540b"]).groups[0].parallel


def test_experts_come_from_the_zoo_only_where_the_shape_agrees():
    asked = ROWS["bridge-25.11-deepseek-v3-b200-g256-mxfp8-104"]
    assert model_of(asked) == load_model("deepseek-v3")
    other = model_of({**asked, "layers": "60"})
    assert not isinstance(other.groups[0].mixer, LatentAttention)
    assert other.layers == 60


# Seconds ------------------------------------------------------------------------------------------


def test_metrics_become_seconds_per_step():
    cfg, tokens = model_of(row()), 64 * 1024

    def seconds(metric, value, **more):
        return measured_seconds(row(metric=metric, value=value, **more), cfg)

    assert seconds("step_time", 2.5) == 2.5
    assert seconds("step_time", 2500, unit="ms") == 2.5
    assert seconds("sequences_per_sec", 32) == 2.0
    assert seconds("tokens_per_sec", tokens) == 1.0
    assert seconds("tokens_per_sec_per_device", tokens / 16) == 1.0
    hours = seconds("device_hours_per_trillion_tokens", 1e12 / tokens * 16 / 3600)
    assert hours == pytest.approx(1.0)


def test_hardware_flops_follow_the_formula_of_the_sc21_paper():
    given = ROWS["sc21-529.6b"]
    B, s, L, h, V = 2520, 2048, 105, 20480, 51200
    flops = 96 * B * s * L * h**2 * (1 + s / (6 * h) + V / (16 * L * h))
    expected = flops / (2520 * 163e12)
    assert measured_seconds(given, model_of(given)) == pytest.approx(expected, rel=1e-12)


def test_all_parameters_count_where_the_convention_says_so():
    given = ROWS["maxtext-v5p-32b-2x128"]
    D, F, N, H, L, V, T = 10240, 32768, 32, 256, 32, 32768, 2048
    params = L * (4 * D * N * H + 2 * D * F + 2 * D) + V * D + D
    per_token = 6 * params + 6 * L * N * H * T  # causal half of 12 L N H T
    assert stated_flops_per_token(given, model_of(given)) == pytest.approx(per_token, rel=1e-9)


BOTH = [
    name
    for name, given in ROWS.items()
    if {"model_tflops_per_device", "tflops_per_chip"} & set(extra(given))
    and "mtp" not in given["notes"].lower()
]


@over_every(BOTH)
def test_conventions_agree_with_rows_that_publish_flops_and_tokens(name):
    """TFLOP/s over tokens/s is the source's FLOPs per token; ours by its convention."""
    given, figures = ROWS[name], extra(ROWS[name])
    cfg = model_of(given)
    tflops = figures.get("model_tflops_per_device") or figures["tflops_per_chip"]
    tokens = int(given["global_batch_seqs"]) * int(given["seq_len"])
    rate = tokens / measured_seconds(given, cfg) / int(given["num_devices"])
    assert stated_flops_per_token(given, cfg) == pytest.approx(tflops * 1e12 / rate, rel=0.01)


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"source": "a-blog"}, "add a column 'stack'"),
        ({"source": "a-blog", "stack": "megatrom"}, "did you mean 'megatron'"),
        ({"metric": "dollars"}, "no rule for the metric 'dollars'"),
        ({"value": "fast"}, "it must be a number"),
        ({"value": "0"}, "above 0"),
        ({"layers": ""}, "layers is ''"),
        ({"micro_batch": "5"}, "microbatches of 5 do not divide"),
        ({"dp": "3"}, "multiply to 24, not to 16"),
        ({"recompute": "some of it"}, "of no known form"),
        ({"recompute": "selective(router)"}, "names 'router'"),
        ({"recompute": "maxtext:custom save(secret)"}, "names the unknown 'secret'"),
        ({"hardware": "A101"}, "A101"),
        ({"extra_metrics": "{"}, "extra_metrics is no JSON"),
    ],
)
def test_reasons_name_the_column(changes, told):
    runs, left_out = read_runs([row(**changes)])
    assert runs == ()
    assert told in left_out[0].reason


def test_a_stack_column_serves_a_table_of_one_s_own():
    assert stack_of(row(source="my-cluster", stack="fsdp")) == "fsdp"


def test_a_table_that_is_none(tmp_path):
    with pytest.raises(BadRequest, match="cannot read the table"):
        read_table(tmp_path / "missing.csv")
    short = tmp_path / "short.csv"
    short.write_text("id,source\n1,mine\n")
    with pytest.raises(BadRequest, match="lacks the column"):
        read_table(short)
