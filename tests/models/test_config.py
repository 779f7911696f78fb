"""What is read from configs: layers, their kinds, and the families' peculiarities."""

import json

import pytest
from tests.every import over_every
from tests.models.cases import llama

from shardwise.errors import BadRequest
from shardwise.models import Mlp, Moe, from_hf, load_model, params_total, zoo_names
from shardwise.models.describe import model_warnings
from shardwise.models.specs import CompressedAttention, DeltaNet, LatentAttention, Mamba


def kinds(name: str) -> list[str]:
    cfg = load_model(name)
    return [cfg.layer(i).mixer.kind for i in range(cfg.layers)]


@over_every(zoo_names())
def test_groups_and_pattern_agree(name):
    cfg = load_model(name)
    groups = cfg.layer_groups()
    assert sum(count for _, count in groups) == cfg.layers
    assert len({layer for layer, _ in groups}) == len(groups)
    assert cfg.layer(0) == groups[0][0]
    assert hash(cfg) == hash(load_model(name))


def test_llama():
    cfg = load_model("llama-3-70b")
    (layer, count), *rest = cfg.layer_groups()
    assert (cfg.d_model, cfg.vocabulary, cfg.layers, count, rest) == (8192, 128256, 80, 80, [])
    a, m = layer.attention, layer.mlp
    assert (a.kind, a.heads, a.kv_heads, a.head_dim, a.window) == ("full", 64, 8, 128, None)
    assert m == Mlp(d_ff=28672)


def test_mla_with_and_without_query_latent():
    v3, lite = (
        load_model("deepseek-v3").layer(0).mixer,
        load_model("deepseek-v2-lite").layer(0).mixer,
    )
    assert isinstance(v3, LatentAttention)
    assert (v3.q_lora_rank, v3.kv_lora_rank, v3.head_dim, v3.v_head_dim) == (1536, 512, 192, 128)
    assert lite.q_lora_rank is None


def test_first_layers_dense_then_experts():
    cfg = load_model("deepseek-v3")
    assert [count for _, count in cfg.layer_groups()] == [3, 58]
    moe = cfg.layer(3).mlp
    assert (moe.experts, moe.experts_per_token, moe.d_ff) == (256, 8, 2048)
    assert (moe.shared_experts, moe.shared_d_ff) == (1, 2048)


def test_every_other_layer_has_experts():
    cfg = load_model("llama-4-maverick-17b-128e")
    assert [isinstance(cfg.layer(i).mlp, Moe) for i in range(4)] == [False, True, False, True]
    assert kinds("llama-4-maverick-17b-128e")[:4] == ["chunk", "chunk", "chunk", "full"]


def test_sliding_windows():
    assert kinds("gemma-2-9b")[:4] == ["window", "full", "window", "full"]
    assert kinds("gemma-3-4b")[:7] == ["window"] * 5 + ["full", "window"]
    assert kinds("exaone-4.0-32b")[:4] == ["window"] * 3 + ["full"]
    assert load_model("phi-3-mini-4k").layer(0).attention.window == 2047
    assert load_model("mistral-7b-v0.3").layer(0).attention.kind == "full"


def test_kv_sharing_and_per_layer_embeddings():
    cfg = load_model("gemma-4-e2b")
    reused = [cfg.layer(i).attention.reuses_kv for i in range(cfg.layers)]
    assert reused == [False] * 15 + [True] * 20
    assert {cfg.layer(i).attention.head_dim for i in range(cfg.layers)} == {256, 512}
    assert cfg.layer(20).mlp.d_ff == 2 * cfg.layer(0).mlp.d_ff
    assert (cfg.per_layer_input, cfg.layer(0).per_layer_input) == (256, 256)


def test_hybrids():
    assert kinds("qwen3-next-80b-a3b")[:4] == ["delta"] * 3 + ["full"]
    assert isinstance(load_model("qwen3.5-27b").layer(0).mixer, DeltaNet)
    assert kinds("minimax-m1-80k").count("lightning") == 70
    assert kinds("lfm2-1.2b").count("conv") == 10
    nemotron = load_model("nemotron-3-super-120b-a12b")
    mixers = [nemotron.layer(i).mixer for i in range(nemotron.layers)]
    assert sum(isinstance(m, Mamba) for m in mixers) == 40
    assert nemotron.layer(1).mixer is None
    assert nemotron.layer(1).mlp.latent_dim == 1024


def test_sparse_and_compressed_attention():
    glm = load_model("glm-5.2")
    own = [glm.layer(i).mixer.indexer is not None for i in range(glm.layers)]
    assert sum(own) == 21
    assert all(glm.layer(i).mixer.sparse_top_k == 2048 for i in range(glm.layers))
    v4 = load_model("deepseek-v4-flash")
    mixers = [v4.layer(i).mixer for i in range(v4.layers)]
    assert all(isinstance(m, CompressedAttention) for m in mixers)
    assert [m.ratio for m in mixers[:5]] == [0, 0, 4, 128, 4]


def test_layers_without_attention():
    cfg = load_model("llama-3.3-nemotron-super-49b")
    assert sum(cfg.layer(i).mixer is None for i in range(cfg.layers)) == 31


def test_key_and_value_dims_differ():
    cfg = load_model("mimo-v2-flash")
    a = cfg.layer(1).attention
    assert (a.head_dim, a.v_head_dim, a.kv_heads, a.window, a.sinks) == (192, 128, 8, 128, True)
    assert cfg.layer(0).attention.kv_heads == 4


def test_nested_text_config_and_towers():
    cfg = load_model("gemma-3-4b")
    assert cfg.towers[0].name == "vision"
    assert cfg.d_model == 2560
    assert load_model("kimi-k3").towers_unread == ("vision_config",)


def test_parallel_attention_and_learned_positions():
    assert load_model("falcon-7b").layer(0).parallel
    assert not load_model("gpt2").layer(0).parallel
    assert load_model("gpt2").position_rows == 1024
    assert load_model("opt-125m").position_rows == 2050
    assert load_model("opt-350m").embedding_dim == 512


def test_a_key_of_the_class_counts_where_the_config_is_silent():
    silent, said = llama(num_key_value_heads=...), llama(num_key_value_heads=None)
    assert from_hf(silent, name="x").layer(0).attention.kv_heads == 8
    assert from_hf(said, name="x").layer(0).attention.kv_heads == 8
    mixtral = llama(
        architectures=["MixtralForCausalLM"],
        num_key_value_heads=...,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    cfg = from_hf(mixtral, name="x")
    assert ("num_key_value_heads", "8") in cfg.defaulted
    assert "MixtralConfig" in cfg.defaults_source


@pytest.mark.parametrize("section", ["text_config", "language_config", "llm_config"])
def test_the_text_model_of_an_unknown_wrapper_is_read_with_a_warning(section):
    inside = llama()
    wrapped = {"architectures": ["NewVisionModel"], section: inside, "vision_config": {"depth": 2}}
    cfg = from_hf(wrapped, name="new")
    assert params_total(cfg) == params_total(from_hf(inside, name="inside"))
    said = " ".join(model_warnings(cfg))
    assert "new is a NewVisionModel, which is unknown; read as LlamaForCausalLM" in said
    assert "vision_config of new is neither counted nor priced" in said


def test_a_family_may_be_named(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(llama(architectures=["MyLlama"])), encoding="utf-8")
    for family in ("LlamaForCausalLM", "llama"):
        cfg = load_model(f"{path}#{family}")
        assert (cfg.architecture, cfg.read_as) == ("LlamaForCausalLM", "MyLlama")
    with pytest.raises(BadRequest, match="unknown family 'lama'; did you mean 'llama'"):
        load_model(f"{path}#lama")
    with pytest.raises(BadRequest, match="is in the zoo; leave out the family llama"):
        load_model("llama-3-8b#llama")
