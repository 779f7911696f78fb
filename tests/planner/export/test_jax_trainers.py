"""Files of EasyLM and levanter, which are read as MaxText's flags."""

import pytest
from tests.planner.export.test_other_doors import changed_values, read

from shardwise.errors import BadRequest
from shardwise.models import load_model, params_total
from shardwise.planner.export.known_flags import unread_notes

EASYLM = """python -m EasyLM.models.llama.llama_train --mesh_dim='-1,64,1' --dtype='fp32' \\
  --load_llama_config='7b' --update_llama_config='' --optimizer.accumulate_gradient_steps=2 \\
  --train_dataset.json_dataset.seq_length=2048 --train_dataset.json_dataset.batch_size=1024 \\
  --total_steps=1000
"""
LEVANTER = """data:
  id: some/set
model:
  type: llama
initialize_from_hf: meta-llama/Llama-2-7b-hf
train_seq_len: 4096
trainer:
  mp: p=f32,c=bfloat16
  train_batch_size: 128
  model_axis_size: 2
  num_train_steps: 1000
"""


def test_files_of_easylm_and_levanter_are_read_as_what_xla_runs():
    plan = read(EASYLM, "v4:4x8x8")
    assert dict(plan.mesh) == {"data": 4, "fsdp": 64}
    assert (plan.global_batch_sequences, plan.microbatches, plan.dtypes.compute) == (2048, 2, "f32")
    seven = params_total(load_model("llama-2-7b"))
    assert params_total(load_model(plan.model)) == seven
    plan = read(LEVANTER, "v4:2x4x4")
    assert (plan.model, dict(plan.mesh)) == ("llama-2-7b", {"fsdp": 16, "tensor": 2})
    assert (plan.global_batch_sequences, plan.sequence_length) == (128, 4096)
    assert plan.dtypes.compute == "bf16"


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (EASYLM, "'7b'", "'8b'", "load_llama_config is '8b'.*known models, unchanged: 1b, 3b, 7b"),
        (EASYLM, "config=''", "config='dict(x=1)'", r"update_llama_config is 'dict\(x=1\)'"),
        (
            LEVANTER,
            "train_seq_len: 4096\n",
            "",
            "has no sequence length; add one, such as train_seq_len",
        ),
        (LEVANTER, "meta-llama/Llama-2-7b-hf", "a/b", "initialize_from_hf is 'a/b'"),
    ],
)
def test_what_they_leave_out_is_named(text, old, new, said):
    with pytest.raises(BadRequest, match=said):
        read(text.replace(old, new), "v4:4x8x8")


@pytest.mark.parametrize(("text", "on"), [(EASYLM, "v4:4x8x8"), (LEVANTER, "v4:2x4x4")])
def test_their_keys_change_the_plan_or_are_named(text, on):
    plan, notes = read(text, on), unread_notes(text, "maxtext")
    assert any("no effect" in line for line in notes)
    for key, changed in changed_values(text):
        try:
            same = read(changed, on) == plan
        except BadRequest:
            continue
        told = [*notes, *unread_notes(changed, "maxtext")]
        assert not same or any(key.lstrip("-") in line for line in told), key


def test_options_of_the_compiler_are_said_not_to_be_read():
    text = f"export XLA_FLAGS='--xla_gpu_graph_level=0'\n{EASYLM}"
    assert any("XLA_FLAGS was not read" in line for line in unread_notes(text, "maxtext"))
    assert not any("XLA_FLAGS" in line for line in unread_notes(EASYLM, "maxtext"))


def test_slices_of_the_degrees_across_are_those_asked_for():
    """Four slices of 128 chips are not two of 256, though the mesh of both is 2 x 256."""
    text = "python3 -m MaxText.train base.yml model_name=llama2-7b per_device_batch_size=4 "
    text += "ici_fsdp_parallelism=-1 dcn_data_parallelism=2 max_target_length=2048"
    assert read(text, "2*v6e:16x16").slices == 2
    with pytest.raises(BadRequest, match=r"for 4 slices, and .* is 2"):
        read(f"{text} dcn_fsdp_parallelism=2", "2*v6e:16x16")
