"""`check`: launch files as people write them; each changed file, read back, prices as promised."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.planner.export.test_recipes import BRIDGE, CORE

import shardwise as sw
from shardwise.commands.plan_file.changes import _safe_first
from shardwise.commands.plan_file.check import FileChecked
from shardwise.errors import BadRequest
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.export import EXPORTERS
from shardwise.planner.export.edit import has_use_for
from shardwise.planner.near_table import near_in_tables
from shardwise.planner.nearby import NearPlan

SCRIPTS = Path(__file__).parents[2] / "planner" / "export" / "scripts"

MAXTEXT = """#!/bin/bash
set -e
BATCH=${BATCH:-2}
python3 -m MaxText.train src/MaxText/configs/base.yml run_name=$1 \\
  model_name=llama2-70b \\
  per_device_batch_size=$BATCH max_target_length=4096 \\
  ici_fsdp_parallelism=-1 ici_tensor_parallelism=4 remat_policy=full \\
  attention=flash dtype=bfloat16 dataset_type=synthetic steps=10
"""
TITAN = """#!/usr/bin/bash
NGPU=${NGPU:-"8"}
torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d -m torchtitan.train \\
  --module llama3 --config llama3_8b \\
  --training.local_batch_size 1 --training.seq_len=8192 \\
  --parallelism.tensor_parallel_degree 2 \\
  --compile.enable
"""
MIXTRAL = """base_config: base.yml
model_name: mixtral-8x7b
per_device_batch_size: 4
max_target_length: 4096
remat_policy: full
ici_fsdp_parallelism: 16
ici_expert_parallelism: 4
attention: flash
sparse_matmul: true
megablox: true
dtype: bfloat16
"""
LLAMA2 = """#!/bin/bash
GPUS=8; NODES=4
MODEL_ARGS="--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \\
  --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear \\
  --untie-embeddings-and-output-weights --normalization RMSNorm --position-embedding-type rope \\
  --vocab-size 32000 --seq-length 4096 --max-position-embeddings 4096"
PARALLEL_ARGS="--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 \\
  --sequence-parallel \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py $MODEL_ARGS $PARALLEL_ARGS \\
  --micro-batch-size 1 --global-batch-size 256 --bf16 --use-distributed-optimizer --lr 1e-4
"""
"""Written anew, with the keys of public examples."""
TRL = """#!/bin/bash
accelerate launch --config_file fsdp.yaml --num_processes 8 -m trl.scripts.sft \\
  --model_name_or_path meta-llama/Meta-Llama-3-8B --max_length 4096 --dtype bfloat16 --bf16 \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 \\
  --gradient_checkpointing --learning_rate 1e-5
"""
ZERO = """#!/bin/bash
cat > ds.json <<'END'
{
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3, "overlap_comm": true},
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto"
}
END
deepspeed --num_gpus 8 train.py --deepspeed ds.json \\
  --model_name_or_path meta-llama/Meta-Llama-3-8B \\
  --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --bf16 True \\
  --model_max_length 4096 --gradient_checkpointing True
"""
FSDP = """distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
AXOLOTL = """base_model: NousResearch/Meta-Llama-3-8B
adapter: lora
lora_r: 32
lora_target_linear: true
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: true
gradient_checkpointing: true
flash_attention: true
learning_rate: 0.0002
"""
SMALL = """#!/bin/bash
MICRO=4
torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 12 --hidden-size 1024 \\
  --num-attention-heads 16 --vocab-size 50304 --seq-length 2048 --max-position-embeddings 2048 \\
  --micro-batch-size $MICRO --global-batch-size 32 --bf16 --recompute-granularity full \\
  --recompute-method uniform --recompute-num-layers 1 --lr 1e-4
"""
"""One GPU: few plans are near it."""

FILES = {
    "gpt3.sh": ((SCRIPTS / "gpt3_175b.sh").read_text(), "16*h100:8", None),
    "llama3_fp8.sh": ((SCRIPTS / "llama3_8b_fp8.sh").read_text(), "h100:8", None),
    "mixtral.sh": ((SCRIPTS / "mixtral_8x7b.sh").read_text(), "4*h100:8", None),
    "llama2.sh": (LLAMA2, "4*h100:8", None),
    "bridge.yaml": (BRIDGE, "8*b200:8", "llama-3.1-70b"),
    "core.yaml": (CORE, "h100:8", None),
    "maxtext.yml": ((SCRIPTS / "maxtext.yml").read_text(), None, None),
    "maxtext.sh": (MAXTEXT, "v5p:4x4x4", None),
    "mixtral.yml": (MIXTRAL, "v5p:4x4x4", None),
    "titan.toml": ((SCRIPTS / "torchtitan.toml").read_text(), "h100:8", None),
    "titan.sh": (TITAN, "h100:8", None),
    "trl.sh": (TRL, "h100:8", None),
    "zero.sh": (ZERO, "h100:8", None),
    "axolotl.yaml": (AXOLOTL, "h100:1", None),
    "small.sh": (SMALL, "h100:1", None),
}
THREE = 3


def checked(folder: Path, name: str, **more) -> FileChecked:
    text, on, model = FILES[name]
    (folder / name).write_text(text)
    (folder / "fsdp.yaml").write_text(FSDP)
    return sw.check(folder / name, on=on, model=model, **more)


def assert_reads_back(folder: Path, name: str, found: FileChecked) -> None:
    _, on, model = FILES[name]
    for change in found.changes:
        (folder / f"changed-{name}").write_text(change.text)
        again = sw.export(folder / f"changed-{name}", from_=found.program, on=on, model=model)
        plan = again.value
        assert isinstance(plan, sw.TrainPlan)
        assert plan.tokens == found.best.plan.tokens
        assert plan.slice == found.best.plan.slice
        assert plan.dtypes == found.best.plan.dtypes
        priced = sw.evaluate_train(plan, found.best.cfg, found.best.piece)
        assert priced.step_seconds.expected == pytest.approx(change.step_seconds.expected, rel=1e-9)
        assert priced.peak_bytes_per_chip == pytest.approx(change.peak_bytes_per_chip, rel=1e-9)
        assert change.fits or not found.fits


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FILES if name != "small.sh"])
def test_each_change_of_a_file_reads_back_as_promised(tmp_path, name):
    found = checked(tmp_path, name)
    assert len(found.changes) >= THREE, [c.says for c in found.changes]
    assert_reads_back(tmp_path, name, found)


XLA = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm.
Used 99.50G of 95.25G hbm. Exceeded hbm capacity by 4.25G.

  Largest program allocations in hbm:

  1. Size: 3.91G
     Operator: op_name="jit(train_step)/decoder/logits_dense/dot_general"
     Shape: f32[1,8192,128256]{2,1,0:T(8,128)}
     ==========================
"""


@pytest.mark.slow
def test_a_compilers_table_is_held_against_the_plan(tmp_path):
    """A recipe that keeps the products of its layers; the table has the logits."""
    text = (SCRIPTS / "maxtext.yml").read_text()
    text = text.replace("per_device_batch_size: 4", "per_device_batch_size: 1")
    text = text.replace("num_vocab_tiling: 4", "num_vocab_tiling: 1")
    (tmp_path / "run.yml").write_text(text.replace("remat_policy: custom", "remat_policy: minimal"))
    (tmp_path / "error.txt").write_text(XLA)
    found = sw.check(tmp_path / "run.yml", error=tmp_path / "error.txt")
    assert found.failed is not None
    (row,) = found.failed.buffers
    assert row.likely[0].startswith("the logits of one microbatch in float32 (8,192 tokens")
    assert found.changes
    assert all(change.saved_bytes_per_chip >= 4.25 * 2**30 for change in found.changes)


@pytest.mark.slow
def test_a_change_of_a_file_that_is_named_is_applied_there(tmp_path):
    """The config of accelerate lies beside the script."""
    found = checked(tmp_path, "trl.sh")
    others = [i for i, change in enumerate(found.changes, 1) if "a/fsdp.yaml" in change.diff]
    assert others
    with pytest.raises(BadRequest, match=r"is in fsdp\.yaml, which 'trl\.sh' names"):
        checked(tmp_path, "trl.sh", apply=others[0])


def test_one_page_says_what_was_read_and_what_to_change(tmp_path):
    found = checked(tmp_path, "small.sh", apply=1)
    assert found.text == found.changes[0].text != SMALL
    assert str(found) == found.text.removesuffix("\n")
    page = " ".join(str(replace(found, text="")).split())
    for said in (
        "Megatron-LM trains GPT2LMHeadModel of 12 layers",
        " fits ",
        " step ",
        " bound by ",
        "risk: ",
    ):
        assert said in page
    assert_reads_back(tmp_path, "small.sh", found)
    assert found.result["changes"][0]["diff"].startswith("--- a/small.sh\n+++ b/small.sh\n@@")


def test_what_a_script_leaves_to_its_caller_is_given(tmp_path):
    """The change stands in the script, not in what was given."""
    text = SMALL.replace("MICRO=4\n", "")
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(
        BadRequest, match="--micro-batch-size is \\$MICRO, which the script does not"
    ):
        sw.check(tmp_path / "run.sh", on="h100:1")
    found = sw.check(tmp_path / "run.sh", on="h100:1", given={"MICRO": 4})
    whole = checked(tmp_path, "small.sh")
    assert found.step_seconds == whole.step_seconds
    sizes = [change for change in found.changes if "microbatches" in change.choices]
    assert all("$MICRO" not in change.text for change in sizes)
    assert all("MICRO=" not in change.text for change in found.changes)
    assert sizes


def test_an_error_is_held_against_the_plan(tmp_path):
    """The logits that PyTorch could not have, and a change with which there is that much room."""
    logits = 4 * 2048 * 50304 * 4 / 2**30
    (tmp_path / "error.txt").write_text(
        f"CUDA out of memory. Tried to allocate {logits:.2f} GiB. GPU 0 has a total capacity of "
        "79.10 GiB of which 1.00 GiB is free. Of the allocated memory 60.00 GiB is allocated by "
        "PyTorch, and 15.00 GiB is reserved by PyTorch but unallocated."
    )
    found = checked(tmp_path, "small.sh", error=tmp_path / "error.txt")
    failed = found.failed
    assert failed is not None
    assert not found.fits
    assert failed.likely[0].startswith("the logits of one microbatch in float32")
    assert failed.beside_at == "loss"
    short = failed.wanted_bytes + failed.held_bytes - failed.capacity_bytes
    assert found.changes
    assert all(change.saved_bytes_per_chip >= short for change in found.changes)
    assert_reads_back(tmp_path, "small.sh", found)
    page = " ".join(str(found).split())
    assert "no: it failed" in page
    assert "expandable_segments" in page


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        (LLAMA2.replace("--nproc_per_node $GPUS", ""), {"on": None}, "give the slice with on"),
        (LLAMA2.replace("--vocab-size 32000", ""), {"on": "4*h100:8"}, None),
        (CORE.replace("seq_length: 4096", ""), {"on": "h100:8"}, "--seq-length is missing"),
        ("hello: world\n", {}, "is not known; name it with"),
        (LLAMA2, {"from_": "vllm"}, "from_ is 'vllm'; it takes maxtext"),
        (LLAMA2, {"as_": "LlamaForCausalLM"}, "as_ sets how model is read; give model too"),
        (LLAMA2, {"apply": 4}, "apply is 4; it must be a whole number"),
    ],
)
def test_what_a_file_lacks_is_asked_for_by_name(tmp_path, text, more, said):
    (tmp_path / "run").write_text(text)
    if said is None:
        assert sw.export(tmp_path / "run", from_="megatron", **more).value.model == "llama-2-70b"
        return
    with pytest.raises(BadRequest, match=said):
        sw.check(tmp_path / "run", **more)


def test_what_a_caller_gives_has_to_decide_something(tmp_path):
    """A variable that the script sets itself is not the caller's."""
    text = "TP=1\ntorchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size $TP\n"
    file = tmp_path / "run.sh"
    file.write_text(text)
    with pytest.raises(BadRequest, match="has no effect: the script sets TP itself"):
        sw.check(file, given={"TP": "4"}, on="h100:8")
    assert has_use_for("torchrun t.py --lr ${LR:-1}", "LR")
    assert not has_use_for("torchrun t.py --lr ${LR:-1}", "TP")


def test_choices_are_changed_together(tmp_path):
    """More sequences at once need memory, which keeping activations needs as well: the best is
    both, and no single change is as good."""
    found = checked(tmp_path, "small.sh")
    best, *others = found.changes
    assert set(best.choices) == {"microbatches", "remat"}
    assert best.gain > 1.2 * max(change.gain for change in others)
    assert all(len(change.choices) == 1 for change in others)
    assert_reads_back(tmp_path, "small.sh", found)


def test_tensor_parallelism_comes_with_sequence_parallelism(tmp_path):
    """A script that has neither: the plan with both is one of those that are priced."""
    text = LLAMA2.replace("--tensor-model-parallel-size 8", "--tensor-model-parallel-size 1")
    (tmp_path / "run.sh").write_text(text.replace("--sequence-parallel ", ""))
    plan = sw.export(tmp_path / "run.sh", from_="megatron", on="4*h100:8").value
    assert isinstance(plan, sw.TrainPlan)
    cfg, piece = sw.load_model(plan.model), sw.slice_of(plan.slice)
    row = EXPORTERS["megatron"].runner(piece)
    room = piece.chip.require("hbm_usable_bytes")
    changed = [
        set(choices) for choices, _ in near_in_tables(evaluate_train(plan, cfg, piece), room, row)
    ]
    assert any({"mesh", "sequence_parallel"} <= choices for choices in changed)


def test_the_gain_without_a_risk_comes_first(tmp_path):
    """Of plans in the order of time; one that is no faster stays where it is."""
    given = checked(tmp_path, "small.sh").best
    fast, same = (
        evaluate_train(replace(given.plan, microbatches=count), given.cfg, given.piece)
        for count in (2, given.plan.microbatches)
    )
    risky = NearPlan(choices=("microbatches",), answer=fast)
    safe = NearPlan(choices=("logit_chunks",), answer=fast)
    idle = NearPlan(choices=("logit_chunks",), answer=same)
    assert _safe_first([risky, idle, safe], given, must_fit=False) == [safe, risky, idle]
    assert _safe_first([risky, idle], given, must_fit=False) == [risky, idle]
    assert _safe_first([], given, must_fit=True) == []
