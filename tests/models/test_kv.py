"""KV cache: the zoo against the index, windows and compression by hand."""

import csv
from pathlib import Path

import pytest
from tests.every import over_every
from tests.models.cases import expected

from shardwise.models import (
    index_bytes,
    kv_bytes,
    kv_bytes_per_token,
    load_model,
    parameters,
    params_total,
    state_bytes,
    state_elements,
    zoo_names,
)

KNOWN = [row for row in expected() if row["kv_bytes_per_token_bf16"]]


def test_all_rows_are_here():
    assert len(KNOWN) == 121


@over_every(KNOWN, lambda row: row["slug"])
def test_bytes_per_token_are_exact(row):
    cfg = load_model(row["slug"])
    assert kv_bytes_per_token(cfg) == int(row["kv_bytes_per_token_bf16"])
    assert kv_bytes_per_token(cfg, "int8") == int(row["kv_bytes_per_token_bf16"]) / 2


@over_every(KNOWN, lambda row: row["slug"])
def test_only_layers_without_a_window_grow(row):
    cfg = load_model(row["slug"])
    long = 1 << 20
    growth = kv_bytes(cfg, long + 1) - kv_bytes(cfg, long)
    assert growth == int(row["kv_bytes_per_token_bf16_unwindowed"])


@over_every(zoo_names())
def test_never_more_than_without_windows(name):
    cfg = load_model(name)
    assert kv_bytes(cfg, 64) <= kv_bytes(cfg, 4096) <= kv_bytes(cfg, 1 << 20)
    assert kv_bytes(cfg, 1) >= kv_bytes_per_token(cfg)


def test_a_window_caps_its_layers():
    # gpt-oss-20b: 12 of 24 layers see 128 tokens; 8 KV heads x 64, K and V, 2 bytes.
    cfg = load_model("gpt-oss-20b")
    per_layer = 8 * 64 * 2 * 2
    assert kv_bytes(cfg, 10_000) == per_layer * (12 * 128 + 12 * 10_000)


def test_chunks_cap_their_layers():
    cfg = load_model("llama-4-scout-17b-16e")
    assert kv_bytes(cfg, 100_000) == 8 * 128 * 2 * 2 * (36 * 8192 + 12 * 100_000)


def test_a_window_beyond_the_longest_context_is_none():
    assert all(
        layer.attention.window is None for layer, _ in load_model("qwen2.5-7b").layer_groups()
    )
    assert all(
        layer.attention.kind == "full" for layer, _ in load_model("phi-3.5-mini").layer_groups()
    )


def test_compressed_layers_keep_a_window_and_one_entry_per_ratio():
    # DeepSeek-V4-Flash: 2 layers with the window alone, 21 at 4:1 (with indexer), 20 at 128:1.
    cfg = load_model("deepseek-v4-flash")
    context = 128_000
    entries = 43 * 128 + 21 * context // 4 + 20 * context // 128
    assert kv_bytes(cfg, context) == entries * 512 * 2
    assert index_bytes(cfg, context) == 21 * 128 * context // 4


def test_index_keys_are_apart():
    # GLM-5.2: 21 of 78 layers have an indexer of their own, one key of 128 values per token.
    assert index_bytes(load_model("glm-5.2"), 1000, "bf16") == 21 * 128 * 1000 * 2
    assert index_bytes(load_model("deepseek-v3"), 1000) == 0


def test_recurrent_state_is_apart():
    # Qwen3-Next: 36 layers of 32 value heads with a 128 x 128 state, and 3 past inputs of the
    # convolution over 2 x 16 x 128 + 32 x 128 channels.
    cfg = load_model("qwen3-next-80b-a3b")
    assert state_elements(cfg) == 36 * (32 * 128 * 128 + 3 * 8192)
    assert state_bytes(cfg, conv="f32") == 4 * state_elements(cfg)
    # Nemotron-H-56B: 54 Mamba layers, 256 heads x 64 with state 256; convolution over x, B, C.
    nemotron = load_model("nemotron-h-56b")
    assert state_elements(nemotron) == 54 * (256 * 64 * 256 + 3 * (256 * 64 + 2 * 8 * 256))
    assert state_bytes(load_model("llama-3-8b")) == 0


def test_a_layer_that_runs_again_caches_and_multiplies_but_holds_nothing():
    cfg = load_model(
        "HrmTextForCausalLM(vocab_size=100, hidden_size=64, intermediate_size=96, head_dim=16,"
        " num_attention_heads=4, num_hidden_layers=2, max_position_embeddings=64)"
    )
    assert cfg.layers == 2 * 2 * 4  # passes of two stacks: three low and one high, twice
    assert [count for _, count in cfg.layer_groups()] == [4, 12]
    own = 4 * 64 * 64 + 64 * 64 + 3 * 64 * 96
    assert params_total(cfg) == 4 * own + 2 * 100 * 64 + 64
    assert kv_bytes_per_token(cfg) == 16 * 2 * 64 * 2
    matmuls = sum(float(row.flops_per_token) for row in parameters(cfg))
    assert matmuls == 2 * (16 * own + 100 * 64)


def _engine_rows():
    with Path(__file__).with_name("data").joinpath("engine_states.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", _engine_rows(), ids=lambda row: row["model"])
def test_a_sequence_keeps_what_engines_compute(row):
    # `scripts/engine_states.py` runs SGLang's srt/configs/mamba_utils.py and vLLM's
    # model_executor/layers/mamba/mamba_utils.py as their wheels have them.
    cfg = load_model(row["model"])
    assert state_bytes(cfg) == int(row["sglang_state"]) == int(row["vllm_state"])
    assert kv_bytes_per_token(cfg) == int(row["kv_token"])
    assert index_bytes(cfg, 1) == int(row["index_token"])
