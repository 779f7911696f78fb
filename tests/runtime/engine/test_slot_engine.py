"""Prefill, insert, generate, free and extract: tokens as a person computes them, and a model's."""

import json

import jax.numpy as jnp
import pytest
from tests.runtime import goldens
from tests.runtime.engine.mock import MockExecutor, mock_token

from shardwise.errors import BadRequest
from shardwise.runtime import generate, load
from shardwise.runtime.engine import Prefix, SlotEngine
from shardwise.runtime.engine.opening import open_slots
from shardwise.scheduling.kept import KeptGroup

KEPT = (KeptGroup(reach=1, pages=20), KeptGroup(reach=1, pages=20, state=True))


def mocked(slots=3, kept=KEPT, budget=6):
    executor = MockExecutor(
        pages=5 * (slots + 1), page_size=4, batch=slots + 1, vocabulary=50, kept=kept
    )
    return SlotEngine(
        executor, slots=slots, pages=5, page_size=4, groups=1 + len(kept), budget=budget
    )


def right(prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(mock_token(tokens, 50))
    return tokens[len(prompt) :]


def told(engine, prefixes, count):
    """The first tokens of sequences in slots 0, 1, ... and those of `count` steps."""
    answers = {slot: [prefix.generation.tokens[-1]] for slot, prefix in enumerate(prefixes)}
    for slot, prefix in enumerate(prefixes):
        engine.insert(prefix, slot)
    for _ in range(count):
        for slot, token in engine.generate().items():
            answers[slot].append(token)
    return list(answers.values())


@pytest.mark.parametrize("kept", [(), KEPT])
def test_sequences_of_any_length_go_on_side_by_side(kept):
    engine = mocked(kept=kept)
    prompts = [[7], [3, 1, 4, 1, 5, 9, 2], list(range(13))]
    found = told(engine, [engine.prefill(prompt) for prompt in prompts], 5)
    assert found == [right(prompt, 6) for prompt in prompts]


def test_a_freed_slot_takes_another_and_one_prefix_answers_twice():
    engine = mocked()
    prompt = [1, 2, 3, 4, 5]
    prefix = engine.prefill(prompt)
    engine.insert(prefix, 0)
    engine.generate()
    engine.insert(prefix, 1)
    assert engine.generate() == {0: right(prompt, 3)[-1], 1: right(prompt, 2)[-1]}
    engine.free(0)
    engine.insert(engine.prefill([9, 9]), 0)
    assert engine.generate() == {0: right([9, 9], 2)[-1], 1: right(prompt, 3)[-1]}


@pytest.mark.parametrize("steps", [0, 3])
def test_what_is_extracted_goes_on_elsewhere_and_where_it_was(steps):
    """Before its first step, too, when its pages are still to be written."""
    one, other, prompt = mocked(), mocked(), [5, 4, 3, 2, 1, 0]
    one.insert(one.prefill(prompt), 2)
    for _ in range(steps):
        one.generate()
    other.insert(one.extract(2), 1)
    wanted = right(prompt, steps + 2)[-1]
    assert one.generate() == {2: wanted}
    assert other.generate() == {1: wanted}


def test_what_cannot_be_is_refused():
    engine = mocked()
    for prompt in ([], [1] * 20):
        with pytest.raises(BadRequest, match="a slot holds 1 to 19"):
            engine.prefill(prompt)
    prefix = engine.prefill([1] * 19)
    engine.insert(prefix, 0)
    for slot in (0, 3, -1):
        with pytest.raises(BadRequest, match=f"slot {slot} is in use or not one of 3"):
            engine.insert(prefix, slot)
    for verb in (engine.free, engine.extract):
        with pytest.raises(BadRequest, match="slot 1 holds no sequence"):
            verb(1)
    assert engine.generate() == {0: right([1] * 19, 2)[-1]}
    with pytest.raises(BadRequest, match="slot 0 is full at 20 tokens"):
        engine.generate()
    engine.free(0)
    assert engine.generate() == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mistral", "gpt-oss", "lfm2"])
def test_a_model_s_tokens_are_those_of_its_contiguous_cache(name, tmp_path):
    cfg = goldens.config(name)
    goldens.write_checkpoint(cfg, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(goldens.document(name)["config"]))
    params = load(tmp_path, cfg)
    engine = open_slots(tmp_path, slots=3, longest=32, page_size=4, budget=8)
    prompts = [[1, 2, 3, 4, 5], list(range(6, 19)), [7]]
    found = told(engine, [engine.prefill(prompt) for prompt in prompts], 4)
    for prompt, tokens in zip(prompts, found, strict=True):
        whole = generate(params, jnp.array([prompt]), cfg, 5, cache_dtype=jnp.float32)
        assert tokens == whole[0].tolist()
    moved: Prefix = engine.extract(1)
    engine.free(0)
    engine.insert(moved, 0)
    again = engine.generate()
    assert again[0] == again[1]
