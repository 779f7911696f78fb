"""Files as people have them: of each program some, of several years. They become plans, or are
refused by the key that no plan can say; what is read is what the program's own parser makes of them
(scripts/probes/recipes.py)."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml
from tests.planner.export.recipes import FOLDER, PLANS, REFUSED, recipe_text

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.checks import check_plan
from shardwise.planner.export import parse_export
from shardwise.planner.export.known_flags import target_of
from shardwise.planner.export.trainer.given import given_of
from shardwise.plans import TrainPlan

SCRIPTS = FOLDER.parent / "scripts"


def read(name: str) -> TrainPlan:
    text, asked = recipe_text(name), PLANS[name]
    target = target_of(text)
    assert target is not None
    model = None if asked.model is None else (asked.model, load_model(asked.model))
    return parse_export(text, target, model=model, piece=parse_slice(asked.on))


@pytest.mark.parametrize("name", PLANS)
def test_a_file_becomes_a_plan(name):
    plan = read(name)
    check_plan(plan, load_model(plan.model), parse_slice(PLANS[name].on))
    program = name.partition("_")[0].replace("bridge", "megatron")
    assert target_of(recipe_text(name)) == (program if "json" not in name else "deepspeed")


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_plan_says_is_refused_by_its_key(name):
    text = recipe_text(name)
    with pytest.raises(BadRequest) as error:
        parse_export(text, target_of(text) or "", piece=parse_slice("h100:8"))
    assert REFUSED[name] in str(error.value)


def test_there_are_forty_of_which_nine_in_ten_become_plans():
    names = {path.name for path in FOLDER.iterdir() if path.suffix in (".yaml", ".yml", ".toml")}
    names |= {path.name for path in FOLDER.glob("*.json") if path.stem != "parsed"}
    assert names == {*PLANS, *REFUSED}
    own = [path for path in SCRIPTS.iterdir() if path.suffix in (".sh", ".yml", ".toml")]
    assert len(names) + len(own) >= 40
    assert len(PLANS) + len(own) >= 36


EXPECTED = {
    "accelerate_deepspeed_zero3.yaml": {"mesh": {"fsdp": 8}, "zero": 0},
    "accelerate_deepspeed_zero2.yaml": {"mesh": {"data": 8}, "zero": 2},
    "accelerate_context_parallel_2gpu.yaml": {"mesh": {"context": 2}},
    "axolotl_llama3_8b_lora.yaml": {"lora_rank": 32, "optimizer": "adam8bit", "quantize": "int8"},
    "axolotl_llama3_70b_qlora_fsdp.yaml": {"quantize": "nf4", "offload_optimizer": True},
    "axolotl_mixtral_zero3.yaml": {"zero": 2, "offload_optimizer": True, "lora_rank": 32},
    "axolotl_gpt_oss_20b_fsdp2.yaml": {"remat": "offload", "sequence_length": 4096},
    "bridge_qwen3_30b.yaml": {"mesh": {"stage": 2, "tensor": 4}, "sequence_parallel": True},
    "torchtitan_2025_08_llama3_405b.toml": {"mesh": {"fsdp": 64, "tensor": 8}, "compiled": True},
    "torchtitan_2025_03_llama3_70b.toml": {"global_batch_sequences": 512, "compiled": False},
    "maxtext_gpu_mixtral_8x7b.yml": {"expert_dispatch": "ragged"},
    "trl_smollm3.yaml": {"sequence_length": 65536, "fused_loss": True, "microbatches": 2},
    "trl_zephyr_7b_full.yaml": {"global_batch_sequences": 128, "attention_kernel": "fa2"},
    "zero3_bf16_cpuoffload_all.json": {"offload_optimizer": True, "mesh": {"fsdp": 8}},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_it_says(name):
    plan = read(name)
    assert {key: getattr(plan, key) for key in EXPECTED[name]} == EXPECTED[name]


PARSED = json.loads((FOLDER / "parsed.json").read_text())


@pytest.mark.parametrize("name", [n for n in (*PLANS, *REFUSED) if n in PARSED])
def test_the_values_are_those_of_the_programs_own_parser(name):
    own, text = PARSED[name]["values"], (FOLDER / name).read_text()
    values = given_of(text, whole=False).values
    said = {key: value for key, value in values.items() if key in own}
    assert len(said) >= 3
    assert {key: plain(value) for key, value in said.items()} == {k: plain(own[k]) for k in said}


def plain(value: object) -> object:
    """A value without how it is written: 2e-05, "no" and false are each one."""
    text = {"no": "false", "yes": "true", "auto": "true"}.get(
        str(value).lower(), str(value).lower()
    )
    try:
        return float(text)
    except ValueError:
        return text


def test_each_names_its_source():
    for path in FOLDER.glob("*"):
        if path.suffix in (".yaml", ".yml", ".toml"):
            assert path.read_text().startswith("# Keys and values of ")


def test_yaml_and_toml_are_such():
    for name in (*PLANS, *REFUSED):
        text = (FOLDER / name).read_text()
        load = tomllib.loads if Path(name).suffix == ".toml" else yaml.safe_load
        assert isinstance(load(text), dict)
