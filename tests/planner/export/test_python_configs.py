"""Modules of configs in Python, as TorchTitan's registry and Megatron-Bridge's have them."""

import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.planner.export import parse_export
from shardwise.planner.export.edit import with_given
from shardwise.planner.export.known_flags import target_of, unread_notes
from shardwise.plans import TrainPlan

TITAN = """from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.trainer import Trainer
from . import model_registry


def _base() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        hf_assets_path="./assets/hf/Qwen3-8B",
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * 4096, max_context_length=4096
        ),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        activation_checkpoint=FullAC.Config(),
    )


def qwen3_8b_wide() -> Trainer.Config:
    config = _base()
    config.training.num_tokens_per_train_step = 64 * 4096
    config.activation_checkpoint = None
    return config


def qwen3_8b_narrow() -> Trainer.Config:
    config = _base()
    config.parallelism.tensor_parallel_degree = 4
    return config
"""
OWN = """from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_16b
from torchtitan.trainer import Trainer


def mine() -> Trainer.Config:
    config = deepseek_v3_16b(seq_len=4096)
    config.parallelism.expert_parallel_degree = 4
    config.experts.backend = "hybrid"
    return config
"""
BRIDGE = """import torch
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common


def qwen3_8b_8gpu_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B").to_megatron_provider()
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.seq_length = 4096
    cfg.train.global_batch_size = 64
    cfg.train.micro_batch_size = 1
    cfg.optimizer.exp_avg_dtype = torch.float32
    return cfg


def qwen3_32b_16gpu_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-32B").to_megatron_provider()
    cfg.model.tensor_model_parallel_size = 8
    cfg.model.recompute_granularity = "full"
    cfg.train.global_batch_size = 512
    return cfg
"""


def read(text: str, target: str, given: str = "", on: str = "h100:8") -> TrainPlan:
    assert target_of(text) == target
    name, _, value = given.partition("=")
    text = with_given(text, {name: value}) if given else text
    return parse_export(text, target, piece=parse_slice(on))


def test_a_registry_is_read_for_the_config_that_is_asked_for():
    wide = read(TITAN, "torchtitan", "config=qwen3_8b_wide")
    assert (wide.model, wide.sequence_length, wide.degree("tensor")) == ("qwen3-8b", 4096, 2)
    assert (wide.global_batch_sequences, wide.microbatches, wide.remat) == (64, 8, "none")
    narrow = read(TITAN, "torchtitan", "config=qwen3_8b_narrow")
    assert (narrow.degree("tensor"), narrow.remat) == (4, "block")
    assert narrow.global_batch_sequences == 2 * narrow.degree("fsdp")


@pytest.mark.parametrize(
    ("text", "target", "said"),
    [
        (TITAN, "torchtitan", "2 configs, qwen3_8b_wide, qwen3_8b_narrow; choose one with --given"),
        (BRIDGE, "megatron", "--given recipe=qwen3_8b_8gpu_config"),
        (TITAN.replace("=4096", "=4100"), "torchtitan", "over training.max_context_length comes"),
    ],
)
def test_two_configs_are_never_mixed(text, target, said):
    given = "config=qwen3_8b_narrow" if "4100" in text else ""
    with pytest.raises(BadRequest, match=said):
        read(text, target, given)


def test_a_config_begins_with_that_of_the_registry_and_its_odd_keys_are_told():
    plan = read(OWN, "torchtitan")
    assert (plan.model, plan.degree("expert"), plan.sequence_length) == (
        "deepseek-v2-lite",
        4,
        4096,
    )
    assert any("experts.backend" in line for line in unread_notes(OWN, "torchtitan"))


def test_a_recipe_of_the_bridge_has_its_model_and_nothing_of_its_neighbour():
    plan = read(BRIDGE, "megatron", "recipe=qwen3_8b_8gpu_config")
    assert (plan.model, plan.degree("tensor"), plan.remat) == ("qwen3-8b", 2, "none")
    assert (plan.global_batch_sequences, plan.dtypes.moments) == (64, "f32")


def test_the_batch_in_tokens_is_that_of_a_microbatch_of_a_pipeline():
    line = """torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b \\
      --parallelism.pipeline_parallel_degree 2 --parallelism.num_pp_microbatches 4 \\
      --training.num_tokens_per_microbatch_per_dp_rank 8192 --training.max_context_length 4096"""
    plan = parse_export(line, "torchtitan", piece=parse_slice("h100:8"))
    assert (plan.sequence_length, plan.microbatches) == (4096, 4)
    assert plan.global_batch_sequences == 2 * 4 * plan.degree("fsdp")
