"""No argument of Megatron-LM is passed over: with it the plan is another, or a line names it."""

import json
from functools import cache

import pytest
from hypothesis import assume
from hypothesis import strategies as st
from tests.drawn import on_drawn

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.planner.export import parse_export
from shardwise.planner.export.known_flags import known_flags, unread_notes
from shardwise.plans import TrainPlan

DENSE = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--swiglu --disable-bias-linear --untie-embeddings-and-output-weights --micro-batch-size 1 "
    "--global-batch-size 64 --seq-length 8192 --vocab-size 128256 --bf16 "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel "
    "--use-distributed-optimizer "
)
EXPERTS = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 2 "
ON = parse_slice("2*h100:8")
FLAGS = [flag for flag in known_flags()["megatron"]["flags"] if flag.startswith("--")]
BASES = (DENSE, DENSE + EXPERTS)


def read(text: str) -> tuple[TrainPlan | str, str]:
    """The plan or why there is none, and what is said beside it."""
    try:
        return parse_export(text, "megatron", piece=ON), json.dumps(unread_notes(text, "megatron"))
    except BadRequest as error:
        return str(error), ""


@cache
def plain(base: str) -> TrainPlan | str:
    return read(base)[0]


@on_drawn(
    60, base=st.sampled_from(BASES), flag=st.sampled_from(FLAGS), word=st.sampled_from(["", "2"])
)
def test_an_argument_changes_the_plan_or_is_named(base: str, flag: str, word: str):
    assume(flag not in base)
    plan, said = read(f"{base} {flag} {word}".strip())
    assert isinstance(plain(base), TrainPlan)
    assert plan != plain(base) or flag in said


FORMER = ["--use-flash-attn", "--batch-size 4", "--cp-comm-type a2a", "--window-size 128,0"]


@pytest.mark.parametrize("more", [*FORMER, "--tokenizer-type GPT2BPETokenizer", "--fp16"])
def test_what_holds_without_an_argument_is_named(more: str):
    plan, said = read(DENSE + more)
    assert plan == read(DENSE)[0]
    assert more.split()[0] in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("context: device", "it does not change the plan: context"),
        ("dcn_sequence_parallelism: 2", "dcn_sequence_parallelism = '2' is unknown"),
        ("ici_tensor_parallelism: 1", "no effect on the plan: ici_tensor_parallelism"),
    ],
)
def test_so_it_is_with_keys_of_maxtext(more: str, said: str):
    text = "model_name: llama3-8b\nper_device_batch_size: 1\nici_fsdp_parallelism: 128\n"
    assert any(said in str(line) for line in unread_notes(text + more, "maxtext"))


def test_what_is_stored_in_pieces_of_the_other_dim_is_of_maxtexts_mesh():
    text = "model_name: llama3-8b\nper_device_batch_size: 1\nici_fsdp_transpose_parallelism: 4\n"
    plan = parse_export(text, "maxtext", piece=parse_slice("v5p:4x4x8"))
    assert plan.mesh == {"fsdp": 128}


def test_former_arguments_without_effect_are_no_slips_of_the_pen():
    lines = unread_notes(f"{DENSE} --data-impl mmap --layernorm-epsilon 1e-5", "megatron")
    (about,) = [line for line in lines if "--data-impl" in line]
    assert about.startswith("no effect on the plan: ")
    assert any("--data-imp'" in line for line in unread_notes(f"{DENSE} --data-imp x", "megatron"))
