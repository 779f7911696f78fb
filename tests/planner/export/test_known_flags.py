"""Whose file a text is, which of its words nobody knows, and `plan show` of such a file."""

import json
import re

import pytest
from tests.apps.commands import answer, answered, refused, run
from tests.tiers import spread

from shardwise.commands.pricing.plans import load_plan
from shardwise.errors import BadRequest, Remark
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export import export_plan, parse_export
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
    "--global-batch-size 8 --seq-length 8192 --lr 3e-4 --vocab-size 128256"
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
    found = [line for line in unread_notes(text, target) if not isinstance(line, Remark)]
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
    assert f"the nearest is {near};" in str(error.value)
    for known in str(error.value).partition("known are ")[2].split(", "):
        assert known == "custom" or parse_export(yaml_of(remat_policy=known), "maxtext").remat


def test_plan_show_reads_another_program_s_file(tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text(yaml_of(remat_polcy="minimal"))
    doc = answer("plan", "show", file)
    assert doc["result"]["mesh"] == {"fsdp": 128}
    assert doc["result"]["software"] == "maxtext"
    assert any("read as a file of maxtext" in line for line in doc["notes"])
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
    assert "the text does not give the slice" in said
    assert "with your own slice for 16*h100:8: " in said
    assert f"`shardwise export {file} --from torchtitan --on '16*h100:8' -o plan.yaml`" in said
    plan = tmp_path / "plan.yaml"
    words = ["export", file, "--from", "torchtitan", "--on", "16*h100:8", "-o", plan]
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
        ({}, "the file places no tensor"),
        (
            {"mla_q": "device", "out_proj": "device"},
            "mla_q is device; a plan can place only the tensors",
        ),
        (
            {"query_proj": "device", "key_proj": "remat"},
            "query_proj, key_proj are placed differently",
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


def test_what_torchtitan_keeps_by_op():
    plan = parse_export(TOML.replace('"full"', '"selective"'), "torchtitan", piece=H100)
    kept = {"qkv": "keep", "attention": "keep", "mlp_gate": "keep", "mlp_out": "keep"}
    assert (plan.remat, plan.remat_kinds) == ("block", kept)
    text = export_plan(plan, load_model(plan.model), H100, "torchtitan")
    assert "config.activation_checkpoint = SelectiveAC.Config()" in text
    assert parse_export(text, "torchtitan").remat_kinds == kept
    every = TOML.replace('"full"', '"selective"\nselective_ac_option = "2"')
    assert "selective_ac_option 2 recomputes one layer in 2" in unread_notes(every, "torchtitan")[0]
    assert unread_notes(TOML, "torchtitan") == []


H100 = parse_slice("16*h100:8")


@pytest.mark.parametrize(
    ("more", "field", "value"),
    [
        ('[model]\nconverters = ["float8"]', "compute", "fp8"),
        ('[model]\nconverters = ["quantize.linear.float8"]', "compute", "fp8"),
        ('[model]\nconverters = ["quantize.linear.mx"]', "compute", "mxfp8"),
        ("[float8]\nenable_float8_linear = true", "compute", "fp8"),
        ("[training]\nenable_float8_linear = true\ndataset = 'c4'", "compute", "fp8"),
        ("[training]\nbatch_size = 4\nglobal_batch_size = 256", "global_batch_sequences", 256),
        ("[training]\nbatch_size = 4", "global_batch_sequences", 256),
        ("[training]\ntensor_parallel_degree = 4", "mesh", {"fsdp": 64, "tensor": 4}),
        ("[training]\ncompile = true", "compiled", True),
        ("[compile]\nenable = true", "compiled", True),
        ('[compile]\nenable = true\ncomponents = ["model"]', "fused_loss", False),
        ('[activation_checkpoint]\nmode = "none"', "remat", "none"),
    ],
)
def test_toml_of_any_month(more, field, value):
    base = TOML if "tensor" not in more else TOML.replace("tensor_parallel_degree = 2\n", "")
    section = more.partition("\n")[0]
    if section == "[training]" and "batch_size" in more:
        base = base.replace("local_batch_size = 1\n", "")
    if "mode" in more:
        base = base.replace('mode = "full"\n', "")
    text = base.replace(section, more, 1) if section in base else f"{base}{more}\n"
    on = parse_slice("32*h100:8") if "tensor" in more else H100
    plan = parse_export(text, "torchtitan", piece=on)
    assert (plan.dtypes.compute if field == "compute" else getattr(plan, field)) == value
    assert not [line for line in unread_notes(text, "torchtitan") if not isinstance(line, Remark)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[quantize.linear.float8]\nfilter_fqns = []", "[quantize.linear.float8] has no effect"),
        ("[mystery]\nanswer = 42", "mystery.answer = 42 is unknown"),
        ("[optimizer]\nname = 'Muon'", "optimizer.name = 'Muon' is unknown"),
        (
            "[compile]\nenable_async_tensor_parallel = true",
            "async_tensor_parallel = True is unknown",
        ),
    ],
)
def test_what_is_not_read_of_a_toml_is_said(more, said):
    assert any(said in line for line in unread_notes(f"{TOML}{more}\n", "torchtitan"))


@pytest.mark.parametrize("dtype", ["fp8", "mxfp8", "nvfp4"])
def test_narrow_matmuls_of_torchtitan(dtype, tmp_path):
    plan = tmp_path / "plan.yaml"
    words = ("--model", "llama-3-8b", "--on", "b200:8", "--batch", "64seq", "--seq", "4096")
    held = ("--for", "torchtitan", "--dtype", dtype, "--remat", "block", "--pin", "stage=1")
    answer("plan", "train", *words, *held, "-o", plan)
    module = tmp_path / "plan.py"
    answered("export", plan, "--to", "torchtitan", "-o", module)
    kind = {"fp8": "Float8", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}[dtype]
    assert f"{kind}LinearConverter.Config(" in module.read_text()
    assert "model_compile_enabled=True" in module.read_text()
    compile(module.read_text(), "plan.py", "exec")
    again = tmp_path / "again.yaml"
    answered("export", module, "--from", "torchtitan", "-o", again)
    assert load_plan(again) == load_plan(plan)


def test_torchtitans_own_split_of_layers():
    toml = TOML.replace("[parallelism]", "[parallelism]\npipeline_parallel_degree = 4").replace(
        "shard_degree = 64", "shard_degree = 16"
    ).replace("local_batch_size = 1", "local_batch_size = 8")  # fmt: skip
    plan = parse_export(toml, "torchtitan", piece=H100)
    assert (plan.layers_per_stage, plan.microbatches) == ((8, 9, 8, 7), 8)
    old = toml + "[experimental]\npipeline_parallel_microbatches = 4\n"
    assert parse_export(old, "torchtitan", piece=H100).microbatches == 4


def test_a_script_of_torchtitan_says_how_many_devices_there_are():
    text = (
        'NGPU=${NGPU:-"8"}\nPYTORCH_ALLOC_CONF="x" torchrun --nproc_per_node=${NGPU} '
        "--rdzv_backend c10d --local-ranks-filter 0 --role rank --tee 3 "
        '-m torchtitan.train --module llama3 --config llama3_8b --training.steps 10 "$@"'
    )
    plan = parse_export(text, "torchtitan", piece=parse_slice("h100:8"))
    assert (plan.mesh, plan.global_batch_sequences) == ({"fsdp": 8}, 8)
