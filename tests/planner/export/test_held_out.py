"""What files that nobody here had seen were refused or misread for."""

import pytest

from shardwise.errors import BadRequest, Lacking
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.export import parse_export
from shardwise.planner.export.known_flags import dialect_named, target_of, unread_notes

PAIRS = """#!/bin/bash
python3 -m maxtext.trainers.pre_train.train src/maxtext/configs/base.yml model_name=gemma2-9b \\
  per_device_batch_size=2 remat_policy=full ici_fsdp_parallelism=-1 max_target_length=4096
"""
NAMED = """#!/bin/bash
python3 -m maxtext.trainers.pre_train.train configs/models/gpu/llama2_7b.yml run_name=r \\
  dcn_data_parallelism=2 ici_fsdp_parallelism=8
"""
LATENT = """base_model: zai-org/GLM-4.7-Flash
adapter: lora
lora_r: 8
lora_target_modules: [TARGETS]
sequence_len: 2048
micro_batch_size: 1
bf16: true
"""


def test_a_block_of_two_layers_counts_for_two():
    model = "gemma-2-9b", load_model("gemma-2-9b")
    plan = parse_export(PAIRS, "maxtext", model=model, piece=parse_slice("v6e:4x4"))
    assert plan.layers_per_stage == (42,)


def test_a_config_that_a_command_names_is_not_passed_over_in_silence():
    assert any("the keys of llama2_7b.yml" in line for line in unread_notes(NAMED, "maxtext"))
    assert not any("base.yml" in line for line in unread_notes(PAIRS, "maxtext"))


def test_adapters_beside_what_a_model_has_not_are_passed_over_as_peft_does():
    """Latent attention has no q, k and v of that name."""
    piece = parse_slice("h100:1")
    text = LATENT.replace("TARGETS", "q_proj, v_proj, k_proj, o_proj")
    assert parse_export(text, "axolotl", piece=piece).lora_targets == ("o",)
    none = parse_export(LATENT.replace("TARGETS", "q_proj, v_proj"), "axolotl", piece=piece)
    with pytest.raises(BadRequest, match="unknown matrix to adapt 'q'"):
        evaluate_train(none, load_model(none.model), piece)


@pytest.mark.parametrize(
    ("text", "target", "said"),
    [
        (LATENT.replace("zai-org/GLM-4.7-Flash", "a/b"), "axolotl", "base_model is 'a/b', which"),
        (PAIRS.replace("model_name=gemma2-9b", "decoder_block=gpt3"), "maxtext", "decoder_block;"),
    ],
)
def test_a_model_that_nobody_knows_is_named_by_its_key(text, target, said):
    with pytest.raises(Lacking, match=said):
        parse_export(text.replace("[TARGETS]", "q_proj"), target, piece=parse_slice("v6e:4x4"))
    model = "llama-3.2-1b", load_model("llama-3.2-1b")
    text = text.replace("[TARGETS]", "[q_proj]")
    assert parse_export(text, target, model=model, piece=parse_slice("v6e:4x4")).model == model[0]


def test_files_that_the_comment_of_a_python_script_names_are_not_asked_for():
    script = '''"""accelerate launch --config_file somewhere/zero3.yaml sft.py"""
from trl import SFTConfig, SFTTrainer
SFTTrainer("meta-llama/Llama-3.2-1B", args=SFTConfig(max_length=2048))
'''
    plan = parse_export(script, "trl", piece=parse_slice("h100:1"))
    assert (plan.model, plan.sequence_length) == ("llama-3.2-1b", 2048)


def test_a_folder_of_the_shell_is_not_left_to_the_caller():
    text = NAMED.replace("run_name=r", "base_output_directory=$PWD/out run_name=$RUN")
    (line,) = [line for line in unread_notes(text, "maxtext") if "from its caller" in line]
    assert "$RUN " in line
    assert "$PWD" not in line


EXPERTS = """base_model: Qwen/Qwen3-30B-A3B-Instruct-2507
expert_parallel_size: 2
dp_shard_size: 2
sequence_len: 2048
micro_batch_size: 1
bf16: true
fsdp_version: 2
fsdp_config: {reshard_after_forward: true}
"""


@pytest.mark.parametrize(("size", "on"), [(2, "h100:4"), (4, "h100:8"), (1, "h100:2")])
def test_axolotls_experts_are_spread_beside_what_is_stored(size, on):
    text = EXPERTS.replace("_size: 2\ndp", f"_size: {size}\ndp")
    plan = parse_export(text, "axolotl", piece=parse_slice(on))
    assert (plan.degree("expert"), plan.degree("fsdp")) == (size, 2)
    assert ("expert" in plan.storage_axes) is (size == 1)
    assert plan.global_batch_sequences == 2 * size


TUNE = """torchrun --nproc_per_node 8 tune.py --model-type llama --max_length 2048 --bf16 true \\
  --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 --fsdp full_shard
"""


def test_a_program_is_not_known_by_the_name_of_anybodys_file():
    assert dialect_named(TUNE) is None
    assert dialect_named(TUNE.replace("tune.py", "torchtune.py")) is None
    named = dialect_named(TUNE.replace("tune.py", "src/llamafactory/cli.py"))
    assert named is not None
    assert named.name == "llamafactory"


XPK = """xpk workload create --cluster $CLUSTER --tpu-type TYPE --num-slices=2 --command \\
  "python3 -m MaxText.train base.yml model_name=llama3-8b per_device_batch_size=2"
"""


@pytest.mark.parametrize("kind", ["v5p-256", "v5p-4x4x8"])
def test_the_machines_of_xpk_are_the_slice(kind: str):
    plan = parse_export(XPK.replace("TYPE", kind), "maxtext")
    assert (plan.slice, plan.mesh) == ("2*v5p:4x4x8", {"replica": 2, "fsdp": 128})


PRIME = """max_steps = 20
[deployment]
num_train_gpus = 2
[model]
name = "Qwen/Qwen3-1.7B"
[data]
name = "some/words"
seq_len = 1024
batch_size = 64
micro_batch_size = 1
[optim]
lr = 1e-5
"""


def test_a_toml_of_prime_rl_is_of_fsdp():
    named = dialect_named(PRIME)
    assert named is not None
    assert (named.title, target_of(PRIME)) == ("prime-rl", "trl")
    plan = parse_export(PRIME, "trl", piece=parse_slice("h100:2"))
    assert (plan.mesh, plan.microbatches, plan.remat) == ({"fsdp": 2}, 32, "block")
    assert (plan.compiled, plan.offload_optimizer, plan.dtypes.param) == (True, True, "f32")
    assert not any("is unknown" in line for line in unread_notes(PRIME, "trl"))
    whole = PRIME.replace("[data]", "[model.ac]\nmode = 'selective'\n[data]")
    assert any("model.ac.mode = 'selective'" in line for line in unread_notes(whole, "trl"))
    with pytest.raises(BadRequest, match="whose step has passes that a plan does not count"):
        parse_export(f"{PRIME}[orchestrator]\ngroup_size = 16\n", "trl")


BRIDGE = (
    "python scripts/performance/setup_experiment.py --account a --partition p --gpu h100 "
    "--num_gpus 64 --model_family_name llama --model_recipe_name llama3_8b --compute_dtype bf16 "
    "--tensor_model_parallel_size 2 --micro_batch_size 1 --global_batch_size 128 --seq_length 8192"
)
SHORT = (
    "python scripts/performance/setup_experiment.py -a a -p p -g h100 -ng 64 -m llama "
    "-mr llama3_8b -c bf16 -tp 2 -mb 1 -gb 128 -sl 8192"
)


@pytest.mark.parametrize("text", [BRIDGE, SHORT])
def test_the_slice_of_bridges_launcher_follows_from_its_gpus(text: str):
    plan = parse_export(text, "megatron")
    assert (plan.slice, plan.model) == ("8*h100:8", "llama-3-8b")
    assert (plan.mesh, plan.microbatches) == ({"data": 32, "tensor": 2}, 4)
    assert not any("--gpu" in line for line in unread_notes(text, "megatron"))
    on = parse_export(text, "megatron", piece=parse_slice("b200:64"))
    assert on.slice == "8*b200:8"
