"""MaxText: its flags for known plans, and that they, not the notes, count."""

import re
from dataclasses import replace

import pytest
from tests.planner.export.exporting import STORED_F32, a_plan
from tests.planner.export.flags import maxtext_flags

from shardwise.errors import BadRequest
from shardwise.planner.export import export_plan, parse_export
from shardwise.planner.export.maxtext import _per_device


def test_maxtext_flags(two_slices):
    flags = maxtext_flags(export_plan(*two_slices, "maxtext"))
    cut = {k: v for k, v in flags.items() if k.endswith("_parallelism") and v != "1"}
    assert cut == {
        "dcn_data_parallelism": "2",
        "ici_fsdp_parallelism": "16",
        "ici_tensor_sequence_parallelism": "4",
    }
    # 512 sequences = 128 devices x 2 accumulated steps x 2 per device.
    assert float(flags["per_device_batch_size"]) == 2
    assert flags["gradient_accumulation_steps"] == "2"
    assert flags["max_target_length"] == "256"
    assert flags["remat_policy"] == "full"
    assert flags["shard_optimizer_over_data"] == "false"
    assert (flags["weight_dtype"], flags["dtype"]) == ("float32", "bfloat16")
    assert (flags["compile_topology"], flags["compile_topology_num_slices"]) == ("v5e-64", "2")
    assert "not expressed" not in export_plan(*two_slices, "maxtext")


def test_maxtext_batch_below_one_per_device():
    """tensor=16 takes a microbatch of one sequence: a sixteenth per device."""
    plan, cfg, piece = a_plan("dense", "v5e:4x4", {"tensor": 16}, global_batch_sequences=1)
    text = export_plan(plan, cfg, piece, "maxtext")
    assert maxtext_flags(text)["per_device_batch_size"] == "0.0625"
    assert parse_export(text, "maxtext") == plan


def test_maxtext_gets_the_whole_batch_back():
    """It computes int(devices * per_device_batch_size): 29 / 100 * 100 would become 28."""
    assert int(100 * (29 / 100)) == 28
    for devices in (48, 49, 96, 100, 107, 896):
        for sequences in range(1, 1000):
            assert int(devices * _per_device(sequences, devices)) == sequences


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("all_gather", {}),
        ("ring", {"use_tokamax_splash": "true"}),
        ("ulysses", {"use_tokamax_splash": "true", "context_parallel_load_balance": "false"}),
    ],
)
def test_maxtext_gets_the_kernel_that_a_context_strategy_needs_on_tpu(method, asked):
    mesh = {"fsdp": 4, "context": 4}
    plan, cfg, piece = a_plan("dense", "v5e:4x4", mesh, context_method=method)
    text = export_plan(plan, cfg, piece, "maxtext")
    names = ("use_tokamax_splash", "context_parallel_load_balance")
    assert {k: v for k, v in maxtext_flags(text).items() if k in names} == asked
    assert parse_export(text, "maxtext") == plan


def test_maxtext_circular_pipeline():
    plan, cfg, piece = a_plan(
        "dense",
        "v5e:4x4",
        {"stage": 4, "fsdp": 4},
        microbatches=8,
        pipeline_schedule="interleaved",
        virtual_stages=2,
    )
    flags = maxtext_flags(export_plan(plan, cfg, piece, "maxtext"))
    assert flags["ici_pipeline_parallelism"] == "4"
    assert flags["num_pipeline_microbatches"] == "8"
    assert flags["num_pipeline_repeats"] == "2"
    assert flags["num_layers_per_pipeline_stage"] == "3"  # 24 layers / 4 stages / 2 repeats


EDITS = [
    ("ici_fsdp_parallelism=16", "ici_fsdp_parallelism=8", "mesh", {"replica": 2, "fsdp": 8}),
    ("dcn_data_parallelism=2", "dcn_data_parallelism=4", "slices", 4),
    ("per_device_batch_size=2.0", "per_device_batch_size=4", "global_batch_sequences", 1024),
    ("gradient_accumulation_steps=2", "gradient_accumulation_steps=4", "microbatches", 4),
    ("max_target_length=256", "max_target_length=512", "sequence_length", 512),
    ("remat_policy=full", "remat_policy=minimal", "remat", "matmul_outputs"),
    ("shard_optimizer_over_data=false", "shard_optimizer_over_data=true", "zero", 1),
    ("opt_type=adamw", "opt_type=muon", "optimizer", "muon"),
    ("attention=flash", "attention=dot_product", "attention_kernel", "scores"),
    ("base_num_decoder_layers=24", "base_num_decoder_layers=12", "layers_per_stage", (12,)),
    ("mtp_num_layers=0", "mtp_num_layers=1", "mtp_layers", 1),
    ("num_vocab_tiling=1", "num_vocab_tiling=4", "logit_chunks", 4),
    ("offload=false", "offload=true", "offload_optimizer", True),
]


@pytest.mark.parametrize(("old", "new", "field", "value"), EDITS)
def test_an_edited_maxtext_flag_changes_the_plan(two_slices, old, new, field, value):
    text = export_plan(*two_slices, "maxtext")
    assert text.count(old) == 1
    edited = text.replace(old, new)
    if field == "slices":
        edited = edited.replace("num_slices=2", "num_slices=4")
    found = getattr(parse_export(edited, "maxtext"), field)
    wanted = {"tensor": 4} | value if field == "mesh" else value
    assert found == wanted


def test_an_edited_flag_overrules_the_note_beside_it(two_slices):
    """bf16 parameters with an f32 master copy are a note on weight_dtype=float32."""
    plan = replace(two_slices[0], dtypes=replace(STORED_F32, param="bf16", master="f32"))
    text = export_plan(plan, *two_slices[1:], "maxtext")
    assert '# shardwise: dtypes.param: {"reads": "f32", "means": "bf16"}' in text
    assert "# not expressed: dtypes.master" in text
    assert parse_export(text, "maxtext") == plan
    edited = text.replace("weight_dtype=float32", "weight_dtype=float16")
    assert parse_export(edited, "maxtext").dtypes.param == "f16"


def test_a_degree_of_minus_one_takes_what_the_devices_leave(two_slices):
    text = export_plan(*two_slices, "maxtext").replace("parallelism=16", "parallelism=-1")
    assert parse_export(text, "maxtext") == two_slices[0]
    alone = re.sub(r"compile_topology\w*=\S+ ", "", text)
    with pytest.raises(BadRequest, match=r"is -1, the devices that remain.*with --on"):
        parse_export(alone, "maxtext")


def test_contradicting_maxtext_flags_are_refused(two_slices):
    text = export_plan(*two_slices, "maxtext")
    with pytest.raises(BadRequest, match="dcn_\\* flags multiply to 4 slices and compile_topology"):
        parse_export(text.replace("dcn_data_parallelism=2", "dcn_data_parallelism=4"), "maxtext")
    with pytest.raises(BadRequest, match="ici_fsdp_parallelism is -2; write -1, or 1 or more"):
        parse_export(text.replace("ici_fsdp_parallelism=16", "ici_fsdp_parallelism=-2"), "maxtext")
    with pytest.raises(BadRequest, match="opt_type is 'lion'; a plan can express adamw, muon, sgd"):
        parse_export(text.replace("opt_type=adamw", "opt_type=lion"), "maxtext")
    pax = parse_export(text.replace("opt_type=adamw", "opt_type=adam_pax"), "maxtext")
    assert pax.optimizer == "adam"  # the same state and update
