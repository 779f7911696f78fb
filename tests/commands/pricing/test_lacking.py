"""What another program's file leaves out: the error has a command that works as it is pasted."""

import re
import shlex

import pytest

from shardwise import check
from shardwise.commands.plan_file.export import ExportRequest
from shardwise.commands.pricing.plans import given_plan
from shardwise.errors import BadRequest
from shardwise.models import load_model

CONFIG = """distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
parallelism_config:
  parallelism_config_dp_shard_size: 8
  parallelism_config_tp_size: 2
mixed_precision: bf16
"""
NUMBERS = """pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \\
  --seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu \\
  --disable-bias-linear --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4
"""
NAMED = """base_model: someone/llama3.1-8B-of-mine
micro_batch_size: 1
gradient_accumulation_steps: 2
sequence_len: 4096
world_size: 8
"""
FILES = {"config.yaml": CONFIG, "run.sh": NUMBERS, "own.yaml": NAMED}


@pytest.mark.parametrize("name", FILES)
def test_the_command_of_the_error_makes_a_plan(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES[name])
    with pytest.raises(BadRequest) as error:
        given_plan(path)
    (command,) = re.findall(r"`(shardwise export .*)`", str(error.value))
    words = shlex.split(command)
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options.pop("-o") == "plan.yaml"
    asked = {("from_" if key == "--from" else key[2:]): value for key, value in options.items()}
    plan = ExportRequest(path=words[2], **asked).answer().plan
    assert load_model(plan["model"]).layers == sum(plan["layers_per_stage"])


@pytest.mark.parametrize("name", FILES)
def test_so_does_that_of_check(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES[name])
    with pytest.raises(BadRequest) as error:
        check(path)
    (command,) = re.findall(r"`(shardwise check .*)`", str(error.value))
    words = shlex.split(command)
    options = {key[2:]: value for key, value in zip(words[3::2], words[4::2], strict=True)}
    assert check(words[2], **options).peak_bytes_per_chip > 0


def test_the_nearest_known_name_and_the_numbers_of_the_file_are_in_it(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(NAMED)
    with pytest.raises(BadRequest, match=r"your own model for llama-3\.1-8b"):
        given_plan(path)
    path = tmp_path / "run.sh"
    path.write_text(NUMBERS)
    with pytest.raises(BadRequest, match="num_hidden_layers=24, hidden_size=2048"):
        given_plan(path)


def test_the_config_of_a_model_is_no_plan(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "head_dim": 8}')
    with pytest.raises(BadRequest, match=r"is the config\.json of a model, and no plan") as error:
        given_plan(path)
    assert f"`shardwise plan train --model {path} --on SLICE" in str(error.value)
