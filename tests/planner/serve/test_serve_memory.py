"""Memory of serving: the scales of an int8 cache, and a server that prefills one prompt."""

import re
from dataclasses import replace

import pytest

from shardwise.hardware import parse_slice
from shardwise.models import kv_bytes, load_model, state_elements
from shardwise.planner.serve.count import decode_work
from shardwise.planner.serve.memory import prefill_memory, serve_memory
from shardwise.planner.serve.server import server_of
from shardwise.planner.serve.shape import ServeShape
from shardwise.plans import ServeDtypes, ServePlan


def shape_of(**changes):
    values = {
        "degrees": {"tensor": 8.0},
        "batch": 16.0,
        "input_length": 4096,
        "output_length": 256,
        "prefill_chunk": 8192,
        "kv_sharding": "heads_then_batch",
        "dtypes": ServeDtypes(weights="int8", kv="int8"),
    }
    return ServeShape(**{**values, **changes})


def kv_of(cfg, shape):
    return float(serve_memory(cfg, shape).points[0][1]["kv"])


@pytest.mark.parametrize(("model", "width"), [("llama-3-70b", 128), ("deepseek-v2-lite", 576)])
def test_an_int8_cache_has_two_bytes_of_scale_for_each_head(model, width):
    """A head of keys or of values is `width` bytes; a latent entry is one head."""
    cfg = load_model(model)
    with_scales, without = shape_of(), shape_of(kv_scales=False)
    assert kv_of(cfg, with_scales) / kv_of(cfg, without) == pytest.approx(1 + 2 / width)
    bf16 = shape_of(dtypes=ServeDtypes(weights="int8", kv="bf16"))
    assert kv_of(cfg, bf16) == 2 * kv_of(cfg, without)
    read = [float(decode_work(cfg, s).hbm_bytes()) for s in (with_scales, without)]
    cache = kv_of(cfg, without) * with_scales.context / with_scales.longest
    assert (read[0] - read[1]) / cache == pytest.approx(2 / width, rel=1e-3)


def test_the_book_counts_no_scales():
    for constants, counted in (("vendor", True), ("book", False)):
        plan = ServePlan(
            model="llama-3-70b",
            model_hash="",
            slice="v5e:4x4",
            mesh={"tensor": 16},
            box=(4, 4),
            batch=1,
            input_length=8,
            output_length=8,
            constants=constants,
        )
        server = server_of(plan, load_model("llama-3-70b"), parse_slice("v5e:4x4"))
        assert server.shape().kv_scales == counted


@pytest.mark.parametrize("degrees", [{"tensor": 8.0}, {"fsdp": 2.0, "tensor": 4.0}])
def test_a_prefilled_prompt_is_whole_on_every_device_but_for_its_heads(degrees):
    cfg = load_model("llama-3-70b")
    shape = shape_of(degrees=degrees, dtypes=ServeDtypes(weights="int8", kv="bf16"))
    alone, waiting = prefill_memory(cfg, shape), dict(serve_memory(cfg, shape).points)["prefill"]
    assert alone["weights"] == waiting["weights"]
    assert alone["kv"] == pytest.approx(kv_bytes(cfg, 4096) / degrees["tensor"])
    assert 0 < alone["activations"] <= waiting["activations"]


def test_a_recurrence_beside_attention_has_its_state_and_its_kernel_too():
    cfg = load_model(
        "FalconH1ForCausalLM(vocab_size=512, hidden_size=64, intermediate_size=96,"
        " num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3, mamba_d_ssm=96,"
        " mamba_n_heads=8, mamba_d_state=16)"
    )
    plain = replace(cfg, groups=tuple(replace(layer, beside=None) for layer in cfg.groups))
    shape = shape_of(degrees={"tensor": 1.0}, dtypes=ServeDtypes(weights="bf16", kv="bf16"))
    state = 3 * (96 * 16 + (96 + 2 * 16) * 3)
    assert state_elements(cfg) == state
    assert state_elements(plain) == 0
    assert kv_of(cfg, shape) == kv_of(plain, shape) + 16 * state * 4
    found, alone = (
        {re.split(r"[./]", op.id)[-1] for op in decode_work(c, shape).ops} for c in (cfg, plain)
    )
    assert "scan" in found
    assert "scan" not in alone
    assert "core" in found


@pytest.mark.parametrize(("kv", "width", "tensor"), [("bf16", 2, 1), ("fp8", 1, 1), ("fp8", 1, 4)])
def test_keys_of_an_indexer_beside_plain_attention_are_kept_as_the_cache_is(kv, width, tensor):
    """MiniMax-M3: a key of 128 in 57 of 60 layers beside 4 heads of keys and values, which devices
    share, while each has all keys of the indexer."""
    dtypes = ServeDtypes(weights="int8", kv=kv)
    shape = shape_of(degrees={"tensor": float(tensor)}, batch=1.0, dtypes=dtypes)
    values = 60 * 4 // tensor * 2 * 128 + 57 * 128
    assert kv_of(load_model("minimax-m3"), shape) == width * values * shape.longest
