"""Bend the shapes of the zoo and compare with formulas written here, which never see the table.

`block` and `whole` below count a decoder from its config keys alone; each change is then checked
as a difference, so that an error which cancels in the published sizes still shows.
"""

import json

import pytest
from tests.every import over_every

from shardwise.models import from_hf, kv_bytes_per_token, params_active, params_text
from shardwise.models.zoo import DATA, unpack

D, L, V, N, K, F = (
    "hidden_size",
    "num_hidden_layers",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
)


def config_of(name: str) -> dict:
    held = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return unpack(held["config"], held.get("runs", {}))


def text_of(config: dict) -> dict:
    return config.get("text_config", config)


def changed(name: str, **changes: int) -> dict:
    config = config_of(name)
    text_of(config).update(changes)
    return config


def counted(config: dict) -> tuple[int, int, float]:
    cfg = from_hf(config, name="bent")
    return params_text(cfg), params_active(cfg), kv_bytes_per_token(cfg)


# ---- Dense decoders: what each hard-codes, by name, as its model card or code says --------------

DENSE = {
    # name: (q/k/v bias, o bias, norms per layer, q/k norms share one scale per head, gated MLP)
    "llama-2-7b": (0, 0, 2, 0, 3),
    "llama-3-8b": (0, 0, 2, 0, 3),
    "llama-3-70b": (0, 0, 2, 0, 3),
    "llama-3.1-405b": (0, 0, 2, 0, 3),
    "llama-3.2-1b": (0, 0, 2, 0, 3),
    "tinyllama-1.1b": (0, 0, 2, 0, 3),
    "smollm2-360m": (0, 0, 2, 0, 3),
    "codellama-34b": (0, 0, 2, 0, 3),
    "mistral-7b-v0.3": (0, 0, 2, 0, 3),
    "mistral-nemo-12b": (0, 0, 2, 0, 3),
    "devstral-small-24b": (0, 0, 2, 0, 3),
    "qwen2.5-0.5b": (1, 0, 2, 0, 3),
    "qwen2.5-7b": (1, 0, 2, 0, 3),
    "qwen2-72b": (1, 0, 2, 0, 3),
    "qwen3-0.6b": (0, 0, 2, 1, 3),
    "qwen3-32b": (0, 0, 2, 1, 3),
    "gemma-2b": (0, 0, 2, 0, 3),
    "gemma-7b": (0, 0, 2, 0, 3),
    "gemma-2-27b": (0, 0, 4, 0, 3),
    "phi-3-medium-4k": (0, 0, 2, 0, 3),
    "phi-4-mini": (0, 0, 2, 0, 3),
    "internlm2.5-7b": (0, 0, 2, 0, 3),
    "minicpm-2b": (0, 0, 2, 0, 3),
    "smollm3-3b": (0, 0, 2, 0, 3),
    "baichuan2-7b": (0, 0, 2, 0, 3),
}
TIED = {"llama-3.2-1b", "smollm2-360m", "qwen2.5-0.5b", "qwen3-0.6b", "gemma-2b", "gemma-7b"} | {
    "gemma-2-27b",
    "phi-4-mini",
    "minicpm-2b",
    "smollm3-3b",
}


def shape(c: dict) -> tuple[int, ...]:
    n = c[N]
    return c[D], n, c.get(K) or n, c.get("head_dim") or c[D] // n, c[F]


def block(name: str, c: dict) -> int:
    """Parameters of one dense layer."""
    qkv_bias, o_bias, norms, head_norms, matrices = DENSE[name]
    d, n, k, h, f = shape(c)
    attention = d * n * h + 2 * d * k * h + n * h * d
    biases = qkv_bias * (n + 2 * k) * h + o_bias * d
    return attention + biases + head_norms * 2 * h + norms * d + matrices * d * f


def whole(name: str, c: dict) -> int:
    heads = 1 if name in TIED else 2
    return heads * c[V] * c[D] + c[L] * block(name, c) + c[D]


@over_every(DENSE)
def test_dense_as_it_is(name):
    config = config_of(name)
    assert counted(config)[0] == whole(name, config)


@over_every(DENSE)
def test_dense_one_more_layer(name):
    config = config_of(name)
    before, _, kv = counted(config)
    bent = {L: config[L] + 1}
    if isinstance(config.get("layer_types"), list):
        bent["layer_types"] = [*config["layer_types"], "full_attention"]
    after, active, kv_after = counted(changed(name, **bent))
    assert after - before == block(name, config)
    assert active == after
    _, _, k, h, _ = shape(config)
    assert kv_after - kv == 2 * k * h * 2


@over_every(DENSE)
def test_dense_twice_the_vocabulary(name):
    config = config_of(name)
    before, _, kv = counted(config)
    after, _, kv_after = counted(changed(name, vocab_size=2 * config[V]))
    assert after - before == (1 if name in TIED else 2) * config[V] * config[D]
    assert kv_after == kv


@over_every([n for n in DENSE if config_of(n)[N] % 2 == 0])
def test_dense_half_the_heads(name):
    config = config_of(name)
    d, n, k, h, _ = shape(config)
    if k % 2 and k != 1:
        pytest.fail("choose a model whose heads can be halved")
    kept = k if k == 1 else k // 2
    before, _, kv = counted(config)
    bent = changed(name, num_attention_heads=n // 2, num_key_value_heads=kept, head_dim=h)
    after, _, kv_after = counted(bent)
    lost = d * (n // 2) * h * 2 + 2 * d * (k - kept) * h
    lost += DENSE[name][0] * (n // 2 + 2 * (k - kept)) * h
    assert before - after == config[L] * lost
    assert kv_after == kv * kept / k


# ---- Experts ------------------------------------------------------------------------------------

EXPERTS = {
    # name: (key of the expert width, of the number of experts, shared width per config)
    "mixtral-8x7b": ("intermediate_size", "num_local_experts", lambda c: 0),
    "mixtral-8x22b": ("intermediate_size", "num_local_experts", lambda c: 0),
    "olmoe-1b-7b": ("intermediate_size", "num_experts", lambda c: 0),
    "granite-3.1-1b-a400m": ("intermediate_size", "num_local_experts", lambda c: 0),
    "qwen3-30b-a3b": ("moe_intermediate_size", "num_experts", lambda c: 0),
    "qwen3-235b-a22b": ("moe_intermediate_size", "num_experts", lambda c: 0),
    "qwen3-vl-30b-a3b": ("moe_intermediate_size", "num_experts", lambda c: 0),
    "deepseek-v3": ("moe_intermediate_size", "n_routed_experts", lambda c: 2048),
    "deepseek-v2-lite": ("moe_intermediate_size", "n_routed_experts", lambda c: 2 * 1408),
    "kimi-k2-instruct": ("moe_intermediate_size", "n_routed_experts", lambda c: 2048),
    "glm-4.5-air": ("moe_intermediate_size", "n_routed_experts", lambda c: 1408),
    "deepseek-moe-16b": ("moe_intermediate_size", "n_routed_experts", lambda c: 2 * 1408),
}


def attention(name: str, c: dict) -> int:
    """Parameters of the attention of one layer, its q/k norms and latents included."""
    d, n = c[D], c[N]
    if "kv_lora_rank" in c:
        q, kv = c["q_lora_rank"], c["kv_lora_rank"]
        nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        queries = d * n * (nope + rope) if q is None else q * (d + 1 + n * (nope + rope))
        return queries + d * (kv + rope) + kv + kv * n * (nope + v) + n * v * d
    k = c[K]
    h = c.get("head_dim") or d // n
    projections = 2 * d * n * h + 2 * d * k * h
    if name.startswith("qwen3"):
        return projections + 2 * h
    if name == "olmoe-1b-7b":
        return projections + n * h + k * h
    if name == "glm-4.5-air":
        return projections + (n + 2 * k) * h
    return projections


def dense_layers(c: dict) -> int:
    return c.get("first_k_dense_replace", 0)


@over_every(EXPERTS)
def test_experts_one_more_layer(name):
    config = config_of(name)
    c = text_of(config)
    width, number, shared = EXPERTS[name]
    chosen = c["num_experts_per_tok"]
    before, active, kv = counted(config)
    after, active_after, kv_after = counted(changed(name, num_hidden_layers=c[L] + 1))
    fixed = attention(name, c) + 2 * c[D] + c[number] * c[D] + 3 * c[D] * shared(c)
    assert after - before == fixed + c[number] * 3 * c[D] * c[width]
    assert active_after - active == fixed + chosen * 3 * c[D] * c[width]
    if "kv_lora_rank" in c:
        assert kv_after - kv == 2 * (c["kv_lora_rank"] + c["qk_rope_head_dim"])


@over_every(EXPERTS)
def test_experts_one_more_expert(name):
    config = config_of(name)
    c = text_of(config)
    width, number, _ = EXPERTS[name]
    before, active, _ = counted(config)
    after, active_after, _ = counted(changed(name, **{number: c[number] + 1}))
    sparse = c[L] - dense_layers(c)
    assert after - before == sparse * (3 * c[D] * c[width] + c[D])
    assert active_after - active == sparse * c[D]


@over_every([n for n in EXPERTS if "kv_lora_rank" in config_of(n)])
def test_latent_half_the_heads(name):
    config = config_of(name)
    half = changed(name, num_attention_heads=config[N] // 2)
    before, _, kv = counted(config)
    after, _, kv_after = counted(half)
    assert before - after == config[L] * (attention(name, config) - attention(name, half))
    assert kv_after == kv


@over_every(EXPERTS)
def test_experts_twice_the_vocabulary(name):
    config = config_of(name)
    c = text_of(config)
    tables = 1 if name.startswith("granite") else 2
    before, _, _ = counted(config)
    after, _, _ = counted(changed(name, vocab_size=2 * c[V]))
    assert after - before == tables * c[V] * c[D]


# ---- Others -------------------------------------------------------------------------------------


def test_gpt2_one_more_layer():
    config = config_of("gpt2-xl")
    d = config["n_embd"]
    bent = {**config, "n_layer": config["n_layer"] + 1}
    layer = 12 * d * d + (3 + 1 + 4 + 1) * d + 4 * d
    assert counted(bent)[0] - counted(config)[0] == layer


def test_gpt2_twice_the_positions():
    config = config_of("gpt2")
    bent = {**config, "n_positions": 2 * config["n_positions"]}
    assert counted(bent)[0] - counted(config)[0] == config["n_positions"] * config["n_embd"]


def test_falcon_one_more_layer():
    # Falcon-7B: one KV head, one LayerNorm with bias, MLP of 4 D without gate.
    config = config_of("falcon-7b")
    d, n = 4544, 71
    key = "num_hidden_layers" if "num_hidden_layers" in config else "n_layer"
    bent = {**config, key: 33}
    layer = d * d + 2 * d * (d // n) + d * d + 8 * d * d + 2 * d
    assert counted(bent)[0] - counted(config)[0] == layer
    assert counted(bent)[2] - counted(config)[2] == 2 * 2 * 64


def test_gpt_oss_two_more_layers():
    config = config_of("gpt-oss-20b")
    bent = {**config, "num_hidden_layers": 26}
    bent["layer_types"] = config["layer_types"] + ["sliding_attention", "full_attention"]
    d, heads, kv, h, e, f = 2880, 64, 8, 64, 32, 2880
    attn = d * h * (heads + 2 * kv) + h * (heads + 2 * kv) + heads * h * d + d + heads
    moe = e * (d + 1) + e * (3 * d * f + 2 * f + d)
    assert counted(bent)[0] - counted(config)[0] == 2 * (attn + moe + 2 * d)


def test_nemotron_one_more_block_of_each_kind():
    config = config_of("nemotron-h-56b")
    pattern = config["hybrid_override_pattern"]
    d, heads, dim, groups, state = 8192, 256, 64, 8, 256
    inner, channels = heads * dim, heads * dim + 2 * groups * state
    mamba = d * (inner + channels + heads) + channels * 5 + 3 * heads + inner + inner * d
    attn = d * 64 * 128 * 2 + 2 * d * 8 * 128
    want = {"M": mamba, "*": attn, "-": 2 * d * 32768}
    for letter, size in want.items():
        bent = {**config, "hybrid_override_pattern": pattern + letter}
        bent["num_hidden_layers"] = config["num_hidden_layers"] + 1
        assert counted(bent)[0] - counted(config)[0] == size + d


def test_qwen3_next_four_more_layers():
    config = config_of("qwen3-next-80b-a3b")
    bent = {**config, "num_hidden_layers": 52}
    if "layer_types" in config:
        bent["layer_types"] = config["layer_types"] + config["layer_types"][:4]
    d, keys, values = 2048, 16 * 128, 32 * 128
    delta = d * (2 * keys + 2 * values + 2 * 32) + 4 * (2 * keys + values) + 2 * 32 + 128
    delta += values * d
    full = 2 * d * 16 * 256 + 2 * d * 2 * 256 + 16 * 256 * d + 2 * 256
    moe = 512 * d + 513 * 3 * d * 512 + d
    assert counted(bent)[0] - counted(config)[0] == 3 * delta + full + 4 * (moe + 2 * d)


def test_gemma4_another_layer_that_reuses_kv():
    config = config_of("gemma-4-e2b")
    text = {**config["text_config"]}
    text["layer_types"] = ["sliding_attention", *text["layer_types"]]
    text["num_hidden_layers"] += 1
    d, h, y = 1536, 256, 256
    layer = d * 8 * h * 2 + 2 * d * h + 2 * h + 3 * d * 6144 + 5 * d + 2 * d * y
    per_layer = 262144 * y + d * y
    after = counted({**config, "text_config": text})
    assert after[0] - counted(config)[0] == layer + per_layer
    assert after[2] - counted(config)[2] == 2 * h * 2
