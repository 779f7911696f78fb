"""Tables of runs in the words of other programs, and what a row leaves open."""

import pytest
from tests.evidence.training.test_runs import model_of, row

from shardwise.errors import BadRequest
from shardwise.evidence.training.runs import read_run
from shardwise.evidence.training.table import row_of
from shardwise.models import load_model


def test_other_spellings():
    given = row_of(row(compute_dtype="FP16", overlap="dp, p2p", remat="full", schedule="1F1B"))
    assert (given.compute_dtype, given.remat, given.schedule) == ("f16", "block", "1f1b")
    assert given.overlap == ("data", "pipeline")
    assert row_of(row(overlap="none")).overlap == ()
    assert row_of(row(overlap="default")).overlap is None


@pytest.mark.parametrize(
    ("column", "word", "ours"),
    [
        ("stack", "Megatron-LM", "megatron"),
        ("stack", "MaxText", "xla"),
        ("stack", "torchtitan", "fsdp"),
        ("optimizer", "adamw_torch", "adam"),
        ("optimizer", "paged_adamw_8bit", "adam8bit"),
        ("attention_kernel", "flash_attention_2", "fa2"),
        ("attention_kernel", "eager", "scores"),
        ("compute_dtype", "bf16-mixed", "bf16"),
        ("schedule", "Interleaved1F1B", "interleaved"),
        ("context_method", "allgather", "all_gather"),
    ],
)
def test_words_of_other_programs(column, word, ours):
    assert getattr(row_of(row(**{column: word})), column) == ours


def test_policies_of_maxtext():
    tpu = {"hardware": "v5p", "num_devices": 64, "pp": 1, "tp": 1, "dp": 1, "fsdp": 64,
           "micro_batch": "", "stack": "xla"}  # fmt: skip

    def remat(name):
        plan = read_run(row(remat=name, **tpu)).plan
        return plan.remat, dict(plan.remat_kinds)

    assert remat("minimal") == ("matmul_outputs", {})
    assert remat("save_qkv_proj") == ("block", {"qkv": "keep"})
    assert remat("qkv_proj_offloaded") == ("block", {"qkv": "offload"})


def test_a_hub_id_is_a_model_where_no_shape_is_given():
    shape = dict.fromkeys(("layers", "d_model", "d_ff", "heads"), "")
    named = model_of(row(model="meta-llama/Llama-3.1-8B", **shape))
    assert named == load_model("llama-3.1-8b")
    assert model_of(row(model="meta-llama/Llama-3.1-8B")).d_model == 2048
    with pytest.raises(BadRequest, match="'layers' is empty; 'nobody/knows' is no model"):
        model_of(row(model="nobody/knows", **shape))


def test_compute_that_is_not_stated():
    def of(**changes):
        return read_run(row(compute_dtype="", **changes)).plan.dtypes.compute

    assert [of(release="2023"), of(release="2024.06"), of(release="")] == ["f16", "bf16", "bf16"]
    assert of(release="2025", hardware="v100") == "f16"


def test_devices_of_a_chip_that_has_two_may_be_counted():
    gcds = read_run(row(hardware="MI250X", num_devices=16))
    assert (gcds.piece.chips, gcds.piece.devices) == (8, 16)
    chips = read_run(row(hardware="MI250X", num_devices=8))
    assert (chips.piece.chips, chips.piece.devices) == (8, 16)
