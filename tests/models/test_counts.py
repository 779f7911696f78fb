"""Every model of the zoo against an independent count (transformers on meta tensors)."""

import pytest
from tests.every import over_every
from tests.models.cases import expected

from shardwise.models import (
    load_model,
    parameters,
    params_active,
    params_by_component,
    params_text,
    params_total,
    weight_bytes,
)

ROWS = expected()
COUNTED = [row for row in ROWS if row["params_total_exact"]]
OUR_NAMES = {
    "p_ssm_linear_attn": "linear_attention",
    "p_moe_latent_proj": "moe_latent",
    "p_vision_audio": "vision",
}
COMPONENTS = [c for c in ROWS[0] if c.startswith("p_") and c != "p_bias_subset"]


def ids(row):
    return row["slug"]


def test_all_rows_are_here():
    assert len(ROWS) == 123
    assert len(COUNTED) == 121


@over_every(COUNTED, ids)
def test_counts_are_exact(row):
    cfg = load_model(row["slug"])
    assert params_total(cfg) == int(row["params_total_exact"])
    assert params_text(cfg) == int(row["params_text_exact"])
    assert params_active(cfg) == int(row["params_active_exact"])


@over_every(COUNTED, ids)
def test_components_are_exact(row):
    counted = params_by_component(load_model(row["slug"]))
    want = {OUR_NAMES.get(c, c[2:]): int(row[c]) for c in COMPONENTS}
    if row["oracle_class"] == "MiniMaxForCausalLM":
        # The oracle files lightning attention under attention; we keep it apart.
        counted["attention"] += counted.pop("linear_attention")
    assert counted == {name: count for name, count in want.items() if count}


@over_every([r for r in COUNTED if r["p_bias_subset"]], ids)
def test_biases_are_exact(row):
    # The oracle counts the biases by name, so the towers' are not in it.
    rows = parameters(load_model(row["slug"]))
    assert sum(p.params for p in rows if p.role == "bias") == int(row["p_bias_subset"])


@over_every(ROWS, ids)
def test_layers_and_tying(row):
    cfg = load_model(row["slug"])
    if row["layers"]:
        assert cfg.layers == int(row["layers"])
    if row["tied_embeddings"]:
        assert cfg.tied_embeddings == (row["tied_embeddings"] == "yes")


@over_every(ROWS, ids)
def test_rows_are_honest(row):
    cfg = load_model(row["slug"])
    rows = parameters(cfg)
    assert len({(p.group, p.name) for p in rows}) == len(rows)
    for p in rows:
        letters = "".join(letter for letter, _ in p.dims)
        assert len(set(letters)) == len(letters), p.name
        assert all(size > 0 for _, size in p.dims), p.name
        if p.role in ("matmul", "cross"):
            assert p.contracts
            assert set(p.contracts + p.batch) <= set(letters), p.name
            assert p.contracted * p.batches * p.outputs == p.size, p.name
        else:
            assert not p.contracts, p.name
        if p.group is not None:
            assert p.layers == cfg.layer_groups()[p.group][1]
        if p.shares:
            assert p.params == 0
            assert any(q.name == p.shares and q.params for q in rows)


def test_a_tied_head_costs_flops_but_no_parameters():
    head = next(p for p in parameters(load_model("llama-3.2-1b")) if p.name == "lm_head")
    assert head.shares == "embedding"
    assert head.params == 0
    assert head.flops_per_token == 2 * 2048 * 128256


def test_matmul_rows_give_forward_flops():
    # Llama-3-8B by hand: 2 * (all weights but the embedding and the norms).
    cfg = load_model("llama-3-8b")
    flops = sum(p.flops_per_token for p in parameters(cfg))
    assert flops == 2 * (8030261248 - 525336576 - 266240)


def test_active_share_of_experts():
    rows = {p.name: p for p in parameters(load_model("mixtral-8x7b"))}
    assert rows["experts.gate"].active == 2 / 8
    assert rows["experts.gate"].batch == "E"
    assert rows["router"].active == 1


def test_weight_bytes_follow_quantization_config():
    assert weight_bytes(load_model("llama-3-8b")) == 2 * 8030261248
    # gpt-oss-20b: experts mxfp4 (17 bytes per 32 values), the rest bf16; the published
    # checkpoint is 13.76 GB (expert biases stay bf16 there).
    assert weight_bytes(load_model("gpt-oss-20b")) == pytest.approx(13.76e9, rel=2e-3)
    # DeepSeek-V3: fp8 but for embedding, head, norms, routers.
    v3 = load_model("deepseek-v3")
    unquantized = sum(
        count
        for name, count in params_by_component(v3).items()
        if name in ("embedding", "lm_head", "norms", "router")
    )
    assert weight_bytes(v3) == params_total(v3) + unquantized
    assert weight_bytes(v3, "bf16") == 2 * params_total(v3)
