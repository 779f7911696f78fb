"""Whose file a text is, which of its words nobody knows, and `plan show` of such a file."""

import json
import re

import pytest
from tests.apps.commands import answer, answered, refused, run
from tests.tiers import spread

from shardwise.errors import BadRequest
from shardwise.planner.export import parse_export
from shardwise.planner.export.known_flags import known_flags, target_of, unread_notes
from shardwise.plans.software.maxtext import KEPT, OFFLOADED

MAXTEXT = {
    "model_name": "llama3-8b",
    "per_device_batch_size": 1,
    "max_target_length": 8192,
    "ici_fsdp_parallelism": 128,
    "remat_policy": "full",
    "compile_topology": "v5p-256",
    "dataset_path": "gs://somewhere",
}
MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --micro-batch-size 1 "
    "--global-batch-size 8 --seq-length 8192 --lr 3e-4"
)
TOML = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 64
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""


def yaml_of(**changes):
    return "\n".join(f"{k}: {v}" for k, v in {**MAXTEXT, **changes}.items())


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (yaml_of(), "maxtext"),
        (MEGATRON, "megatron"),
        (TOML, "torchtitan"),
        (
            "--module llama3 --config llama3_8b --training.seq_len 8192 --training.steps 9",
            "torchtitan",
        ),
        ("model: llama-3-8b\nslice: v5e:2x2\nmesh: {fsdp: 4}\n", None),
        ("remat: block\nsteps: 5\n", None),
        ("", None),
    ],
)
def test_whose_file_it_is(text, target):
    assert target_of(text) == target


@pytest.mark.parametrize(
    ("text", "target", "said"),
    [
        (yaml_of(remat_polcy="minimal"), "maxtext", ["'remat_polcy'.*did you mean 'remat_policy'"]),
        (yaml_of(), "maxtext", []),
        (MEGATRON + " --recompute-granularty full", "megatron", ["did you mean '--recompute-gran"]),
        (TOML.replace("seq_len", "seqlen"), "torchtitan", ["did you mean 'training.seq_len'"]),
        (TOML + "[optimizer]\nlr = 1.0\n", "torchtitan", []),
    ],
)
def test_a_word_that_the_program_does_not_know_is_named(text, target, said):
    found = unread_notes(text, target)
    assert len(found) == len(said)
    for line, pattern in zip(found, said, strict=True):
        assert re.search(pattern, line)


@pytest.mark.parametrize(
    ("policy", "near"),
    spread(
        [
            ("minimal_with_quantization", "minimal"),
            ("minimal_with_context_and_quantization", "minimal_with_context"),
            ("save_dot_except_mlpp", "save_dot_except_mlp"),
        ],
        slow=2,
        rows=True,
    ),
)
def test_a_policy_that_is_not_read_names_the_nearest(policy, near):
    with pytest.raises(BadRequest) as error:
        parse_export(yaml_of(remat_policy=policy), "maxtext")
    assert f"the nearest to write is {near};" in str(error.value)
    for known in str(error.value).partition("known are ")[2].split(", "):
        assert known == "custom" or parse_export(yaml_of(remat_policy=known), "maxtext").remat


def test_plan_show_reads_another_program_s_file(tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text(yaml_of(remat_polcy="minimal"))
    doc = answer("plan", "show", file)
    assert doc["result"]["mesh"] == {"fsdp": 128}
    assert doc["result"]["software"] == "maxtext"
    assert any("read as maxtext's own file" in line for line in doc["notes"])
    assert any("'remat_polcy'" in line for line in doc["warnings"])
    read = tmp_path / "plan.yaml"
    _, warned = answered("export", file, "--from", "maxtext", "-o", read)
    assert "'remat_polcy'" in warned
    assert answer("plan", "show", read)["result"]["step_seconds"] == doc["result"]["step_seconds"]


def test_against_takes_another_program_s_file(tmp_path):
    file = tmp_path / "mine.yml"
    changes = {"per_device_batch_size": 16, "ici_fsdp_parallelism": 4, "remat_policy": "full"}
    file.write_text(yaml_of(model_name="qwen3-0.6b", compile_topology="v5litepod-4", **changes))
    words = ("--model", "qwen3-0.6b", "--on", "v5e:2x2", "--batch", "64seq", "--seq", "8192")
    held = ("--remat", "block", "--for", "maxtext", "--pin", "stage=1")
    found = answer("plan", "train", *words, *held, "--against", file)
    assert found["result"]["against"]["mesh"] == {"fsdp": 4}


def test_what_such_a_file_lacks_is_pointed_to(capsys, tmp_path):
    file = tmp_path / "old.toml"
    file.write_text(TOML)
    said = refused(capsys, ["plan", "show", file])
    assert "the text does not say the slice" in said
    assert f"`shardwise export {file} --from torchtitan --on SLICE" in said
    plan = tmp_path / "plan.yaml"
    words = ["export", file, "--from", "torchtitan", "--on", "h100:128", "-o", plan]
    assert run(capsys, *words)[0] == 0
    shown = answer("plan", "show", plan)["result"]
    assert (shown["mesh"], shown["remat"]) == ({"fsdp": 64, "tensor": 2}, "block")


@pytest.mark.parametrize("policy", [*KEPT, *OFFLOADED])
def test_maxtext_s_other_policies_are_read(policy):
    plan = parse_export(yaml_of(remat_policy=policy), "maxtext")
    place = "keep" if policy in KEPT else "offload"
    kinds = {**KEPT, **OFFLOADED}[policy]
    assert plan.remat == "block"
    assert plan.remat_kinds == dict.fromkeys(kinds, place)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "the file says of no tensor where it goes"),
        ({"mla_q": "device", "out_proj": "device"}, "mla_q is device; of tensors a plan can place"),
        (
            {"query_proj": "device", "key_proj": "remat"},
            "query_proj, key_proj are not placed alike",
        ),
    ],
)
def test_what_custom_says_beyond_a_plan_is_refused_by_name(tmp_path, capsys, changes, said):
    file = tmp_path / "custom.yml"
    file.write_text(yaml_of(remat_policy="custom", **changes))
    assert said in refused(capsys, ["plan", "show", file])


def test_the_snapshot_has_the_flags_of_each_program():
    flags = known_flags()
    for name in ("maxtext", "megatron", "torchtitan"):
        assert len(flags[name]["flags"]) > 30
    assert json.dumps(flags)


def test_what_torchtitan_keeps_of_every_second_matmul_is_said(tmp_path):
    said = unread_notes(TOML.replace('"full"', '"selective"'), "torchtitan")
    assert "'selective' is read as remat matmul_outputs" in said[0]
    assert unread_notes(TOML, "torchtitan") == []
