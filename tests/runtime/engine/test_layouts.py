"""The engine on meshes: whatever lies where, its answers are those of one device."""

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime import goldens
from tests.runtime.engine.test_model import GREEDY, Model, run
from tests.tiers import spread

from shardwise.errors import BadRequest
from shardwise.models import from_hf
from shardwise.models.kv import cache_groups
from shardwise.runtime import load
from shardwise.runtime.engine import Engine, Sampling
from shardwise.runtime.engine.cache_room import kept_groups
from shardwise.runtime.engine.model_executor import ModelExecutor
from shardwise.runtime.engine.server_layout import server_layout
from shardwise.runtime.quant import quantise_params
from shardwise.scheduling import SchedulerConfig

BATCH, SEQUENCE = "heads_then_batch", "heads_then_batch_then_sequence"
LAYOUTS = [
    # mesh, how the cache is cut, sequences at once; KV heads x spread x parts of a page
    ({"data": 2, "tensor": 4}, SEQUENCE, 2, (2, 1, 2)),
    ({"tensor": 2}, "heads", 4, (2, 1, 1)),
    ({"tensor": 4}, "heads", 4, (2, 2, 1)),
    ({"tensor": 4}, BATCH, 4, (2, 2, 1)),
    ({"tensor": 8}, SEQUENCE, 2, (2, 2, 2)),
    ({"data": 4}, "heads", 4, (1, 1, 1)),
    ({"data": 2, "tensor": 2}, BATCH, 4, (2, 1, 1)),
    ({"fsdp": 4, "tensor": 2}, BATCH, 4, (2, 1, 1)),
    ({"fsdp": 2, "tensor": 4}, BATCH, 4, (2, 2, 1)),
]
FAMILIES = [
    ("deepseek-v3", {"expert": 2, "tensor": 4}, SEQUENCE),
    ("qwen3-moe", {"data": 2, "expert": 4}, "heads"),
    ("gpt-oss", {"fsdp": 2, "tensor": 2}, "heads"),
    ("lfm2", {"data": 2, "tensor": 4}, BATCH),
    ("qwen3-next", {"data": 2, "tensor": 4}, BATCH),
]


class Sharded(Model):
    """A tiny model, and engines over it on a mesh."""

    def __init__(self, name, folder):
        super().__init__(name, folder)
        self.folder = folder

    def on(self, mesh, kv, batch, *, int8=False, dtype=jnp.float32, multi_step=1, **changes):
        layout = server_layout(self.cfg, mesh, kv, batch, jax.devices())
        params = load(self.folder, self.cfg, shardings=layout.weight_shardings(self.cfg))
        each = -(-batch // layout.pool_count)
        values = {
            "pages": 48,
            "page_size": 4,
            "batch": each,
            "budget": 16,
            "margin": 0.0,
            **changes,
        }
        groups = cache_groups(self.cfg, 60)
        kept = kept_groups(groups, each, values["budget"], 4, prefix_cache=True)
        config = SchedulerConfig(**values, kept=kept)
        executor = ModelExecutor(
            quantise_params(params, self.cfg) if int8 else params,
            self.cfg,
            groups=groups,
            pages=(config.pages, *(group.pages for group in kept)),
            page_size=4,
            table_width=15,
            batch=each,
            budget=config.budget,
            dtype=dtype,
            host_pages=(config.host_pages + config.swap_pages, *(0 for _ in kept)),
            multi_step=multi_step,
            layout=layout,
        )
        return Engine(config, executor, most_tokens=60, multi_step=multi_step, seed=0)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return Sharded("llama", tmp_path_factory.mktemp("llama"))


def _flat(answers):
    """Tokens and logprobs of every place, in order."""
    return (number for row in answers for top in row for pair in top for number in pair)


def answers(engine, prompts, **sampling):
    """Of prompts that come one after the other."""
    asked = []
    for prompt in prompts:
        asked += engine.add(prompt, Sampling(**{**GREEDY, **sampling}))
        engine.step()
    run(engine)
    engine.check()
    return [generation.tokens for generation in asked]


@pytest.mark.parametrize(
    ("mesh", "kv", "batch", "heads"), spread(LAYOUTS, quick=0, slow=1, rows=True)
)
def test_every_layout_says_what_one_device_says(llama, mesh, kv, batch, heads):
    """And nothing is whole that its layout cuts: a device has its share of pages and weights."""
    engine = llama.on(mesh, kv, batch)
    executor = engine.replicas[0].executor
    layout = executor._program.layout
    assert tuple(layout.mesh.shape[axis] for axis in ("tensor", "spread", "sequence")) == heads
    prompts = llama.prompts(5, 21, 12, 33)
    assert answers(engine, prompts) == [llama.right(prompt, 6) for prompt in prompts]
    copies = layout.mesh.shape["spread"] if kv == "heads" else 1
    (group,) = executor._state.pages
    for pages in group.values():
        shard = prod(pages.sharding.shard_shape(pages.shape))
        assert shard * layout.mesh.size // copies == pages.size
    up = executor._params["layers"][0][0]["mlp.up"]
    whole = layout.mesh.shape["data"]
    assert prod(up.sharding.shard_shape(up.shape)) * layout.mesh.size // whole == up.size


@pytest.mark.parametrize("batch", spread([3, 8], quick=0, slow=1))  # and rows that tensor divides
def test_a_vocabulary_that_tensor_does_not_divide_is_padded(tmp_path, monkeypatch, batch):
    """61 tokens in pieces of 8: no padding is ever said, drawn or reported."""
    said = {**goldens.document("llama")["config"], "vocab_size": 61}
    monkeypatch.setattr(goldens, "config", lambda name: from_hf(said, name=name))
    model = Sharded("llama", tmp_path)
    prompts = model.prompts(5, 21)
    for sampling in ({}, {"temperature": 2.0, "seed": 3}, {"logprobs": 20}):
        one, many = model.engine(), model.on({"tensor": 8}, BATCH, batch)
        right, found = [], []
        for engine, into in ((one, right), (many, found)):
            for prompt in prompts:
                into += engine.add(prompt, Sampling(**{**GREEDY, **sampling}))
            run(engine)
        assert [g.tokens for g in found] == [g.tokens for g in right]
        places = [[place.top for place in g.logprobs] for g in found]
        wanted = [[place.top for place in g.logprobs] for g in right]
        assert np.allclose([*_flat(places)], [*_flat(wanted)], atol=1e-4)
        assert all(token < 61 for row in places for top in row for token, _ in top)


@pytest.mark.parametrize(("name", "mesh", "kv"), spread(FAMILIES, quick=0, slow=1, rows=True))
def test_experts_and_latent_caches_too(tmp_path, name, mesh, kv):
    model = Sharded(name, tmp_path)
    prompts = model.prompts(5, 21, 12, 33)
    right = [model.right(prompt, 6) for prompt in prompts]
    assert answers(model.on(mesh, kv, 4), prompts) == right


@pytest.mark.parametrize(
    "changes",
    spread(
        [
            {"host_pages": 40, "pages": 18},
            {"preemption": "swap", "swap_pages": 40, "prefix_cache": False, "pages": 18},
            {"multi_step": 4},
        ],
        quick=0,
        slow=1,
    ),
    ids=str,
)
def test_swapped_kept_on_the_host_and_several_steps_at_once(llama, changes):
    engine = llama.on({"data": 2, "tensor": 4}, SEQUENCE, 4, **changes)
    prompts = llama.prompts(16, 16, 16, 16, 16, 16)
    right = [llama.right(prompt, 20) for prompt in prompts]
    assert answers(engine, prompts, max_tokens=20) == right
    assert answers(engine, prompts, max_tokens=20) == right


@pytest.mark.slow
def test_int8_weights_and_caches_are_those_of_one_device(tmp_path):
    model = Sharded("qwen3-moe", tmp_path)
    (prompt,) = model.prompts(21)
    model.params = quantise_params(model.params, model.cfg)
    wanted = {"dtype": jnp.int8, "budget": 64}
    right = answers(model.engine(**wanted), [prompt])
    engine = model.on({"expert": 2, "tensor": 4}, SEQUENCE, 2, int8=True, **wanted)
    assert answers(engine, [prompt]) == right


@pytest.mark.long
def test_nothing_is_compiled_after_warming_up_on_a_mesh(llama):
    engine = llama.on({"data": 2, "tensor": 4}, BATCH, 4)
    list(engine.replicas[0].executor.warm())
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    answers(engine, llama.prompts(1, 3, 17, 40))
    assert not compiled
    jnp.zeros(3) + jnp.ones((5, 3))[0, 0] * 7.5  # what is heard where something is
    assert compiled


def test_a_mesh_beyond_the_devices_is_refused():
    cfg = goldens.config("llama")
    with pytest.raises(BadRequest, match=r"needs 16 devices and there are 8"):
        server_layout(cfg, {"data": 4, "tensor": 4}, BATCH, 4, jax.devices())
