"""Memory of a server as its engine counts it when it starts."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.hardware.catalogue import load_chip
from shardwise.models import load_model, state_bytes
from shardwise.models.specs import RecurrentMixer
from shardwise.planner.serve.engine_memory import graph_bytes, outside, padded_layers, peak
from shardwise.planner.serve.memory import (
    kv_bytes_per_device,
    layer_cache_bytes,
    serve_memory,
    token_bytes_per_device,
    weight_bytes_per_device,
)
from shardwise.planner.serve.server import server_of
from shardwise.planner.serve.shape import ServeShape
from shardwise.plans import ServeDtypes, ServePlan, ServeScheduling
from shardwise.plans.engine_memory import GIB, engine_memories, engine_memory, seen_bytes

H100 = load_chip("h100")


def shape_of(release="0.19", engine="vllm", **changes):
    values = {
        "degrees": {"tensor": 1.0},
        "batch": 1024.0,
        "input_length": 8000,
        "output_length": 192,
        "prefill_chunk": 8192,
        "kv_sharding": "heads",
        "dtypes": ServeDtypes(),
        "engine": engine_memory(engine, H100, release),
    }
    return ServeShape(**{**values, **changes})


def server(engine="vllm", chips=1, **scheduling):
    plan = ServePlan(
        model="llama-3.1-8b",
        model_hash="",
        slice=f"h100:{chips}",
        mesh={"tensor": chips},
        box=(chips,),
        batch=1024,
        input_length=8000,
        output_length=192,
        prefill_chunk=8192,
        kv_sharding="heads",
        engine=engine,
        scheduling=ServeScheduling(**scheduling),
    )
    return server_of(plan, load_model("llama-3.1-8b"), parse_slice(plan.slice))


def test_a_release_has_the_last_row_that_began_before_it():
    assert engine_memory("vllm", H100, "0.16.2").since == "0.11.1"
    assert engine_memory("vllm", H100, "0.17").since == "0.17"
    assert engine_memory("vllm", H100, "0.0.1").since == engine_memories()[0].since
    assert engine_memory("vllm", H100).since == "0.21"


@pytest.mark.parametrize("engine", ["ideal", "jax"])
def test_engines_that_print_nothing_known_are_counted_as_ours(engine):
    assert engine_memory(engine, H100) is None


def test_trtllm_gives_the_cache_a_share_of_what_is_free():
    """As it prints it: of 119.70 GiB with 113.09 at the peak (113.65 less a cache of 0.56 that was
    there to try) a share of 0.9 is 5.95 GiB."""
    printed = 0.9 * (119.70 - 113.65 + 0.56)
    assert printed == pytest.approx(5.95, abs=0.005)
    one = server("trtllm")
    shape = one.shape(1024.0)
    ((_, point),) = serve_memory(one.request.cfg, shape).points
    free = seen_bytes(H100) - sum(size for kind, size in point.items() if kind != "kv")
    for share in (0.5, 0.9):
        assert float(one.cache_bytes(shape, share)) == pytest.approx(share * free)


def test_tpus_are_counted_as_ours():
    assert engine_memory("vllm", load_chip("v5e")) is None


def test_the_sampler_of_all_sequences_is_the_peak_of_a_small_model():
    """14 bytes for each of 1,024 sequences and 128,256 words, 1.2 * 2 * 8,192 * 4,096 bytes of
    tokens and 0.1 GiB; vLLM 0.19 printed 1.89 GiB."""
    cfg, shape = load_model("llama-3.1-8b"), shape_of()
    expected = 14 * 1024 * 128256 + 1.2 * 2 * 8192 * 4096 + 0.1 * GIB
    assert peak(shape.engine, cfg, shape) == expected
    assert expected / GIB == pytest.approx(1.89, rel=0.01)
    halved = replace(shape, degrees={"tensor": 2.0})
    assert peak(shape.engine, cfg, halved) == expected


def test_a_step_of_many_tokens_is_the_peak_with_few_sequences():
    """2 bytes of 20,000 tokens, three times F of 14,336 and 3.5 times D of 4,096; vLLM 0.6 printed
    2.07 GiB (vllm-project/vllm#10517)."""
    cfg = load_model("llama-3.1-8b")
    shape = shape_of("0.6.4", batch=64.0, prefill_chunk=20_000)
    expected = 2 * 20_000 * (3 * 14336 + 3.5 * 4096)
    assert peak(shape.engine, cfg, shape) == expected
    assert expected / GIB == pytest.approx(2.07, rel=0.05)


def test_ranks_that_exchange_have_buffers():
    shape, row = shape_of(), shape_of().engine
    many = replace(shape, degrees={"tensor": np.array([1.0, 2.0, 8.0])})
    assert list(outside(row, many)) == [row.alone, row.ranks, row.ranks]


def test_graphs_are_of_sizes_up_to_twice_the_sequences_and_none_where_it_is_eager():
    cfg, shape = load_model("llama-3.1-8b"), shape_of("0.21")
    each = 2**20 * (3 + 0.45 * 32)
    assert graph_bytes(shape.engine, cfg, shape) == 51 * each
    assert graph_bytes(shape.engine, cfg, replace(shape, batch=32.0)) == 11 * each
    assert graph_bytes(replace(shape.engine, graphs=False), cfg, shape) == 0.0


def test_experts_keep_their_scratch_beside_the_sampler_from_0_17():
    """8 experts a token of width 768 in a stream of 2,048: 8 (2,048 + 768) values a token."""
    cfg, scratch = load_model("qwen3-30b-a3b"), 2 * 8192 * 8 * (2048 + 768)
    new, old = shape_of(), shape_of("0.16")
    sampler = 14 * 1024 * cfg.vocabulary + 1.2 * 2 * 8192 * 2048 + 0.1 * GIB
    assert peak(new.engine, cfg, new) == sampler + scratch
    older = sampler + (38 - 14) * 1024 * cfg.vocabulary
    assert peak(old.engine, cfg, old) == pytest.approx(older)


def test_experts_in_mxfp4_are_filled_up_as_they_are_loaded():
    """gpt-oss-120b: 60.7 GiB are stored; 65.97 (vllm#23278) and 64.38 (#33155) were loaded."""
    cfg = load_model("gpt-oss-120b")
    stored = weight_bytes_per_device(cfg, shape_of(engine=None))
    old, new = (weight_bytes_per_device(cfg, shape_of(release)) for release in ("0.10.1", "0.14.1"))
    assert stored / GIB == pytest.approx(60.7, abs=0.1)
    assert old / GIB == pytest.approx(65.97, abs=0.2)
    assert new / GIB == pytest.approx(64.38, abs=0.2)


def test_weights_quantized_by_a_flag_leave_embeddings_and_head_in_bf16():
    """Llama-3.1-70B in fp8: 67.72 GiB were loaded."""
    cfg = load_model("llama-3.1-70b")
    shape = shape_of(dtypes=ServeDtypes(weights="fp8"))
    assert weight_bytes_per_device(cfg, shape) / GIB == pytest.approx(67.72, abs=0.1)


def test_a_sparse_latent_cache_in_fp8_keeps_scales_and_its_rotary_part():
    """656 bytes of latent and 132 of the indexer a layer: 48,072 bytes a token were printed of
    DeepSeek-V3.2 (sgl-project/sglang#11309); ours are 576 and 128."""
    cfg = load_model("glm-5")
    layer = next(g for g in cfg.groups if getattr(g.mixer, "indexer", None))
    fp8 = ServeDtypes(kv="fp8")
    assert layer_cache_bytes(layer, shape_of(engine="sglang", dtypes=fp8), 1) == 656 + 132
    assert layer_cache_bytes(layer, shape_of(engine="ideal", dtypes=fp8), 1) == 576 + 128
    assert pytest.approx(48_072, rel=1e-3) == 61 * (656 + 132)


def test_states_of_a_hybrid_count_in_the_cache_as_its_engine_keeps_them():
    """Nemotron-3-Nano: 23 states, recurrences in f32 and convolutions in bf16, beside 6 layers of
    keys and values; ours keep all of a state in f32."""
    cfg = load_model("nemotron-3-nano-30b-a3b")
    states = [layer for layer in cfg.groups if isinstance(layer.mixer, RecurrentMixer)]
    sizes = [layer_cache_bytes(one, shape_of(engine="sglang"), 8192) for one in states]
    ours = [layer_cache_bytes(one, shape_of(engine="ideal"), 8192) for one in states]
    kept = engine_memory("sglang", H100, "0.19").spare_states
    assert {23 * size for size in sizes} == {kept * state_bytes(cfg)}
    assert {23 * size for size in ours} == {state_bytes(cfg, conv="f32")}


def test_sglang_has_a_pool_of_four_fifths_for_windows():
    """gpt-oss-20b: 12 of 24 layers keep the last 128 tokens."""
    cfg, shape = load_model("gpt-oss-20b"), shape_of(engine="sglang", batch=1.0)
    whole = 24 * 2 * 8 * 64 * 2
    assert token_bytes_per_device(cfg, shape) == pytest.approx(whole * (1 + 0.8) / 2)
    assert kv_bytes_per_device(cfg, shape) == pytest.approx(8192 * whole * (1 + 0.8) / 2)


def test_groups_of_windows_are_filled_up():
    """gemma-3-4b has 5 layers that keep all tokens and 29 with a window: 7 groups of 5."""
    cfg = load_model("gemma-3-4b")
    counts = [count for _, count in cfg.layer_groups()]
    padded = padded_layers(cfg)
    assert sum(count * padded[i] for i, count in enumerate(counts)) == pytest.approx(35)
    assert set(padded_layers(load_model("llama-3.1-8b")).values()) == {1.0}


def test_vllm_takes_a_share_of_all_memory_and_sglang_of_what_is_free():
    """The cache of Llama-3.1-8B: 58.11 GiB and 476,016 tokens at 0.95 in vLLM 0.19; 54.26 GiB and
    444,500 tokens at 0.88 in SGLang 0.4.1."""
    for engine, share, release, gib, tokens in (
        ("vllm", 0.95, "0.19", 58.11, 476_016),
        ("sglang", 0.88, "", 54.26, 444_500),
    ):
        one = server(engine, memory_share=share, release=release)
        shape = one.shape(1024.0 if engine == "vllm" else 160.0)
        assert one.cache_bytes(shape, share) / GIB == pytest.approx(gib, rel=0.01)
        assert one.line_tokens(shape, share) == pytest.approx(tokens, rel=0.01)
    total = seen_bytes(H100)
    vllm, sglang = server(memory_share=0.5), server("sglang", memory_share=0.5)
    assert vllm.budget(vllm.shape(8.0), 0.5) == 0.5 * total
    assert sglang.budget(sglang.shape(8.0), 0.5) == 0.5 * (total - 0.5 * GIB)


def test_a_share_of_sglang_leaves_room_for_a_step():
    one = server("sglang", memory_share=1.0)
    shape = one.shape(1024.0)
    needs = peak(shape.engine, one.request.cfg, shape)
    assert one.budget(shape, 1.0) < seen_bytes(H100) - 0.5 * GIB - needs + 1


def test_more_sequences_and_tokens_a_step_leave_less_cache():
    one = server()
    few, many = (one.cache_tokens(one.shape(batch), 0.9) for batch in (32.0, 1024.0))
    small, large = (one.cache_tokens(one.shape(32.0, chunk), 0.9) for chunk in (1024, 65_536))
    assert many < few
    assert large < small


def test_the_start_of_an_engine_is_one_point_with_what_it_keeps_beside():
    ((name, held),) = serve_memory(load_model("llama-3.1-8b"), shape_of()).points
    assert (name, set(held)) == ("start", {"weights", "kv", "activations", "engine"})


def test_a_chip_of_more_memory_shows_more():
    more = replace(H100, hbm_usable_bytes=H100.require("hbm_usable_bytes") + GIB)
    assert seen_bytes(H100) / GIB == pytest.approx(79.19, abs=0.01)
    assert seen_bytes(more) == seen_bytes(H100) + GIB


def test_a_release_is_a_version():
    with pytest.raises(BadRequest, match=r"release is '0\.9x'; it is a version"):
        ServeScheduling(release="0.9x")
    with pytest.raises(BadRequest, match="release is 'newest'; it is a version"):
        ServeScheduling(release="newest")
