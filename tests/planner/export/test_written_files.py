"""Files of keys that a script writes, or names by a variable; commands in an option of xpk's."""

import pytest

from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export import parse_export
from shardwise.planner.export.edit import has_use_for, with_given
from shardwise.planner.export.known_flags import target_of
from shardwise.planner.export.trainer.files import named_files, with_files
from shardwise.plans import TrainPlan

WRITES = """#!/bin/bash
MODE=${1:-plain}
CONFIG="$(dirname "$0")/ds_${MODE}.json"
BATCH=16
if [ "$MODE" = "plain" ]; then
cat > "$CONFIG" << EOF
{"train_batch_size": $BATCH, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}
EOF
fi
CMD="deepspeed --num_gpus=4 finetune.py --deepspeed_config=$CONFIG --max_length 2048 \\
  --model_name_or_path meta-llama/Llama-3.1-8B"
eval $CMD
"""
NAMES = """CONFIG=./zero.json
BATCH=2
deepspeed --num_gpus=4 finetune.py --deepspeed_config=$CONFIG --model_name_or_path Qwen/Qwen3-8B \\
  --batch_size $BATCH --max_length 1024
"""
XPK = """xpk workload create --cluster c --tpu-type=v6e-8 --num-slices=1 \\
  --command "python3 -m MaxText.train base.yml model_name=mistral-7b per_device_batch_size=6 \\
  ici_fsdp_parallelism=-1 max_target_length=8192"
"""
LAYOUT = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 14 --hidden-size 1024 \\
  --num-attention-heads 16 --seq-length 1024 --micro-batch-size 1 --global-batch-size 64 \\
  --vocab-size 32000 --bf16 --pipeline-model-parallel-size 4 \\
  --pipeline-model-parallel-layout 'Ett|(tt|)*6L'
"""


def read(text: str, target: str, on: str) -> TrainPlan:
    assert target_of(text) is not None
    return parse_export(text, target, piece=parse_slice(on))


@pytest.mark.parametrize(
    ("old", "new", "batch", "zero"),
    [
        ("", "", 16, "fsdp"),
        ("BATCH=16", "BATCH=32", 32, "fsdp"),
        ('"stage": 3', '"stage": 2', 16, ""),
    ],
)
def test_keys_that_a_script_writes_itself_count(old, new, batch, zero):
    plan = read(WRITES.replace(old, new), "deepspeed", "h100:4")
    assert (plan.global_batch_sequences, plan.microbatches) == (batch, 1)
    assert plan.degree("fsdp") == (4 if zero else 1)


def test_a_file_that_a_variable_names_is_taken_along():
    assert named_files(NAMES) == ("./zero.json",)
    held = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'
    plan = read(with_files(NAMES, {"./zero.json": held}.get), "deepspeed", "h100:4")
    assert (plan.zero, plan.global_batch_sequences, plan.sequence_length) == (2, 8, 1024)
    other = NAMES.replace("--max_length", "--sequence-length")
    assert read(with_files(other, {"./zero.json": held}.get), "deepspeed", "h100:4") == plan


def test_the_command_of_xpk_is_the_word_behind_its_option():
    plan = read(XPK, "maxtext", "v6e:2x4")
    assert (load_model(plan.model).layers, plan.global_batch_sequences) == (32, 48)


def test_groups_of_a_layout_are_written_out():
    plan = read(LAYOUT, "megatron", "h100:8")
    assert (plan.virtual_stages, sum(plan.layers_per_stage)) == (2, 14)


GIVEN = """if [ $1 = cloud ]; then
NODES=${HOSTS}
else
NODES=1
fi
OVERLAP=$(( ($2 > 1) ? 1 : 0 ))
if [ $OVERLAP -eq 1 ]; then
more="--sequence-parallel"
fi
torchrun --nproc_per_node 8 --nnodes $NODES pretrain_gpt.py --num-layers 8 --hidden-size 1024 \\
  --num-attention-heads 16 --seq-length 1024 --micro-batch-size 1 --global-batch-size 64 \\
  --vocab-size 32000 --bf16 --tensor-model-parallel-size $2 $more
"""


def test_what_a_caller_gives_counts_beside_what_else_is_given():
    given = {"1": "cloud", "2": "4", "HOSTS": "2"}
    assert has_use_for(GIVEN, "HOSTS", given)
    assert not has_use_for(GIVEN, "HOSTS", given | {"1": "home"})


@pytest.mark.parametrize(("tensor", "on"), [("4", True), ("1", False)])
def test_a_choice_in_arithmetic_is_reckoned(tensor, on):
    text = with_given(GIVEN, {"1": "home", "2": tensor})
    assert read(text, "megatron", "h100:8").sequence_parallel is on
