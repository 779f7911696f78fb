"""MaxText's base model by its numbers and its scale, and programs around Megatron."""

import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model, params_total
from shardwise.planner.export import parse_export
from shardwise.planner.export.edit import has_use_for, with_given
from shardwise.planner.export.known_flags import target_of, unread_notes

SCALED = """python3 -m MaxText.train MaxText/configs/base.yml run_name=r per_device_batch_size=2 \\
  ici_fsdp_parallelism=-1 max_target_length=2048 global_parameter_scale=SCALE
"""
POD = """apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      containers:
      - name: train
        env:
        - {name: BATCH, value: "4"}
        command: ["bash", "-c"]
        args:
        - |
          _stop() (kill -SIGTERM $! 2>/dev/null;);
          trap _stop SIGTERM
          python3 -m MaxText.train base.yml model_name=llama3-8b per_device_batch_size=${BATCH} \\
            ici_fsdp_parallelism=-1 max_target_length=8192
"""
WORKER = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  containers:
  - command:
    - torchrun
    - --nproc_per_node=$GPUS
    - pretrain_gpt.py
    - --num-layers=32
    - --hidden-size=4096
    - --num-attention-heads=32
    - --vocab-size=32000
    - --seq-length=4096
    - --micro-batch-size=2
    - --global-batch-size=64
    - --bf16
"""


@pytest.mark.parametrize(
    ("scale", "layers", "width", "heads"),
    [
        (1, 16, 2048, 16),
        (2, 16, 2048, 32),
        (4, 16, 4096, 32),
        (8, 32, 4096, 32),
        (64, 64, 8192, 64),
    ],
)
def test_maxtexts_scale_makes_the_base_model_larger(scale, layers, width, heads):
    """get_individual_scales of MaxText's configs/types.py: a third of the power each."""
    text = SCALED.replace("SCALE", str(scale))
    cfg = load_model(parse_export(text, "maxtext", piece=parse_slice("v5p:2x2x2")).model)
    attention = cfg.groups[0].attention
    assert attention is not None
    assert (cfg.layers, cfg.d_model, attention.heads) == (layers, width, heads)
    assert not any("scale" in line for line in unread_notes(text, "maxtext"))


def test_a_scale_multiplies_parameters_as_its_name_says():
    one, eight = (
        params_total(load_model(parse_export(SCALED.replace("SCALE", s), "maxtext",
                                             piece=parse_slice("v5p:2x2x2")).model))
        for s in ("1", "8")
    )  # fmt: skip
    assert 7 < eight / one < 8.1


def test_a_scale_that_is_no_power_of_two_is_refused():
    with pytest.raises(BadRequest, match="global_parameter_scale is '3'; write a power of 2"):
        parse_export(SCALED.replace("SCALE", "3"), "maxtext", piece=parse_slice("v5p:2x2x2"))


def test_what_a_manifests_container_runs_is_read():
    assert target_of(POD) == "maxtext"
    plan = parse_export(POD, "maxtext", piece=parse_slice("v5p:2x2x2"))
    assert (plan.model, plan.global_batch_sequences, plan.sequence_length) == (
        "llama-3-8b",
        32,
        8192,
    )


def test_a_manifests_list_of_words_is_a_launch_line():
    assert target_of(WORKER) == "megatron"
    plan = parse_export(WORKER, "megatron", piece=parse_slice("h100:8"))
    assert (plan.global_batch_sequences, plan.microbatches) == (64, 4)


BRIDGE = """#!/bin/bash
MODEL=llama3_8b
PAIRS=("2,1")
for pair in "${PAIRS[@]}"; do
    IFS=',' read -r TP PP <<< "$pair"
    uv run python -m torch.distributed.run --nproc_per_node=8 scripts/training/run_recipe.py \\
        --recipe ${MODEL}_pretrain_config model.tensor_model_parallel_size=$TP \\
        model.pipeline_model_parallel_size=$PP model.seq_length=4096 train.micro_batch_size=2 \\
        train.global_batch_size=64 logger.log_interval=1 model.sequence_parallel=True
done
"""
WORKER_FILE = """#!/bin/bash
SIZE=128
command=$(cat <<- EOM
  cd /opt ;
  numactl --cpunodebind=\\$((LOCAL_RANK/2)) python run_script.py \\
    --model_recipe_name llama3_8b --num_gpus 8 --gpus_per_node 4 --compute_dtype fp8_cs \\
    --seq_length 4096 --global_batch_size $SIZE --micro_batch_size 2 \\
    --tensor_model_parallel_size 2
EOM
)
echo "$command" > worker.sh
torchrun --nproc-per-node=4 --nnodes=2 --no-python bash worker.sh
"""
NANOTRON = """general: {project: p, run: r}
model:
  dtype: bfloat16
  model_config: {hidden_act: silu, hidden_size: 4096, intermediate_size: 14336, vocab_size: 128256,
    num_attention_heads: 32, num_hidden_layers: 32, num_key_value_heads: 8,
    tie_word_embeddings: false}
optimizer: {zero_stage: 1}
parallelism: {dp: 4, pp: 1, tp: 2, recompute_layer: true, tp_mode: REDUCE_SCATTER}
tokens: {micro_batch_size: 2, sequence_length: 8192, batch_accumulation_per_replica: 8}
"""


def test_a_recipes_overrides_are_megatrons_arguments():
    assert target_of(BRIDGE) == "megatron"
    plan = parse_export(BRIDGE, "megatron", piece=parse_slice("h100:8"))
    assert (plan.model, plan.sequence_length, plan.sequence_parallel) == ("llama-3-8b", 4096, True)
    assert (dict(plan.mesh), plan.microbatches) == ({"data": 4, "tensor": 2}, 8)


@pytest.mark.parametrize(
    ("old", "new"), [("seq_length=4096", "seq_length=2048"), ('("2,1")', '("4,1")')]
)
def test_a_changed_override_changes_the_plan(old, new):
    plans = [
        parse_export(text, "megatron", piece=parse_slice("h100:8"))
        for text in (BRIDGE, BRIDGE.replace(old, new))
    ]
    assert plans[0] != plans[1]


def test_a_recipes_name_may_leave_out_the_dot_and_a_dense_model_has_no_expert_axis():
    text = BRIDGE.replace("llama3_8b", "llama31_8b")
    text = text.replace("logger.log_interval=1", "model.expert_tensor_parallel_size=1")
    plan = parse_export(text, "megatron", piece=parse_slice("h100:8"))
    assert (plan.model, plan.mesh["tensor"], plan.mesh["data"]) == ("llama-3.1-8b", 2, 4)


def test_what_xpk_is_told_to_run_is_read():
    text = """#!/bin/bash
    ARGS="model_name=llama3-8b per_device_batch_size=2 ici_fsdp_parallelism=-1"
    xpk workload create --cluster=c --command="set -e && export A='1' && python3 -m MaxText.train \\
      base.yml ${ARGS} max_target_length=4096"
    """
    assert target_of(text) == "maxtext"
    plan = parse_export(text, "maxtext", piece=parse_slice("v5p:2x2x2"))
    assert (plan.model, plan.sequence_length) == ("llama-3-8b", 4096)


def test_a_recipe_of_adapters_is_told_to_be_read_as_one_of_all_parameters():
    text = BRIDGE.replace("_pretrain_", "_peft_")
    said = "llama3_8b_peft_config trains adapters: read as training all parameters"
    assert said in unread_notes(text, "megatron")
    assert said not in unread_notes(BRIDGE, "megatron")


def test_a_script_that_is_written_to_a_file_and_started_is_read():
    plan = parse_export(WORKER_FILE, "megatron", piece=parse_slice("h100:8"))
    assert (plan.model, plan.global_batch_sequences, plan.mesh["tensor"]) == ("llama-3-8b", 128, 2)
    assert plan.dtypes.compute == "fp8"


def test_a_yaml_of_nanotron_is_read_with_its_model():
    plan = parse_export(NANOTRON, "megatron", piece=parse_slice("h100:8"))
    assert (plan.model, plan.global_batch_sequences, plan.microbatches) == ("llama-3-8b", 64, 8)
    assert (plan.zero, plan.sequence_parallel, plan.remat) == (1, True, "block")
    assert not any("so it was not read" in line for line in unread_notes(NANOTRON, "megatron"))
    told = unread_notes(NANOTRON.replace("tp: 2,", "tp: 2, tp_new: 3,"), "megatron")
    assert any("parallelism.tp_new" in line for line in told)


def test_arguments_of_a_script_are_given_by_number():
    text = BRIDGE.replace('PAIRS=("2,1")', 'PAIRS=("$1,$2")').replace("tch_size=2", "tch_size=${3}")
    with pytest.raises(BadRequest, match="--given 1=VALUE"):
        parse_export(text, "megatron", piece=parse_slice("h100:8"))
    given = with_given(text, {"1": "2", "2": "1", "3": "2"})
    plan = parse_export(given, "megatron", piece=parse_slice("h100:8"))
    assert (plan.mesh["tensor"], plan.microbatches) == (2, 8)
    assert has_use_for(text, "2")
    assert not has_use_for(text, "4")


def test_a_program_is_known_by_its_module_alone():
    text = "torchrun --nproc_per_node=8 -m torchtitan.train --module my.own --config my_own\n"
    assert target_of(text) == "torchtitan"
