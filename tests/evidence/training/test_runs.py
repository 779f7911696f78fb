"""Published runs: rows of a table become models, slices, plans and seconds; or a reason why not."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tests.every import over_every

from shardwise.errors import BadRequest
from shardwise.evidence.training.models import model_of as model_in
from shardwise.evidence.training.plans import inferences, plan_of, spread
from shardwise.evidence.training.plans import slice_of as slice_in
from shardwise.evidence.training.runs import measured_seconds, read_run, read_runs
from shardwise.evidence.training.table import PUBLISHED, read_table, row_of
from shardwise.models import load_model, params_total
from shardwise.models.specs import LatentAttention
from shardwise.models.zoo import hf_config

FOLDER = Path(__file__).parent / "data"
TABLE = FOLDER / "training_rows.csv"
"""Rows of public tables; each cites where its facts stand."""
ROWS = {row["id"]: row for row in read_table(TABLE).rows}


def model_of(cells):
    return model_in(row_of(cells), FOLDER)


def slice_of(cells):
    return slice_in(row_of(cells), FOLDER)


GPT = {
    "id": "mine",
    "source": "mine",
    "stack": "megatron",
    "release": "2023",
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
    "remat": "block",
    "compute_dtype": "bf16",
    "step_seconds": "2.5",
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
        "weight_gather": "per_microbatch",  # SHARD_GRAD_OP
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
    runs, left_out = read_runs(ROWS.values())
    assert len(runs) + len(left_out) == len(ROWS)
    assert not left_out
    broken = {**ROWS["vtrain-s-0210"], "pp": "3"}
    runs, left_out = read_runs([broken])
    assert not runs
    assert left_out[0].id == "vtrain-s-0210"
    assert left_out[0].reason


def test_words_for_people_change_no_run():
    """Every published row with other words in place of those for people, `group` kept."""
    words = ("id", "source", "citation", "notes", "converted_from", "grade")
    table = read_table(PUBLISHED).rows
    other = [{**cells, **dict.fromkeys(words, f"word {i}")} for i, cells in enumerate(table)]
    (runs, left_out), (others, other_left_out) = read_runs(table), read_runs(other)
    assert len(runs) == len(others) == 772
    assert [one.reason for one in left_out] == [one.reason for one in other_left_out]
    read = [f.name for f in fields(runs[0]) if f.name not in ("id", "source", "grade")]
    for one, two in zip(runs, others, strict=True):
        assert all(getattr(one, name) == getattr(two, name) for name in read), one.id


def test_micro_batch_of_a_device_is_not_accumulated():
    both = {"dp": 1, "tp": 2, "pp": 1, "fsdp": 8, "micro_batch": 2, "global_batch_seqs": 32}
    each = {"micro_batch_per": "device"}
    assert read_run(row(stack="xla", **both, **each)).plan.microbatches == 1
    assert read_run(row(stack="fsdp", **both)).plan.microbatches == 2


def test_an_unstated_micro_batch():
    assert read_run(row(micro_batch="")).plan.microbatches == 32  # pipelined: one sequence
    flat = read_run(row(micro_batch="", pp=1, dp=4))
    assert flat.plan.microbatches == 2  # 8,192 tokens are 8 sequences of 1,024
    assert read_run(row(micro_batch="", pp=1, dp=4, stack="xla")).plan.microbatches == 1
    assert any("micro-batch not stated" in said for said in flat.inferred)


def test_expert_parallelism_takes_ranks_of_dp_then_of_fsdp_or_is_a_factor():
    moe = {"experts": 8, "top_k": 2, "gated_mlp": "true", "pp": 1, "micro_batch": 1, "tp": 1}

    def mesh(**degrees):
        return dict(read_run(row(model="mixed", **moe, **degrees)).plan.mesh)

    assert mesh(dp=16, ep=8) == {"data": 2, "expert": 8}
    assert mesh(dp=2, fsdp=8, ep=4) == {"fsdp": 4, "expert": 4}
    assert mesh(dp=1, fsdp=4, ep=4) == {"fsdp": 4, "expert": 4}


@pytest.mark.parametrize(
    ("text", "layers", "remat", "kinds"),
    [
        ("block", "", "block", {}),
        ("none", "", "none", {}),
        ("recompute:attention", "", "none", {"attention": "recompute"}),
        ("matmul_outputs", "", "matmul_outputs", {}),
        ("matmul_outputs;keep:context", "", "matmul_outputs", {"attention": "keep"}),
        ("keep:block_input,qkv_proj", "", "block", {"qkv": "keep"}),
        ("keep:qkv,mlpwo", "", "block", {"qkv": "keep", "mlp_out": "keep"}),
        ("offload:block_input,mlp_out", "", "offload", {"mlp_out": "offload"}),
        ("offload:block_input;keep:qkv", "", "offload", {"qkv": "keep"}),
        ("keep:qkv,mlpwi_0", "", "block", {"qkv": "keep", "mlp_gate": "keep"}),
        ("block", "5", "none", {}),
        ("block", "20", "block", {}),
        # A quarter of 2 D norms, block input, attention, its projection, 3 D qkv, 4 D and 4 D.
        (
            "offload:block_input,mlp_in,activation",
            "6",
            "none",
            {"block_input": "offload", "qkv": "offload"},
        ),
    ],
)
def test_what_is_recomputed(text, layers, remat, kinds):
    plan = read_run(row(remat=text, remat_layers=layers)).plan
    assert (plan.remat, dict(plan.remat_kinds)) == (remat, kinds)


def test_without_a_host_link_offloaded_counts_as_kept_and_says_so():
    given = ROWS["tpurec-ironwood-gpt-oss-120b-64c-s8192-bf16"]
    cfg, piece = model_of(given), slice_of(given)
    without = replace(piece, chip=replace(piece.chip, host_link_oneway=None))
    plan = plan_of(row_of(given), cfg, without)
    assert (plan.remat, dict(plan.remat_kinds)) == ("block", {"mlp_out": "keep"})
    assert any(
        "host copies count as hidden" in said for said in inferences(row_of(given), plan, without)
    )
    linked = replace(piece, chip=replace(piece.chip, host_link_oneway=64e9))
    plan = plan_of(row_of(given), cfg, linked)
    assert (plan.remat, dict(plan.remat_kinds)) == ("offload", {"mlp_out": "offload"})
    assert not any("host copies" in said for said in inferences(row_of(given), plan, linked))


def test_unstated_recompute_is_the_least_that_fits():
    small = read_run(row(remat="")).plan
    large = read_run(row(remat="", micro_batch=16, seq_len=32768, pp=1, dp=4)).plan
    assert (small.remat, large.remat) == ("none", "block")
    on_xla = read_run(row(remat="", stack="xla", pp=1, dp=4)).plan
    assert on_xla.remat == "matmul_outputs"


def test_dtypes_that_are_not_stated():
    def dtypes(**changes):
        return read_run(row(**changes)).plan.dtypes

    assert (dtypes().param, dtypes().grad, dtypes().master) == ("bf16", "f32", "f32")
    assert dtypes(compute_dtype="f16").grad == dtypes(compute_dtype="").compute == "f16"
    assert dtypes(grad_dtype="bf16").grad == "bf16"
    assert dtypes(param_dtype="f32").master == "none"  # they are the copy themselves
    assert dtypes(param_dtype="f32", master_dtype="f32").master == "f32"
    sharded = {"pp": 1, "dp": 4}
    compiled = dtypes(stack="xla", **sharded)
    assert (compiled.param, compiled.master, compiled.grad) == ("f32", "none", "f32")
    assert dtypes(stack="xla", param_dtype="bf16", **sharded).param == "bf16"


def test_what_a_row_says_of_its_machine_replaces_the_catalogue():
    centre = slice_of(row(nic_gbps_per_device=100)).chip.data_centre
    assert centre is not None
    assert centre.chip_oneway == 12.5e9
    chip = slice_of(row(hw="power_watts=300; chip.hbm_bandwidth=1e12")).chip
    assert (chip.power_watts, chip.hbm_bandwidth) == (300, 1e12)
    torus = {"hardware": "v5p", "num_devices": 64, "stack": "xla"}
    assert slice_of(row(**torus)).shape == (4, 4, 4)
    assert slice_of(row(slices=2, slice="2x4x4", **torus)).shape == (2, 4, 4)
    with pytest.raises(BadRequest, match="of shape 3x3: v5p has no such slice"):
        slice_of(row(slice="3x3", **torus))


def test_nodes_hold_what_is_stated_or_else_what_the_catalogue_says():
    assert str(slice_of(row())) == "2*a100:8"
    assert str(slice_of(row(slices=4))) == "4*a100:4"
    for wrong in (1, 3):
        with pytest.raises(BadRequest, match=f"'slices' is {wrong}; it must cut the 16 chips"):
            slice_of(row(slices=wrong))


def test_the_optimizer_is_in_pieces_where_whole_copies_do_not_fit():
    """An 8B takes 18 bytes a parameter, 134 GiB of 80, with its optimizer whole."""
    large = {"model": "llama-3-8b", "layers": "", "d_model": "", "d_ff": "", "heads": "",
             "vocab": "", "seq_len": "4096", "tp": 1, "pp": 1, "dp": 16, "compute_dtype": "bf16",
             "micro_batch": 1, "zero": "", "remat": ""}  # fmt: skip
    run = read_run(row(**large))
    assert (run.plan.zero, run.plan.remat) == (1, "none")
    assert "ZeRO not stated: stage 1" in run.inferred
    assert read_run(row(**large | {"zero": 0})).plan.zero == 0
    small = read_run(row(zero="", micro_batch=1, dp=16, tp=1, pp=1))
    assert small.plan.zero == 0


def test_rows_are_cut_over_tensor_by_recent_software():
    def cut(**changes):
        return read_run(row(**changes)).plan.sequence_parallel

    assert [cut(release=year) for year in ("2023.12", "2024.01", "")] == [False, True, True]
    assert cut(release="2022", sequence_parallel="true")
    assert not cut(release="2026", sequence_parallel="false")
    assert not cut(release="2026", tp=1, dp=8)


def test_layers_are_spread_with_the_ends_short():
    assert spread(94, 8) == (11, 12, 12, 12, 12, 12, 12, 11)
    assert spread(61, 16)[0] == spread(61, 16)[-1] == 3
    for layers, stages in [(61, 16), (61, 2), (105, 35), (7, 4)]:
        assert sum(spread(layers, stages)) == layers
        assert max(spread(layers, stages)) - min(spread(layers, stages)) <= 1


# Models -------------------------------------------------------------------------------------------


def test_a_gpt_has_positions_biases_and_a_tied_head():
    cfg = model_of(row())
    d, f, v = 2048, 8192, 51200
    layer = 4 * d * d + 4 * d + 2 * d * f + f + d + 4 * d
    assert params_total(cfg) == 24 * layer + v * d + 1024 * d + 2 * d


def test_columns_shape_the_model():
    plain = model_of(row(gated_mlp="true"))
    assert (plain.tied_embeddings, plain.position_rows, plain.norm_bias) == (False, 0, False)
    tied = model_of(row(gated_mlp="true", tied_embeddings="true", positions="learned"))
    assert (tied.tied_embeddings, tied.position_rows) == (True, 1024)
    assert model_of(row(biases="false")).norm_bias is False
    assert model_of(ROWS["palm-540b"]).groups[0].parallel


def test_a_zoo_model_holds_where_the_numbers_agree():
    asked = ROWS["bridge-25.11-deepseek-v3-b200-g256-mxfp8-104"]
    assert model_of(asked) == load_model("deepseek-v3")
    short = model_of({**asked, "layers": "5"})
    assert [layer for layer, _ in short.layer_groups()] == list(load_model("deepseek-v3").groups)
    assert [n for _, n in short.layer_groups()] == [3, 2]
    other = model_of({**asked, "d_model": "7000"})
    assert not isinstance(other.groups[0].mixer, LatentAttention)


def test_a_config_of_one_s_own(tmp_path):
    (tmp_path / "mine").mkdir()

    (tmp_path / "mine" / "config.json").write_text(json.dumps(hf_config("llama-3-8b")))
    found = model_in(row_of(row(config="mine/config.json")), tmp_path)
    assert found.groups == load_model("llama-3-8b").groups


# Seconds ------------------------------------------------------------------------------------------


def test_metrics_become_seconds_per_step():
    cfg, tokens = model_of(row()), 64 * 1024

    def seconds(metric, value, **more):
        given = row_of(row(step_seconds="", metric=metric, value=value, **more))
        return measured_seconds(given, cfg)

    assert seconds("step_time", 2.5) == 2.5
    assert seconds("step_time", 2500, unit="ms") == 2.5
    assert seconds("sequences_per_sec", 32) == 2.0
    assert seconds("tokens_per_sec", tokens) == 1.0
    assert seconds("tokens_per_sec_per_device", tokens / 16) == 1.0
    hours = seconds("device_hours_per_trillion_tokens", 1e12 / tokens * 16 / 3600)
    assert hours == pytest.approx(1.0)
    params = params_total(cfg) - 1024 * 2048  # positions are looked up
    flops = (6 * params + 6 * 24 * 2048 * 1024) * tokens
    assert seconds("tflops_per_device", flops / 16 / 1e12) == pytest.approx(1.0, rel=2e-3)


def test_step_seconds_go_before_a_metric():
    given = row_of(row(step_seconds=2.5, metric="step_time", value=9))
    assert measured_seconds(given, model_of(row())) == 2.5


def test_hardware_flops_were_converted_by_the_formula_of_the_sc21_paper():
    B, s, L, h, V = 2520, 2048, 105, 20480, 51200
    flops = 96 * B * s * L * h**2 * (1 + s / (6 * h) + V / (16 * L * h))
    stated = float(ROWS["sc21-529.6b"]["step_seconds"])
    assert stated == pytest.approx(flops / (2520 * 163e12), rel=1e-5)


def test_all_parameters_were_counted_where_the_convention_says_so():
    D, F, N, H, L, V, T = 10240, 32768, 32, 256, 32, 32768, 2048
    params = L * (4 * D * N * H + 2 * D * F + 2 * D) + V * D + D
    per_token = 6 * params + 6 * L * N * H * T  # causal half of 12 L N H T
    given = ROWS["maxtext-v5p-32b-2x128"]
    rate = float(given["converted_from"].split()[0]) * 1e12 * int(given["num_devices"])
    tokens = int(given["global_batch_seqs"]) * int(given["seq_len"])
    assert float(given["step_seconds"]) == pytest.approx(per_token * tokens / rate, rel=1e-5)


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hardware": ""}, "column 'hardware' is empty; every run must state it"),
        ({"stack": "megatrom"}, "column 'stack' is 'megatrom'; it must be 'xla'"),
        (
            {"step_seconds": "", "metric": "dollars"},
            "column 'metric' is 'dollars'; it must be 'step_time'",
        ),
        ({"step_seconds": ""}, "column 'step_seconds' is empty; state it, or a metric"),
        ({"step_seconds": "fast"}, "column 'step_seconds' is 'fast'; it must be a number"),
        ({"step_seconds": "0"}, "column 'step_seconds' is '0'; it must be above 0"),
        ({"step_seconds": "nan"}, "column 'step_seconds' is 'nan'; it must be "),
        ({"zero": "7"}, "column 'zero' is '7'; it must be at most 3 (the column: "),
        ({"layers": ""}, "column 'layers' is empty; "),
        ({"layers": "many"}, "column 'layers' is 'many'; it must be a whole number"),
        ({"micro_batch": "5"}, "column 'micro_batch' is '5'; it must divide the"),
        ({"dp": "3"}, "is 16; dp, fsdp, tp, pp, cp and ep multiply to 24, not to 16"),
        (
            {"remat": "some of it"},
            "column 'remat' is 'some of it'; it must be none, matmul_outputs",
        ),
        ({"remat": "keep:router"}, "column 'remat': unknown kind of activations 'router'"),
        ({"overlap": "data,magic"}, "column 'overlap' is 'data,magic'"),
        ({"schedule": "2f2b"}, "column 'schedule': unknown "),
        (
            {"context_method": "rink"},
            "column 'context_method': unknown context method 'rink'; did you mean 'ring'",
        ),
        ({"hardware": "A101"}, "column 'hardware': unknown chip 'A101'; "),
        ({"config": "no.json"}, "column 'config': "),
    ],
)
def test_reasons_name_the_column(changes, told):
    runs, left_out = read_runs([row(**changes)])
    assert runs == ()
    assert told in left_out[0].reason


def test_software_that_is_not_stated():
    tpu = {"hardware": "v5p", "num_devices": 64, "pp": 1, "tp": 1, "dp": 64, "micro_batch": ""}
    assert read_run(row(stack="", **tpu)).plan.stack == "xla"
    assert read_run(row(stack="")).plan.stack == "megatron"
    sharded = read_run(row(stack="", pp=1, dp=1, fsdp=4))
    assert sharded.plan.stack == "fsdp"
    assert "software not stated: fsdp" in sharded.inferred


def test_a_vocabulary_counts_as_open_where_neither_row_nor_model_says_it():
    cells = {"id": "a", "model": "llama-3-8b", "hardware": "h100", "num_devices": "8", "fsdp": "8",
             "global_batch_seqs": "8", "seq_len": "8192", "step_seconds": "2"}  # fmt: skip
    assert not any("vocabulary" in said for said in read_run(cells).inferred)
    shape = {"model": "mine", "layers": "8", "d_model": "1024", "d_ff": "4096", "heads": "8"}
    assert any("vocabulary not stated: 51,200" in said for said in read_run(cells | shape).inferred)
