"""Small models of classes whose tensors are rows of `extras`: FLOPs and caches against a run.

torch counts the products of one forward pass of T tokens through the class of transformers, whose
attention here multiplies all T x T scores; the cache that the pass leaves is measured.
"""

import json

import pytest

from shardwise.models import from_hf, index_bytes, kv_bytes, params_total, state_elements
from shardwise.models.flops import flops_by_op

TOKENS = 24
COMMON = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
HUNYUAN = COMMON | LATENT
HUNYUAN |= {"intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3}
HUNYUAN |= {"n_routed_experts": 8, "num_experts_per_tok": 2}
HUNYUAN |= {"index_topk": 32, "index_head_dim": 16, "index_n_heads": 2}
LONGCAT = COMMON | LATENT | {"num_key_value_heads": 4, "head_dim": 8, "num_layers": 2}
LONGCAT |= {"ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, "n_routed_experts": 8}
LONGCAT |= {"zero_expert_num": 0, "moe_topk": 2}
ZAYA = COMMON | {"head_dim": 16, "num_hidden_layers": 3, "moe_intermediate_size": 32}
ZAYA |= {"num_experts": 4, "router_hidden_size": 16}
INKLING2 = COMMON | {"head_dim": 16, "d_rel": 4, "rel_extent": 32, "sliding_window_size": 32}
INKLING2 |= {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 16}
INKLING2 |= {"num_hidden_layers": 7, "moe_intermediate_size": 32, "n_routed_experts": 8}
INKLING2 |= {"num_experts_per_tok": 2, "unpadded_vocab_size": 100}
INKLING = INKLING2 | {"intermediate_size": 96, "n_shared_experts": 2}
INKLING |= {"mlp_layer_types": ["dense"] + ["sparse"] * 6}
MODERNBERT = {k: v for k, v in COMMON.items() if k != "num_key_value_heads"}
MODERNBERT |= {"intermediate_size": 96, "num_hidden_layers": 4, "cls_token_id": 3}
MODERNBERT |= {"sep_token_id": 4}
ZAMBA = COMMON | {"num_hidden_layers": 6, "intermediate_size": 96, "mamba_d_state": 8}
ZAMBA |= {"layers_block_type": ["linear_attention", "hybrid"] * 3, "n_mamba_heads": 2}
ZAMBA2 = ZAMBA | {"n_mamba_heads": 4, "adapter_rank": 8, "num_mem_blocks": 2}
ZAMBA2 |= {"use_shared_attention_adapter": True, "num_key_value_heads": 4}
JETMOE = {"hidden_size": 64, "vocab_size": 128, "num_hidden_layers": 2, "num_key_value_heads": 4}
JETMOE |= {"kv_channels": 16, "intermediate_size": 32, "num_local_experts": 4}
JETMOE |= {"num_experts_per_tok": 2}

# Model type, config, FLOPs of the class beside ours, our share of the inputs of convolutions that
# it keeps: transformers keeps W of them, of which the next token needs W - 1.
CLASSES = [
    # An indexer's scores are weighed by head: 2 T T J in two layers.
    ("hy_v4", HUNYUAN, 2 * 2 * TOKENS**2 * 2, 1),
    ("longcat_flash", LONGCAT, 0, 1),
    # In transformers a token that skips the experts (one of E + 1 choices) passes the first one,
    # with weight 0; and a zero token is projected before every sequence.
    ("zaya", ZAYA, 3 * TOKENS * 6 * 64 * 32 / 5 + 3 * 2 * 64 * 16, 1),
    ("inkling_text", INKLING, 0, 3 / 4),
    ("inkling2_text", INKLING2, 0, 3 / 4),
    ("modernbert-decoder", MODERNBERT, 0, 1),
    # The read-out of a Mamba state, which is part of our scan, is a product: 2 x 128 channels x 8.
    ("zamba", ZAMBA, 6 * TOKENS * 2 * 128 * 8, 3 / 4),
    # The class scans in chunks of 256 tokens, by products that are not compared here.
    ("zamba2", ZAMBA2, None, 3 / 4),
    ("jetmoe", JETMOE, 0, 1),
]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "config", "more", "kept"), CLASSES, ids=[c[0] for c in CLASSES])
def test_flops_and_cache_are_those_of_a_run(kind, config, more, kept):
    model, cfg = built(kind, config)
    assert params_total(cfg) == sum(tensor.numel() for tensor in model.parameters())
    flops, cache = run(model)
    ops = flops_by_op(cfg, TOKENS, causal=False)
    ours = sum(op.forward for op in ops if op.op_class != "scan" and ".mix_" not in op.name)
    assert more is None or flops == pytest.approx(TOKENS * ours + more, rel=1e-9)
    assert cache["keys"] + cache["values"] == kv_bytes(cfg, TOKENS, "bf16") / 2
    assert cache.get("indexer_keys", 0) == index_bytes(cfg, TOKENS, "int8")
    states = cache.get("conv_states", 0) * kept + cache.get("recurrent_states", 0)
    assert states == pytest.approx(state_elements(cfg))


def built(kind, config):
    """The class with random weights, and what is read of its config."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    whole = CONFIG_MAPPING[kind](**config)
    whole._attn_implementation = whole._experts_implementation = "eager"
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    model = getattr(transformers, name)(whole).eval()
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, std=0.02)
    raw = json.loads(whole.to_json_string(use_diff=False)) | {"architectures": [name]}
    return model, from_hf(raw, name=kind)


def run(model):
    """FLOPs of matrix products of one pass, and the values of the cache by what they are."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokens = torch.randint(1, 50, (1, TOKENS))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = model(tokens, use_cache=True)
    counts = counter.get_flop_counts()["Global"]
    sizes: dict[str, int] = {}
    for layer in out.past_key_values.layers:
        for name, value in vars(layer).items():
            for tensor in _tensors(value):
                sizes[name] = sizes.get(name, 0) + tensor.numel()
    return sum(n for op, n in counts.items() if "conv" not in str(op)), sizes


def _tensors(value):
    import torch

    if isinstance(value, dict):
        value = list(value.values())
    values = value if isinstance(value, list | tuple) else [value]
    return [v for v in values if torch.is_tensor(v) and v.dim() > 1]
