"""Megatron: its flags for known plans, and that they, not the notes, count."""

import re
from dataclasses import replace

import pytest
from tests.planner.export.exporting import a_plan
from tests.planner.export.flags import megatron_flags

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.export import export_plan, parse_export
from shardwise.plans import model_hash


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


def test_megatron_is_told_the_whole_model():
    """Not its own defaults: LayerNorm, learned positions, biases, tied embeddings, plain MLPs."""
    cfg = load_model("llama-3-8b")
    small, _, piece = a_plan("dense", "h100:8", {"tensor": 8})
    plan = replace(small, model=cfg.name, model_hash=model_hash(cfg), layers_per_stage=(32,))
    flags = megatron_flags(export_plan(plan, cfg, piece, "megatron"))
    wanted = {"normalization": "RMSNorm", "position-embedding-type": "rope"}
    wanted |= {"rotary-base": "500000", "ffn-hidden-size": "14336", "num-query-groups": "8"}
    assert {name: flags[f"--{name}"] for name in wanted} == wanted
    switches = ("swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights")
    assert {f"--{name}" for name in switches} <= set(flags)


def test_megatron_fsdp_with_replicas(megatron_plan):
    mesh = {"data": 2, "fsdp": 2, "expert": 4, "tensor": 2}
    plan, cfg, piece = a_plan("moe", "4*h100:8", mesh, microbatches=4, zero=1)
    flags = megatron_flags(export_plan(plan, cfg, piece, "megatron"))
    assert flags["--data-parallel-sharding-strategy"] == "optim_grads_params"
    assert flags["--num-distributed-optimizer-instances"] == "2"
    assert flags["--outer-dp-sharding-strategy"] == "optim"


@pytest.mark.parametrize(
    ("graphs", "impl", "scope"),
    [
        (("full",), "local", "full_iteration"),
        (("attn", "moe_router"), "transformer_engine", "attn moe_router"),
    ],
)
def test_graphs_and_a_dispatcher_are_written_and_read(megatron_plan, graphs, impl, scope):
    plan, cfg, piece = megatron_plan
    plan = replace(plan, cuda_graph=graphs, dispatcher="hybridep")
    text = export_plan(plan, cfg, piece, "megatron")
    flags = megatron_flags(text)
    assert (flags["--cuda-graph-impl"], flags["--cuda-graph-scope"]) == (impl, scope)
    assert flags["--moe-token-dispatcher-type"] == "flex"
    assert flags["--moe-flex-dispatcher-backend"] == "hybridep"
    again = parse_export(text, "megatron")
    assert (again.cuda_graph, again.dispatcher) == (graphs, "hybridep")


def test_a_graph_of_the_whole_iteration_checks_no_gradients(megatron_plan):
    """Megatron-LM refuses the one with the other (validate_args)."""
    plan, cfg, piece = megatron_plan
    text = export_plan(replace(plan, cuda_graph=("full",)), cfg, piece, "megatron")
    assert "--no-check-for-nan-in-loss-and-grad" in text
    scoped = export_plan(replace(plan, cuda_graph=("attn",)), cfg, piece, "megatron")
    assert "--no-check-for-nan" not in scoped


def test_what_megatron_compiles_is_not_a_plans_to_say(megatron_plan):
    plan, cfg, piece = megatron_plan
    with pytest.raises(BadRequest, match="compiled"):
        export_plan(replace(plan, compiled=True), cfg, piece, "megatron")


def test_a_dispatcher_that_no_plan_has_is_named(megatron_plan):
    plan, cfg, piece = megatron_plan
    text = export_plan(replace(plan, dispatcher="alltoall"), cfg, piece, "megatron")
    assert parse_export(text, "megatron").dispatcher == "alltoall"
    with pytest.raises(BadRequest, match="--moe-token-dispatcher-type"):
        parse_export(text.replace("alltoall", "allgather"), "megatron")
    silent = re.sub(r"--moe-token-dispatcher-type alltoall", "", text)
    assert parse_export(silent, "megatron").dispatcher in (None, "alltoall")


@pytest.mark.parametrize(
    ("on", "about", "sender"),
    [
        ("4*h100:8", {}, "deepep"),
        ("4*h100:8", {"dispatcher": "alltoall"}, "alltoall"),
        ("4*h100:8", {"expert_dispatch": "dense"}, "alltoall"),
        ("4*mi300x:8", {}, "alltoall"),
    ],
)
def test_tokens_are_sent_as_the_plan_is_priced(megatron_plan, on, about, sender):
    """Nothing named sends a token once to a device, as DeepEP does on NVIDIA's chips."""
    plan, cfg, _ = megatron_plan
    plan = replace(plan, **{"slice": on, "expert_dispatch": "ragged", **about})
    flags = megatron_flags(export_plan(plan, cfg, parse_slice(on), "megatron"))
    flex = flags["--moe-token-dispatcher-type"] == "flex"
    assert flags.get("--moe-flex-dispatcher-backend", "alltoall") == sender
    assert flex == (sender != "alltoall")


@pytest.mark.parametrize("on", ["4*h100:8", "4*mi300x:8"])
def test_a_plan_that_names_no_dispatcher_is_priced_as_its_export_sends(megatron_plan, on):
    plan, cfg, _ = megatron_plan
    plan = replace(plan, slice=on, expert_dispatch="ragged", stack="megatron")
    piece = parse_slice(on)
    flags = megatron_flags(export_plan(plan, cfg, piece, "megatron"))
    written = flags.get("--moe-flex-dispatcher-backend", "alltoall")
    sent = {
        name: evaluate_train(replace(plan, dispatcher=name), cfg, piece).estimate.resources
        for name in (None, "alltoall", "deepep")
    }
    seconds = {name: found["net:expert"] for name, found in sent.items()}
    assert seconds[None] == seconds[written]
    assert seconds["alltoall"] > seconds["deepep"]


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
    with pytest.raises(BadRequest, match=r"model nemotron-h-56b: its flags in our export do not"):
        export_plan(other, cfg, piece, "megatron")
