"""YAML recipes of Megatron-LM, Megatron-Bridge and NeMo are read as Megatron's arguments."""

import pytest

from shardwise.errors import BadRequest, Remark
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export import parse_export
from shardwise.planner.export.known_flags import target_of, unread_notes

BRIDGE = """
_target_: megatron.bridge.training.config.ConfigContainer
model:
  seq_length: 8192
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 5
  context_parallel_size: 2
  sequence_parallel: true
  recompute_granularity: null
  tp_only_amax_red: true
train:
  train_iters: 1000
  global_batch_size: 128
  micro_batch_size: 1
ddp:
  use_distributed_optimizer: true
  overlap_grad_reduce: true
  grad_reduce_in_fp32: false
comm_overlap:
  tp_comm_overlap: true
mixed_precision: bf16_with_mxfp8_mixed
optimizer:
  optimizer: adam
  lr: 0.0003
scheduler:
  lr_decay_style: cosine
checkpoint:
  save_interval: 100
"""
CORE = """
language_model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  num_query_groups: 8
  ffn_hidden_size: 4096
  activation_func: swiglu
  add_bias_linear: False
  kv_channels: null
model_parallel:
  tensor_model_parallel_size: 2
  sequence_parallel: True
  bf16: True
untie_embeddings_and_output_weights: True
global_batch_size: 128
micro_batch_size: 4
seq_length: 4096
vocab_size: 32000
trainer:
  num_nodes: 1
  devices: 8
"""
H100 = parse_slice("8*h100:8")


def test_a_recipe_of_megatron_bridge():
    assert target_of(BRIDGE) == "megatron"
    model = ("llama-3.1-70b", load_model("llama-3.1-70b"))
    plan = parse_export(BRIDGE, "megatron", model=model, piece=H100)
    more = BRIDGE.replace("model:\n", "model:\n  num_layers: 80\n")
    assert parse_export(more, "megatron", model=model, piece=H100) == plan
    with pytest.raises(BadRequest, match="give it with --model"):
        parse_export(BRIDGE, "megatron", piece=H100)
    assert plan.mesh == {"stage": 4, "data": 2, "context": 2, "tensor": 4}
    assert plan.layers_per_stage == (20, 20, 20, 20)
    assert (plan.virtual_stages, plan.microbatches, plan.zero) == (5, 64, 1)
    assert (plan.dtypes.compute, plan.remat, plan.overlap) == ("mxfp8", "none", None)
    said = [line for line in unread_notes(BRIDGE, "megatron") if not isinstance(line, Remark)]
    assert any("'--tp-only-amax-red'" in line for line in said)


def test_a_config_of_megatron_lm():
    plan = parse_export(CORE, "megatron", piece=parse_slice("h100:8"))
    assert plan.model.startswith("LlamaForCausalLM(num_hidden_layers=24, hidden_size=1024")
    assert "num_key_value_heads=8" in plan.model
    assert (plan.mesh, plan.dtypes.compute) == ({"data": 4, "tensor": 2}, "bf16")


def test_another_number_in_a_recipe_contradicts_the_model():
    model = ("llama-3.1-8b", load_model("llama-3.1-8b"))
    with pytest.raises(BadRequest, match="--num-layers is 24 in the text, and 32"):
        parse_export(CORE, "megatron", model=model, piece=parse_slice("h100:8"))


ARGUMENTS = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 32
  --hidden-size: 4096
  --num-attention-heads: 32
  --swiglu: true
  --vocab-size: 32000
  --disable-bias-linear: false
  --micro-batch-size: 2
  --seq-length: 4096
  --tensor-model-parallel-size: 2
  --bf16: true
TEST_TYPE: regular
"""


def test_arguments_as_megatrons_own_tests_list_them():
    plan = parse_export(ARGUMENTS, "megatron", piece=parse_slice("h100:8"))
    assert plan.degree("tensor") == 2
    assert plan.sequence_length == 4096


def test_without_a_batch_megatron_takes_one_microbatch_of_each_replica():
    plan = parse_export(ARGUMENTS, "megatron", piece=parse_slice("h100:8"))
    assert (plan.global_batch_sequences, plan.microbatches) == (2 * 4, 1)


def test_dotted_names_of_nemo_are_the_last_of_their_parts():
    dotted = ARGUMENTS.replace(
        "--tensor-model-parallel-size", "trainer.x.tensor_model_parallel_size"
    )
    plan = parse_export(dotted, "megatron", piece=parse_slice("h100:8"))
    assert plan.degree("tensor") == 2
