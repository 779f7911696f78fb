"""Steps in parts: the same tokens, sooner; the programs of whole steps come behind."""

import sys
import time
from pathlib import Path
from threading import Event

import jax
import pytest
from tests.runtime.engine.test_model import (
    GREEDY,
    KINDS_OF_REQUESTS,
    Model,
    compiled,
    llama,
    of_each,
    run,
)

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))

from llama_folder import SHAPES, write_llama

from shardwise.models import load_model
from shardwise.runtime.engine import Sampling, model_executor, step_parts
from shardwise.runtime.engine.compiling import OFTEN, BackgroundCompiler
from shardwise.runtime.engine.opening import EngineSettings, open_engine
from shardwise.runtime.engine.sampling import TOKEN_ALONE
from shardwise.runtime.engine.step_parts import few_rows, in_parts
from shardwise.runtime.engine.step_shapes import StepShapes

__all__ = ["compiled", "llama"]


@pytest.fixture
def parted(monkeypatch):
    """Makes every model have layers enough."""
    monkeypatch.setattr(step_parts, "FEWEST", 0)


def answers(engine, asked):
    made = []
    for sampling, prompt in asked:
        made += engine.add(prompt, sampling)
        engine.step()
    run(engine)
    return [(g.tokens, g.logprobs, g.prompt_logprobs) for g in made]


def asked_of(model, kinds):
    prompts = model.prompts(5, 21, 12, 33, 1)
    return [(Sampling(**{**GREEDY, **k}), prompts[n % 5]) for n, k in enumerate(kinds)]


@of_each(["llama", "gpt-oss", "lfm2", "qwen3-next"], slow=3)
def test_parts_say_what_the_whole_says(name, tmp_path, parted, monkeypatch):
    """What rows may ask for besides tokens does not depend on the model's layers: all kinds are
    asked of the first, and of the others each token's logprobs."""
    model = Model(name, tmp_path)
    each = {"logprobs": 3, "prompt_logprobs": 3}
    kinds = KINDS_OF_REQUESTS if name == "llama" else [each] * len(KINDS_OF_REQUESTS)
    asked = asked_of(model, kinds)
    monkeypatch.setattr(BackgroundCompiler, "want", lambda *_: None)
    engine = model.engine()
    found = answers(engine, asked)
    assert engine.replicas[0].executor.programs == 0
    monkeypatch.setattr(step_parts, "FEWEST", 10**6)
    whole = model.engine()
    for (tokens, *reports), (right, *said) in zip(found, answers(whole, asked), strict=True):
        assert tokens == right
        for report, other in zip(reports, said, strict=True):
            assert [one.token for one in report] == [one.token for one in other]
            logprobs = [[one.logprob for one in r] for r in (report, other)]
            assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    assert whole.replicas[0].executor.programs > 0


def test_guesses_are_checked_in_parts(llama, parted, monkeypatch):
    monkeypatch.setattr(BackgroundCompiler, "want", lambda *_: None)
    (prompt,) = llama.prompts(12)
    engine = llama.engine()
    (plain,) = engine.add(prompt * 2, Sampling(**GREEDY))
    run(engine)
    assert plain.tokens == llama.right(prompt * 2, 6)


def test_the_whole_comes_behind_and_takes_over(llama, parted, monkeypatch):
    hold = Event()
    engine = llama.engine()
    executor = engine.replicas[0].executor
    monkeypatch.setattr("shardwise.runtime.engine.compiling.QUIET", 0.0)
    make = executor.compiler._make
    executor.compiler._make = lambda key: hold.wait(60) and make(key)
    asked = [(Sampling(**{**GREEDY, "max_tokens": 20}), llama.prompts(5)[0])]
    first = answers(engine, asked)
    assert executor.programs == 0
    assert executor.compiler.busy
    hold.set()
    end = time.monotonic() + 120
    while executor.compiler.busy and time.monotonic() < end:
        time.sleep(0.02)
    assert executor.programs > 0
    assert (2, 0, 1) in {key[:3] for key in executor._compiled}
    monkeypatch.setattr(
        "shardwise.runtime.engine.model_executor.run_in_parts", lambda *_: pytest.fail("in parts")
    )
    inputs = executor._nobody((2, 0, 1, TOKEN_ALONE))
    executor.launch(inputs, TOKEN_ALONE, 1)  # of its own program
    assert first[0][0] == llama.right(llama.prompts(5)[0], 20)


@pytest.mark.slow
def test_what_comes_before_a_first_token_does_not_grow_with_layers(tmp_path, compiled, monkeypatch):
    monkeypatch.setattr(BackgroundCompiler, "want", lambda *_: None)
    counts = []
    for layers in (6, 12):
        monkeypatch.setitem(SHAPES, "own", (64, 160, layers, 4, 2, 512))
        folder = write_llama(tmp_path / str(layers), "own")
        engine = open_engine(folder, EngineSettings(batch=4, budget=32, most_tokens=64))
        jax.clear_caches()
        compiled.clear()
        engine.add([5] * 20, Sampling(**GREEDY))
        run(engine)
        counts.append(len(compiled))
    assert counts[0] == counts[1] <= 9


def test_a_model_of_few_layers_is_compiled_whole(llama):
    assert not in_parts(llama.cfg)
    assert in_parts(load_model("llama-3-8b"))


def test_shapes_of_parts_are_few():
    shapes = StepShapes(pools=1, batch=32, budget=512, groups=1, table_width=64)
    found = {shapes.few(D, T) for D, T, _ in shapes.all()}
    assert len(found) <= 14 < len(list(shapes.all()))
    for D, T, _ in shapes.all():
        most_D, most_T = shapes.few(D, T)
        assert most_D >= D
        assert T <= most_T <= max(4 * T, 64 * (T > 0))
        assert (most_D == 0) == (D == 0)
    assert {few_rows(n) for n in range(1, 65)} == {8, 64}


def test_the_most_wanted_comes_first_and_a_failure_is_no_end(caplog):
    made, order, go = {}, [], Event()

    def make(key):
        go.wait(20)
        order.append(key)
        if key == "broken":
            raise ValueError(key)
        return key

    compiler = BackgroundCompiler(make, made)
    for key, count in (("first", OFTEN), ("seldom", 1), ("often", 9), ("broken", 5)):
        for _ in range(count):
            compiler.want(key)
    go.set()
    end = time.monotonic() + 20
    while compiler.busy and time.monotonic() < end:
        time.sleep(0.01)
    assert order == ["first", "often", "broken"]
    assert made == {"first": "first", "often": "often"}
    assert "is not compiled" in caplog.text
    compiler.want("broken")
    assert not compiler.busy


def test_nothing_is_compiled_beside_what_a_step_waits_for():
    compiler = BackgroundCompiler(lambda key: key, {})
    compiler.waited()
    for _ in range(OFTEN):
        compiler.want("a")
    assert not compiler.busy


def test_two_programs_are_compiled_at_once_while_the_server_warms_up(llama, monkeypatch):
    """The first waits for a second one to begin, which one after another it would never."""
    executor = llama.engine(batch=2, budget=8).replicas[0].executor
    begun, second = [], Event()

    def made(key):
        begun.append(key)
        if len(begun) > 1:
            second.set()
        assert second.wait(60)
        return executor._jitted(key)

    monkeypatch.setattr(executor, "_ready", made)
    monkeypatch.setattr(model_executor, "places_for", lambda size: 2)
    warming = executor.warm()
    assert next(warming) == executor.shapes.programs()[0]
    warming.close()
