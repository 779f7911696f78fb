"""Tensors that only one class has: their sizes by letters, what they keep, what they cost."""

import pytest

from shardwise.errors import BadRequest
from shardwise.models import from_hf, kv_bytes_per_token, params_active, params_total
from shardwise.models.architectures import architectures
from shardwise.models.flops import forward_flops_per_token, scan_flops_per_token
from shardwise.models.kv import state_elements
from shardwise.models.parameters import parameters
from shardwise.models.runnable import numerics_of
from shardwise.models.specs import Extra, Moe

LONGCAT = {
    "architectures": ["LongcatFlashForCausalLM"],
    "vocab_size": 131072,
    "hidden_size": 6144,
    "num_layers": 28,
    "num_attention_heads": 64,
    "ffn_hidden_size": 12288,
    "expert_ffn_hidden_size": 2048,
    "n_routed_experts": 512,
    "zero_expert_num": 256,
    "moe_topk": 12,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
ZAYA = {
    "architectures": ["ZayaForCausalLM"],
    "vocab_size": 262272,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 2048,
    "num_experts": 16,
}


def test_a_depthwise_convolution_keeps_its_last_inputs_and_costs_two_flops_a_value():
    conv = Extra(name="attention.conv_k", dims=(("K", 8), ("H", 128), ("W", 4)), role="conv")
    assert conv.kept == 8 * 128 * 3
    assert conv.scan_flops == 2 * 8 * 128 * 4


def test_a_grouped_convolution_keeps_what_it_reads_and_is_a_matmul():
    dims = (("N", 8), ("h", 128), ("W", 2), ("H", 128))
    mix = Extra(name="attention.mix_q", dims=dims, role="matmul", sums="hW", batch="N")
    assert mix.kept == 8 * 128
    assert mix.scan_flops == 0


def test_a_state_is_no_tensor():
    cfg = from_hf(ZAYA, name="zaya")
    assert not [row for row in parameters(cfg) if row.name == "attention.last_value"]
    # Two convolutions of width 2 over queries and keys, and half of the last token's values.
    assert state_elements(cfg) == 40 * (2 * (8 + 2) * 128 + 2 * 64)


def test_only_layers_with_the_facts_of_a_row_have_it():
    rows = [r for r in parameters(from_hf(ZAYA, name="zaya")) if r.name == "router.earlier"]
    assert sum(row.layers for row in rows) == 39  # all but the first


def test_experts_that_compute_nothing_are_chosen_and_cost_nothing():
    """560B of which 27B are active on average, says the model's report (arXiv 2509.01322)."""
    cfg = from_hf(LONGCAT, name="longcat-flash")
    assert params_total(cfg) == 560_664_958_976
    assert params_active(cfg) == pytest.approx(27e9, rel=0.04)
    assert cfg.layers == 56
    assert kv_bytes_per_token(cfg) == 56 * (512 + 64) * 2


def test_convolutions_of_attention_layers_are_scans():
    layer = from_hf(ZAYA, name="zaya").groups[0]
    assert scan_flops_per_token(layer) == 2 * (8 + 2) * 128 * 2


def test_every_extra_says_what_it_is():
    for name, row in architectures().items():
        for extra, fields in row.extras.items():
            assert {"dims"} <= set(fields), (name, extra)
            known = {"dims", "role", "sums", "batch", "shares", "on", "needs", "sizes", "flops"}
            assert set(fields) <= known, (name, extra)


def test_only_experts_that_compute_are_sent_tokens():
    mlp = from_hf(LONGCAT, name="longcat-flash").groups[0].mlp
    assert isinstance(mlp, Moe)
    assert mlp.experts_per_token == 12
    assert mlp.computed_per_token == 8  # 512 of 768 choices compute


def small(architecture, **config):
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 128}
    return from_hf({"architectures": [architecture]} | sizes | config, name="small")


def test_states_of_recurrences_of_own_tensors():
    """As the classes of transformers lay them out."""
    xlstm = small("xLSTMForCausalLM", num_heads=2)
    assert state_elements(xlstm) == 3 * 2 * (16 * 32 + 16 + 1)  # matrix, keys, largest
    rwkv = small("RwkvForCausalLM")
    assert state_elements(rwkv) == 3 * 5 * 64  # two last inputs, numerator, denominator, largest
    griffin = small("RecurrentGemmaForCausalLM", num_attention_heads=4, intermediate_size=128)
    assert state_elements(griffin) == 2 * 64 * (1 + 3)  # one attends; a convolution of 4
    assert griffin.mixer_kinds == {"recurrence", "window"}


def test_a_shared_block_is_stored_once_and_runs_every_time():
    words = ["mamba", "hybrid"] * 2
    config = {"num_attention_heads": 4, "intermediate_size": 96, "layers_block_type": words}
    config |= {"num_hidden_layers": 4, "mamba_d_state": 8}
    one = small("ZambaForCausalLM", **config)
    two = small("ZambaForCausalLM", **config, num_mem_blocks=2)
    assert forward_flops_per_token(one, 8) == forward_flops_per_token(two, 8)
    # Queries, keys and values of 4 heads of 32 from 2D, the output, the MLP and two norms.
    block = 4 * 32 * (3 * 128 + 64) + 3 * 64 * 96 + 128 + 64
    assert params_total(two) - params_total(one) == block


def test_heads_that_are_experts_count_for_those_that_are_chosen():
    config = {"num_key_value_heads": 4, "kv_channels": 16, "intermediate_size": 32}
    cfg = small("JetMoeForCausalLM", **config, num_local_experts=8, num_experts_per_tok=2)
    (query,) = [row for row in parameters(cfg) if row.name == "attention.q"]
    assert query.params == 3 * 8 * 64 * 4 * 16
    assert query.flops_per_token == 2 * query.params * 2 / 8
    attention = cfg.groups[0].attention
    assert attention is not None
    assert attention.heads == 8


def test_published_spellings_are_read():
    """RecurrentGemma-2B (2.68B parameters on its card) and the keys of Inkling's checkpoints."""
    griffin = {"hidden_size": 2560, "intermediate_size": 15360, "num_hidden_layers": 26}
    griffin |= {"num_attention_heads": 10, "num_key_value_heads": 1, "vocab_size": 256000}
    griffin |= {"_block_types": ["recurrent", "recurrent", "attention"], "lru_width": 2560}
    assert params_total(small("RecurrentGemmaForCausalLM", **griffin)) == 2_682_862_080
    text = {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 128, "head_dim": 16}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "swa_head_dim": 16}
    text |= {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "d_rel": 4}
    text |= {"sliding_window_size": 8, "rel_extent": 16, "sconv_kernel_size": 4}
    text |= {"local_layer_ids": [0, 1], "dense_mlp_idx": 1, "intermediate_size": 32}
    text |= {"dense_intermediate_size": 96, "n_routed_experts": 8, "num_experts_per_tok": 2}
    cfg = from_hf(
        {"architectures": ["InklingForConditionalGeneration"], "text_config": text}, name="inkling"
    )
    layers = [cfg.layer(i) for i in range(3)]
    kinds = [layer.mixer.kind for layer in layers if layer.mixer is not None]
    widths = [layer.mlp.d_ff for layer in layers if layer.mlp is not None]
    assert (kinds, widths) == (["window", "window", "full"], [96, 32, 32])


def test_a_list_of_blocks_that_names_others_is_refused():
    with pytest.raises(BadRequest, match=r"block_types is .*recurrent and attention"):
        small("RecurrentGemmaForCausalLM", num_attention_heads=4, block_types=["mamba"])


@pytest.mark.parametrize("config", [LONGCAT, ZAYA], ids=["longcat", "zaya"])
def test_what_cannot_be_run_says_so(config):
    with pytest.raises(BadRequest, match=r"model 'it' cannot be run: .* it can be planned"):
        numerics_of(from_hf(config, name="it"))
