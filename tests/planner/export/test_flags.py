"""The flags of each target: what they are for known plans, and that they, not the notes, count."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml
from tests.planner.export.exporting import MODELS, STORED_F32, a_plan

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.models.parameters import parameters
from shardwise.planner.export import export_plan, parse_export
from shardwise.planner.export.hardware import safe_names
from shardwise.planner.export.maxtext import _per_device
from shardwise.plans import TrainDtypes, model_hash
from shardwise.plans.layouts import stored_share


def words(text: str) -> list[str]:
    """The words of an exported shell script."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return shlex.split("\n".join(lines).replace("\\\n", " "))


def maxtext_flags(text: str) -> dict[str, str]:
    return dict(w.split("=", 1) for w in words(text) if "=" in w)


# MaxText ------------------------------------------------------------------------------------------


@pytest.fixture
def two_slices():
    """Two slices: replicas across, FSDP and sequence-parallel tensor inside."""
    mesh = {"replica": 2, "fsdp": 16, "tensor": 4}
    return a_plan("dense", "2*v5e:8x8", mesh, microbatches=2, dtypes=STORED_F32, remat="block")


def test_maxtext_flags(two_slices):
    flags = maxtext_flags(export_plan(*two_slices, "maxtext"))
    cut = {k: v for k, v in flags.items() if k.endswith("_parallelism") and v != "1"}
    assert cut == {
        "dcn_data_parallelism": "2",
        "ici_fsdp_parallelism": "16",
        "ici_tensor_sequence_parallelism": "4",
    }
    # 512 sequences = 128 devices x 2 accumulated steps x 2 per device.
    assert float(flags["per_device_batch_size"]) == 2
    assert flags["gradient_accumulation_steps"] == "2"
    assert flags["max_target_length"] == "256"
    assert flags["remat_policy"] == "full"
    assert flags["shard_optimizer_over_data"] == "true"
    assert (flags["weight_dtype"], flags["dtype"]) == ("float32", "bfloat16")
    assert (flags["compile_topology"], flags["compile_topology_num_slices"]) == ("v5e-64", "2")
    assert "not expressed" not in export_plan(*two_slices, "maxtext")


def test_maxtext_batch_below_one_per_device():
    """tensor=16 takes a microbatch of one sequence: a sixteenth per device."""
    plan, cfg, piece = a_plan("dense", "v5e:4x4", {"tensor": 16}, global_batch_sequences=1)
    text = export_plan(plan, cfg, piece, "maxtext")
    assert maxtext_flags(text)["per_device_batch_size"] == "0.0625"
    assert parse_export(text, "maxtext") == plan


def test_maxtext_gets_the_whole_batch_back():
    """It computes int(devices * per_device_batch_size): 29 / 100 * 100 would become 28."""
    assert int(100 * (29 / 100)) == 28
    for devices in (48, 49, 96, 100, 107, 896):
        for sequences in range(1, 1000):
            assert int(devices * _per_device(sequences, devices)) == sequences


def test_maxtext_circular_pipeline():
    plan, cfg, piece = a_plan(
        "dense",
        "v5e:4x4",
        {"stage": 4, "fsdp": 4},
        microbatches=8,
        pipeline_schedule="interleaved",
        virtual_stages=2,
    )
    flags = maxtext_flags(export_plan(plan, cfg, piece, "maxtext"))
    assert flags["ici_pipeline_parallelism"] == "4"
    assert flags["num_pipeline_microbatches"] == "8"
    assert flags["num_pipeline_repeats"] == "2"
    assert flags["num_layers_per_pipeline_stage"] == "3"  # 24 layers / 4 stages / 2 repeats


EDITS = [
    ("ici_fsdp_parallelism=16", "ici_fsdp_parallelism=8", "mesh", {"replica": 2, "fsdp": 8}),
    ("dcn_data_parallelism=2", "dcn_data_parallelism=4", "slices", 4),
    ("per_device_batch_size=2.0", "per_device_batch_size=4", "global_batch_sequences", 1024),
    ("gradient_accumulation_steps=2", "gradient_accumulation_steps=4", "microbatches", 4),
    ("max_target_length=256", "max_target_length=512", "sequence_length", 512),
    ("remat_policy=full", "remat_policy=minimal", "remat", "matmul_outputs"),
    ("shard_optimizer_over_data=true", "shard_optimizer_over_data=false", "zero", 0),
    ("opt_type=adamw", "opt_type=muon", "optimizer", "muon"),
    ("attention=flash", "attention=dot_product", "attention_kernel", "scores"),
    ("base_num_decoder_layers=24", "base_num_decoder_layers=12", "layers_per_stage", (12,)),
    ("mtp_num_layers=0", "mtp_num_layers=1", "mtp_layers", 1),
    ("offload=false", "offload=true", "offload_optimizer", True),
]


@pytest.mark.parametrize(("old", "new", "field", "value"), EDITS)
def test_an_edited_maxtext_flag_changes_the_plan(two_slices, old, new, field, value):
    text = export_plan(*two_slices, "maxtext")
    assert text.count(old) == 1
    edited = text.replace(old, new)
    if field == "slices":
        edited = edited.replace("num_slices=2", "num_slices=4")
    found = getattr(parse_export(edited, "maxtext"), field)
    wanted = {"tensor": 4} | value if field == "mesh" else value
    assert found == wanted


def test_an_edited_flag_overrules_the_note_beside_it(two_slices):
    """bf16 parameters with an f32 master copy are a note on weight_dtype=float32."""
    plan = replace(two_slices[0], dtypes=replace(STORED_F32, param="bf16", master="f32"))
    text = export_plan(plan, *two_slices[1:], "maxtext")
    assert '# shardwise: dtypes.param: {"reads": "f32", "means": "bf16"}' in text
    assert "# not expressed: dtypes.master" in text
    assert parse_export(text, "maxtext") == plan
    edited = text.replace("weight_dtype=float32", "weight_dtype=float16")
    assert parse_export(edited, "maxtext").dtypes.param == "f16"


def test_contradicting_maxtext_flags_are_refused(two_slices):
    text = export_plan(*two_slices, "maxtext")
    with pytest.raises(BadRequest, match="dcn_\\* flags multiply to 4 slices, compile_topology"):
        parse_export(text.replace("dcn_data_parallelism=2", "dcn_data_parallelism=4"), "maxtext")
    with pytest.raises(BadRequest, match="ici_fsdp_parallelism is -1; write the degree out"):
        parse_export(text.replace("ici_fsdp_parallelism=16", "ici_fsdp_parallelism=-1"), "maxtext")
    with pytest.raises(BadRequest, match="opt_type is 'adam_pax'; a plan can say adamw, muon, sgd"):
        parse_export(text.replace("opt_type=adamw", "opt_type=adam_pax"), "maxtext")


REFUSALS = [
    ("maxtext", {"stage": 4, "fsdp": 4}, {"pipeline_schedule": "1f1b"}, "pipeline_schedule"),
    (
        "maxtext",
        {"stage": 4, "fsdp": 4},
        {"pipeline_schedule": "dualpipe", "virtual_stages": 2},
        "pipeline_schedule",
    ),
    (
        "maxtext",
        {"stage": 2, "fsdp": 8},
        {"pipeline_schedule": "gpipe", "layers_per_stage": (13, 11)},
        "layers_per_stage",
    ),
    ("maxtext", {"data": 2, "fsdp": 8}, {"zero": 2}, "zero 2"),
    ("maxtext", {"fsdp": 16}, {"remat": "none"}, "remat"),
    ("maxtext", {"fsdp": 16}, {"optimizer": "adafactor"}, "optimizer"),
    (
        "maxtext",
        {"fsdp": 16},
        {"dtypes": TrainDtypes(param="f32", master="bf16")},
        "dtypes.master",
    ),
    ("maxtext", {"fsdp": 16}, {"lora_rank": 8}, "lora_rank 8"),
    ("maxtext", {"fsdp": 16}, {"frozen": ("embedding",)}, "frozen"),
    ("maxtext", {"fsdp": 16}, {"reshard_after_forward": False}, "reshard_after_forward"),
    ("maxtext", {"fsdp": 8, "context": 2}, {"storage_axes": ("fsdp",)}, "storage_axes"),
    ("torchtitan", {"data": 2, "fsdp": 8}, {}, "zero 1"),
    ("torchtitan", {"fsdp": 16}, {"remat": "offload"}, "remat"),
    ("torchtitan", {"fsdp": 16}, {"optimizer": "muon"}, "optimizer"),
    ("torchtitan", {"fsdp": 16}, {"offload_optimizer": True}, "offload_optimizer"),
    ("torchtitan", {"fsdp": 8, "context": 2}, {"context_method": "ring"}, "context_method"),
    ("torchtitan", {"stage": 4, "fsdp": 4}, {"pipeline_schedule": "zb_h1"}, "pipeline_schedule"),
    ("megatron", {"stage": 4, "fsdp": 4}, {"pipeline_schedule": "gpipe"}, "pipeline_schedule"),
    ("megatron", {"fsdp": 16}, {"remat": "matmul_outputs"}, "remat"),
    ("megatron", {"data": 2, "fsdp": 8}, {"zero": 2}, "zero"),
    ("megatron", {"fsdp": 16}, {"reshard_after_forward": False}, "reshard_after_forward"),
    ("megatron", {"fsdp": 16}, {"dtypes": STORED_F32}, "dtypes"),
    ("jax", {"fsdp": 16}, {"remat": "offload"}, "remat"),
]


@pytest.mark.parametrize(("target", "mesh", "choices", "field"), REFUSALS)
def test_what_a_target_cannot_run_is_refused(target, mesh, choices, field):
    gpu = target in ("torchtitan", "megatron")
    values = {"microbatches": 8, "layers_per_stage": (24 // mesh.get("stage", 1),)} | choices
    values["layers_per_stage"] *= 1 if len(values["layers_per_stage"]) > 1 else mesh.get("stage", 1)
    plan, cfg, piece = a_plan("dense", "2*h100:8" if gpu else "v5e:4x4", mesh, **values)
    with pytest.raises(BadRequest, match=f"{target} cannot express {field}.*in the plan or export"):
        export_plan(plan, cfg, piece, target)


@pytest.mark.parametrize("target", ["torchtitan", "megatron"])
def test_torch_frameworks_are_refused_on_tpus(target):
    with pytest.raises(BadRequest, match=r"slice .*it runs on GPUs"):
        export_plan(*a_plan("dense", "v5e:4x4", {"fsdp": 16}), target)


# TorchTitan ---------------------------------------------------------------------------------------


@pytest.fixture
def torch_experts():
    """Experts over the expert and tensor axes: dp_shard 8 = fsdp 2 x expert 4, ep 8 = 4 x 2."""
    return a_plan(
        "moe",
        "4*h100:8",
        {"data": 2, "fsdp": 2, "expert": 4, "tensor": 2},
        zero=0,
        expert_over_tensor=True,
        expert_dispatch="ragged",
        microbatches=4,
        dtypes=STORED_F32,
    )


def test_torchtitan_fields(torch_experts):
    text = export_plan(*torch_experts, "torchtitan")
    found = dict(re.findall(r"config\.parallelism\.(\w+) = (\d+)$", text, re.MULTILINE))
    assert found == {
        "pipeline_parallel_degree": "1",
        "data_parallel_replicate_degree": "2",
        "data_parallel_shard_degree": "8",
        "context_parallel_degree": "1",
        "tensor_parallel_degree": "2",
        "expert_parallel_degree": "8",
    }
    # 512 sequences / 16 data ranks / 4 microbatches = 8 sequences of 256 tokens.
    assert "num_tokens_per_microbatch_per_dp_rank = 2048\n" in text
    assert "num_tokens_per_train_step = 131072\n" in text
    assert "not expressed" not in text


def test_torchtitan_runs_as_python(torch_experts):
    """The module sets what it says on a config; TorchTitan itself is stood in for."""
    from types import SimpleNamespace

    body = export_plan(*torch_experts, "torchtitan").split("from torchtitan.trainer")[1]
    code = body.partition("\n")[2].replace(": Trainer.Config", "").replace("-> Trainer.Config", "")
    policy = SimpleNamespace(Config=lambda: "full")
    scope = {"FullAC": policy, "SelectiveAC": policy}
    exec(code, scope)
    config = SimpleNamespace(training=SimpleNamespace(), parallelism=SimpleNamespace())
    scope["with_plan"](config)
    assert config.parallelism.expert_parallel_degree == 8
    assert config.activation_checkpoint == "full"


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        (
            "shard_degree = 8",
            "shard_degree = 16",
            "mesh",
            {"data": 2, "fsdp": 4, "expert": 4, "tensor": 2},
        ),
        (
            "expert_parallel_degree = 8",
            "expert_parallel_degree = 4",
            "mesh",
            {"data": 2, "fsdp": 4, "expert": 2, "tensor": 2},
        ),
        ("SelectiveAC.Config()", "None", "remat", "none"),
        ("max_context_length = 256", "max_context_length = 128", "sequence_length", 128),
        ("'always'", "'never'", "reshard_after_forward", False),
        ("sequence_parallel = True", "sequence_parallel = False", "sequence_parallel", False),
    ],
)
def test_an_edited_torchtitan_field_changes_the_plan(torch_experts, old, new, field, value):
    plan = replace(torch_experts[0], remat="matmul_outputs")
    text = export_plan(plan, *torch_experts[1:], "torchtitan")
    assert old in text
    edited = text.replace(old, new)
    if "shard_degree = 16" in edited:  # twice the ranks take twice the tokens
        edited = edited.replace("131072", "262144")
    assert getattr(parse_export(edited, "torchtitan"), field) == value


def test_torchtitan_uneven_stages_are_named_layers():
    plan, cfg, piece = a_plan(
        "dense",
        "h100:8",
        {"stage": 2, "fsdp": 4},
        layers_per_stage=(11, 13),
        microbatches=4,
        pipeline_schedule="zb_v",
        virtual_stages=2,
    )
    text = export_plan(plan, cfg, piece, "torchtitan")
    assert parse_export(text, "torchtitan") == plan
    parts = re.findall(r"^        (\[.*\]),$", text, re.MULTILINE)
    counts = [part.count("layers.") for part in parts]
    # A V over two stages: 0, 1, 1, 0; the larger chunk of a stage comes first.
    assert counts == [6, 7, 6, 5]
    moved = text.replace("'layers.5'], ", "], ").replace("'layers.5'", "")
    assert parse_export(moved, "torchtitan").layers_per_stage == (10, 13)


# Megatron -----------------------------------------------------------------------------------------


def megatron_flags(text: str) -> dict[str, str]:
    flags: dict[str, str] = {}
    name = ""
    for word in words(text)[1:]:
        if word.startswith("--"):
            name, flags[word] = word, ""
        elif name:
            flags[name] = f"{flags[name]} {word}".strip()
    return flags


@pytest.fixture
def megatron_plan():
    """DP 16 = data 4 x expert 4, with the distributed optimizer."""
    return a_plan(
        "moe",
        "4*h100:8",
        {"data": 4, "expert": 4, "tensor": 2},
        storage_axes=("fsdp",),
        microbatches=4,
        expert_dispatch="ragged",
    )


def test_megatron_flags(megatron_plan):
    text = export_plan(*megatron_plan, "megatron")
    flags = megatron_flags(text)
    assert (flags["--nnodes"], flags["--nproc-per-node"].split()[0]) == ("4", "8")
    assert flags["--tensor-model-parallel-size"] == "2"
    assert flags["--expert-model-parallel-size"] == "4"
    assert flags["--expert-tensor-parallel-size"] == "2"
    assert flags["--micro-batch-size"] == "8"  # 512 / 16 data ranks / 4 microbatches
    assert flags["--global-batch-size"] == "512"
    assert {"--use-distributed-optimizer", "--sequence-parallel", "--bf16"} <= set(flags)
    assert "--use-megatron-fsdp" not in flags
    assert flags["--recompute-granularity"] == "full"
    assert flags["--num-experts"] == "8"
    assert "not expressed" not in text


def test_megatron_fsdp_with_replicas(megatron_plan):
    mesh = {"data": 2, "fsdp": 2, "expert": 4, "tensor": 2}
    plan, cfg, piece = a_plan("moe", "4*h100:8", mesh, microbatches=4, zero=1)
    flags = megatron_flags(export_plan(plan, cfg, piece, "megatron"))
    assert flags["--data-parallel-sharding-strategy"] == "optim_grads_params"
    assert flags["--num-distributed-optimizer-instances"] == "2"
    assert flags["--outer-dp-sharding-strategy"] == "optim"


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("--nnodes 4", "--nnodes 8", "mesh", {"data": 8, "expert": 4, "tensor": 2}),
        (
            "--expert-model-parallel-size 4",
            "--expert-model-parallel-size 8",
            "mesh",
            {"data": 2, "expert": 8, "tensor": 2},
        ),
        ("--expert-tensor-parallel-size 2", "--expert-tensor-parallel-size 1", "mesh", None),
        ("--micro-batch-size 8", "--micro-batch-size 4", "microbatches", 8),
        ("--seq-length 256", "--seq-length=128", "sequence_length", 128),
        ("  --use-distributed-optimizer \\\n", "", "zero", 0),
        ("  --sequence-parallel \\\n", "", "sequence_parallel", False),
        ("--optimizer adam", "--optimizer muon", "optimizer", "muon"),
        ("--attention-backend flash", "--attention-backend unfused", "attention_kernel", "scores"),
        ("  --recompute-granularity full \\\n", "", "remat", "none"),
        (
            "--optimizer adam",
            "--optimizer adam --moe-expert-capacity-factor 1.25",
            "expert_capacity",
            1.25,
        ),
        ("--optimizer adam", "--optimizer adam --mtp-num-layers 1", "mtp_layers", 1),
    ],
)
def test_an_edited_megatron_flag_changes_the_plan(megatron_plan, old, new, field, value):
    text = export_plan(*megatron_plan, "megatron")
    assert text.count(old) == 1
    if "parallel-size 1" in new:  # EP spans the tensor axis: 4 over tensor 2 is expert 2
        value = {"data": 8, "expert": 2, "tensor": 2}
    edited = text.replace(old, new)
    if "--nnodes 8" in new:
        edited = edited.replace("--micro-batch-size 8", "--micro-batch-size 4")
    assert getattr(parse_export(edited, "megatron"), field) == value


def test_megatron_uneven_and_virtual_stages():
    mesh = {"stage": 2, "data": 4}
    choices = {"storage_axes": ("fsdp",), "microbatches": 4, "mtp_layers": 1}
    plan, cfg, piece = a_plan("dense", "h100:8", mesh, layers_per_stage=(11, 13), **choices)
    flags = megatron_flags(export_plan(plan, cfg, piece, "megatron"))
    assert flags["--pipeline-model-parallel-layout"] == "Et*11|t*13mL"
    virtual = {"pipeline_schedule": "interleaved", "virtual_stages": 3}
    text = export_plan(*a_plan("dense", "h100:8", mesh, **choices, **virtual), "megatron")
    assert megatron_flags(text)["--num-virtual-stages-per-pipeline-rank"] == "3"
    by_layers = text.replace(
        "--num-virtual-stages-per-pipeline-rank 3", "--num-layers-per-virtual-pipeline-stage 4"
    )
    assert parse_export(by_layers, "megatron") == parse_export(text, "megatron")


@pytest.mark.parametrize(
    ("word", "method"), [("p2p", "ring"), ("allgather", "all_gather"), ("a2a", "ulysses")]
)
def test_megatron_context_methods(word, method):
    mesh = {"data": 4, "context": 2}
    plan, cfg, piece = a_plan("dense", "h100:8", mesh, storage_axes=("fsdp",))
    text = export_plan(plan, cfg, piece, "megatron")
    assert "--cp-comm-type all_gather" in text
    edited = text.replace("--cp-comm-type all_gather", f"--cp-comm-type {word}")
    assert parse_export(edited, "megatron").context_method == method


def test_megatron_recomputes_modules_alone():
    kinds = {"attention": "recompute", "norm": "recompute"}
    choices = {"remat": "none", "remat_kinds": kinds, "storage_axes": ("fsdp",)}
    plan, cfg, piece = a_plan("dense", "h100:8", {"data": 8}, **choices)
    text = export_plan(plan, cfg, piece, "megatron")
    assert megatron_flags(text)["--recompute-modules"] == "core_attn layernorm"
    assert "core_attn layernorm" in text  # two words, not one quoted
    assert parse_export(text, "megatron") == plan


# JAX ----------------------------------------------------------------------------------------------


CHECK = """
import json, math
mesh = make_mesh()
assert mesh.axis_names == ('fsdp', 'expert', 'tensor')
tokens = jnp.zeros((SEQUENCES, LENGTH), jnp.int32)
placed = jax.device_put(tokens, NamedSharding(mesh, BATCH))
assert placed.addressable_shards[0].data.shape == (SEQUENCES // 4, LENGTH)
local = {n: math.prod(s.shard_shape(tuple(SHAPES[n]))) for n, s in shardings(mesh).items()}
print(json.dumps(local))
"""


def run_on_8_devices(code: str) -> str:
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | flags, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("storage", "spans"),
    [(("fsdp", "expert", "context"), False), (("fsdp",), False), (("fsdp",), True)],
)
def test_the_jax_module_places_every_parameter(storage, spans):
    """Each device of 8 holds the bytes that the planner counts for it."""
    mesh = {"fsdp": 2, "expert": 2, "tensor": 2}
    choices = {"storage_axes": storage, "expert_over_tensor": spans}
    plan, cfg, piece = a_plan("moe", "v5e:2x4", mesh, **choices)
    text = export_plan(plan, cfg, piece, "jax")
    shapes = {p.name: [n for _, n in p.dims] for p in parameters(cfg)}
    code = f"{text}\nSHAPES = {shapes!r}\n{CHECK}"
    local = json.loads(run_on_8_devices(code))
    assert parse_export(text, "jax") == plan
    degrees = {a: float(d) for a, d in mesh.items()}
    for row in parameters(cfg):
        share = float(stored_share(row, degrees, storage, spans))
        assert local[row.name] == row.size * share, row.name
        if row.name == "attention.q":  # tensor 2, fsdp 2, and expert 2 where it stores
            assert share == (1 / 8 if "expert" in storage else 1 / 4)


def test_a_kv_head_that_tensor_does_not_divide_is_replicated():
    plan, cfg, piece = a_plan("dense", "v5e:2x4", {"tensor": 8})
    text = export_plan(plan, cfg, piece, "jax")
    assert "'attention.q': P(None, 'tensor', None)" in text
    assert "'attention.k': P(None, None, None),  # [D 64, K 2, H 8]" in text


def test_an_edited_jax_constant_changes_the_plan():
    plan, cfg, piece = a_plan("dense", "v5e:4x4", {"fsdp": 4, "tensor": 4})
    text = export_plan(plan, cfg, piece, "jax")
    edited = text.replace("'fsdp': 4", "'fsdp': 2").replace("nothing_saveable", "DOTS")
    edited = edited.replace("DOTS", "dots_with_no_batch_dims_saveable")
    read = parse_export(edited, "jax")
    assert (read.mesh, read.remat) == ({"fsdp": 2, "tensor": 4}, "matmul_outputs")


# Launchers ----------------------------------------------------------------------------------------


def test_xpk_command(two_slices):
    given = words(export_plan(*two_slices, "xpk"))
    assert given[:3] == ["xpk", "workload", "create"]
    assert {"--tpu-type=v5litepod-64", "--num-slices=2", "--workload=dense"} <= set(given)
    command = next(w for w in given if w.startswith("--command="))
    assert "python3 -m maxtext.trainers.pre_train.train" in command
    assert "ici_fsdp_parallelism=16" in command


@pytest.mark.parametrize(
    ("slice_text", "tpu_type"),
    [
        ("v5p:4x4x4", "v5p-128"),  # the name counts TensorCores, two per chip
        ("v5e:4x4", "v5litepod-16"),  # here it counts chips
        ("v5p:8x8x8", "v5p-1024"),
        ("v5p:16x8x4", "v5p-4x8x16"),  # XPK lists the sizes in ascending order
        ("v5p:4x8x16", "v5p-4x8x16"),  # 512 chips too: v5p-1024 would be read as 8x8x8
        ("tpu7x:4x4x4", "tpu7x-128"),
        ("tpu7x:4x8x16", "tpu7x-4x8x16"),  # tpu7x-1024 names several topologies
    ],
)
def test_a_cloud_name_is_used_only_where_it_means_the_slice(slice_text, tpu_type):
    piece = parse_slice(slice_text)
    plan, cfg, _ = a_plan("dense", slice_text, {"fsdp": piece.devices}, global_batch_sequences=2048)
    text = export_plan(plan, cfg, piece, "xpk")
    assert f"--tpu-type={tpu_type} " in text
    assert parse_export(text, "xpk") == plan
    assert bool(safe_names(piece)) == ("x" not in tpu_type.partition("-")[2])


def test_xpk_slices_come_from_its_own_flags(two_slices):
    text = export_plan(*two_slices, "xpk")
    smaller = text.replace("v5litepod-64", "v5litepod-4x8").replace("_fsdp_parallelism=16", "X")
    smaller = smaller.replace("iciX", "ici_fsdp_parallelism=8").replace(
        "per_device_batch_size=2.0", "per_device_batch_size=4.0"
    )
    smaller = smaller.replace("compile_topology=v5e-64", "compile_topology=v5e-32")
    read = parse_export(smaller, "xpk")
    assert (read.slice, read.box) == ("2*v5e:4x8", (4, 8))
    assert read.mesh == {"replica": 2, "fsdp": 8, "tensor": 4}
    with pytest.raises(BadRequest, match="--num-slices is 3, the command's"):
        parse_export(text.replace("--num-slices=2", "--num-slices=3"), "xpk")


def test_skypilot_tpu_task():
    plan, cfg, piece = a_plan("dense", "v5p:4x4x4", {"fsdp": 64})
    task = yaml.safe_load(export_plan(plan, cfg, piece, "skypilot"))
    assert task["resources"] == {"accelerators": "tpu-v5p-128"}
    assert task["num_nodes"] == 1
    assert task["run"].startswith("python3 -m maxtext.trainers.pre_train.train")


def test_skypilot_gpu_task(megatron_plan):
    text = export_plan(*megatron_plan, "skypilot")
    task = yaml.safe_load(text)
    assert task["resources"] == {"accelerators": "H100:8"}
    assert task["num_nodes"] == 4
    assert "pretrain_gpt.py" in task["run"]
    edited = text.replace("num_nodes: 4", "num_nodes: 2").replace("batch-size 8", "batch-size 16")
    read = parse_export(edited, "skypilot")
    assert (read.slice, read.slices) == ("2*h100:8", 2)
    assert read.mesh == {"data": 2, "expert": 4, "tensor": 2}


@pytest.mark.parametrize(
    ("target", "slice_text", "mesh", "field"),
    [
        ("skypilot", "v5p:4x8x16", {"fsdp": 512}, "slice"),
        ("skypilot", "2*v5e:4x4", {"replica": 2, "fsdp": 16}, "slices"),
        ("skypilot", "mi355x:8", {"fsdp": 8}, "slice"),
        ("xpk", "h100:8", {"fsdp": 8}, "slice"),
    ],
)
def test_hardware_that_a_launcher_cannot_name_is_refused(target, slice_text, mesh, field):
    with pytest.raises(BadRequest, match=f"{target} cannot express {field} "):
        export_plan(*a_plan("dense", slice_text, mesh), target)


def test_part_of_a_slice_is_refused_by_launchers():
    plan, cfg, _ = a_plan("dense", "v5e:4x4", {"fsdp": 16})
    piece = parse_slice("v5e:4x8")
    with pytest.raises(BadRequest, match=r"xpk|maxtext cannot express box \[4, 4\]"):
        export_plan(replace(plan, slice=str(piece)), cfg, piece, "xpk")


# Models -------------------------------------------------------------------------------------------


def test_a_latent_attention_model_has_its_own_arguments():
    cfg = load_model("deepseek-v3")
    piece = parse_slice("16*h100:8")
    small, _, _ = a_plan("moe", "16*h100:8", {"stage": 2, "fsdp": 8, "expert": 8}, microbatches=2)
    plan = replace(small, model=cfg.name, model_hash=model_hash(cfg), layers_per_stage=(30, 31))
    flags = megatron_flags(export_plan(plan, cfg, piece, "megatron"))
    assert "--multi-latent-attention" in flags
    assert (flags["--kv-lora-rank"], flags["--q-lora-rank"]) == ("512", "1536")
    assert (flags["--ffn-hidden-size"], flags["--moe-ffn-hidden-size"]) == ("18432", "2048")
    assert flags["--moe-layer-freq"].startswith("[0,0,0,1,1")
    assert parse_export(export_plan(plan, cfg, piece, "megatron"), "megatron") == plan


def test_a_recurrent_model_is_refused_by_megatron():
    cfg = load_model("nemotron-h-56b")
    plan, _, piece = a_plan("dense", "h100:8", {"fsdp": 8})
    other = replace(
        plan, model=cfg.name, model_hash=model_hash(cfg), layers_per_stage=(cfg.layers,)
    )
    with pytest.raises(BadRequest, match="megatron cannot express model"):
        export_plan(other, cfg, piece, "megatron")


def test_every_model_of_the_tests_is_distinct():
    assert model_hash(MODELS["dense"]) != model_hash(MODELS["moe"])
