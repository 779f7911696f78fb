"""Files of further kinds: SkyPilot tasks, GPT-NeoX, NeMo of both generations, verl and ms-swift on
Megatron, LLM Foundry, OLMo and xtuner; and what `check` changes in them."""

import re
from dataclasses import replace

import pytest

from shardwise import plan_show
from shardwise.commands.plan_file.changes import changes_of
from shardwise.commands.pricing.plans import program_text
from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import parse_slice
from shardwise.models import load_model, params_total
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.export import EXPORTERS, export_plan, parse_export
from shardwise.planner.export.known_flags import target_of, unread_notes
from shardwise.planner.export.trainer.dialects import dialects, spellings
from shardwise.plans import TrainPlan
from shardwise.plans.software import candidates_of_plan

TASK = """resources:
  accelerators: H100:8
num_nodes: 2
envs:
  MODEL: Qwen/Qwen3-8B
setup: pip install trl
run: |
  NP=$(($SKYPILOT_NUM_GPUS_PER_NODE * $SKYPILOT_NUM_NODES))
  cat > own.yaml <<END
  distributed_type: FSDP
  fsdp_config:
    fsdp_reshard_after_forward: true
  mixed_precision: bf16
  END
  accelerate launch --config_file own.yaml --num_processes $NP sft.py --model_name_or_path $MODEL \\
    --max_length 4096 --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --bf16 True
"""
NEOX = """{
  "pipe-parallel-size": 4,
  "model-parallel-size": 2,
  "num-layers": 44,
  "hidden-size": 6144,
  "num-attention-heads": 64,
  "seq-length": 2048,
  "pos-emb": "rotary",
  "no-weight-tying": true,
  "vocab-file": "./20B_tokenizer.json",
  "optimizer": {"type": "Adam", "params": {"lr": 0.97e-4}},
  "zero_optimization": {"stage": 1, "overlap_comm": True},
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 32,
  "checkpoint-activations": true,
  "fp16": {"enabled": true},
}
"""
NEMO = """name: mine
trainer:
  devices: 8
  num_nodes: 4
  precision: bf16
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 40
  hidden_size: 5120
  ffn_hidden_size: 13824
  num_attention_heads: 40
  bias: False
  activation: 'fast-swiglu'
  share_embeddings_and_output_weights: False
  tokenizer:
    model: /data/tokenizer.model
  activations_checkpoint_granularity: full
  sequence_parallel: True
  data:
    seq_length: ${model.encoder_seq_length}
  optim:
    name: distributed_fused_adam
"""
RECIPE = """import nemo_run as run
from nemo.collections import llm

recipe = llm.llama3_70b.pretrain_recipe(name="a", num_nodes=8, num_gpus_per_node=8)
recipe.trainer.strategy.tensor_model_parallel_size = 4
recipe.trainer.strategy.pipeline_model_parallel_size = 4
recipe.trainer.strategy.virtual_pipeline_model_parallel_size = 5
recipe.data.global_batch_size = 128
recipe.data.micro_batch_size = 1
recipe.data.seq_length = 8192
"""
VERL = """MODEL_ID=${MODEL_ID:-Qwen/Qwen3-8B}
MODEL_PATH=${MODEL_PATH:-${HOME}/models/${MODEL_ID}}
torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer \\
  data.train_batch_size=32 data.max_length=2048 data.micro_batch_size_per_gpu=2 \\
  data.train_files=a.parquet model.path=$MODEL_PATH engine=megatron optim=megatron \\
  engine.tensor_model_parallel_size=2 engine.pipeline_model_parallel_size=2
"""
SWIFT = """NNODES=2 NPROC_PER_NODE=8 megatron sft --load Qwen3-30B-A3B-Base-mcore \\
  --pipeline_model_parallel_size 2 --expert_model_parallel_size 8 --micro_batch_size 1 \\
  --global_batch_size 16 --recompute_granularity full --max_length 8192 --sequence_parallel true
"""
FOUNDRY = """variables:
  max_seq_len: 2048
max_seq_len: ${variables.max_seq_len}
model:
  name: mpt_causal_lm
  d_model: 4096
  n_heads: 32
  n_layers: 32
  expansion_ratio: 4
  vocab_size: 50368
  attn_config:
    attn_impl: flash
train_loader:
  name: text
optimizer:
  name: decoupled_adamw
global_train_batch_size: 1024
device_train_microbatch_size: 8
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  mixed_precision: PURE
  activation_checkpointing: true
"""
OLMO = """model:
  d_model: 4096
  n_heads: 32
  n_layers: 32
  mlp_hidden_size: 22016
  weight_tying: false
  rope: true
  include_bias: false
  block_type: sequential
  activation_type: swiglu
  max_sequence_length: 2048
  vocab_size: 50280
  embedding_size: 50304
optimizer:
  name: adamw
global_train_batch_size: 2048
device_train_microbatch_size: 2
precision: amp_bf16
fsdp:
  wrapping_strategy: by_block
  sharding_strategy: FULL_SHARD
"""
XTUNER = """from xtuner.model import SupervisedFinetune
from peft import LoraConfig
pretrained_model_name_or_path = "meta-llama/Meta-Llama-3-8B-Instruct"
max_length = 2048
pack_to_max_length = True
sequence_parallel_size = 2
max_epochs = 3
use_varlen_attn = False
batch_size = 1
accumulative_counts = 8
accumulative_counts *= sequence_parallel_size
optim_type = AdamW
model = dict(
    type=SupervisedFinetune,
    llm=dict(
        type=AutoModelForCausalLM.from_pretrained,
        pretrained_model_name_or_path=pretrained_model_name_or_path,
        torch_dtype=torch.float16,
        quantization_config=dict(type=BitsAndBytesConfig, load_in_4bit=True),
    ),
    lora=dict(type=LoraConfig, r=64),
)
optim_wrapper = dict(type=AmpOptimWrapper, accumulative_counts=accumulative_counts, dtype="float16")
"""
FILES = {
    "skypilot": (TASK, "2*h100:8", {"fsdp": 16}, (64, 4096, 4)),
    "neox": (NEOX, "12*a100:8", {"stage": 4, "data": 12, "tensor": 2}, (1536, 2048, 32)),
    "nemo 1": (NEMO, "4*h100:8", {"stage": 2, "data": 8, "tensor": 2}, (128, 4096, 16)),
    "nemo 2": (RECIPE, "8*h100:8", {"stage": 4, "data": 4, "tensor": 4}, (128, 8192, 32)),
    "verl": (VERL, "h100:8", {"stage": 2, "data": 2, "tensor": 2}, (32, 2048, 8)),
    "swift": (SWIFT, "2*h100:8", {"stage": 2, "expert": 8}, (16, 8192, 2)),
    "foundry": (FOUNDRY, "8*h100:8", {"fsdp": 64}, (1024, 2048, 2)),
    "olmo": (OLMO, "8*h100:8", {"fsdp": 64}, (2048, 2048, 16)),
    "xtuner": (XTUNER, "h100:8", {"data": 4, "context": 2}, (64, 2048, 16)),
}


def read(text: str, on: str) -> TrainPlan:
    target = target_of(text)
    assert target is not None
    return parse_export(text, target, piece=parse_slice(on))


@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_a_plan(name):
    text, on, mesh, batch = FILES[name]
    plan = read(text, on)
    cut = {axis: plan.degree(axis) for axis in plan.mesh if plan.degree(axis) > 1}
    said = plan.global_batch_sequences, plan.sequence_length, plan.microbatches
    assert (cut, said) == (mesh, batch)


def changed_values(text: str):
    """A key, and the text with another value of it: numbers are doubled, switches turned."""
    for found in re.finditer(r"(?m)^.*?([\w.-]+)\"?( = |=|: | )(\d+|[Tt]rue|[Ff]alse)\b", text):
        key, value = found[1], found[3]
        new = str(int(value) * 2) if value.isdigit() else str(value.lower() == "false")
        yield key, text[: found.start(3)] + new + text[found.end(3) :]


@pytest.mark.parametrize("name", FILES)
def test_a_key_that_is_changed_changes_the_plan_or_is_named(name):
    text, on, *_ = FILES[name]
    plan, silent, tried = read(text, on), [], 0
    target = target_of(text) or ""
    for key, changed in changed_values(text):
        tried += 1
        try:
            same = read(changed, on) == plan
        except BadRequest:
            continue
        notes = [*unread_notes(text, target), *unread_notes(changed, target)]
        if same and not any(k in line for line in notes for k in (key, key.replace("_", "-"))):
            silent.append(key)
    assert tried >= 3
    assert silent == []


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (
            NEOX,
            '"stage": 1',
            '"stage": 3',
            "zero_optimization.stage is '3'.*a plan can express 0, 1",
        ),
        (FOUNDRY, "mpt_causal_lm", "other_lm", "model.name is 'other_lm'.*hf_causal_lm"),
        (FOUNDRY, "microbatch_size: 8", "microbatch_size: auto", "'auto'.*write a number"),
        (OLMO, "sequential", "parallel", "model.block_type is 'parallel'.*sequential or llama"),
        (OLMO, "22016", "wide", "model.mlp_hidden_size is 'wide'.*write a number"),
        (NEMO, "distributed_fused_adam", "lion", "--optimizer is 'lion'"),
    ],
)
def test_what_no_plan_says_is_refused_by_its_key(text, old, new, said):
    on = next(on for held, on, *_ in FILES.values() if held == text)
    with pytest.raises(BadRequest, match=said):
        read(text.replace(old, new), on)


def test_models_of_numbers_alone_have_the_parameters_of_their_names():
    """OLMo's MLP of 22,016 is a gate and an up of 11,008; MPT-7B has biases here, and positions."""
    olmo, own = load_model(read(OLMO, "8*h100:8").model), 4096 * (2 * 50304 + 32 * 49_408)
    assert params_total(olmo) == pytest.approx(own, rel=0.0001)
    mpt = load_model(read(FOUNDRY, "8*h100:8").model)
    assert params_total(mpt) == pytest.approx(params_total(load_model("mpt-7b")), rel=0.005)
    neox = load_model(read(NEOX, "12*a100:8").model)
    assert params_total(neox) == pytest.approx(params_total(load_model("gpt-neox-20b")), rel=0.001)
    assert read(NEMO, "4*h100:8").model == "llama-2-13b"


def test_a_file_that_a_variable_names_is_read_from_the_folder_beside(tmp_path):
    """As SkyPilot mounts it: /configs of its machines is configs here."""
    own = {"tokenizer.max_seq_len": "4096", "model._component_": "torchtune.models.x.lora_y"}
    own |= {"checkpointer.checkpoint_dir": "/data/Llama-3.1-8B", "batch_size": "2"}
    own["optimizer._component_"] = "torch.optim.AdamW"
    (tmp_path / "configs").mkdir()
    lines = (f"{key}: {value}\n" for key, value in own.items())
    (tmp_path / "configs" / "8B-lora.yaml").write_text("".join(lines))
    task = tmp_path / "task.yaml"
    task.write_text(
        "envs:\n  SIZE: 8B\nresources:\n  accelerators: {A100: 8}\nrun: |\n"
        "  tune run --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE lora_finetune_distributed \\\n"
        "    --config /configs/${SIZE}-lora.yaml\n"
    )
    plan = parse_export(program_text(task, "the task"), "trl", piece=parse_slice("a100:8"))
    assert (plan.model, plan.sequence_length, plan.lora_rank) == ("llama-3.1-8b", 4096, 8)
    outside = task.read_text().replace("/configs/", "../../")
    task.write_text(outside)
    with pytest.raises(BadRequest, match="names the file"):
        parse_export(program_text(task, "the task"), "trl", piece=parse_slice("a100:8"))


def test_degrees_across_slices_count_before_those_inside_take_the_rest():
    text = "python3 -m MaxText.train base.yml model_name=llama2-7b per_device_batch_size=4 "
    text += "ici_fsdp_parallelism=-1 dcn_data_parallelism=2 max_target_length=2048\n"
    assert dict(read(text, "2*v6e:4x4").mesh) == {"replica": 2, "fsdp": 16}


def test_notes_are_those_of_as_many_devices_as_the_text_cuts():
    """Two copies of four shards of tensor 3 are 24 devices, which no note may hang on."""
    text = "base_model: Qwen/Qwen3-8B\ndp_replicate_size: 2\ndp_shard_size: 4\n"
    text += "tensor_parallel_size: 3\nmicro_batch_size: 1\nsequence_len: 4096\nfsdp_version: 2\n"
    assert not any("micro_batch_size" in line for line in unread_notes(text, "axolotl"))


BRIDGE = """srun python scripts/training/run_recipe.py --recipe llama31_70b_pretrain_config \\
  model.tensor_model_parallel_size=4 \\
  model.pipeline_model_parallel_size=4 \\
  model.sequence_parallel=true \\
  model.seq_length=8192 \\
  train.global_batch_size=128 \\
  train.micro_batch_size=1 \\
  ddp.overlap_grad_reduce=true
"""
ON_GPUS = """python MaxText/train.py MaxText/configs/base.yml model_name=llama2-70b \\
  attention=cudnn_flash_te per_device_batch_size=4 remat_policy=save_qkv_proj \\
  max_target_length=4096 \\
  ici_fsdp_parallelism=8 dcn_fsdp_parallelism=2 dcn_data_parallelism=8
"""
FACTORY = """#!/bin/bash
cat > full.yaml <<'END'
model_name_or_path: Qwen/Qwen3-14B
stage: sft
finetuning_type: full
template: qwen3
cutoff_len: 4096
deepspeed: z3.json
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
bf16: true
END
cat > z3.json <<'END'
{"zero_optimization": {"stage": 3, "overlap_comm": false}, "bf16": {"enabled": "auto"}}
END
llamafactory-cli train full.yaml
"""
CHANGED = {
    "overrides of a recipe": (BRIDGE, "8*h100:8", r"^\+ +comm_overlap.tp_comm_overlap=true \\$"),
    "copies across GPU nodes": (ON_GPUS, "16*h100:8", r"^\+.*dcn_data_parallelism=1$"),
    "a YAML that a script holds": (FACTORY, "2*h100:8", r"^\+per_device_train_batch_size: 2$"),
    "words of its own alone": (FOUNDRY, "8*h100:8", r"^\+device_train_microbatch_size: 16$"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_change_is_written_in_the_files_own_words_and_prices_as_promised(name):
    text, on, line = CHANGED[name]
    target = target_of(text) or ""
    plan = read(text, on)
    answer = evaluate_train(plan, load_model(plan.model), parse_slice(on))
    changes = changes_of(text, "run.sh", target, answer)
    assert len(changes) >= 2
    assert any(re.search(line, change.diff, re.MULTILINE) for change in changes)
    for change in changes:
        again = read(change.text, on)
        priced = evaluate_train(again, load_model(again.model), parse_slice(on))
        assert priced.step_seconds.expected == pytest.approx(change.step_seconds.expected)
        assert priced.peak_bytes_per_chip == pytest.approx(change.peak_bytes_per_chip)


def test_a_program_with_keys_of_its_own_is_given_no_key_of_transformers():
    plan = read(FOUNDRY, "8*h100:8")
    answer = evaluate_train(plan, load_model(plan.model), parse_slice("8*h100:8"))
    added = [
        line
        for change in changes_of(FOUNDRY, "mpt.yaml", "trl", answer)
        for line in change.diff.splitlines()
        if re.match(r"\+[^+]", line)
    ]
    assert added
    known = {key.rpartition(".")[2] for key in dialects()["foundry"].names}
    known |= {key.rpartition(".")[2] for key in dialects()["foundry"].values}
    assert {line.strip("+ ").partition(":")[0] for line in added} <= known


def test_a_word_of_torchtune_is_the_path_of_its_class():
    words = dict(spellings(dialects()["torchtune"], "use_liger_kernel", "true"))
    assert words["loss._component_"] == "torchtune.modules.loss.LinearCrossEntropyLoss"
    words = dict(spellings(dialects()["torchtune"], "optim", "adamw_bnb_8bit"))
    assert words == {"optimizer._component_": "bitsandbytes.optim.AdamW8bit"}


def test_biases_of_a_megatron_script_are_those_of_all_its_matmuls():
    """Megatron adds them unless --disable-bias-linear, which Llama's config has in two keys."""
    text = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 "
    text += "--num-attention-heads 8 --swiglu --seq-length 1024 --micro-batch-size 1 --bf16 "
    text += "--vocab-size 32000 --position-embedding-type rope --ffn-hidden-size 4096"
    plan = read(text, "h100:8")
    plain = read(f"{text} --disable-bias-linear", "h100:8")
    more = params_total(load_model(plan.model)) - params_total(load_model(plain.model))
    assert more == 8 * (3 * 1024 + 1024 + 2 * 4096 + 1024)
    row = EXPORTERS["megatron"].runner(parse_slice("h100:8"))
    assert row is not None
    cfg = load_model(plan.model)
    assert row.obstacles(candidates_of_plan(plan, cfg, parse_slice("h100:8"))) == []


ND = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_activation_checkpointing: true
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 2
  parallelism_config_tp_size: 2
  parallelism_config_cp_size: 2
  parallelism_config_cp_comm_strategy: COMM
"""


@pytest.mark.parametrize("target", ["accelerate", "trl", "axolotl"])
@pytest.mark.parametrize(("word", "method"), [("allgather", "all_gather"), ("alltoall", "ring")])
def test_four_sizes_of_parallelism_config_are_read_and_written(target, word, method):
    model, piece = ("llama-3-8b", load_model("llama-3-8b")), parse_slice("2*h100:8")
    plan = parse_export(ND.replace("COMM", word), "accelerate", model=model, piece=piece)
    assert dict(plan.mesh) == {"data": 2, "fsdp": 2, "context": 2, "tensor": 2}
    assert plan.context_method == method
    if (target, method) == ("axolotl", "all_gather"):
        with pytest.raises(BadRequest, match="axolotl passes KV around in a ring"):
            export_plan(plan, model[1], piece, target)
        return
    text = export_plan(plan, model[1], piece, target)
    own = {"accelerate": r"parallelism_config_tp_size: 2", "trl": r"--parallelism_config_tp_size 2"}
    assert re.search(own.get(target, r"(?m)^tensor_parallel_size: 2$"), text)
    assert parse_export(text, target) == plan


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mesh": {"data": 8, "tensor": 2}}, "only with FSDP"),
        ({"sequence_parallel": True}, "does not shard activations"),
        ({"context_method": "ulysses"}, "context parallelism is one of all_gather, ring"),
        ({"attention_kernel": "fa2"}, "scaled_dot_product_attention alone"),
    ],
)
def test_what_accelerate_cannot_cut_so_is_refused(changed, said):
    model, piece = ("llama-3-8b", load_model("llama-3-8b")), parse_slice("2*h100:8")
    plan = parse_export(ND.replace("COMM", "allgather"), "accelerate", model=model, piece=piece)
    with pytest.raises(BadRequest, match=said):
        export_plan(replace(plan, **changed), model[1], piece, "accelerate")


def test_a_yaml_of_another_program_is_given_no_parallelism_of_accelerate():
    plan = read(FACTORY, "2*h100:8")
    answer = evaluate_train(plan, load_model(plan.model), parse_slice("2*h100:8"))
    for change in changes_of(FACTORY, "run.sh", "trl", answer):
        assert "parallelism_config" not in change.diff


def test_an_optimizer_is_named_in_the_words_of_the_files_program():
    """On the host the update is what a step waits for: half of its bytes are worth a change."""
    text = FACTORY.replace('"stage": 3,', '"stage": 3, "offload_optimizer": {"device": "cpu"},')
    plan = read(text, "2*h100:8")
    answer = evaluate_train(plan, load_model(plan.model), parse_slice("2*h100:8"))
    says = [change.says for change in changes_of(text, "run.sh", "trl", answer)]
    assert "optimizer adam -> adam8bit (adamw_bnb_8bit in the file)" in ", ".join(says)


def test_a_script_that_does_not_fit_names_the_command_that_changes_it(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "accelerate launch --num_processes 1 sft.py --model_name_or_path Qwen/Qwen3-32B "
        "--max_length 1024 --per_device_train_batch_size 1 --bf16 True\n"
    )
    plan = read(path.read_text(), "h100:1")
    text = path.read_text() + '# shardwise: slice: "h100:1"\n# shardwise: box: [1]\n'
    path.write_text(text)
    assert plan.model == "qwen3-32b"
    with pytest.raises(
        NoFeasiblePlan, match=r"for changes of the file itself: `shardwise check .*run.sh`"
    ):
        plan_show(path)
