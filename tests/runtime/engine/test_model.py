"""The engine on tiny models: its answers are those of the contiguous cache, however made."""

from dataclasses import replace
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime import goldens
from tests.tiers import spread

from shardwise.models.kv import cache_groups
from shardwise.runtime import forward, generate, load
from shardwise.runtime.engine import Engine, Sampling
from shardwise.runtime.engine.cache_room import kept_groups
from shardwise.runtime.engine.model_executor import ModelExecutor
from shardwise.runtime.engine.model_step import jitted_step
from shardwise.scheduling import SchedulerConfig

STATES = ["lfm2", "qwen3-next"]
KINDS = ["llama", "lfm2", "gpt-oss", "qwen3-next"]
FAMILIES = [*KINDS, "gemma3", "mistral", "qwen3-moe", "deepseek-v3", "mixtral", "cohere2", "opt"]


def of_each(names, quick=1, slow=1):
    """Of the first by default, of one more when slow. Lists that begin alike put the tests of a
    model next to each other, for which its programs are compiled once."""
    return pytest.mark.parametrize("name", spread(names, quick, slow), scope="module")


MOST, SHORT, LONG = 62, 6, 40
"""Tokens of a sequence here, and of answers."""
PAGES, BUDGET = 48, 16
"""Of the device, whatever an engine may use of it, so that engines share their programs."""
GREEDY = {"temperature": 0, "max_tokens": 6}


class Model:
    """A tiny model, engines over it, and what it says without one."""

    def __init__(self, name, folder):
        self.cfg = goldens.config(name)
        goldens.write_checkpoint(self.cfg, folder)
        self.params = load(folder, self.cfg)
        self._right = {}

    def engine(self, *, dtype=jnp.float32, multi_step=1, ahead=True, **changes):
        values = {
            "pages": PAGES,
            "page_size": 4,
            "batch": 4,
            "budget": BUDGET,
            "margin": 0.0,
            **changes,
        }
        groups = cache_groups(self.cfg, 60)
        room = kept_groups(groups, 4, BUDGET, 4, prefix_cache=True)
        kept = tuple(replace(group, host_pages=values.get("swap_pages", 0)) for group in room)
        config = SchedulerConfig(**values, kept=kept)
        executor = ModelExecutor(
            self.params,
            self.cfg,
            groups=groups,
            pages=(PAGES, *(group.pages for group in kept)),
            page_size=4,
            table_width=15,
            batch=config.batch,
            budget=config.budget,
            dtype=dtype,
            host_pages=(config.host_pages + config.swap_pages, *(g.host_pages for g in kept)),
            multi_step=multi_step,
        )
        return Engine(config, executor, most_tokens=60, multi_step=multi_step, ahead=ahead, seed=0)

    def right(self, prompt, count, dtype=jnp.float32):
        """What the contiguous cache says, by one program for short answers to prompts of any
        length, and one for long ones."""
        new = SHORT if count <= SHORT else LONG
        key = (tuple(prompt), new, str(dtype))
        if key not in self._right:
            padding = [0] * (MOST - new - len(prompt))
            tokens = jnp.asarray([[*prompt, *padding]], jnp.int32)
            lengths = jnp.asarray([len(prompt)], jnp.int32)
            options = {"lengths_B": lengths, "cache_dtype": dtype}
            row = generate(self.params, tokens, self.cfg, new, **options)[0]
            self._right[key] = row.tolist()
        return self._right[key][:count]

    def prompts(self, *lengths):
        draw = Random(1)
        return [[draw.randrange(self.cfg.vocabulary) for _ in range(n)] for n in lengths]


@pytest.fixture(scope="module")
def model(name, tmp_path_factory):
    return Model(name, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return Model("llama", tmp_path_factory.mktemp("llama"))


def run(engine):
    for _ in range(2000):
        if engine.idle:
            return
        engine.step()
    raise AssertionError("the engine never came to an end")


@of_each(FAMILIES, slow=[1, 2])
def test_paged_is_contiguous_mixed_chunked_hit_and_forked(model):
    """Prompts in chunks beside others that decode; a second turn that finds the first; answers
    that share a prompt; a pool so small that sequences are preempted."""
    prompts = model.prompts(5, 21, 12, 33)
    engine = model.engine(pages=26)
    asked = []
    for prompt in prompts:
        asked += engine.add(prompt, Sampling(**GREEDY), answers=2 if len(prompt) == 12 else 1)
        engine.step()
    run(engine)
    turn = [*prompts[1], *asked[1].tokens, 7]
    (second,) = engine.add(turn, Sampling(**GREEDY))
    run(engine)
    assert second.cached_tokens == 24
    for generation in (*asked, second):
        assert generation.tokens == model.right(generation.prompt, 6)
    engine.check()


def test_a_pool_smaller_than_the_longest_sequence_answers(llama):
    """Its tables are narrower than those of the programs."""
    engine = llama.engine(pages=8)
    assert engine.most_tokens == 32
    prompts = llama.prompts(5, 21)
    asked = [engine.add(prompt, Sampling(**GREEDY))[0] for prompt in prompts]
    run(engine)
    assert [g.tokens for g in asked] == [llama.right(prompt, 6) for prompt in prompts]


@of_each(KINDS, quick=0)
def test_interleaved_several_steps_at_once_and_waiting_for_each_say_the_same(model):
    prompts = model.prompts(5, 21, 12)
    for changes in ({"policy": "interleaved"}, {"multi_step": 4}, {"ahead": False}):
        engine = model.engine(**changes)
        asked = [engine.add(p, Sampling(temperature=0, max_tokens=13))[0] for p in prompts]
        run(engine)
        assert [g.tokens for g in asked] == [model.right(p, 13) for p in prompts]


@of_each([*KINDS, "gemma3"])
def test_long_sequences_hold_the_ends_alone_and_find_beginnings_of_others(name, model):
    """Pages of windows and states while 40 tokens are decoded after a prompt in chunks of 8; then a
    prompt that shares 20 tokens, and one that goes on from the answer."""
    engine = model.engine(budget=8)
    (prompt,) = model.prompts(16)
    (first,) = engine.add(prompt, Sampling(temperature=0, max_tokens=40))
    groups, held = engine.config.kept, [set() for _ in engine.config.kept]
    while not engine.idle:
        engine.step()
        for pages, job_pages in zip(held, first.job.kept, strict=False):
            pages.add(len(job_pages))
    for group, pages in zip(groups, held, strict=True):
        assert 1 <= max(pages) <= group.reach + 1 + 2  # and a chunk's 8 tokens
    assert first.tokens == model.right(prompt, 40)
    shared, turn = [*prompt[:14], 1, 2, 3, 4], [*prompt, *first.tokens[:38], 7]
    again = [engine.add(p, Sampling(temperature=0, max_tokens=4))[0] for p in (shared, turn)]
    run(engine)
    assert [g.tokens for g in again] == [model.right(g.prompt, 4) for g in again]
    assert again[0].cached_tokens == (8 if name in STATES else 12)  # states: where chunks end
    assert again[1].cached_tokens == 52
    engine.check()


@of_each(KINDS)
@pytest.mark.parametrize("moved", ["host tier", pytest.param("swap", marks=pytest.mark.slow)])
def test_a_cache_that_was_on_the_host_is_the_same(model, moved):
    swap = {"preemption": "swap", "swap_pages": 40, "prefix_cache": False}
    engine = model.engine(pages=18, **(swap if moved == "swap" else {"host_pages": 60}))
    prompts = model.prompts(16, 16, 16, 16)
    asked = [engine.add(p, Sampling(temperature=0, max_tokens=20))[0] for p in prompts]
    run(engine)
    if moved == "host tier":
        asked += [engine.add(p, Sampling(temperature=0, max_tokens=20))[0] for p in prompts]
        run(engine)
        assert any(g.job.host_hit for g in asked)
    else:
        assert any(g.job.preemptions for g in asked)
    for generation in asked:
        assert generation.tokens == model.right(generation.prompt, 20)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.bfloat16])
def test_a_narrow_cache_is_read_as_the_contiguous_one_reads_it(llama, dtype):
    (prompt,) = llama.prompts(21)
    engine = llama.engine(dtype=dtype, budget=64)
    (generation,) = engine.add(prompt, Sampling(**GREEDY))
    run(engine)
    assert generation.tokens == llama.right(prompt, 6, dtype)


def test_no_step_widens_a_bf16_cache(llama):
    """XLA's scatter of 16-bit floats on a CPU would: the cache lies as bits."""
    executor = llama.engine(dtype=jnp.bfloat16).replicas[0].executor
    step = jitted_step(executor._program)
    inputs = executor.shapes.padding(2, 0)
    text = step.lower(executor._params, executor._state, inputs).compile().as_text()
    shapes = {",".join(map(str, x.shape)) for x in jax.tree.leaves(executor._state.pages)}
    assert all(f"u16[{shape}]" in text and f"f32[{shape}]" not in text for shape in shapes)


def test_logprobs_are_those_of_the_whole_sequence(llama):
    (prompt,) = llama.prompts(21)
    engine = llama.engine()
    asked = Sampling(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=2)
    (generation,) = engine.add(prompt, asked)
    run(engine)
    whole = [*prompt, *generation.tokens]
    logits = np.asarray(forward(llama.params, jnp.asarray([whole]), llama.cfg))[0].astype(float)
    right = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    entries = [*generation.prompt_logprobs, *generation.logprobs]
    assert [e.token for e in entries] == whole[1:]
    for place, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(right[place, entry.token], abs=1e-4)
        likeliest = np.argsort(-right[place])[: len(entry.top)]
        assert [token for token, _ in entry.top] == likeliest.tolist()
        assert [v for _, v in entry.top] == pytest.approx(right[place, likeliest], abs=1e-4)
    assert [len(e.top) for e in entries] == [2] * 20 + [3] * 4


def test_a_drawn_answer_depends_on_its_request_and_seed_alone(llama):
    prompts = llama.prompts(5, 21, 12)
    wanted = [
        Sampling(temperature=0.8, seed=3, max_tokens=8),
        Sampling(temperature=1.3, top_k=40, top_p=0.9, seed=4, max_tokens=8),
        Sampling(temperature=0.7, min_p=0.02, seed=5, max_tokens=8),
    ]
    together = llama.engine()
    asked = [together.add(p, s)[0] for p, s in zip(prompts, wanted, strict=True)]
    run(together)
    again = [together.add(p, s)[0] for p, s in zip(prompts, wanted, strict=True)]  # prefix hits
    run(together)
    alone = []
    for prompt, sampling in zip(prompts, wanted, strict=True):
        engine = llama.engine(prefix_cache=False)
        alone += engine.add(prompt, sampling)
        run(engine)
    tokens = [g.tokens for g in asked]
    assert tokens == [g.tokens for g in again] == [g.tokens for g in alone]
    (other,) = together.add(prompts[0], Sampling(temperature=0.8, seed=9, max_tokens=8))
    run(together)
    assert other.tokens != tokens[0]


def test_penalties_biases_and_bans_change_what_comes_out(llama):
    (prompt,) = llama.prompts(9)
    plain = llama.right(prompt, 6)
    engine = llama.engine()

    def answer(**values):
        (generation,) = engine.add(prompt, Sampling(**GREEDY, **values))
        run(engine)
        return generation.tokens

    assert answer(logit_bias=((11, 100.0),)) == [11] * 6
    assert answer(logit_bias=((11, 100.0),), frequency_penalty=2.0)[0] == 11
    assert answer(banned=((plain[0],),))[0] != plain[0]
    one, two = plain[:2]
    assert answer(banned=((one, two),))[:2] != [one, two]
    assert answer(banned=((one, two),))[0] == one


@pytest.fixture
def compiled():
    """The programs that XLA has compiled since, as their seconds."""
    found = []

    def heard(name, seconds, **_):
        if name == "/jax/core/compile/backend_compile_duration":
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield found
    jax.monitoring.unregister_event_duration_listener(heard)


class Even:
    """A form that allows even tokens, for ever."""

    complete, done = True, False

    def fresh(self):
        return self

    def allowed(self):
        return np.full(2, 0x55555555, np.uint32)

    def take(self, token):
        return "" if token % 2 == 0 else "odd"


KINDS_OF_REQUESTS = [
    {},
    {"temperature": 1},
    {"temperature": 1, "top_p": 0.9, "top_k": 5},
    {"logprobs": 2},
    {"prompt_logprobs": 1},
    {"logprobs": 3, "prompt_logprobs": 3},
    {"repetition_penalty": 1.3},
    {"logit_bias": tuple((token, 1.0) for token in range(60))},
    {"banned": ((1, 2),), "min_tokens": 3},
    {"form": Even()},
    {"form": Even(), "logprobs": 0, "frequency_penalty": 0.5},
]


@pytest.mark.slow
def test_nothing_is_compiled_after_warming_up(llama, compiled):
    jax.clear_caches()  # programs of other tests
    engine = llama.engine(batch=2, budget=8)
    executor = engine.replicas[0].executor
    keys = list(executor.warm())
    most = executor.most_programs
    assert len(set(keys)) == len(keys) == executor.programs == most
    shapes = list(executor.shapes.all())
    assert most == 2 * len(shapes) + sum(T > 0 for _, T, _ in shapes)
    assert len(compiled) >= most
    compiled.clear()
    for n, asked in enumerate(KINDS_OF_REQUESTS * 2):
        (prompt,) = llama.prompts((1, 3, 17, 40)[n % 4])
        engine.add(prompt, Sampling(**{**GREEDY, **asked}), answers=1 + n % 3)
        engine.step()
        if n % 4 == 3:
            run(engine)
    run(engine)
    assert executor.programs == most
    assert not compiled


def test_what_another_row_asks_for_changes_no_token(llama):
    prompt, other = llama.prompts(17, 9)
    right = llama.right(prompt, 6)
    for asked in KINDS_OF_REQUESTS:
        engine = llama.engine()
        generation, *_ = engine.add(prompt, Sampling(**GREEDY))
        beside, *_ = engine.add(other, Sampling(**{**GREEDY, **asked}))
        run(engine)
        assert generation.tokens == right, asked
        if "form" in asked:
            assert not any(token % 2 for token in beside.tokens)
