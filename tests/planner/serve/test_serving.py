"""Serving: what is counted, what fits, what the search chooses, and the order of the bounds."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.boundary.records import plain
from shardwise.errors import BadRequest
from shardwise.hardware import load_chip, parse_slice, slices_of
from shardwise.models import (
    kv_bytes,
    kv_elements,
    load_model,
    params_total,
    state_bytes,
    weight_bytes,
)
from shardwise.planner.serve.answer import costs, evaluate_serve
from shardwise.planner.serve.count import decode_work, prefill_work
from shardwise.planner.serve.fleet import cheapest, search_fleets
from shardwise.planner.serve.memory import serve_memory
from shardwise.planner.serve.request import ServeRequest, Utilisation
from shardwise.planner.serve.server import heads_divide, place_mesh
from shardwise.planner.serve.server import servers as servers_on
from shardwise.planner.serve.shape import ServeShape
from shardwise.plans import ServeDtypes, ServePlan, model_hash
from shardwise.roofline import price
from shardwise.roofline.engines import load_engine

BF16 = ServeDtypes(weights="bf16")


def shape_of(tensor=1.0, batch=1.0, **changes):
    values = {
        "degrees": {"tensor": tensor},
        "batch": batch,
        "input_length": 4096,
        "output_length": 256,
        "prefill_chunk": 8192,
        "kv_sharding": "heads_then_batch",
        "dtypes": BF16,
    }
    return ServeShape(**{**values, **changes})


def request_for(model="llama-3-8b", pieces=("v5e:2x2",), **changes):
    values = {
        "cfg": load_model(model),
        "model": model,
        "pieces": tuple(parse_slice(p) for p in pieces),
        "input_length": 1024,
        "output_length": 128,
        "dtypes": (BF16,),
    }
    return ServeRequest(**{**values, **changes})


def plan_for(model="llama-3-8b", **changes):
    values = {
        "model": model,
        "model_hash": model_hash(load_model(model)),
        "slice": "v5e:2x2",
        "mesh": {"tensor": 4},
        "box": (2, 2),
        "batch": 8,
        "input_length": 1024,
        "output_length": 128,
        "dtypes": BF16,
    }
    return ServePlan(**{**values, **changes})


def test_decode_reads_weights_once_and_the_cache_of_every_sequence():
    cfg, batch = load_model("llama-3-8b"), 16
    shape = shape_of(batch=float(batch))
    embedding = cfg.vocabulary * cfg.d_model * 2  # a few rows are looked up, not the table
    cache = batch * kv_bytes(cfg, shape.context)
    floor = weight_bytes(cfg, "bf16") - embedding + cache
    moved = float(decode_work(cfg, shape).hbm_bytes())
    assert floor < moved < 1.02 * floor  # the rest are activations
    assert moved - float(decode_work(cfg, shape_of(batch=0.0)).hbm_bytes()) > cache


def test_decode_flops_are_two_per_parameter_and_token():
    cfg, batch = load_model("llama-3-8b"), 16
    work = decode_work(cfg, shape_of(batch=float(batch))).where(lambda op: op.op_class == "matmul")
    embedding = cfg.vocabulary * cfg.d_model
    used = params_total(cfg) - embedding - cfg.d_model * (2 * cfg.layers + 1)
    assert float(work.flops()) == pytest.approx(2 * batch * used, rel=1e-12)


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_only_the_experts_that_are_hit_are_read(batch):
    """E (1 - (1 - k/E)^B) of E experts with random routing."""
    cfg = load_model("mixtral-8x7b")

    def experts(tokens):
        work = decode_work(cfg, shape_of(batch=float(tokens), dtypes=BF16))
        ops = work.where(lambda op: op.component == "routed_experts" and op.matmul is not None)
        activations = sum(
            float(op.matmul.m * (op.matmul.k + op.matmul.n) * op.matmul.batch * op.count) * 2
            for op in ops.ops
        )
        return float(ops.hbm_bytes()) - activations

    everything = 2 * 3 * 8 * 4096 * 14336 * 32
    assert experts(batch) == pytest.approx(everything * (1 - 0.75**batch), rel=1e-9)


def test_beyond_the_kv_heads_sequences_are_spread_by_two_all_to_alls():
    cfg = load_model("llama-3-70b")
    wide, replicated = shape_of(16.0, 32.0), shape_of(16.0, 32.0, kv_sharding="heads")

    def kv(shape):
        return float(serve_memory(cfg, shape).points[0][1]["kv"])

    def exchanges(shape, work=decode_work):
        ops = work(cfg, shape).ops
        return sum(
            float(op.count) for op in ops if op.collective and op.collective.kind == "all_to_all"
        )

    assert kv(replicated) == 2 * kv(wide)
    assert exchanges(wide) == 2 * cfg.layers
    assert exchanges(replicated) == 0
    assert exchanges(shape_of(8.0, 32.0)) == 0
    assert exchanges(wide, prefill_work) == 2 * cfg.layers
    sent = [
        float(op.collective.bytes)
        for op in prefill_work(cfg, wide).ops
        if op.collective and op.collective.kind == "all_to_all"
    ]
    assert sent == [4096 * 64 * 128 * 2] * 2  # queries of all heads, and answers
    core = [
        float(decode_work(cfg, s).where(lambda op: op.name == "attention.core").hbm_bytes())
        for s in (wide, replicated)
    ]
    assert core[0] == pytest.approx(core[1] / 2, rel=0.01)


def test_a_parallel_layer_gathers_the_input_of_both_branches_once():
    for model, gathers in (("phi-2", 1), ("gpt-neox-20b", 2)):  # one norm, and one each
        cfg = load_model(model)
        ops = decode_work(cfg, shape_of(4.0, 16.0)).ops
        inside = [op for op in ops if op.collective and ".layers." in op.id]
        runs = {kind: sum(o.count for o in inside if o.collective.kind == kind) for kind in KINDS}
        assert runs == {"all_gather": gathers * cfg.layers, "reduce_scatter": 2 * cfg.layers}


KINDS = ("all_gather", "reduce_scatter")


def test_a_latent_cache_is_replicated_or_spread():
    """MLA keeps one entry of C + R values for all heads."""
    cfg = load_model("deepseek-v2-lite")
    one = kv_bytes(cfg, 4352) * 16
    spread, copied = shape_of(4.0, 16.0), shape_of(4.0, 16.0, kv_sharding="heads")
    assert float(serve_memory(cfg, copied).points[0][1]["kv"]) == pytest.approx(one)
    assert float(serve_memory(cfg, spread).points[0][1]["kv"]) == pytest.approx(one / 4)


def test_recurrent_state_is_kept_read_and_written():
    cfg, batch = load_model("nemotron-3-nano-30b-a3b"), 8.0
    shape = shape_of(batch=batch)
    kv = float(serve_memory(cfg, shape).points[0][1]["kv"])
    assert kv == pytest.approx(
        batch * (kv_bytes(cfg, shape.longest) + state_bytes(cfg, conv="f32"))
    )
    scans = decode_work(cfg, shape).where(lambda op: op.op_class == "scan")
    assert float(scans.hbm_bytes()) == pytest.approx(2 * batch * state_bytes(cfg, conv="f32"))


def test_windows_cap_the_cache():
    cfg = load_model("gemma-3-12b")
    short, long = (shape_of(input_length=n, output_length=2) for n in (2048, 65536))
    kv = [float(serve_memory(cfg, s).points[0][1]["kv"]) for s in (short, long)]
    # Five of six layers keep 1024 tokens, and of one prompt the chunk of 8192 that a step writes.
    layers = [(layer.mixer, count) for layer, count in cfg.layer_groups()]
    local = sum(count * kv_elements(m) for m, count in layers if m.window == 1024)
    assert kv[1] == pytest.approx(kv_bytes(cfg, 65538) + 2 * 8192 * local)
    assert kv[0] == pytest.approx(kv_bytes(cfg, 2050) + 2 * 1024 * local)
    many = serve_memory(cfg, shape_of(batch=8.0, input_length=65536, output_length=2))
    assert float(many.points[0][1]["kv"]) == pytest.approx(kv[1] + 7 * kv_bytes(cfg, 65538))


def test_data_copies_weights_and_cuts_the_batch():
    cfg = load_model("llama-3-8b")
    one, two = shape_of(2.0, 32.0), shape_of(2.0, 32.0, degrees={"data": 2.0, "tensor": 2.0})
    a, b = (serve_memory(cfg, s).points[0][1] for s in (one, two))
    assert (b["weights"], b["kv"]) == (a["weights"], a["kv"] / 2)
    kinds = {op.collective.kind for op in prefill_work(cfg, two).ops if op.collective}
    assert "all_gather" in kinds  # the prompt is cut over data: keys and values are gathered


def test_chunks_keep_the_flops_and_shrink_the_activations():
    cfg = load_model("llama-3-8b")
    whole = shape_of(input_length=16384, prefill_chunk=16384)
    cut = replace(whole, prefill_chunk=2048)
    flops = [float(prefill_work(cfg, s).flops()) for s in (whole, cut)]
    assert flops[0] == pytest.approx(flops[1], rel=1e-9)
    kinds = [serve_memory(cfg, s).points[1][1]["activations"] for s in (whole, cut)]
    assert kinds[1] < kinds[0] / 4


def test_stored_dtypes_come_from_the_checkpoint():
    cfg = load_model("deepseek-v3")
    stored = serve_memory(cfg, shape_of(dtypes=ServeDtypes())).points[0][1]["weights"]
    assert float(stored) == pytest.approx(weight_bytes(cfg), rel=1e-9)
    assert float(stored) < 0.55 * weight_bytes(cfg, "bf16")  # fp8, but for embeddings and norms


def test_llama_70b_on_eight_h100_lands_near_what_is_measured():
    """bf16, batch 32, 8k context: the floor is 8.4 ms; aiconfigurator's tables of measured kernels
    give 14.4 ms for vLLM (ai-dynamo/aiconfigurator 0.12.0)."""
    plan = plan_for(
        "llama-3-70b", slice="h100:8", mesh={"tensor": 8}, box=(8,), batch=32,
        input_length=8192, output_length=1,
    )  # fmt: skip
    answer = evaluate_serve(plan, load_model("llama-3-70b"), parse_slice("h100:8"))
    assert answer.tpot_seconds.lower == pytest.approx(8.4e-3, rel=0.03)
    assert 1.2 * 8.4e-3 < answer.tpot_seconds.expected < 14.4e-3
    assert answer.decode.estimate.bound_by() == "HBM"
    assert answer.prefill.estimate.bound_by() == "math"


MODELS = (
    "llama-3-8b",
    "llama-3-70b",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "gemma-3-12b",
    "nemotron-3-nano-30b-a3b",
    "qwen3-next-80b-a3b",
)
SLICES = ("v5e:2x2", "v5e:4x4", "v5p:2x2x2", "h100:8", "2*h100:8", "mi300x:4", "v6e:1x1")


@st.composite
def servers(draw):
    """A model on a slice with a mesh that divides it."""
    cfg, piece = (
        load_model(draw(st.sampled_from(MODELS))),
        parse_slice(draw(st.sampled_from(SLICES))),
    )
    devices = piece.devices
    tensors = [d for d in range(1, devices + 1) if devices % d == 0 and heads_divide(cfg, d)]
    tensor = draw(st.sampled_from(tensors))
    degrees = {"data": devices // tensor, "expert": 1, "tensor": tensor}
    shape = shape_of(
        degrees={a: float(d) for a, d in degrees.items()},
        batch=float(draw(st.integers(1, 2000))),
        input_length=draw(st.integers(1, 40_000)),
        output_length=draw(st.integers(1, 4000)),
        kv_sharding=draw(st.sampled_from(["heads", "heads_then_batch"])),
        dtypes=ServeDtypes(
            weights=draw(st.sampled_from(["bf16", "int8", "int4", "checkpoint"])),
            kv=draw(st.sampled_from(["bf16", "fp8"])),
        ),
    )
    return cfg, piece, degrees, shape


@given(servers())
@settings(max_examples=60)
def test_lower_expected_and_upper_stand_in_order(server):
    cfg, piece, degrees, shape = server
    placed = place_mesh(piece, degrees, piece.shape)
    for work in (decode_work(cfg, shape), prefill_work(cfg, shape)):
        estimate = price(work, piece.chip, placed)
        assert 0 < estimate.lower <= estimate.expected <= estimate.upper < inf
        assert not work.unknown()
    memory = serve_memory(cfg, shape)
    assert 0 < memory.peak() < inf
    more = serve_memory(cfg, replace(shape, batch=shape.batch + degrees["data"] * 64))
    assert more.peak() > memory.peak()


def test_arrays_give_what_numbers_give():
    cfg, piece = load_model("mixtral-8x7b"), parse_slice("h100:8")
    columns = {
        "data": np.array([1, 2, 1]),
        "expert": np.array([1, 2, 8]),
        "tensor": np.array([8, 2, 1]),
    }
    batch = np.array([7.0, 64.0, 333.0])
    many = shape_of(degrees={a: d.astype(float) for a, d in columns.items()}, batch=batch)
    placed = place_mesh(piece, columns, piece.shape)
    for count in (decode_work, prefill_work):
        estimate = price(count(cfg, many), piece.chip, placed)
        for i in range(3):
            one = {a: int(d[i]) for a, d in columns.items()}
            shape = shape_of(degrees={a: float(d) for a, d in one.items()}, batch=batch[i])
            alone = price(count(cfg, shape), piece.chip, place_mesh(piece, one, piece.shape))
            assert estimate.expected[i] == pytest.approx(float(alone.expected), rel=1e-12)
            assert serve_memory(cfg, many).peak()[i] == pytest.approx(
                float(serve_memory(cfg, shape).peak()), rel=1e-12
            )


def servers_of(request):
    """Every mesh of the request's first slice, one by one, and as columns."""
    piece = request.pieces[0]
    for columns in servers_on(request, piece, piece.shape, request.dtypes[0]):
        yield columns, [columns.at(i) for i in range(len(columns))]


def test_columns_and_the_plan_agree():
    request = request_for("mixtral-8x7b", ("h100:8",), batch=64)
    count = 0
    for columns, each in servers_of(request):
        tpot, ttft = columns.decode(64.0).bounds, columns.prefill().bounds
        for i, server in enumerate(each):
            count += 1
            answer = evaluate_serve(server.plan(batch=64, chunk=8192), request.cfg, server.piece)
            assert plain(answer.tpot_seconds) == pytest.approx(plain(tpot.take(i).one()), rel=1e-12)
            alone = plain(ttft.take(i).one())
            assert plain(answer.ttft_seconds) == pytest.approx(alone, rel=1e-12)
            memory = float(columns.peak_bytes(64.0)[i])
            assert float(answer.memory.peak()) == pytest.approx(memory, rel=1e-12)
    assert count > 2


def test_pins_hold_and_impossible_pins_are_refused():
    (found,) = [columns for columns, _ in servers_of(request_for(pins={"data": 2}))][:1]
    assert found.at(0).mesh == {"data": 2, "tensor": 2}
    assert not [*servers_of(request_for(pins={"expert": 2}))]
    with pytest.raises(BadRequest, match="'context' cannot be pinned for serving"):
        [*servers_of(request_for(pins={"context": 2}))]


def test_copies_of_a_model_are_servers_of_their_own():
    """Unless data is pinned, a server holds the model once."""
    for columns, _ in servers_of(request_for("mixtral-8x7b", ("h100:8",))):
        assert np.all(columns.degrees["data"] == 1)


def test_hand_written_plans_are_checked():
    cfg, piece = load_model("llama-3-8b"), parse_slice("v5e:2x2")
    with pytest.raises(BadRequest, match="has 2 devices; box 2x2 of v5e:2x2 has 4"):
        evaluate_serve(plan_for(mesh={"tensor": 2}), cfg, piece)
    with pytest.raises(BadRequest, match="box 4x2 does not fit v5e:2x2"):
        evaluate_serve(plan_for(box=(4, 2)), cfg, piece)
    with pytest.raises(BadRequest, match="'expert' of 4 does not divide the 1 routed expert"):
        evaluate_serve(plan_for(mesh={"expert": 4}), cfg, piece)
    smol = load_model("qwen3-0.6b")
    with pytest.raises(BadRequest, match="'tensor' of 64 does not divide the heads"):
        evaluate_serve(
            plan_for("qwen3-0.6b", slice="v5e:8x8", box=(8, 8), mesh={"tensor": 64}),
            smol,
            parse_slice("v5e:8x8"),
        )


def test_dollars_are_chip_seconds():
    """2 s of 4 chips at $3.60/h for 1000 prompt tokens; 10 ms for 5 answer tokens."""
    price = replace(load_chip("v5e").require_price(), usd_per_chip_hour=3.6)
    piece = replace(parse_slice("v5e:2x2"), chip=replace(load_chip("v5e"), price=price))
    usd = costs(piece, prefill=2.0 / 1000, decode=0.01 / 5)
    assert usd == pytest.approx({"input": 8.0, "output": 8.0})
    best = answer_for()
    hour = best.piece.chip.require_price().usd_per_chip_hour
    tokens_per_hour = best.tokens_per_second_per_chip * 3600
    assert best.usd_per_million_tokens["output"] == pytest.approx(hour / tokens_per_hour * 1e6)


def answer_for(**changes):
    plan = plan_for(**changes)
    return evaluate_serve(plan, load_model(plan.model), parse_slice(plan.slice))


def test_no_price_no_dollars():
    found = answer_for(slice="tpu7x:2x2x1", mesh={"tensor": 8}, box=(2, 2, 1))
    assert found.usd_per_million_tokens == {"input": None, "output": None}


def test_a_given_utilisation_replaces_the_expected_prefill():
    given_ = Utilisation(share=0.4, params=8e9)
    piece = parse_slice("v5e:2x2")
    best = evaluate_serve(plan_for(), load_model("llama-3-8b"), piece, utilisation=given_)
    seconds = 2 * 8e9 * 1024 / (4 * best.piece.chip.peak("bf16") * 0.4)
    prefill = best.prefill_seconds
    assert prefill.expected == pytest.approx(seconds)
    assert prefill.lower <= prefill.expected <= prefill.upper
    assert best.ttft_seconds.expected == pytest.approx(seconds)


def test_the_first_token_of_an_idle_server_is_that_of_its_prefill():
    """And what the engine adds where nothing waits: its way in and out, and the start of the
    prompt's kernels."""
    engine = load_engine("vllm")
    short, long = (answer_for(engine="vllm", input_length=n) for n in (64, 8192))
    way = float(engine.arrival.request_seconds)
    for found in (short, long):
        tokens = 2e-6 * found.plan.input_length
        alone = found.prefill_seconds.expected + found.lag.start
        assert found.ttft_seconds.expected == pytest.approx(alone + way + tokens)
    assert short.lag.start > 0
    assert long.lag.start < short.lag.start / 5  # the host is through before the device


def test_every_chip_with_memory_and_bandwidth_serves_a_small_model():
    for chip in ("v4", "v5p", "tpu7x", "a100", "b200", "mi300x", "gaudi3", "cpu"):
        pieces = slices_of(load_chip(chip), domains=1)
        request = replace(request_for("qwen3-0.6b"), pieces=pieces[:2])
        found = search_fleets(request)
        assert cheapest(found, request.within).running >= 1


def test_an_engine_adds_what_it_was_measured_to_add():
    """Kernels and sequences take their time; what no software can beat stays as it is."""
    ideal, same = (answer_for(engine=name, batch=16) for name in ("ideal", "vllm"))
    for name in ("tpot_seconds", "ttft_seconds"):
        before, after = getattr(ideal, name), getattr(same, name)
        assert after.lower == before.lower
        assert after.expected > before.expected
        assert after.upper > before.upper
    engine = load_engine("vllm")
    host = same.tpot_seconds.expected - same.decode.estimate.expected
    assert host == pytest.approx(16 * engine.sequence_seconds)


def test_an_unknown_engine_of_a_plan_is_named():
    with pytest.raises(BadRequest, match="unknown serving engine 'vlm'"):
        answer_for(engine="vlm")


def test_few_sequences_are_cut_along_their_tokens():
    """One latent entry on eight devices: two sequences go to two of them, or each to four."""
    cfg = load_model("deepseek-v3")
    spread, cut = (
        shape_of(8.0, 2.0, kv_sharding=kv)
        for kv in ("heads_then_batch", "heads_then_batch_then_sequence")
    )
    caches = [serve_memory(cfg, shape).points[0][1]["kv"] for shape in (spread, cut)]
    assert caches[0] == pytest.approx(4 * caches[1])
    cores = [
        next(op for op in decode_work(cfg, shape).ops if op.id.endswith("attention.core"))
        for shape in (spread, cut)
    ]
    assert cores[0].hbm_bytes == pytest.approx(4 * cores[1].hbm_bytes)
    assert cores[0].flops["bf16"] == pytest.approx(4 * cores[1].flops["bf16"])
    merges = [op for op in decode_work(cfg, cut).ops if op.id.endswith("attention.merge")]
    assert merges[0].collective.bytes == 2 * 128 * (512 + 2) * 4


def test_a_full_batch_is_not_cut():
    cfg = load_model("deepseek-v3")
    spread, cut = (
        decode_work(cfg, shape_of(8.0, 64.0, kv_sharding=kv))
        for kv in ("heads_then_batch", "heads_then_batch_then_sequence")
    )
    assert spread.by_key() == cut.by_key()
