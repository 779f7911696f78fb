"""What files that nobody here had seen were refused or misread for."""

import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export import parse_export
from shardwise.planner.export.known_flags import unread_notes
from shardwise.planner.training import evaluate_train

PAIRS = """#!/bin/bash
python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml model_name=gemma2-9b \\
  per_device_batch_size=2 remat_policy=full ici_fsdp_parallelism=-1 max_target_length=4096
"""
NAMED = """#!/bin/bash
python3 -m maxtext.trainers.pre_train.train configs/models/gpu/llama2_7b.yml run_name=r \\
  dcn_data_parallelism=2 ici_fsdp_parallelism=8
"""
LATENT = """base_model: zai-org/GLM-4.7-Flash
adapter: lora
lora_r: 8
lora_target_modules: [TARGETS]
sequence_len: 2048
micro_batch_size: 1
bf16: true
"""


def test_a_block_of_two_layers_counts_for_two():
    model = "gemma-2-9b", load_model("gemma-2-9b")
    plan = parse_export(PAIRS, "maxtext", model=model, piece=parse_slice("v6e:4x4"))
    assert plan.layers_per_stage == (42,)


def test_a_config_that_a_command_names_is_not_passed_over_in_silence():
    assert any("the keys of llama2_7b.yml" in line for line in unread_notes(NAMED, "maxtext"))
    assert not any("base.yml" in line for line in unread_notes(PAIRS, "maxtext"))


def test_adapters_beside_what_a_model_has_not_are_passed_over_as_peft_does():
    """Latent attention has no q, k and v of that name."""
    piece = parse_slice("h100:1")
    text = LATENT.replace("TARGETS", "q_proj, v_proj, k_proj, o_proj")
    assert parse_export(text, "axolotl", piece=piece).lora_targets == ("o",)
    none = parse_export(LATENT.replace("TARGETS", "q_proj, v_proj"), "axolotl", piece=piece)
    with pytest.raises(BadRequest, match="unknown matrix to adapt 'q'"):
        evaluate_train(none, load_model(none.model), piece)
