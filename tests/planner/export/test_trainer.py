"""Fine-tuning by transformers' Trainer: what a launch line of TRL, an axolotl YAML, the config of
accelerate and a DeepSpeed JSON say, alone and together."""

import json
import re

import pytest
from tests.apps.commands import answer, answered, refused

from shardwise.errors import BadRequest, Remark
from shardwise.hardware import parse_slice
from shardwise.planner.export import parse_export
from shardwise.planner.export.known_flags import target_of, unread_notes
from shardwise.planner.export.trainer import TARGETS, named_files, with_files

H100 = parse_slice("h100:8")
LINE = (
    "accelerate launch --num_processes 8 sft.py --model_name_or_path meta-llama/Meta-Llama-3-8B "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 4096 "
    "--dtype bfloat16 --bf16 True --gradient_checkpointing True --padding_free True"
)
ZERO3 = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
}
AXOLOTL = """
base_model: NousResearch/Meta-Llama-3-8B
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_target_linear: true
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
flash_attention: true
learning_rate: 0.0002
"""


def read(text, target="trl", piece=H100):
    return parse_export(text, target, piece=piece)


def test_a_launch_line_of_trl():
    plan = read(LINE)
    assert target_of(LINE) == "trl"
    assert (plan.model, plan.mesh) == ("llama-3-8b", {"data": 8})
    assert (plan.global_batch_sequences, plan.microbatches) == (64, 4)
    assert (plan.remat, plan.sequence_length, plan.stack) == ("block", 4096, "fsdp")
    d = plan.dtypes
    assert (d.param, d.compute, d.grad, d.master, d.moments) == ("bf16",) * 3 + ("none", "bf16")
    own = "trl sft --model_name_or_path meta-llama/Meta-Llama-3-8B --max_length 4096"
    assert target_of(own) == "trl"
    assert read(own).remat == "block"  # TRL checkpoints unless told otherwise


def test_an_axolotl_yaml():
    plan = read(AXOLOTL, "axolotl", parse_slice("h100:1"))
    assert target_of(AXOLOTL) == "axolotl"
    assert (plan.model, plan.lora_rank, plan.optimizer) == ("llama-3-8b", 32, "adam8bit")
    assert (plan.attention_kernel, plan.sequence_length) == ("fa2", 4096)
    assert (plan.quantize, plan.lora_targets, plan.library) == ("nf4", (), "transformers")
    said = [s for s in unread_notes(AXOLOTL, "axolotl") if not isinstance(s, Remark)]
    assert "sample_packing: the text does not give document lengths" in said[0]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("more", "mesh", "field", "value"),
    [
        ("--use_fsdp --fsdp_version 2", {"fsdp": 8}, "gradient_reduce", "per_step"),
        ("--use_fsdp --fsdp_sharding_strategy 2", {"fsdp": 8}, "weight_gather", "per_microbatch"),
        ("--use_fsdp --fsdp_reshard_after_forward false", {"fsdp": 8}, "zero", 0),
        ("--use_fsdp --fsdp_sharding_strategy NO_SHARD", {"data": 8}, "zero", 0),
        ("--use_fsdp --fsdp_offload_params true", {"fsdp": 8}, "offload_optimizer", True),
        ("--use_deepspeed --zero_stage 2", {"data": 8}, "zero", 2),
        ("--use_deepspeed --zero_stage 3", {"fsdp": 8}, "gradient_reduce", "per_microbatch"),
        ("--use_deepspeed --zero_stage 1", {"data": 8}, "overlap", ("context",)),
        ("--dynamo_backend inductor", {"data": 8}, "compiled", False),
        (
            "--use_fsdp --parallelism_config_dp_replicate_size 2",
            {"data": 2, "fsdp": 4},
            "zero",
            0,
        ),
        ("--use_fsdp --parallelism_config_tp_size 2", {"fsdp": 4, "tensor": 2}, "zero", 0),
        ("--use_fsdp --parallelism_config_cp_size 2", {"fsdp": 4, "context": 2}, "zero", 0),
    ],
)
def test_flags_of_accelerate(more, mesh, field, value):
    plan = read(LINE.replace("launch", f"launch {more}"))
    assert (plan.mesh, getattr(plan, field)) == (mesh, value)


_SOME = ("q", "k", "down")


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ("--use_peft --lora_r 8 --lora_target_modules all-linear", "lora_rank", 8),
        ("--use_peft", "lora_rank", 16),
        ("--use_peft", "lora_targets", ("q", "v")),
        ("--use_peft --lora_target_modules q_proj k_proj down_proj", "lora_targets", _SOME),
        ("--use_peft --load_in_8bit", "quantize", "int8"),
        ("--use_peft --load_in_4bit --bnb_4bit_quant_type nf4", "quantize", "nf4"),
        ("--optim paged_adamw_8bit", "optimizer", "adam8bit"),
        ("--attn_implementation flash_attention_3", "attention_kernel", "fa3"),
        ("--attn_implementation eager", "attention_kernel", "scores"),
        ("--activation_offloading true", "remat", "offload"),
        ("--torch_compile", "compiled", True),
        ("--use_liger_kernel true", "fused_loss", True),
        ('--fsdp "full_shard auto_wrap"', "mesh", {"fsdp": 8}),
        ("--fsdp true --fsdp_config '{\"reshard_after_forward\": false}'", "mesh", {"fsdp": 8}),
        ("--no_gradient_checkpointing", "remat", "none"),
    ],
)
def test_arguments_of_the_trainer(more, field, value):
    line = LINE.replace("--gradient_checkpointing True", "") if "checkpointing" in more else LINE
    assert getattr(read(f"{line} {more}"), field) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{LINE} --optim lion_8bit", "optim is 'lion_8bit'; a plan can express"),
        (
            LINE.replace("sft.py", "dpo.py"),
            "rl is 'dpo', whose step has passes that a plan does not",
        ),
        (f"{AXOLOTL}rl: grpo\n", "rl is 'grpo'"),
        (
            f"{LINE} --deepspeed missing.json",
            "names the file 'missing.json', which holds keys of the plan",
        ),
        (LINE.replace("8 sft", "16 sft"), "num_processes is 16 in the text, the slice has 8"),
        (LINE.replace("launch", "launch --use_deepspeed --zero_stage 4"), "zero_stage is '4'"),
        (f"{LINE} --max_length $LEN", "max_length is '$LEN', which the script does not set"),
        ("distributed_type: TPU\nfsdp_config: {}\n", "distributed_type is 'TPU'"),
    ],
)
def test_what_no_plan_says_is_refused_by_name(text, said):
    with pytest.raises(BadRequest) as error:
        read(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{LINE} --load_in_4bit", "load_in_4bit = True is unknown"),
        (f"{LINE} --lora_rr 3", "lora_rr = 3 is unknown.*; did you mean 'lora_r'?"),
        (f"{LINE} --attn_implementation flex_attention", "attn_implementation = 'flex_attention'"),
        (f"{LINE} --use_peft", "read as the program's defaults: lora_target_modules"),
        (f"{LINE} --use_peft --load_in_4bit --bnb_4bit_quant_type fp4", "_quant_type = 'fp4'"),
        (LINE.replace("launch", "launch --use_deepspeed --zero_stage 3 --offload_param_device cpu"),
         "deepspeed_config.offload_param_device = 'cpu'"),
        (f"{LINE} --auto_find_batch_size true", "auto_find_batch_size = True"),
        (LINE.replace("launch", "launch --mixed_precision fp16"), "mixed_precision = 'fp16' is"),
        (LINE, "without packing, a batch has the length of its longest text"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_said(text, said):
    assert any(re.search(said, line) for line in unread_notes(text, "trl"))


def test_files_that_a_text_names_are_read_with_it():
    line = f"{LINE} --deepspeed $DIR/ds.json"
    assert named_files(line) == ("ds.json",)
    whole = with_files(line, {"ds.json": json.dumps(ZERO3, indent=1)}.get)
    plan = read(whole)
    assert (plan.mesh, plan.offload_optimizer, plan.dtypes.master) == ({"fsdp": 8}, True, "f32")
    assert with_files(line, lambda _: None) == line
    assert target_of(json.dumps(ZERO3)) == "deepspeed"
    other = {"ds.json": json.dumps(ZERO3 | {"train_batch_size": 7})}
    with pytest.raises(BadRequest, match="train_batch_size is 7, and 2 sequences x 4 x 8 ranks"):
        read(with_files(line, other.get))


def test_plan_show_and_export_take_the_files_beside(tmp_path, capsys):
    (tmp_path / "zero.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\nnum_machines: 1\nmixed_precision: bf16\n"
        "deepspeed_config:\n  zero_stage: 2\n  offload_optimizer_device: cpu\n"
    )
    file = tmp_path / "run.sh"
    file.write_text(LINE.replace("launch", "launch --config_file configs/zero.yaml"))
    said = refused(capsys, ["plan", "show", file])
    assert "the text does not give the slice" in said
    plan = tmp_path / "plan.yaml"
    answered("export", file, "--from", "accelerate", "--on", "h100:8", "-o", plan)
    shown = answer("plan", "show", plan)["result"]
    assert (shown["mesh"], shown["software"]) == ({"data": 8}, "any")
    assert "offload_optimizer: true" in plan.read_text()
    for target in TARGETS:
        text = tmp_path / target
        answered("export", plan, "--to", target, "-o", text)
        again = tmp_path / f"{target}.yaml"
        answered("export", text, "--from", target, "-o", again)
        assert again.read_text() == plan.read_text()
