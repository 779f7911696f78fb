"""One step of an engine as Work: the same sums as a plan's decode and prefill, and what it adds."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.models import load_model
from shardwise.models.specs import Attention
from shardwise.planner.serve.count import decode_work, prefill_work, step_work
from shardwise.planner.serve.shape import ServeShape
from shardwise.plans.serve import ServeDtypes
from shardwise.scheduling.step import StepShape

MODELS = ("llama-3-8b", "gpt-oss-20b", "deepseek-v2-lite", "gemma-2-9b")


def server(**changes):
    base = ServeShape(
        degrees={"tensor": 2.0},
        batch=16.0,
        input_length=1024,
        output_length=256,
        prefill_chunk=8192,
        kv_sharding="heads",
        dtypes=ServeDtypes(weights="bf16"),
    )
    return replace(base, **changes)


def decodes(n, context, **changes):
    step = StepShape(decodes=n, decode_tokens=n, decode_context=n * context, samples=n)
    return step._replace(**changes)


def prompts(n, tokens, past=0):
    pairs = n * (tokens * past + tokens * (tokens + 1) // 2)
    return StepShape(
        prefills=n,
        prefill_tokens=n * tokens,
        prefill_context=n * past,
        prefill_pairs=pairs,
        samples=n,
    )


def attention(work, op_class="attention"):
    return work.where(lambda op: op.op_class == op_class)


@pytest.mark.parametrize("model", MODELS)
def test_a_step_of_decodes_is_the_decode_step_of_a_plan(model):
    cfg, shape = load_model(model), server()
    step = step_work(cfg, shape, decodes(16.0, shape.context))
    plan = decode_work(cfg, shape)
    assert step.flops() == pytest.approx(plan.flops())
    assert step.hbm_bytes() == pytest.approx(plan.hbm_bytes())
    assert step.collective_bytes() == pytest.approx(plan.collective_bytes())


@pytest.mark.parametrize("model", MODELS)
def test_a_step_of_one_prompt_is_its_prefill(model):
    cfg, shape = load_model(model), server()
    step = step_work(cfg, shape, prompts(1, 1024))
    plan = prefill_work(cfg, shape)
    assert attention(step, "matmul").flops() == pytest.approx(attention(plan, "matmul").flops())
    # A query sees itself: t (t + 1) / 2 pairs where the book's causal half has t^2 / 2.
    assert attention(step).flops() == pytest.approx(attention(plan).flops(), rel=2e-3)


def test_weights_are_read_once_for_decodes_and_prompts():
    cfg, shape = load_model("llama-3-8b"), server()
    alone = step_work(cfg, shape, decodes(16.0, 1024.0))
    prompt = step_work(cfg, shape, prompts(1, 512))
    both = decodes(16.0, 1024.0)._replace(
        **{k: v for k, v in prompts(1, 512)._asdict().items() if v}
    )
    mixed = step_work(cfg, shape, both._replace(samples=17))
    matmuls = attention(mixed, "matmul")
    apart = attention(alone, "matmul").hbm_bytes() + attention(prompt, "matmul").hbm_bytes()
    weights = attention(step_work(cfg, shape, decodes(0.0, 0.0)), "matmul").hbm_bytes()
    # The head multiplies the sampled tokens, its weights too are read once.
    assert matmuls.hbm_bytes() == pytest.approx(apart - weights)
    assert mixed.flops() == pytest.approx(alone.flops() + prompt.flops())


def test_the_sum_of_contexts_decides_where_no_window_does():
    """Sequences of 100 and 1,900 tokens read what two of 1,000 read."""
    cfg, shape = load_model("llama-3-8b"), server()
    one, other = (step_work(cfg, shape, decodes(1.0, c)) for c in (100.0, 1900.0))
    both = step_work(cfg, shape, decodes(2.0, 1000.0))
    sums = [attention(w).hbm_bytes() for w in (one, other, both)]
    assert sums[0] + sums[1] == pytest.approx(sums[2])


def test_chunks_of_a_prompt_add_up_to_it():
    cfg, shape = load_model("llama-3-8b"), server()
    chunks = [step_work(cfg, shape, prompts(1, 256, past)) for past in (0, 256, 512, 768)]
    whole = step_work(cfg, shape, prompts(1, 1024))
    assert sum(attention(w).flops() for w in chunks) == pytest.approx(attention(whole).flops())


def test_a_window_bounds_what_a_layer_sees():
    cfg = load_model("gpt-oss-20b")
    windows = {g.mixer.window for g in cfg.groups if isinstance(g.mixer, Attention)}
    assert windows == {128, None}
    shape = server(degrees={})
    near, far = (step_work(cfg, shape, decodes(1.0, c)) for c in (1000.0, 2000.0))
    by_layer = [
        {op.body: op.hbm_bytes for op in attention(w).ops if op.id.endswith("core")}
        for w in (near, far)
    ]
    grown = {body: by_layer[1][body] > by_layer[0][body] for body in by_layer[0]}
    assert sorted(grown.values()) == [False, True]


def test_speculated_tokens_share_one_read_of_the_cache():
    cfg, shape = load_model("llama-3-8b"), server()
    plain = step_work(cfg, shape, decodes(8.0, 500.0))
    wide = step_work(cfg, shape, decodes(8.0, 500.0, decode_tokens=32.0))
    assert attention(wide).hbm_bytes() == pytest.approx(attention(plain).hbm_bytes())
    assert attention(wide).flops() == pytest.approx(4 * attention(plain).flops())


def test_steps_broadcast():
    cfg, shape = load_model("deepseek-v2-lite"), server()
    n = np.array([1.0, 8.0, 64.0])
    together = step_work(cfg, shape, decodes(n, 300.0)).hbm_bytes()
    apart = [step_work(cfg, shape, decodes(float(i), 300.0)).hbm_bytes() for i in n]
    assert np.allclose(together, apart)


@pytest.mark.parametrize(("kv", "dtype"), [("bf16", "bf16"), ("fp8", "fp8")])
def test_queries_meet_a_latent_cache_in_its_own_dtype(kv, dtype):
    dtypes = ServeDtypes(weights="bf16", kv=kv)
    latent = server(dtypes=dtypes, compute_of={"fp8": "fp8"})
    work = step_work(load_model("deepseek-v2-lite"), latent, decodes(8, 512))
    core = next(op for op in work.ops if op.id.endswith("attention.core"))
    assert set(core.flops) == {dtype}
    assert core.head_dims == (576, 512)
    plain = step_work(load_model("llama-3-8b"), latent, decodes(8, 512))
    assert set(next(o for o in plain.ops if o.id.endswith("attention.core")).flops) == {"bf16"}
