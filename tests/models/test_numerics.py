"""What the forward pass reads from a config: rotations, scales, routing; why some cannot run."""

import json
import math

import pytest
from tests.models.cases import llama

from shardwise.errors import BadRequest
from shardwise.models import from_hf, load_model, params_total, zoo_names
from shardwise.models.numerics import Rope, Routing
from shardwise.models.numerics_table import numerics_rows
from shardwise.models.parameters import buffers
from shardwise.models.runnable import numerics_of, plain
from shardwise.models.zoo import DATA
from shardwise.runtime.names import checkpoint_names


def numerics(**changes):
    return numerics_of(from_hf({**llama(), **changes}, name="bent"))


def test_every_type_that_computes_has_names_in_checkpoints():
    assert set(numerics_rows()) == set(checkpoint_names())


def test_most_of_the_zoo_can_run():
    runnable = [name for name in zoo_names() if load_model(name).numerics is not None]
    assert len(runnable) >= 70
    for name in set(zoo_names()) - set(runnable):
        assert load_model(name).not_runnable, name


def test_old_and_new_spelling_of_rotations_agree():
    scaling = {"rope_type": "linear", "factor": 4.0}
    old = numerics(rope_theta=5e5, rope_scaling=scaling)
    new = numerics(rope_parameters={**scaling, "rope_theta": 5e5})
    assert old == new
    assert old.ropes[0].scaling == "linear"


def test_llama_3_1():
    (rope,) = load_model("llama-3.1-405b").numerics.ropes
    assert rope == Rope(
        dim=128,
        theta=5e5,
        scaling="llama3",
        factor=8.0,
        low=1.0,
        high=4.0,
        original_context=8192,
    )


def test_gemma():
    two = load_model("gemma-2-27b").numerics
    raw = {"architectures": ["Gemma3ForCausalLM"], "hidden_size": 64, "intermediate_size": 96}
    three = from_hf({**raw, "num_hidden_layers": 8, "sliding_window": 16}, name="g").numerics
    assert (two.attention_softcap, two.logits_softcap) == (50.0, 30.0)
    assert two.attention_scale == pytest.approx(144**-0.5)
    assert two.embedding_scale == pytest.approx(math.sqrt(4608))
    assert [r.theta for r in three.ropes] == [1e6, 1e4]
    assert three.rope_pattern[:6] == (1, 1, 1, 1, 1, 0)


def test_deepseek_v3():
    n = load_model("deepseek-v3").numerics
    assert n.routing == Routing(
        scoring="sigmoid",
        normalise=True,
        scale=2.5,
        groups=8,
        top_groups=4,
        group_score="two_best",
        correction=True,
    )
    # YaRN by 40: scores grow by (0.1 ln 40 + 1)^2, cosine and sine by nothing.
    assert n.attention_scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert n.ropes[0].attention_factor == 1.0


def test_buffers_are_in_no_count():
    cfg = load_model("deepseek-v3")
    (row,) = buffers(cfg)
    assert (row.dims, row.layers) == ((("E", 256),), 58)
    assert params_total(cfg) == 671_026_404_352
    assert buffers(load_model("llama-3-8b")) == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'; default, linear"),
        ({"rope_scaling": {"type": "linear"}}, "factor of the rotation is None"),
        ({"rope_scaling": {"mrope_section": [1, 1, 2]}}, "several dims .mrope."),
        ({"hidden_act": "xielu"}, "hidden_act is 'xielu'; known: silu"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
    ],
)
def test_what_no_rule_covers_is_counted_but_not_run(changes, why):
    cfg = from_hf({**llama(), **changes}, name="bent")
    assert params_total(cfg) == params_total(from_hf(llama(), name="bent"))
    with pytest.raises(BadRequest, match=f"model 'bent' cannot be run: .*{why}"):
        numerics_of(cfg)


def test_plain_numerics_follow_the_shape():
    cfg = load_model("gpt2")
    n = plain(cfg)
    assert (n.norm, n.activation, n.ropes) == ("layer", "gelu", (None,))
    assert plain(load_model("llama-3-8b")).ropes[0].dim == 128


def test_numerics_are_in_the_zoo_files():
    held = json.loads((DATA / "llama-3-8b.json").read_text(encoding="utf-8"))
    assert held["config"]["rope_theta"] == 500000.0
