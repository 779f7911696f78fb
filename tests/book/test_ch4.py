"""Chapter 4, transformers: every entry through the public API with the entry's own inputs."""

import numpy as np
import pytest
from tests.apps.commands import answer

from book.oracle import check, entry
from shardwise.book.rules.training import utilisation
from shardwise.book.rules.transformer import combine_softmax, flash_gap
from shardwise.models import kv_bytes, kv_bytes_per_token, params_by_component, params_total
from shardwise.models.activations import (
    book_activation_bytes,
    recompute_flops_per_token,
)
from shardwise.models.config import ModelConfig
from shardwise.models.contraction import Contraction
from shardwise.models.flops import (
    attention_crossover,
    attention_intensity,
    attention_over_matmul,
    flops_by_op,
    six_nd,
)
from shardwise.models.remat import remat_row
from shardwise.models.specs import Attention, Layer, Mlp


def attention(i):
    return Attention(kind="full", heads=i["N"], kv_heads=i["K"], head_dim=i["H"], v_head_dim=i["H"])


def model(i):
    """The book's Transformer with the dims that an entry gives; a part without dims is left out."""
    layer = Layer(
        mixer=attention(i) if "N" in i else None,
        mlp=Mlp(d_ff=i["F"]) if "F" in i else None,
        norms=("attention", "mlp")[: i.get("norms", 0)],
    )
    vocabulary, d_model = i.get("V", 1), i.get("D", 1)
    return ModelConfig(
        name="book",
        architecture="Transformer",
        model_type="book",
        d_model=d_model,
        vocabulary=vocabulary,
        groups=(layer,),
        pattern=(0,) * i.get("L", 1),
        tied_embeddings=i.get("tied", False),
        embedding_dim=d_model,
        embedding_rows=vocabulary,
        final_norm=i.get("final_norm", False),
    )


def training_flops(cfg, component):
    ops = flops_by_op(cfg, context=0, causal=False)
    return sum(op.training for op in ops if op.component == component)


@entry("rule.4.dot_flops")
def test_dot_flops(e):
    products = ("P,P->", "NP,P->N", "NP,PM->NM")
    check(e, [Contraction.parse(p).flops(e["inputs"]) for p in products])


@entry("rule.4.mlp")
def test_mlp(e):
    cfg = model(e["inputs"])
    check(e, [training_flops(cfg, "mlp_dense"), params_by_component(cfg)["mlp_dense"]])


@entry("rule.4.attn_proj")
def test_attention_projections(e):
    cfg = model(e["inputs"])
    check(e, [training_flops(cfg, "attention"), params_by_component(cfg)["attention"]])


@entry("rule.4.vocab")
def test_vocabulary(e):
    cfg = model(e["inputs"])
    check(e, [training_flops(cfg, "lm_head"), params_by_component(cfg)["embedding"]])


@entry("rule.4.other")
def test_norms(e):
    check(e, params_by_component(model(e["inputs"]))["norms"])


@entry("rule.4.attn_ratio")
def test_attention_over_matmul(e):
    check(e, attention_over_matmul(model(e["inputs"]), e["inputs"]["T"]))


@entry("head.4.8D")
def test_crossover(e):
    check(e, attention_crossover(model(e["inputs"])))


@entry("head.4.gemma27")
def test_crossover_gemma(e):
    check(e, attention_crossover(model(e["inputs"])))


def book_bytes(i, saved):
    return book_activation_bytes(i["BT"], i["L"], i["D"], saved, i["dtype"])


@entry("head.4.ckpt_all")
def test_checkpoint_everything(e):
    assert e["inputs"]["n"] == remat_row("none").book_saved
    check(e, book_bytes(e["inputs"], e["inputs"]["n"]))


@entry("head.4.ckpt_block")
def test_checkpoint_blocks(e):
    check(e, book_bytes(e["inputs"], remat_row(e["inputs"]["policy"]).book_saved))


@entry("head.4.ckpt_matmuls")
def test_checkpoint_matmuls(e):
    assert e["inputs"]["n"] == remat_row("matmul_outputs").book_saved
    check(e, book_bytes(e["inputs"], e["inputs"]["n"]))


@entry("head.4.remat_flops")
def test_remat_flops(e):
    i = e["inputs"]
    cfg = model(i)
    layers = sum(op.training for op in flops_by_op(cfg, i["T"]) if op.group is not None)
    check(e, (layers + recompute_flops_per_token(cfg, i["policy"], i["T"])) / layers)


@entry("head.4.kv_8k")
def test_kv_cache(e):
    i = e["inputs"]
    check(e, kv_bytes(model(i), i["S"], i["dtype"]))


@entry("4.1.1")
def test_params(e):
    check(e, params_total(model(e["inputs"])))


@entry("4.1.3")
def test_kv_per_token(e):
    check(e, kv_bytes_per_token(model(e["inputs"]), e["inputs"]["dtype"]))


@entry("4.3")
def test_contraction(e):
    i = e["inputs"]
    sizes = dict(zip(i["letters"], i["dims"], strict=True))
    check(e, Contraction.parse(i["contraction"]).flops(sizes))


@entry("4.4.intensity")
def test_attention_intensity(e):
    i = e["inputs"]
    got = [
        attention_intensity(attention(i | case), case["T"], case["S"], i["element_bytes"])
        for case in i["cases"]
    ]
    check(e, got)


@entry("4.5")
def test_attention_equals_projections(e):
    check(e, attention_crossover(model(e["inputs"]), against="projections"))


@entry("4.6")
def test_recompute(e):
    i = e["inputs"]
    per_token = recompute_flops_per_token(model(i), i["policy"], i["T"], causal=False)
    check(e, per_token * i["B"] * i["T"])


@entry("4.7")
def test_deepseek_mfu(e):
    i = e["inputs"]
    check(e, utilisation(six_nd(i["N"], i["tokens"]), i["hours"] * 3600, i["peak"]))


@entry("rule.4.flash_combine")
def test_two_chunks_of_a_softmax(e):
    i = e["inputs"]
    check(e, combine_softmax(i["M1"], i["L1"], i["M2"], i["L2"]))
    scores = np.array([0.5, 2.0, -1.0, 3.0])
    parts = [(p.max(), np.exp(p - p.max()).sum()) for p in (scores[:1], scores[1:])]
    top, total = combine_softmax(*parts[0], *parts[1])
    assert top == 3
    assert total == pytest.approx(np.exp(scores - 3).sum())


@entry("rule.4.flash_vjp")
def test_row_sums_of_flash_attention(e):
    check(e, flash_gap())
    check(e, flash_gap(queries=3, keys=50, head_dim=7))


@pytest.mark.parametrize(("name", "formula", "times"), [("4.5", "2 D", 2), ("head.4.8D", "8 D", 8)])
def test_the_formula_of_a_crossover_gives_its_answer(name, formula, times):
    result = answer("book", "show", name)["result"]
    assert formula in result["steps"][-1]["formula"]
    (width,) = (row["value"] for row in result["inputs"] if row["name"] == "D")
    assert float(np.squeeze(result["answer"])) == times * width
