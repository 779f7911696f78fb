"""FLOPs and cache of a class against the class itself, in a tiny size.

`FlopCounterMode` counts what the class multiplies in one prompt, and its `DynamicCache` is what it
keeps. Sizes are small and unlike each other; windows and choices of keys are no shorter than the
prompt, since the class computes all scores and masks them. Not counted by us: the sum over an
indexer's heads, 2 J per score, and the mixing of AltUp's streams, 2 s^2 D. Not compared: scans.
"""

import pytest

from shardwise.models import from_hf, kv_elements
from shardwise.models.flops import flops_by_op
from shardwise.models.kv import kv_tokens

TOKENS = 24
SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT = SMALL | {
    "num_hidden_layers": 3,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 20,
    "q_lora_rank": 28,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "index_topk": TOKENS,
    "index_head_dim": 16,
    "index_n_heads": 2,
}
CASES = {
    "AXK2ForCausalLM": LATENT | {"num_key_value_heads": 4, "gated_norm_rank": 4},
    "Dots3NoteForCausalLM": LATENT
    | {
        "num_key_value_heads": 4,
        "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2,
        "swa_q_lora_rank": 12,
        "swa_kv_lora_rank": 24,
        "swa_head_dim": 28,
        "swa_qk_nope_head_dim": 20,
        "swa_v_head_dim": 8,
        "sliding_window": 2 * TOKENS,
        "shared_experts_intermediate_size": 40,
    },
    "MiniMaxM3VLForCausalLM": SMALL
    | {
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "dense_intermediate_size": 40,
        "shared_intermediate_size": 20,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "moe_layer_freq": [0, 1, 1],
        "rotary_dim": 8,
        "sparse_attention_config": {
            "sparse_attention_freq": [0, 1, 1],
            "sparse_num_index_heads": 2,
            "sparse_index_dim": 16,
            "sparse_block_size": 8,
            "sparse_topk_blocks": 4,
            "sparse_local_block": 1,
        },
    },
    "DiffLlamaForCausalLM": SMALL | {"num_hidden_layers": 2, "num_key_value_heads": 2},
    "DogeForCausalLM": SMALL | {"num_hidden_layers": 2, "num_key_value_heads": 2},
    "HrmTextForCausalLM": SMALL
    | {
        "num_hidden_layers": 8,  # passes
        "num_layers_per_stack": 1,
        "H_cycles": 2,
        "L_cycles": 3,
        "head_dim": 24,
    },
    "Gemma3nForCausalLM": SMALL
    | {
        "num_hidden_layers": 7,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "num_kv_shared_layers": 2,
        "sliding_window": 2 * TOKENS,
        "vocab_size_per_layer_input": 80,
        "hidden_size_per_layer_input": 12,
        "laurel_rank": 6,
        "altup_num_inputs": 3,
    },
    "FalconH1ForCausalLM": SMALL
    | {
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "mamba_d_ssm": 96,
        "mamba_n_heads": 6,
        "mamba_d_state": 16,
        "mamba_n_groups": 2,
        "mamba_chunk_size": 8,
    },
    "Glm4MoeForCausalLM": SMALL
    | {
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
    },
}


def ran(name, config):
    """Products of the class for one prompt without its scans, and the elements of its cache."""
    import torch
    import transformers
    from torch.utils.flop_counter import FlopCounterMode

    transformers.logging.set_verbosity_error()
    model = getattr(transformers, name)
    made = model.config_class(**config)
    made._attn_implementation = made._experts_implementation = "eager"
    built = model(made).eval()
    tokens = torch.arange(TOKENS)[None]
    cache = transformers.DynamicCache(config=made)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        built(tokens, past_key_values=cache, use_cache=True)
    kept = sum(
        part.numel()
        for layer in cache.layers
        for part in (getattr(layer, "keys", None), getattr(layer, "values", None))
        if part is not None
    )
    scans = sum(
        flops
        for module, counts in counter.get_flop_counts().items()
        for op, flops in counts.items()
        if module.endswith(".mamba") and "aten.mm" not in str(op)
    )
    return counter.get_total_flops() - scans, kept


@pytest.mark.torch
@pytest.mark.parametrize("name", CASES)
def test_products_and_cache_are_those_of_the_class(name):
    cfg = from_hf({"architectures": [name], **CASES[name]}, name=name)
    flops, kept = ran(name, CASES[name])
    layers = [cfg.layer(i) for i in range(cfg.layers)]
    ops = [op for op in flops_by_op(cfg, TOKENS, causal=False) if op.op_class != "scan"]
    mine = TOKENS * sum(op.forward for op in ops)
    mine += sum(TOKENS * 2 * x.streams**2 * cfg.d_model for x in layers if x.mixing == "altup")
    latent = [layer.mixer for layer in layers if layer.mixer.kind == "latent"]
    indexers = [mixer.indexer for mixer in latent if mixer.indexer]
    mine += sum(2 * x.heads * TOKENS**2 for x in indexers)
    cached = sum(kv_elements(layer.mixer) * kv_tokens(layer.mixer, TOKENS) for layer in layers)
    assert mine == pytest.approx(flops, rel=1e-6)
    assert cached == kept
