"""Gradients of transformers' Trainer under FSDP, which its microbatches sum whole."""

import pytest

from shardwise.hardware import parse_slice
from shardwise.models import load_model, params_total
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.export import parse_export

RUN = """accelerate launch --use_fsdp --fsdp_version 2 --mixed_precision bf16 --num_processes 8 \\
  sft.py --model_name_or_path meta-llama/Llama-3.1-8B --max_length 1024 --bf16 True \\
  --per_device_train_batch_size 1 --gradient_accumulation_steps {rounds}
"""


@pytest.mark.parametrize(("rounds", "elsewhere"), [(1, 0), (4, 2)])
def test_what_other_devices_store_is_summed_in_the_dtype_of_computing(rounds, elsewhere):
    """Each of 8 devices stores an eighth in f32, and sums the other seven eighths in bf16."""
    piece = parse_slice("h100:8")
    plan = parse_export(RUN.format(rounds=rounds), "accelerate", piece=piece)
    cfg = load_model(plan.model)
    answer = evaluate_train(plan, cfg, piece)
    each = params_total(cfg) / 8
    wanted = each * 4 + 7 * each * elsewhere
    assert answer.memory_by_kind["gradients"] == pytest.approx(wanted, rel=0.01)
