"""The engine over the mock executor: every answer is the one that a person computes."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import strategies as st
from tests.drawn import on_drawn
from tests.runtime.engine.mock import MockExecutor, mock_token
from tests.scheduling.drive import conserved

from shardwise.errors import BadRequest
from shardwise.runtime.engine import Engine, Sampling
from shardwise.scheduling import SchedulerConfig
from shardwise.scheduling.kept import KeptGroup, least_pages
from shardwise.scheduling.routing import ROUTINGS

VOCABULARY = 50


def answer_of(prompt, count, ends=()):
    """The tokens after a prompt, up to the first of `ends`."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(mock_token(tokens, VOCABULARY))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


def kept_groups(rows, batch, budget):
    """Groups of a draw of KEPT."""
    return tuple(
        KeptGroup(
            reach=reach,
            pages=least_pages(reach, batch, budget, 4) + more,
            host_pages=host,
            state=state,
        )
        for reach, more, host, state in rows
    )


def engine_of(
    ends=(),
    multi_step=1,
    ahead=True,
    pools=1,
    replicas=1,
    kept=(),
    prefilling=0,
    routing=None,
    **changes,
):
    values = {"pages": 24, "page_size": 4, "batch": 4, "budget": 12, "margin": 0.0, **changes}
    values["kept"] = kept_groups(kept, values["batch"], values["budget"])
    config = SchedulerConfig(**values)
    prefill = replace(config, policy="prefill", preemption="recompute", swap_pages=0)

    def executor():
        host = config.host_pages + config.swap_pages
        sizes = {"pages": config.pages, "page_size": 4, "batch": config.batch, "host_pages": host}
        return MockExecutor(**sizes, vocabulary=VOCABULARY, pools=pools, kept=config.kept)

    ticks = iter(range(10**9))
    return Engine(
        config,
        *(executor() for _ in range(replicas)),
        prefilling=[executor() for _ in range(prefilling)],
        prefill=prefill,
        routing=routing or "shortest_queue",
        end_ids=ends,
        multi_step=multi_step,
        ahead=ahead,
        clock=lambda: next(ticks),
        seed=0,
    )


def run(engine, most=5000):
    for _ in range(most):
        if engine.idle:
            return
        engine.step()
        engine.check()
    raise AssertionError("the engine never came to an end")


SETTINGS = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["interleaved", "chunked"]),
        "pages": st.integers(10, 24),
        "batch": st.integers(1, 6),
        "admission": st.sampled_from(["optimistic", "reserve", "forecast"]),
        "order": st.sampled_from(["fcfs", "priority"]),
        "host_pages": st.sampled_from([0, 6]),
        "prefix_cache": st.booleans(),
        "swap": st.sampled_from([0, 3, 30]),
        "multi_step": st.sampled_from([1, 4]),
        "ahead": st.booleans(),
        "pools": st.sampled_from([1, 1, 2]),
        "replicas": st.sampled_from([1, 1, 2]),
        "prefilling": st.sampled_from([0, 0, 1, 2]),
        "routing": st.sampled_from(ROUTINGS),
    }
)
WINDOWS = [(reach, more, host, False) for reach in (1, 3) for more in (0, 30) for host in (0, 40)]
STATES = [(1, more, host, True) for more in (0, 30) for host in (0, 40)]
KEPT = st.tuples(
    st.lists(st.sampled_from(WINDOWS), max_size=2), st.lists(st.sampled_from(STATES), max_size=1)
).map(lambda pair: (*pair[0], *pair[1]))
"""Groups of layers that keep only the end: reach, pages beyond the least, pages of the host."""


@on_drawn(250, SETTINGS, KEPT, st.integers(0, 10**6))
def test_answers_are_right_whatever_is_shared_moved_cancelled_or_stopped(values, kept, seed):
    swap = values.pop("swap")
    if swap:
        values |= {"preemption": "swap", "swap_pages": swap}
    draw = Random(seed)
    ends = (3, 4, 5)
    engine = engine_of(ends=ends, kept=kept, **values)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 24))] for _ in range(4)]
    asked = []
    for _ in range(draw.randint(1, 10)):
        prompt = [*draw.choice(prompts)[: draw.randint(1, 24)], draw.randrange(VOCABULARY)]
        before = draw.choice([g for g in asked if g.done] or [None])
        if before is not None and len(before.prompt) + len(before.tokens) < 30:
            prompt = [*before.prompt, *before.tokens, *prompt[-1:]]
        sampling = Sampling(
            temperature=0, max_tokens=draw.randint(1, 12), ignore_end=draw.random() < 0.3
        )
        answers = engine.add(
            prompt, sampling, answers=draw.choice([1, 1, 3]), priority=draw.randrange(3)
        )
        asked += answers
        for _ in range(draw.randint(0, 4)):
            engine.step()
            engine.check()
        if draw.random() < 0.2:
            engine.cancel(draw.choice(asked))
    run(engine)
    for generation in asked:
        if generation.refusal:
            assert generation.refusal == "cancelled" or "the cache has" in generation.refusal
            continue
        sampling = generation.sampling
        stops = () if sampling.ignore_end else ends
        right = answer_of(generation.prompt, generation.job.request.output, stops)
        assert generation.tokens == right
        assert generation.finish == ("stop" if right[-1] in stops else "length")
    for scheduler in (pool.scheduler for pool in engine.pools):
        assert scheduler.outstanding == scheduler.backlog == scheduler.cache.swapped == 0
        assert not scheduler.handed
        assert scheduler.pool.free + scheduler.tree.device == scheduler.config.pages
        assert scheduler.cache.kept is None or scheduler.cache.kept.check([]) is None


def test_a_second_turn_finds_prompt_and_answer_of_the_first():
    engine = engine_of()
    (first,) = engine.add(list(range(1, 15)), Sampling(temperature=0, max_tokens=10))
    run(engine)
    turn = [*first.prompt, *first.tokens, 9, 9]
    (second,) = engine.add(turn, Sampling(temperature=0, max_tokens=3))
    run(engine)
    assert second.cached_tokens == 20  # 23 tokens are cached: 14 of the prompt, 9 of the answer
    assert second.tokens == answer_of(turn, 3)


def test_three_answers_compute_their_prompt_once():
    engine = engine_of(prefix_cache=False)
    answers = engine.add(list(range(1, 11)), Sampling(temperature=0, max_tokens=5), answers=3)
    run(engine)
    assert [g.tokens for g in answers] == [answer_of(range(1, 11), 5)] * 3
    assert [g.job.prefilled for g in answers] == [10, 0, 0]
    assert all(conserved(g.job) for g in answers)


def test_a_stop_token_may_come_first_and_cannot_come_too_early():
    prompt = [2, 7]
    token = answer_of(prompt, 1)[0]
    for changes in ({}, {"policy": "interleaved"}):
        engine = engine_of(ends=[token], **changes)
        (at_once,) = engine.add(prompt, Sampling(temperature=0, max_tokens=9))
        (later,) = engine.add(prompt, Sampling(temperature=0, max_tokens=9, min_tokens=4))
        run(engine)
        assert (at_once.tokens, at_once.finish) == ([token], "stop")
        assert len(later.tokens) >= 4


@pytest.mark.parametrize("ahead", [False, True])
def test_logprobs_stand_beside_each_token(ahead):
    engine = engine_of(ahead=ahead)
    sampling = Sampling(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=1)
    (generation,) = engine.add([1, 2, 3, 4, 5, 6], sampling)
    run(engine)
    assert [entry.token for entry in generation.logprobs] == generation.tokens
    assert all(len(entry.top) == 2 for entry in generation.logprobs)
    assert [e.token for e in generation.prompt_logprobs] == [2, 3, 4, 5, 6]
    assert generation.cached_tokens == 0


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"temperature": -1}, "temperature is -1; it must be at least 0 and at most 100"),
        ({"top_p": 0}, "top_p is 0; it must be above 0 and at most 1"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        ({"logprobs": 21}, "logprobs is 21; it must be at least 0 and at most 20"),
        ({"logit_bias": ((7, 101),)}, "logit_bias of token 7 is 101"),
    ],
)
def test_bad_sampling_is_refused(values, text):
    with pytest.raises(BadRequest) as error:
        Sampling(**values)
    assert text in str(error.value)


def test_prompts_that_nobody_can_answer_are_refused():
    engine = engine_of()
    with pytest.raises(BadRequest, match="the prompt is empty; give at least 1 token"):
        engine.add([])
    with pytest.raises(BadRequest, match="has 96 tokens, and the model takes 96 in prompt"):
        engine.add(list(range(96)))
