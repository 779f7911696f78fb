"""A Python script of TRL or transformers: literal arguments are read, others named."""

import pytest
from tests.planner.export.test_every_key import silent

from shardwise.errors import BadRequest, Lacking
from shardwise.hardware import parse_slice
from shardwise.planner.export import parse_export
from shardwise.planner.export.edit.keys import left_out_of_call, set_keyword
from shardwise.planner.export.known_flags import target_of, unread_notes

SFT = """import argparse
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--seq-length", type=int, default=2048)
args = parser.parse_args()
MODEL, RANK = "meta-llama/Llama-3.1-8B", 16
model_id = "meta-llama/Llama-3.1-8B"
rank = 16


def main(batch: int = 2):
    bnb = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )
    model = AutoModelForCausalLM.from_pretrained(
        model_id, quantization_config=bnb, attn_implementation="flash_attention_2"
    )
    tokenizer = AutoTokenizer.from_pretrained("somebody/else")
    peft = LoraConfig(r=rank, lora_alpha=32, target_modules=["q_proj", "v_proj"], bias="none")
    config = SFTConfig(
        output_dir="out/" + args.name,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=4,
        max_length=args.seq_length,
        gradient_checkpointing=True,
        bf16=True,
        optim="paged_adamw_8bit",
        learning_rate=2e-4,
    )
    SFTTrainer(model, args=config, peft_config=peft).train()
"""


def read(text: str):
    return parse_export(text, "trl", piece=parse_slice("h100:1"))


def test_the_arguments_of_its_calls_are_the_plan():
    plan = read(SFT)
    assert target_of(SFT) == "trl"
    assert plan.model == "llama-3.1-8b"
    assert (plan.lora_rank, plan.lora_targets, plan.quantize) == (16, ("q", "v"), "nf4")
    assert (plan.global_batch_sequences, plan.microbatches) == (8, 4)
    assert (plan.sequence_length, plan.remat, plan.optimizer) == (2048, "block", "adam8bit")
    assert plan.attention_kernel == "fa2"


def test_it_says_what_the_yaml_of_the_same_keys_says():
    keys = """model_name_or_path: meta-llama/Llama-3.1-8B
load_in_4bit: true
attn_implementation: flash_attention_2
use_peft: true
lora_r: 16
lora_target_modules: [q_proj, v_proj]
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
max_length: 2048
gradient_checkpointing: true
bf16: true
optim: paged_adamw_8bit
"""
    assert read(SFT) == read(keys)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("=batch,", "=sys.argv[1],", r"per_device_train_batch_size is 'sys.argv\[1\]'"),
        ('attn_implementation="flash', 'attn_implementation=kernel or "flash', "attn_implement"),
        ("SFTConfig(", "GRPOConfig(", "rl is 'grpo', whose step has passes"),
        ("max_length=args.seq_length", "max_length=args.other", "max_length is 'args.other'"),
    ],
)
def test_what_it_does_not_say_in_itself_is_named(old, new, said):
    with pytest.raises(BadRequest, match=said):
        read(SFT.replace(old, new, 1 if old == "=batch," else -1))


def test_a_script_that_only_parses_its_command_line_is_told_what_to_hand_in():
    text = "from trl import TrlParser, SFTConfig\nargs = TrlParser((SFTConfig,)).parse()\n"
    assert target_of(text) is None
    with pytest.raises(BadRequest, match="give the command that starts it, or its YAML file"):
        read(text)


def test_what_it_gives_otherwise_is_told():
    lines = unread_notes(SFT.replace("bf16=True", "bf16=True, use_cache=other"), "trl")
    assert any(line.startswith("use_cache = 'other' is unknown") for line in lines)
    with pytest.raises(Lacking, match="--model"):
        read(SFT.replace("meta-llama/Llama-3.1-8B", "somebody/own-8B"))


def of_keywords(text):
    for key, old, new in (
        ("optim", '"paged_adamw_8bit"', '"sgd"'),
        ("lora_r", "rank = 16", "rank = 32"),
        ("load_in_4bit", "load_in_4bit=True", "load_in_8bit=True"),
        ("learning_rate", "2e-4", "1e-4"),
        ("max_length", "default=2048", "default=4096"),
        ("bnb_4bit_quant_type", '"nf4"', '"fp4"'),
        ("lora_alpha", "lora_alpha=32", "lora_alpha=8"),
    ):
        assert old in text
        yield key, text.replace(old, new)


def test_a_changed_keyword_changes_the_plan_or_is_named():
    assert silent(SFT, "h100:1", None, of_keywords) == []


def test_edits_stand_where_the_keyword_or_its_variable_does():
    assert SFT.replace('"paged_adamw_8bit"', "'sgd'") in list(set_keyword(SFT, "optim", "sgd", []))
    (first, *_) = set_keyword("f(a=n)\nn = 4\n", "a", "8", [])
    assert first == "f(a=n)\nn = 8\n"
    added = list(set_keyword("f(\n    a=1,\n)\n", "b", "true", ["a"]))
    assert added == ["f(\n    a=1,\n    b=True,\n)\n"]
    assert list(left_out_of_call("f(\n    a=1,\n    b=2)\n", "a")) == ["f(\n    b=2)\n"]
