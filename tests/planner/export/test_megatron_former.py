"""Megatron-LM's shorter and former spellings are read as the arguments of today, and no argument
that changes speed or memory is passed over."""

import re

import pytest

from shardwise.errors import BadRequest, Remark
from shardwise.hardware import parse_slice
from shardwise.models import load_model, params_total
from shardwise.planner.export import export_plan, parse_export
from shardwise.planner.export.edit import edited, keys_in
from shardwise.planner.export.known_flags import known_flags, unread_notes
from shardwise.planner.export.megatron_former import FORMER, former_of

LLAMA = """#!/bin/bash
torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --swiglu --disable-bias-linear \\
  --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --vocab-size 128256 \\
  --untie-embeddings-and-output-weights --tensor-model-parallel-size 2 --sequence-parallel \\
  --micro-batch-size 1 --global-batch-size 64 --seq-length 8192 --bf16 \\
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather{more}
"""
NAMED = ("llama-3-8b", load_model("llama-3-8b"))
PIECE = parse_slice("h100:8")


def plan_of(more: str):
    return parse_export(LLAMA.format(more=more), "megatron", model=NAMED, piece=PIECE)


@pytest.mark.parametrize(
    ("former", "today"),
    [
        ("--recompute-activations", "--recompute-granularity selective"),
        (
            "--recompute-activations --recompute-granularity full",
            "--recompute-granularity selective",
        ),
        ("--checkpoint-activations", "--recompute-granularity full"),
        ("--activations-checkpoint-method uniform", "--recompute-granularity full"),
        ("--use-flash-attn", "--attention-backend flash"),
        ("--use-flash-attn --attention-backend unfused", "--attention-backend unfused"),
        ("--enable-cuda-graph", "--cuda-graph-impl local"),
        (
            "--external-cuda-graph --cuda-graph-modules attn",
            "--cuda-graph-impl transformer_engine --cuda-graph-scope attn",
        ),
        ("--fp8-hybrid", "--fp8-format hybrid"),
    ],
)
def test_a_former_spelling_is_read_as_todays(former, today):
    text = LLAMA.format(more=f" {former}")
    assert plan_of(f" {former}") == plan_of(f" {today}")
    assert not any("is unknown" in line for line in unread_notes(text, "megatron"))


def test_recomputation_changes_the_plan():
    assert plan_of(" --recompute-activations") != plan_of("")


@pytest.mark.parametrize("former", ["--recompute-activations", "--checkpoint-activations"])
def test_an_edit_replaces_a_former_spelling(former):
    text, none = LLAMA.format(more=f" {former}"), plan_of("")
    for goal in (none, plan_of(" --recompute-granularity selective")):
        changed = edited(
            text,
            "megatron",
            goal,
            lambda plan: export_plan(plan, NAMED[1], PIECE, "megatron"),
            lambda text: parse_export(text, "megatron", model=NAMED, piece=PIECE),
            lambda plan, goal=goal: plan.remat_kinds == goal.remat_kinds,
        )
        assert changed is not None
        again = parse_export(changed, "megatron", model=NAMED, piece=PIECE)
        assert (again.remat, again.remat_kinds) == (goal.remat, goal.remat_kinds)


def test_former_spellings_stand_for_arguments_that_are_known():
    known = known_flags()["megatron"]["flags"]
    assert {now for each in FORMER.values() for now in each} <= {*known}
    assert "--recompute-activations" in former_of("--recompute-granularity")
    assert "--cuda-graph-impl" in keys_in(LLAMA.format(more=" --enable-cuda-graph"), "megatron")


FAST = re.compile(
    r"recompute|offload|fp[48]|overlap|graph|fusion|flash|attention-backend|dispatcher|deepep|fsdp"
    r"|parallel|optimizer|deterministic|grouped-gemm|batch-size|seq-length|dtype"
)
"""Words of arguments that change speed or memory."""
NO_EFFECT = re.compile(
    r"inference|rl-|eval|ckpt|log-|load|save|pipeline-model-parallel-comm|moe-router|override-opt"
    r"|decoupled|use-checkpoint|train-|rampup|-warmup|masked-softmax|rotary|exp-avg-sq|precision-aware"
    r"|overlap-param-gather$|accumulate|fp8-(amax|margin|interval)|distributed-(timeout|backend)"
    r"|dist-ckpt|delay-param|moe-grouped-gemm|dataloader-|muon-scalar|moe-permute|recompute-method|persistent"
)
"""Those that are written for whole programs beside training, or whose usual word a plan assumes."""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            " --recompute-granularity full --recompute-method block --recompute-num-layers 4",
            "--recompute-method block recomputes 4 layers",
        ),
        (" --no-overlap-param-gather", "--overlap-param-gather is not given"),
        (" --deterministic-mode", "--deterministic-mode is unknown"),
        (" --no-rope-fusion", "--no-rope-fusion is unknown"),
    ],
)
def test_what_is_read_as_something_near_it_is_said(more, said):
    text = LLAMA.format(more=more)
    if "param-gather" in more:
        text = text.replace(" --overlap-param-gather --no-overlap-param-gather", "")
    assert any(line.startswith(said) for line in unread_notes(text, "megatron"))
    assert not any(
        line.startswith(said) for line in unread_notes(LLAMA.format(more=""), "megatron")
    )


def test_every_argument_that_changes_speed_or_memory_is_read_or_named():
    known = known_flags()["megatron"]["flags"]
    text = LLAMA.format(more="".join(f" {flag}" for flag in known if flag not in LLAMA))
    notes = unread_notes(text, "megatron")
    idle = next(line for line in notes if isinstance(line, Remark))
    passed = {flag for flag in str(idle).partition(": ")[2].split(", ") if FAST.search(flag)}
    assert {flag for flag in passed if not NO_EFFECT.search(flag)} == set()


MODULES = [
    ("core_attn mlp", {"attention", "mlp_in", "activation"}),
    ("layernorm moe_act", {"norm", "activation"}),
]


@pytest.mark.parametrize(("modules", "again"), MODULES)
def test_modules_that_are_recomputed_whole_are_read_and_written(modules, again):
    more = f" --recompute-granularity selective --recompute-modules {modules}"
    plan = plan_of(more)
    assert set(plan.remat_kinds) == again
    if "mlp" in modules:
        assert plan_of("").remat_kinds != plan.remat_kinds
        written = export_plan(plan, NAMED[1], PIECE, "megatron")
        assert parse_export(written, "megatron") == plan


EXPERTS = """#!/bin/bash
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers {layers} --hidden-size 2880 \\
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 --kv-channels 64 \\
  --num-experts 32 --moe-router-topk 4 --moe-ffn-hidden-size 2880 --ffn-hidden-size 2880 \\
  --padded-vocab-size 201088 --untie-embeddings-and-output-weights --quick-geglu \\
  --softmax-type learnable --window-size 127,0 --window-attn-skip-freq {every} --bf16 \\
  --expert-model-parallel-size 8 --pipeline-model-parallel-size {stages} {more} \\
  --micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --use-distributed-optimizer
"""


def sinks(layers=24, every=2, stages=1, more=""):
    text = EXPERTS.format(layers=layers, every=every, stages=stages, more=more)
    return parse_export(text, "megatron", piece=PIECE)


def test_experts_with_sinks_and_windows_are_a_model_by_their_numbers():
    cfg, own = load_model(sinks().model), load_model("gpt-oss-20b")
    assert (cfg.layers, params_total(cfg)) == (24, params_total(own))
    assert [group.mixer for group in cfg.groups] == [group.mixer for group in own.groups]
    with pytest.raises(BadRequest, match="--window-attn-skip-freq 2"):
        sinks(every=4)


def test_layers_that_do_not_come_out_even_are_refused_by_their_flags():
    with pytest.raises(BadRequest) as error:
        sinks(layers=12, stages=8, more="--expert-model-parallel-size 1")
    assert "--num-layers 12 over --pipeline-model-parallel-size 8 makes 1.5 layers" in str(error)
    assert "--decoder-first-pipeline-num-layers" in str(error.value)


def test_modules_that_hold_little_are_said():
    more = "--recompute-granularity selective --recompute-modules mlp moe_act"
    text = EXPERTS.format(layers=24, every=2, stages=1, more=more)
    said = unread_notes(text, "megatron")
    assert any(line.startswith("--recompute-modules mlp: read as kept") for line in said)
    assert set(sinks(more=more).remat_kinds) == {"activation"}


def test_a_recipe_is_no_script():
    recipe = "MODEL_ARGS:\n  --num-layers: 12\n  --seq-length: 1024\n  --micro-batch-size: 1\n"
    assert not any("the script" in line for line in unread_notes(recipe, "megatron"))
