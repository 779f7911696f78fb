"""Cures that change how a function is called: which findings have one, and what is called."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from shardwise.commands.program.explain import ExplainRequest
from shardwise.commands.program.trying import WITHIN, tried, tried_page
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.hardware import parse_slice
from shardwise.profiler.ahead.cured import cured_program
from shardwise.profiler.explain import explain_program
from shardwise.sharding import Mesh

TESTS = Path(__file__).parents[2]
OLDER = TESTS / "profiler/explain/data"
INDEX = json.loads((OLDER / "index.json").read_text())


def of_corpus(name, on="v5e:2x4", mesh="data=4,tensor=2"):
    with gzip.open(TESTS / f"explain/corpus/data/{name}.fault.hlo.gz", "rt") as file:
        return explain_program(file.read(), parse_slice(on), Mesh.parse(mesh))


def older(label):
    row = INDEX[label]
    with gzip.open(OLDER / f"{label}.hlo.gz", "rt") as file:
        mesh = Mesh(tuple(row["mesh"].items()))
        return explain_program(file.read(), parse_slice(row["on"]), mesh)


def test_a_state_that_comes_back_is_given_away():
    (cure,) = of_corpus("undonated_state").cures
    assert (cure.finding.rule, cure.donate, cure.specs) == ("undonated state", ("state",), {})
    assert cure.text == "donate_argnames=('state',)"


def test_gathered_weights_are_cut_along_the_other_dim():
    explanation = older("gather_in_decode.a.fault")
    (cure,) = (c for c in explanation.cures if c.finding.rule == "gathered weights")
    before = {a.name: a.cuts for a in explanation.arguments}
    assert cure.specs
    assert before["w['up']"] == ((), ("data",), ("tensor",))
    assert cure.specs["w['up']"] == ((), (), ("tensor", "data"))
    assert cure.text.startswith("w['down']: P(None, ('tensor', 'data'), None)")


def test_a_cache_cut_along_its_tokens_is_cut_by_heads():
    explanation = of_corpus("sequence_cut_cache")
    (cure,) = (c for c in explanation.cures if "tokens" in c.finding.rule)
    before = {a.name: a.cuts for a in explanation.arguments}
    assert all(spec[-2] and not before[name][-2] for name, spec in cure.specs.items())


@pytest.mark.parametrize("rule", ["unsharded_embedding", "replicated_optimizer"])
def test_what_lies_whole_is_cut(rule):
    explanation = older(f"{rule}.a.fault")
    before = {a.name: a for a in explanation.arguments}
    specs = {name: spec for cure in explanation.cures for name, spec in cure.specs.items()}
    assert specs
    for name, spec in specs.items():
        added = {x for axes in spec for x in axes} - before[name].axes
        assert added
        assert added <= set(before[name].copies)


def test_what_is_cured_within_the_function_has_none():
    explanation = of_corpus("there_and_back")
    assert explanation.findings
    assert explanation.cures == ()
    rows = tried(SimpleNamespace(), explanation, None)
    assert {(row.change, row.saves, row.failed) for row in rows} == {("", 0.0, WITHIN)}
    assert "not tried: ping-pong" in "\n".join(map(str, tried_page(rows)))


def test_a_cure_is_told_by_what_its_compile_saves():
    explanation = of_corpus("undonated_state")
    program = SimpleNamespace(compiled=SimpleNamespace(needed_bytes=7e9))
    cured = SimpleNamespace(compiled=SimpleNamespace(needed_bytes=4e9))
    step = explanation.timeline.expected
    rows = tried(program, explanation, lambda cure: (cured, step / 2))
    (row,) = (r for r in rows if r.change)
    assert (row.saves, row.frees, row.failed) == (step / 2, 3e9, "")
    assert "undonated state: donate_argnames=('state',)" in "\n".join(map(str, tried_page(rows)))

    def refused(cure):
        raise ShardwiseError("out of memory")

    assert [r.failed for r in tried(program, explanation, refused) if r.change] == ["out of memory"]


MODULE = """import jax, jax.numpy as jnp
@jax.jit
def step(state, batch):
    return {k: v + batch["x"].sum() for k, v in state.items()}
def args(mesh):
    array = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    return ({"w": array, "m": array},), {"batch": {"x": array}}
"""


def test_a_function_is_called_with_its_cure(tmp_path, monkeypatch):
    (tmp_path / "called_with_cure.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    specs = {"state['w']": [[], ["x"]], "batch['x']": [["x"], []]}
    words = ("called_with_cure:step", "called_with_cure:args", {"x": 1})
    made = cured_program(jax.devices()[:1], *words, ["state"], specs)
    (state,), given = made.arguments
    assert state["w"].sharding.spec == jax.P(None, "x")
    assert state["m"].sharding.spec == jax.P()
    assert given["batch"]["x"].sharding.spec == jax.P("x", None)
    assert state["w"].dtype == jnp.float32
    traced = made.function.trace((state,), given)
    (in_state,), in_words = traced.args_info
    assert all(leaf.donated for leaf in jax.tree.leaves(in_state))
    assert not in_words["batch"]["x"].donated
    assert "state['w']" in made.function.lower((state,), given).as_text(debug_info=True)


def test_only_a_function_that_is_named_is_called_otherwise():
    with pytest.raises(BadRequest, match=r"--try calls a function of yours; give one as MODULE:"):
        ExplainRequest(what="plan.yaml", try_=True).answer()
