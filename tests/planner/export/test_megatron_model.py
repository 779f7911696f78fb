"""Which model Megatron's arguments describe: one of the zoo, or one that is built of them."""

from pathlib import Path

import pytest
from tests.apps.commands import answer, run

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.models.counts import params_total
from shardwise.planner.export import parse_export

SCRIPTS = Path(__file__).parent / "scripts"
HEAD = "torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --seq-length 4096 --bf16 "
BATCH = "--micro-batch-size 1 --global-batch-size 256 "
LLAMA = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --ffn-hidden-size 14336 --swiglu --disable-bias-linear "
    "--untie-embeddings-and-output-weights "
)
QWEN3 = (
    "--num-layers 48 --hidden-size 2048 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 4 --kv-channels 128 --num-experts 128 --moe-ffn-hidden-size 768 "
    "--moe-router-topk 8 --swiglu --disable-bias-linear --qk-layernorm "
    "--untie-embeddings-and-output-weights "
)
LATENT = (
    "--num-layers 4 --hidden-size 1024 --num-attention-heads 16 --multi-latent-attention "
    "--q-lora-rank 512 --kv-lora-rank 128 --qk-head-dim 64 --qk-pos-emb-head-dim 32 "
    "--v-head-dim 64 --num-experts 16 --moe-ffn-hidden-size 256 --moe-layer-freq [0]*1+[1]*3 "
    "--moe-shared-expert-intermediate-size 512 --ffn-hidden-size 2048 --swiglu "
    "--disable-bias-linear --qk-layernorm "
)


def model_of(flags: str) -> str:
    return parse_export(HEAD + BATCH + flags, "megatron", piece=parse_slice("4*h100:8")).model


@pytest.mark.parametrize(
    ("flags", "model"),
    [
        (LLAMA + "--vocab-size 128256", "llama-3-8b"),
        (LLAMA + "--vocab-size 32768 --rotary-base 1000000", "mistral-7b-v0.3"),
        (LLAMA + "--tokenizer-type HuggingFaceTokenizer --rotary-base 500000", "llama-3-8b"),
        (QWEN3 + "--ffn-hidden-size 6144", "qwen3-30b-a3b"),
        (QWEN3, "qwen3-30b-a3b"),
    ],
)
def test_a_known_model_by_its_numbers(flags, model):
    assert model_of(flags) == model


@pytest.mark.parametrize(
    ("flags", "name", "billions"),
    [
        (LLAMA.replace("14336", "11008") + "--vocab-size 32000", "LlamaForCausalLM", 5.93),
        (QWEN3.replace(" 48", " 24") + "--vocab-size 151936", "Glm4MoeForCausalLM", 15.6),
        (LATENT + "--vocab-size 1000", "DeepseekV3ForCausalLM", 0.061),
        (("--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --vocab-size 50257 "
         "--max-position-embeddings 4096"), "GPT2LMHeadModel", 0.358),
    ],
)  # fmt: skip
def test_another_is_built_of_its_numbers(flags, name, billions):
    model = model_of(flags)
    assert model.startswith(f"{name}(")
    assert params_total(load_model(model)) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (LLAMA.replace("14336", "11008"), "none can be built without --vocab-size"),
        (LLAMA + "--vocab-size 9 --hybrid-override-pattern M*", "--hybrid-override-pattern is"),
        (QWEN3 + "--moe-layer-freq x", "--moe-layer-freq is 'x'; write a number or a list"),
    ],
)
def test_what_builds_no_model_is_named(flags, said):
    with pytest.raises(BadRequest) as error:
        model_of(flags)
    assert said in str(error.value)


def test_the_three_scripts_are_plans(tmp_path, capsys):
    for name, on, mesh in (
        ("gpt3_175b", "16*h100:8", {"stage": 16, "tensor": 8}),
        ("mixtral_8x7b", "4*h100:8", {"stage": 4, "expert": 8}),
        ("llama3_8b_fp8", "h100:8", {"data": 8}),
    ):
        plan = tmp_path / f"{name}.yaml"
        script = SCRIPTS / f"{name}.sh"
        assert run(capsys, "export", script, "--from", "megatron", "--on", on, "-o", plan)[0] == 0
        shown = answer("plan", "show", plan)["result"]
        assert shown["mesh"] == mesh
        back = tmp_path / f"{name}.sh"
        assert run(capsys, "export", plan, "--to", "megatron", "-o", back)[0] == 0
        assert run(capsys, "export", back, "--from", "megatron", "-o", plan, "--force")[0] == 0


@pytest.mark.parametrize(
    ("flags", "layers", "chunks"),
    [
        (
            (
                "--num-layers 94 --num-layers-per-virtual-pipeline-stage 3 "
                "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
            ),
            (11, *[12] * 6, 11),
            4,
        ),
        ("--num-layers 95 --account-for-loss-in-pipeline-split", (*[12] * 7, 11), 1),
        (
            (
                "--num-layers 61 --decoder-first-pipeline-num-layers 7 "
                "--decoder-last-pipeline-num-layers 6"
            ),
            (7, *[8] * 6, 6),
            1,
        ),
        ("--num-layers 64 --num-layers-per-virtual-pipeline-stage 2", (8,) * 8, 4),
    ],
)
def test_layers_of_stages(flags, layers, chunks):
    shape = "--hidden-size 1024 --num-attention-heads 16 --vocab-size 1000 "
    text = HEAD + BATCH + shape + "--pipeline-model-parallel-size 8 " + flags
    plan = parse_export(text, "megatron", piece=parse_slice("4*h100:8"))
    assert (plan.layers_per_stage, plan.virtual_stages) == (layers, chunks)


HYBRID = (
    "--hidden-size 8192 --num-attention-heads 64 --group-query-attention --num-query-groups 8 "
    "--ffn-hidden-size 32768 --kv-channels 128 --mamba-state-dim 256 --squared-relu "
    "--disable-bias-linear --untie-embeddings-and-output-weights "
)
NEMOTRON_H = "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-"


@pytest.mark.parametrize("flag", ["--hybrid-layer-pattern", "--hybrid-override-pattern"])
def test_a_pattern_of_layers_is_a_model(flag: str):
    assert model_of(f"{HYBRID} {flag} {NEMOTRON_H}") == "nemotron-h-56b"
    built = load_model(model_of(f"{HYBRID} --vocab-size 32000 {flag} M-M*M-/M*"))
    mixers = [type(built.layer(at).mixer).__name__ for at in range(built.layers)]
    assert mixers == ["Mamba", "NoneType", "Mamba", "Attention", "Mamba", "NoneType"]


def test_shares_of_layers_are_a_pattern():
    """As Megatron-LM's own `pattern_from_ratios` spreads them (hybrid_layer_allocation.py)."""
    shares = "--num-layers 12 --hybrid-attention-ratio 0.17 --hybrid-mlp-ratio 0.5 "
    built = load_model(model_of(HYBRID + shares + "--vocab-size 32000"))
    kinds = [(built.layer(at).mixer, built.layer(at).mlp) for at in range(built.layers)]
    words = ["-" if mixer is None else type(mixer).__name__[0] for mixer, _ in kinds]
    assert (words.count("A"), words.count("-"), words.count("M")) == (2, 6, 4)
    assert words[0] == "M"
    with pytest.raises(BadRequest, match=r"--hybrid-mlp-ratio 0\.9, of 12 layers"):
        model_of(HYBRID + shares.replace("0.5", "0.9"))
