"""Files of programs that train as transformers' Trainer does, by keys of their own."""

import pytest
from tests.planner.export.test_other_doors import FOUNDRY, OLMO, XTUNER

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model, params_total
from shardwise.planner.export import parse_export
from shardwise.planner.export.edit import with_given
from shardwise.planner.export.edit.keys import set_in_yaml
from shardwise.planner.export.known_flags import dialect_named, target_of, unread_notes
from shardwise.planner.export.trainer.dialects import dialects, spellings
from shardwise.planner.export.trainer.files import named_files, with_files
from shardwise.planner.export.trainer.given import model_named
from shardwise.plans import TrainPlan

FACTORY = """model_name_or_path: Qwen/Qwen2.5-7B-Instruct
stage: sft
finetuning_type: lora
lora_rank: 16
lora_target: all
template: qwen
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
"""
SWIFT = """NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora \\
  --torch_dtype bfloat16 --lora_rank 8 --max_length 4096 --deepspeed zero2 --model_name bot \\
  --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --dataset own.jsonl
"""
TUNE = """model:
  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 8
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: 4096
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /data/Meta-Llama-3.1-8B-Instruct/
optimizer:
  _component_: bitsandbytes.optim.PagedAdamW8bit
  lr: 2e-5
batch_size: 2
gradient_accumulation_steps: 8
enable_activation_checkpointing: True
dtype: bf16
"""
LIT = """checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
out_dir: out
precision: bf16-true
quantize: bnb.nf4
devices: 1
lora_r: 32
lora_query: true
lora_key: false
lora_mlp: true
train:
  lr_warmup_steps: 10
  global_batch_size: 16
  micro_batch_size: 2
  max_seq_length: 512
"""
VERL = """torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \\
  data.train_files=a.parquet data.train_batch_size=64 data.micro_batch_size_per_gpu=4 \\
  data.max_length=2048 model.partial_pretrain=Qwen/Qwen2.5-7B-Instruct optim.lr=1e-5
"""
COOKBOOK = """torchrun --nnodes 1 --nproc_per_node 4 finetuning.py --enable_fsdp --use_peft \\
  --peft_method lora --model_name meta-llama/Llama-3.1-8B --batch_size_training 2 \\
  --context_length 2048 --fsdp_config.pure_bf16
"""
COLOSSAL = """colossalai run --nproc_per_node 8 train.py --pretrained meta-llama/Llama-2-7b-hf \\
  --plugin zero2 --batch_size 4 --accumulation_steps 2 --mixed_precision bf16 --max_length 4096 \\
  --use_grad_checkpoint
"""
CHAT = """deepspeed --num_gpus 8 main.py --model_name_or_path facebook/opt-66b --zero_stage 3 \\
  --max_seq_len 512 --per_device_train_batch_size 4 --lora_dim 128 --data_split 10,0,0 --offload
"""
QLORA = """python train.py --train_type qlora --model_name meta-llama/Llama-2-70b-hf \\
  --batch_size 2 --context_length 1024 --precision bf16 --low_memory true \\
  --use_gradient_checkpointing true --use_cpu_offload false --reentrant_checkpointing true
"""
DIMENSIONS = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
spec:
  containers:
  - command: [torchrun, --nproc_per_node=$GPUS, --nnodes=$NODES, /fsdp/train.py,
      --max_context_width=8192, --num_key_value_heads=8, --intermediate_size=14336,
      --hidden_width=4096, --num_layers=32, --num_heads=32, --vocab_size=128256,
      --train_batch_size=1, --sharding_strategy=full, --offload_activations=1]
"""
PRIME = """max_steps = 20
[deployment]
num_train_gpus = 2
[model]
name = "Qwen/Qwen3-1.7B"
[model.lora]
rank = 8
[data]
seq_len = 1024
batch_size = 64
micro_batch_size = 1
[optim]
lr = 1e-5
"""
FILES = {
    "prime_rl": (PRIME, "h100:2", (64, 1024, 32, 8, "none", "block")),
    "foundry": (FOUNDRY, "8*h100:8", (1024, 2048, 2, 0, "none", "block")),
    "olmo": (OLMO, "8*h100:8", (2048, 2048, 16, 0, "none", "none")),
    "xtuner": (XTUNER, "h100:8", (64, 2048, 16, 64, "nf4", "block")),
    "fsdp_qlora": (QLORA, "h100:2", (4, 1024, 1, 64, "nf4", "block")),
    "aws_fsdp": (DIMENSIONS, "h100:8", (8, 8192, 1, 0, "none", "offload")),
    "llamafactory": (FACTORY, "h100:8", (64, 4096, 4, 16, "none", "block")),
    "swift": (SWIFT, "h100:4", (16, 4096, 2, 8, "none", "block")),
    "torchtune": (TUNE, "h100:8", (128, 4096, 8, 8, "nf4", "block")),
    "litgpt": (LIT, "h100:1", (16, 512, 8, 32, "nf4", "block")),
    "verl": (VERL, "h100:8", (64, 2048, 2, 0, "none", "block")),
    "llama_cookbook": (COOKBOOK, "h100:4", (8, 2048, 1, 8, "none", "block")),
    "colossalai": (COLOSSAL, "h100:8", (64, 4096, 2, 0, "none", "block")),
    "deepspeed_chat": (CHAT, "h100:8", (32, 512, 1, 128, "none", "none")),
}


def read(text: str, on: str = "h100:8") -> TrainPlan:
    assert target_of(text) == "trl"
    return parse_export(text, "trl", piece=parse_slice(on))


@pytest.mark.parametrize("name", FILES)
def test_a_programs_own_keys_become_a_plan_and_none_is_passed_over(name):
    text, on, said = FILES[name]
    plan = read(text, on)
    assert getattr(dialect_named(text), "name", None) == name
    batch = plan.global_batch_sequences, plan.sequence_length, plan.microbatches
    assert (*batch, plan.lora_rank, plan.quantize, plan.remat) == said
    assert not any("is unknown" in line for line in unread_notes(text, "trl"))


def test_every_program_of_the_table_is_tried():
    assert {*FILES, "scripts"} == {*dialects()}


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (FACTORY, "cutoff_len: 4096", "cutoff_len: 1024"),
        (FACTORY, "lora_target: all", "lora_target: q_proj,v_proj"),
        (FACTORY, "finetuning_type: lora", "finetuning_type: full"),
        (FACTORY, "bf16: true", "quantization_bit: 4"),
        (SWIFT, "--deepspeed zero2", "--deepspeed zero3"),
        (SWIFT, "--tuner_type lora", "--tuner_type full"),
        (TUNE, "dtype: bf16", "dtype: fp32"),
        (TUNE, "qlora_", "lora_"),
        (TUNE, "apply_lora_to_mlp: True", "apply_lora_to_mlp: False"),
        (TUNE, "PagedAdamW8bit", "PagedAdamW"),
        (LIT, "bf16-true", "bf16-mixed"),
        (LIT, "global_batch_size: 16", "global_batch_size: 32"),
        (LIT, "lora_key: false", "lora_key: true"),
        (VERL, "data.max_length=2048", "data.max_length=1024"),
        (COOKBOOK, "--fsdp_config.pure_bf16", "--quantization 4bit"),
        (COLOSSAL, "zero2", "gemini"),
        (CHAT, " --offload", ""),
    ],
)
def test_a_key_that_is_changed_changes_the_plan(text, old, new):
    on = next(on for held, on, _ in FILES.values() if held == text)
    assert read(text, on) != read(text.replace(old, new), on)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FACTORY.replace("stage: sft", "stage: dpo"), "llamafactory: rl is 'dpo'"),
        (FACTORY.replace("_type: lora", "_type: oft"), "adapter is 'oft'"),
        (FACTORY + "use_galore: true\n", "use_galore is 'galore'"),
        (VERL.replace("optim.lr=1e-5", "algorithm.adv_estimator=grpo"), "verl: rl is 'grpo'"),
        (CHAT.replace("--offload", "--deepspeed_config $1_z.json"), "through a shell expression"),
        (LIT.replace("devices: 1", "devices: 3"), "train.global_batch_size 16 over 6 sequences"),
    ],
)
def test_what_no_plan_can_say_is_refused_by_the_files_own_key(text, said):
    with pytest.raises(BadRequest, match=said):
        read(text, "h100:3" if "devices: 3" in text else "h100:8")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FACTORY + "use_unsloth: true\n", "use_unsloth = True is unknown"),
        (FACTORY + "cutof_len: 3\n", "cutof_len = 3 is unknown"),
        (TUNE + "optimizer_in_bwd: True\n", "optimizer_in_bwd = True is unknown"),
        (LIT + "lora_head: true\n", "lora_head = True is unknown"),
        (TUNE.replace("max_seq_len: 4096", "max_seq_len: null"), "takes it from the data"),
    ],
)
def test_what_is_not_read_is_said_under_its_own_name(text, said):
    assert any(said in line for line in unread_notes(text, "trl"))


def test_a_model_without_a_name_is_built_of_its_numbers():
    cfg = load_model(read(DIMENSIONS).model)
    assert params_total(cfg) == params_total(load_model("llama-3-8b"))
    less = load_model(read(DIMENSIONS.replace("num_layers=32", "num_layers=16")).model)
    assert less.layers == 16


def test_names_that_peoples_own_scripts_have_are_read():
    """As examples/sft of peft and the train.py of LLaVA call them."""
    text = """torchrun --nproc_per_node=8 train.py --model_name_or_path meta-llama/Llama-2-7b-hf \\
      --lora_enable True --lora_r 64 --bits 4 --model_max_length 1024 --bf16 True"""
    plan = read(text)
    assert (plan.lora_rank, plan.quantize, plan.sequence_length) == (64, "nf4", 1024)


def test_a_plans_values_have_the_programs_own_words():
    rows = dialects()
    assert ("cutoff_len", "2048") in spellings(rows["llamafactory"], "max_length", "2048")
    wanted = ("disable_gradient_checkpointing", "true")
    assert wanted in spellings(rows["llamafactory"], "gradient_checkpointing", "false")
    changed = next(set_in_yaml(FACTORY, "cutoff_len", "2048", []))
    assert read(changed).sequence_length == 2048


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/models/Meta-Llama-3.1-8B-Instruct/", "llama-3.1-8b"),
        ("unsloth/Llama-3.1-8B-bnb-4bit", "llama-3.1-8b"),
        ("Qwen/Qwen2-1.5B-Instruct", "qwen2.5-1.5b"),
        ("someone/some-model", None),
    ],
)
def test_a_model_is_known_by_its_folder_and_in_few_bits(text, name):
    assert model_named(text) == name


@pytest.mark.parametrize("kind", ["GPTQ", "AWQ", "GPTQ-Int4"])
def test_a_base_in_4_bits_is_read_of_its_id(kind):
    """As its config says it, which no file of keys has."""
    plan = read(FACTORY.replace("7B-Instruct", f"7B-Instruct-{kind}"))
    assert (plan.model, plan.quantize) == ("qwen2.5-7b", kind.partition("-")[0].lower())


def test_a_length_that_a_program_leaves_to_its_data_is_told_with_its_key():
    text = TUNE.replace("max_seq_len: 4096", "max_seq_len: null")
    said = "takes it from the data: read as 2,048 tokens; give tokenizer.max_seq_len"
    assert any(said in line for line in unread_notes(text, "trl"))
    given = with_given(text, {"tokenizer.max_seq_len": "8192"})
    assert read(given).sequence_length == 8192


def test_the_json_of_the_deepspeed_launcher_is_read_with_its_line():
    text = CHAT.replace("--zero_stage 3", "--deepspeed_config ds.json").replace(" --offload", "")
    assert named_files(text) == ("ds.json",)
    own = '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}'
    plan = read(with_files(text, {"ds.json": own}.get))
    assert (plan.zero, plan.global_batch_sequences) == (2, 32)
