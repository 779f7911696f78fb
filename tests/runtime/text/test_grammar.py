"""Forms of answers: what may come next, what ends them, and what cannot be read."""

import json
from random import Random

import numpy as np
import pytest
from tests.apps.server.made import folder_of
from tests.runtime.engine.mock import MockExecutor

from shardwise.errors import BadRequest
from shardwise.runtime.engine import Engine, Sampling
from shardwise.runtime.text.model_text import read_model_text
from shardwise.scheduling import SchedulerConfig

POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 99},
        "name": {"enum": ["on", "off"]},
    },
    "required": ["x", "name"],
    "additionalProperties": False,
}

EXPLODING = {
    "allOf": [
        {"anyOf": [{"properties": {f"{side}{i}": {"type": "string"}}} for side in "ab"]}
        for i in range(16)
    ]
}
"""2^16 combinations."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return read_model_text(folder_of(tmp_path_factory.mktemp("checkpoint")))


def walk(text, constraint, seed, most=400):
    """Tokens drawn from what is allowed until nothing is."""
    draw, tokens = Random(seed), []
    while not constraint.done and len(tokens) < most:
        bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
        token = draw.choice(bits.nonzero()[0].tolist())
        if token in text.end_ids:
            break
        assert constraint.take(token) == ""
        tokens.append(token)
    return text.decode(tokens)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_drawn_keeps_the_schema(text, seed):
    found = json.loads(walk(text, text.grammars.constraint("json_schema", POINT), seed))
    assert found.keys() == POINT["properties"].keys()
    assert 0 <= found["x"] <= 99
    assert found["name"] in ("on", "off")


@pytest.mark.parametrize("seed", range(4))
def test_patterns_and_choices(text, seed):
    assert len(walk(text, text.grammars.constraint("regex", "[a-c]{3}"), seed)) == 3
    words = ["yes.", "no (never)", "a|b"]
    assert walk(text, text.grammars.constraint("choice", words), seed) in words


def test_a_fresh_constraint_goes_its_own_way(text):
    first = text.grammars.constraint("choice", ["ab", "cd"])
    second = first.fresh()
    assert first.take(text.encode("c", special=False)[0]) == ""
    assert second.take(text.encode("a", special=False)[0]) == ""
    assert "satisfy" in first.take(text.encode("a", special=False)[0])


def test_an_end_id_that_is_text_comes_where_the_form_is_complete_alone(tmp_path):
    """As where a folder's ids disagree with its tokenizer: else an answer ends inside a string."""
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [76, 9999]}))
    text = read_model_text(folder_of(tmp_path))
    letter = text.decode([76])
    assert text.end_ids == {76, 9999, 1}
    assert text.spelt_ends == [f"76 ('{letter}')"]
    constraint = text.grammars.constraint("regex", '"[a-z]{2}"[a-z]*')

    def allowed():
        bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
        return set(bits.nonzero()[0].tolist())

    def take(string):
        for token in text.encode(string, special=False):
            assert constraint.take(token) == ""

    take('"a')
    assert text.encode("b", special=False)[0] in allowed()
    assert not text.end_ids & allowed()
    take('b"')
    assert {1, 76} <= allowed()
    assert json.loads(walk(text, text.grammars.constraint("json_schema", POINT), 3))


@pytest.mark.parametrize("wanted", ["aib", "ai", "ii", "(i, i)"])
@pytest.mark.parametrize("changes", [{}, {"min_tokens": 9}, {"ignore_end": True}])
def test_an_end_id_that_is_text_is_text_where_a_form_goes_on_with_nothing_else(
    tmp_path, wanted, changes
):
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 76}))
    text = read_model_text(folder_of(tmp_path))
    assert text.decode([76]) == "i"
    executor = MockExecutor(pages=8, page_size=4, batch=2, vocabulary=text.vocabulary)
    config = SchedulerConfig(pages=8, page_size=4, batch=2, budget=8, margin=0.0)
    engine = Engine(config, executor, end_ids=text.end_ids)
    form = text.grammars.constraint("choice", [wanted])
    (generation,) = engine.add([1], Sampling(form=form, **changes))
    while not engine.idle:
        engine.step()
    assert (generation.finish, generation.refusal) == ("stop", "")
    assert text.decode(generation.tokens) == wanted


@pytest.mark.parametrize(
    ("form", "what", "says"),
    [
        ("json_schema", {"type": "nonsense"}, "nonsense"),
        ("json_schema", {"$ref": "#/nowhere"}, "nowhere"),
        ("json_schema", "{", "json_schema"),
        ("json_schema", {"not": {"type": "string"}}, "not"),
        ("regex", "(", "unclosed"),
        ("regex", "", "empty"),
        ("regex", "a" * 70_000, "characters"),
        ("json_schema", EXPLODING, "too large"),
    ],
)
def test_what_cannot_be_read_or_explodes_is_refused(text, form, what, says):
    with pytest.raises(BadRequest, match=form) as found:
        text.grammars.constraint(form, what)
    assert says in str(found.value)
    assert len(str(found.value)) < 500


def test_answers_in_a_form_are_the_same_whatever_else_runs(text):
    form = text.grammars.constraint("json_schema", POINT)

    def answers(batch, others, **changes):
        config = SchedulerConfig(
            pages=24, page_size=4, batch=batch, budget=16, margin=0.0, **changes
        )
        executor = MockExecutor(pages=24, page_size=4, batch=batch, vocabulary=text.vocabulary)
        engine = Engine(config, executor, end_ids=text.end_ids, seed=0, multi_step=4)
        found = [
            engine.add([5, i], Sampling(max_tokens=60, form=form), answers=2)[i % 2]
            for i in range(3)
        ]
        for i in range(others):
            engine.add([9, i], Sampling(max_tokens=30))
        while not engine.idle:
            engine.step()
        return [(g.tokens, g.finish) for g in found]

    alone = answers(1, 0)
    assert alone == answers(8, 5)  # 24 pages do not hold 11 sequences: some are preempted
    for tokens, finish in alone:
        assert finish == "stop"
        json.loads(text.decode(tokens))


def test_a_form_that_bans_contradict_ends_with_the_reason(text):
    form = text.grammars.constraint("choice", ["a"])
    banned = tuple((token,) for token in range(text.vocabulary))
    executor = MockExecutor(pages=8, page_size=4, batch=2, vocabulary=text.vocabulary)
    engine = Engine(SchedulerConfig(pages=8, page_size=4, batch=2, budget=8, margin=0.0), executor)
    wrong = form.fresh()
    assert wrong.take(text.encode("b", special=False)[0])
    (generation,) = engine.add([1], Sampling(form=wrong, banned=banned))
    while not engine.idle:
        engine.step()
    assert generation.finish == "abort"
    assert "form" in generation.refusal
