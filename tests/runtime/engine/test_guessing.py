"""Guesses change how many tokens a step brings, and no token."""

import json
from random import Random

import jax
import jax.numpy as jnp
import pytest
from tests.runtime import goldens
from tests.runtime.engine.mock import MockExecutor
from tests.runtime.engine.test_mock import run
from tests.tiers import spread

from shardwise.errors import BadRequest
from shardwise.models.kv import cache_groups
from shardwise.plans.serve import ServeScheduling
from shardwise.runtime import load
from shardwise.runtime.engine import Engine, Sampling
from shardwise.runtime.engine.model_executor import DraftModel, ModelExecutor
from shardwise.runtime.engine.opening import EngineSettings, open_engine
from shardwise.scheduling import SchedulerConfig
from shardwise.scheduling.forecast import pages_for

GREEDY = Sampling(temperature=0, max_tokens=12)


def of_mock(lookahead, *, vocabulary=3, **changes):
    values = {"pages": 24, "page_size": 4, "batch": 4, "margin": 0.0, **changes}
    config = SchedulerConfig(budget=24, lookahead=lookahead, **values)
    executor = MockExecutor(
        pages=config.pages,
        page_size=4,
        batch=config.batch,
        vocabulary=vocabulary,
        host_pages=config.host_pages + config.swap_pages,
    )
    return Engine(config, executor, seed=0, end_ids=(2,))


@pytest.mark.parametrize("seed", range(12))
def test_answers_are_those_without_guesses_whatever_is_shared_or_preempted(seed):
    draw = Random(seed)
    changes = draw.choice([{}, {"preemption": "swap", "swap_pages": 30}, {"pages": 14}])
    asked = [
        (
            [draw.randrange(3) for _ in range(draw.randint(1, 20))],
            Sampling(
                temperature=0,
                max_tokens=draw.randint(1, 24),
                ignore_end=draw.random() < 0.6,
                min_tokens=0,
                presence_penalty=draw.choice([0, 0, 0.5]),
                logprobs=draw.choice([None, 2]),
            ),
            draw.choice([1, 1, 3]),
        )
        for _ in range(10)
    ]

    def answers(lookahead):
        engine = of_mock(lookahead, **changes)
        records = []
        engine.observers.append(records.append)
        found = []
        for prompt, sampling, count in asked:
            found += engine.add(prompt, sampling, answers=count)
            engine.step()
            engine.check()
        run(engine)
        assert all(g.sampling.logprobs is None or len(g.logprobs) == len(g.tokens) for g in found)
        return [(g.tokens, g.finish) for g in found], records

    plain, steps = answers(0)
    guessed, fewer = answers(3)
    assert guessed == plain
    held = sum(record.accepted for record in fewer)
    assert 0 < held < sum(record.guessed for record in fewer)
    assert len(fewer) < len(steps)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    cfg = goldens.config("llama")
    goldens.write_checkpoint(cfg, folder)
    return cfg, load(folder, cfg)


def of_model(model, lookahead, draft=None):
    cfg, params = model
    config = SchedulerConfig(
        pages=48, page_size=4, batch=2, budget=12, margin=0.0, lookahead=lookahead
    )
    executor = ModelExecutor(
        params,
        cfg,
        groups=cache_groups(cfg, 60),
        pages=(48,),
        page_size=4,
        table_width=pages_for(60 + lookahead, 4),
        batch=2,
        budget=12,
        dtype=jnp.float32,
        lookahead=lookahead,
        draft=draft,
    )
    drafted = draft is not None
    return Engine(config, executor, most_tokens=60, drafted=drafted, seed=0), executor


def drafts(model):
    """One that always agrees, and one that is another model."""
    cfg, params = model
    other = jax.tree.map(lambda w: w + 0.02 * jnp.cos(jnp.arange(w.size)).reshape(w.shape), params)
    return {"same": DraftModel(params, cfg), "other": DraftModel(other, cfg)}


PROMPTS = [[5, 9, 2, 7, 5, 9, 2, 7, 5, 9], [1, 3], [4] * 17]


def said(engine):
    records = []
    engine.observers.append(records.append)
    found = [engine.add(p, GREEDY)[0] for p in PROMPTS]
    drawn = [Sampling(temperature=1.0, seed=seed, max_tokens=12) for seed in range(len(PROMPTS))]
    found += [engine.add(p, sampling)[0] for p, sampling in zip(PROMPTS, drawn, strict=True)]
    run(engine)
    return [g.tokens for g in found], records


@pytest.fixture(scope="module")
def plain(model):
    return said(of_model(model, 0)[0])[0]


@pytest.mark.slow
def test_n_grams_change_no_token_of_a_model(model, plain):
    tokens, records = said(of_model(model, 3)[0])
    assert tokens == plain
    assert sum(record.guessed for record in records) > 0


@pytest.mark.long
def test_guesses_compile_nothing_after_warm_up(model):
    engine, executor = of_model(model, 3)
    for _ in executor.warm():
        pass
    warm = executor.programs
    said(engine)
    assert executor.programs == warm


@pytest.mark.parametrize("kind", spread(["other", "same"], quick=0, slow=1))
def test_a_draft_model_changes_no_token_greedy_or_drawn(model, plain, kind):
    tokens, records = said(of_model(model, 3, drafts(model)[kind])[0])
    assert tokens == plain
    guessed, held = (sum(getattr(r, n) for r in records) for n in ("guessed", "accepted"))
    if kind == "same":
        assert held > 0.6 * guessed  # the last guesses of an answer go beyond its end
    else:
        assert 0 < held < guessed


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("gemma3", {"guesses": 2}, "serve it without guesses"),
        ("llama", {"draft": True}, "--guesses 3"),
    ],
)
def test_what_cannot_be_checked_is_refused(tmp_path, name, settings, says):
    goldens.write_checkpoint(goldens.config(name), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(goldens.document(name)["config"]))
    scheduling = ServeScheduling(page_size=4, guesses=settings.get("guesses", 0))
    draft = tmp_path if "draft" in settings else None
    with pytest.raises(BadRequest, match=says):
        open_engine(tmp_path, EngineSettings(scheduling=scheduling, draft=draft, pages=64))
