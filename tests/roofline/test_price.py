"""Pricing: three bounds in order, columns as scalars, the book's sum, and overlap by hand."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume
from tests.drawn import on_drawn

from shardwise.errors import BadRequest
from shardwise.hardware import load_chip, parse_slice, place
from shardwise.models import load_model
from shardwise.models.remat import REMAT_POLICIES
from shardwise.planner.step.work import TrainShape, train_work
from shardwise.plans import MESH_AXES, TrainDtypes
from shardwise.roofline import price
from shardwise.roofline.bodies import OpTime, overlap
from shardwise.roofline.price import price_op
from shardwise.work import Collective, Matmul, Op, Work

TINY = 1 + 1e-9  # additions in another order


def op(op_id, stream="compute", **fields) -> Op:
    given = {"phase": "forward", "component": "mlp", "op_class": "matmul"} | fields
    return Op(id=op_id, name=op_id, stream=stream, **given)


def timed(op_id, seconds, stream="compute", count=1.0, after=()) -> OpTime:
    made = op(op_id, stream, count=count, after=after)
    return OpTime(op=made, derated=seconds, serial=seconds, peak={})


# Overlap, by hand ---------------------------------------------------------------------------------


def gather_then_multiply(gather, multiply, count):
    """A parameter gather that waits for nothing, and the matmul that waits for it."""
    return (
        timed("g", gather, "net:fsdp", count),
        timed("m", multiply, "compute", count, after=("g",)),
    )


@pytest.mark.parametrize(
    ("gather", "multiply", "count", "seconds"),
    [
        (1.0, 3.0, 10, 1 + 30),  # compute-bound: only the first gather is waited for
        (3.0, 1.0, 10, 30 + 1),  # network-bound: only the last matmul sticks out
        (2.0, 2.0, 10, 2 + 20),
        (1.0, 3.0, 1, 4),
        (1.0, 3.0, 2, 7),  # fewer rounds than are laid out
        (1.0, 3.0, 3, 10),
        (1.0, 3.0, 4, 13),
        (1.0, 3.0, 2.5, 7 + 1.5),  # half a round is half a period
        (1.0, 3.0, 0, 0),
        (0.0, 3.0, 5, 15),
    ],
)
def test_a_gather_runs_ahead(gather, multiply, count, seconds):
    assert overlap(gather_then_multiply(gather, multiply, count)) == pytest.approx(seconds)


def test_the_same_on_arrays():
    counts = np.array([10, 1, 2, 2.5, 0])
    got = overlap(gather_then_multiply(np.full(5, 1.0), 3.0, counts))
    np.testing.assert_allclose(got, [31, 4, 7, 8.5, 0])
    speeds = overlap(gather_then_multiply(np.array([1.0, 3.0]), np.array([3.0, 1.0]), 10))
    np.testing.assert_allclose(speeds, [31, 31])


def test_a_chain_through_two_streams_is_serial():
    body = (
        timed("in", 2.0, "net:tensor", 7),
        timed("m", 3.0, "compute", 7, after=("in",)),
        timed("out", 1.0, "net:tensor", 7, after=("m",)),
    )
    assert overlap(body) == pytest.approx(7 * 6)


def test_independent_streams_overlap_fully():
    body = (timed("a", 2.0, "compute", 9), timed("b", 5.0, "net:x", 9), timed("c", 1.0, "host", 9))
    assert overlap(body) == pytest.approx(45)


def test_one_stream_adds_up():
    assert overlap((timed("a", 2.0, count=5), timed("b", 3.0, count=5))) == pytest.approx(25)


def test_an_id_that_stands_later_means_the_round_before():
    """A gradient scatter that waits for the last round's matmul hides behind this round's."""
    hidden = (timed("s", 2.0, "net:fsdp", 10, after=("m",)), timed("m", 3.0, count=10))
    assert overlap(hidden) == pytest.approx(30)
    # If the matmul waits for it too, nothing overlaps but the first round's scatter of nothing.
    both = (
        timed("s", 2.0, "net:fsdp", 10, after=("m",)),
        timed("m", 3.0, count=10, after=("s",)),
    )
    assert overlap(both) == pytest.approx(50)


def test_an_op_of_every_fourth_round_adds_its_average():
    body = (timed("always", 1.0, count=8), timed("sometimes", 4.0, count=2))
    assert overlap(body) == pytest.approx(8 * 1 + 2 * 4)


def test_a_stream_that_slowly_falls_behind_is_not_lost():
    """The first rounds end with the tail of the compute chain; a thousand end with the network."""
    body = (
        timed("net", 10.0, "net:x", 1000),
        timed("m", 9.9, "compute", 1000),
        timed("tail", 5.0, "host", 1000, after=("m",)),
    )
    assert overlap(body) >= 1000 * 10


def test_bodies_follow_each_other():
    chip, placement = load_chip("v5p"), place(parse_slice("v5p:2x2x1"), {"fsdp": 4})
    one = op("a", hbm_bytes=1e9, body="a")
    two = op("b", hbm_bytes=2e9, body="b", stream="host")  # another stream, but another body
    each = [price(Work((o,)), chip, placement).expected for o in (one, two)]
    assert price(Work((one, two)), chip, placement).expected == pytest.approx(sum(each))


# One op -------------------------------------------------------------------------------------------


def ideal(chip, **changes):
    """The chip without derating, padding or latency."""
    return replace(
        chip,
        **{"matmul_tile": (1, 1, 1)} | changes,
        efficiency=replace(
            chip.efficiency,
            matmul=1.0,
            matmul_ramp=0.0,
            attention=1.0,
            sustained=1.0,
            hbm=1.0,
            network=1.0,
            outer_network=1.0,
        ),
        network=replace(chip.network, hop_seconds=0.0),
    )


def test_ideal_constants_give_the_sum_of_the_book():
    """T_math + T_comms: 2BDF/C, and V (n-1)/n over both directions of a ring of n."""
    chip = ideal(load_chip("v5p"))
    piece = replace(parse_slice("v5p:4x4x4"), chip=chip)
    placement = place(piece, {"fsdp": 16, "tensor": 4})
    B, D, F = 1000.0, 333.0, 777.0
    work = Work(
        (
            op(
                "g",
                "net:tensor",
                op_class="collective",
                collective=Collective(kind="all_gather", axes=("tensor",), bytes=5e8),
            ),
            op("m", flops={"bf16": 2 * B * D * F}, matmul=Matmul(m=B, k=D, n=F), after=("g",)),
        )
    )
    math = 2 * B * D * F / chip.peak_flops["bf16"]
    comms = 5e8 * 3 / 4 / (2 * chip.network.link_oneway)
    estimate = price(work, chip, placement)
    assert estimate.upper == pytest.approx(math + comms, rel=1e-12)
    assert estimate.lower == pytest.approx(max(math, comms), rel=1e-12)
    assert estimate.expected == pytest.approx(math + comms, rel=1e-12)  # one run: nothing overlaps
    assert estimate.resources == pytest.approx({"math": math, "net:tensor": comms})
    assert estimate.bound_by() == ("math" if math > comms else "net:tensor")


def test_a_matmul_pays_for_its_padding():
    chip = load_chip("v5e")  # tile 8 x 128 x 128
    placement = place(parse_slice("v5e:1x1"), {})
    assert chip.matmul_tile == (8, 128, 128)
    small = op("m", flops={"bf16": 2.0 * 1 * 100 * 200}, matmul=Matmul(m=1, k=100, n=200))
    t = price_op(small, chip, placement)
    rates = chip.efficiency
    padded = 2.0 * 8 * 128 * 256 / chip.peak_flops["bf16"] / (rates.matmul * rates.sustained)
    assert t.derated == pytest.approx(padded + rates.matmul_ramp)
    assert t.peak["math"] == pytest.approx(2.0 * 100 * 200 / chip.peak_flops["bf16"])


def test_a_rounding_error_above_a_tile_pays_for_no_second_one():
    chip = ideal(load_chip("v5e"), matmul_tile=(8, 128, 128))
    placement = place(parse_slice("v5e:1x1"), {})
    m = 8 * (1 + 1e-15)
    assert m > 8
    near = op("m", flops={"bf16": 2.0 * m * 128 * 128}, matmul=Matmul(m=m, k=128, n=128))
    t = price_op(near, chip, placement)
    assert t.derated == pytest.approx(t.peak["math"], rel=1e-9)


def test_a_device_has_its_share_of_the_chip():
    chip = load_chip("tpu7x")
    assert chip.jax_devices_per_chip == 2
    one = op("a", flops={"bf16": 1e12}, hbm_bytes=1e9)
    peak = price_op(one, chip, place(parse_slice("tpu7x:2x2x1"), {})).peak
    assert peak["math"] == pytest.approx(2e12 / chip.peak_flops["bf16"])
    assert peak["HBM"] == pytest.approx(2e9 / chip.hbm_bandwidth)


def test_flops_of_two_dtypes_add_up():
    chip, placement = load_chip("h100"), place(parse_slice("h100:1"), {})
    both = op("a", flops={"bf16": 1e12, "fp8": 1e12})
    want = 1e12 / chip.peak_flops["bf16"] + 1e12 / chip.peak_flops["fp8"]
    assert price_op(both, chip, placement).peak["math"] == pytest.approx(want)


def test_the_slowest_of_math_and_memory_counts_and_the_sum_is_serial():
    chip, placement = load_chip("v5p"), place(parse_slice("v5p:2x2x1"), {})
    t = price_op(op("a", flops={"bf16": 1e12}, hbm_bytes=1e10), chip, placement)
    rates = chip.efficiency
    math = 1e12 / chip.peak_flops["bf16"] / (rates.matmul * rates.sustained)
    memory = 1e10 / chip.hbm_bandwidth / rates.hbm
    assert t.derated == pytest.approx(max(math + rates.matmul_ramp, memory))
    assert t.serial == pytest.approx(math + memory + rates.matmul_ramp)


def test_a_rate_that_the_catalogue_lacks_is_asked_for():
    placement = place(parse_slice("v5p:2x2x1"), {})
    lacking = replace(load_chip("v5p"), hbm_bandwidth=None)
    with pytest.raises(BadRequest, match=r"'hbm_bandwidth'.*--set chip\.hbm_bandwidth=NUMBER"):
        price_op(op("a", hbm_bytes=1.0), lacking, placement)
    with pytest.raises(BadRequest, match="no peak for dtype 'fp4'"):
        price_op(op("a", flops={"fp4": 1.0}), load_chip("v5p"), placement)
    # What an op does not need is not asked for.
    assert price_op(op("a", flops={"bf16": 1.0}), lacking, placement).derated > 0


def test_the_top_ops_are_the_longest_over_the_step():
    chip, placement = load_chip("v5p"), place(parse_slice("v5p:2x2x1"), {})
    often = op("often", hbm_bytes=1e9, count=10.0)
    long = op("long", hbm_bytes=5e9)
    tiny = op("tiny", hbm_bytes=1.0)
    top = price(Work((tiny, long, often)), chip, placement).top(2)
    assert [t.op.id for t in top] == ["often", "long"]
    assert top[0].total == pytest.approx(10 * top[0].derated)


# Order of the bounds on random work ---------------------------------------------------------------

MESHES = {
    "v5p:4x4x4": {"data": 4, "fsdp": 4, "tensor": 4},  # rings
    "v5e:8x16": {"data": 2, "fsdp": 4, "tensor": 16},  # a line and a ring
    "4*h100:8": {"data": 4, "fsdp": 2, "tensor": 4},  # switches with SHARP, a ramp and NICs
    "2*v5p:2x2x4": {"data": 2, "fsdp": 4, "tensor": 4},  # the data centre between slices
    "2*mi300x:8": {"data": 2, "fsdp": 1, "tensor": 8},  # a full mesh
}
AXES = st.sampled_from([("data",), ("fsdp",), ("tensor",), ("data", "fsdp"), ("fsdp", "tensor")])
KINDS = st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"])
SIZES = st.floats(0, 1e10)
DIMS = st.floats(0.5, 1e4)


@st.composite
def random_op(draw, name, ids):
    fields = {"after": tuple(draw(st.lists(st.sampled_from(ids), max_size=2, unique=True)))}
    match draw(st.sampled_from(["matmul", "elementwise", "collective", "ragged", "copy"])):
        case "matmul":
            m, k, n, batch = (draw(DIMS) for _ in range(4))
            flops = {"bf16": 2 * m * k * n * batch}
            fields |= {"flops": flops, "matmul": Matmul(m=m, k=k, n=n, batch=batch)}
            return op(name, hbm_bytes=draw(SIZES), **fields)
        case "elementwise":
            return op(name, op_class="elementwise", hbm_bytes=draw(SIZES), **fields)
        case "copy":
            return op(name, "host", op_class="copy", host_bytes=draw(SIZES), **fields)
        case "ragged":
            axes = draw(AXES)
            wire = Collective(
                kind="ragged_all_to_all", axes=axes, bytes=draw(SIZES), fan_out=draw(st.just(8.0))
            )
        case _:
            axes = draw(AXES)
            wire = Collective(kind=draw(KINDS), axes=axes, bytes=draw(SIZES))
    return op(name, f"net:{axes[0]}", op_class="collective", collective=wire, **fields)


@st.composite
def random_work(draw):
    ops = []
    for body in range(draw(st.integers(1, 3))):
        ids = [f"{body}.{i}" for i in range(draw(st.integers(1, 6)))]
        count = draw(st.floats(0, 200))
        for name in ids:
            share = draw(st.sampled_from([1.0, 1.0, 0.25]))
            ops.append(replace(draw(random_op(name, ids)), body=f"body{body}", count=count * share))
    return Work(tuple(ops))


@on_drawn(250, st.sampled_from(sorted(MESHES)), random_work())
def test_lower_expected_upper_stand_in_order(text, work):
    piece = parse_slice(text)
    placement = place(piece, MESHES[text])
    assert placement.legal
    chip = replace(piece.chip, host_link_oneway=piece.chip.host_link_oneway or 3e10)
    e = price(work, chip, placement)
    assert 0 <= e.lower <= e.expected <= e.upper
    assert np.isfinite(e.upper)
    for resource, seconds in e.resources.items():
        assert seconds <= e.lower * TINY, resource
    for o in e.ops:
        assert max(o.peak.values(), default=0.0) <= o.derated * TINY
        assert o.derated <= o.serial * TINY


@on_drawn(250, random_work())
def test_overlap_lies_between_the_busiest_stream_and_the_sum(work):
    """Before any clipping: no stream works faster than it can, and something always runs."""
    piece = parse_slice("v5p:4x4x4")
    priced = price(work, piece.chip, place(piece, MESHES["v5p:4x4x4"])).ops
    for body in {t.op.body for t in priced}:
        mine = tuple(t for t in priced if t.op.body == body)
        streams: dict[str, float] = {}
        for t in mine:
            streams[t.op.stream] = streams.get(t.op.stream, 0.0) + t.total
        got = overlap(mine)
        assert max(streams.values()) <= got * TINY + 1e-15
        assert got <= sum(streams.values()) * TINY + 1e-15


@on_drawn(60, st.sampled_from(sorted(MESHES)), random_work(), st.data())
def test_columns_price_as_scalars(text, work, data):
    """Every quantity an array over candidates: each column is what it would be alone."""
    piece = parse_slice(text)
    placement = place(piece, MESHES[text])
    chip = replace(piece.chip, host_link_oneway=piece.chip.host_link_oneway or 3e10)
    scales = np.array(data.draw(st.lists(st.floats(0.01, 100), min_size=2, max_size=4)))
    columns = price(Work(tuple(_scaled(o, scales) for o in work.ops)), chip, placement)
    for i, scale in enumerate(scales):
        alone = price(Work(tuple(_scaled(o, float(scale)) for o in work.ops)), chip, placement)
        for bound in ("lower", "expected", "upper"):
            got = np.broadcast_to(getattr(columns, bound), scales.shape)[i]
            assert got == pytest.approx(getattr(alone, bound), rel=1e-12, abs=1e-300), bound


def _scaled(o: Op, scale):
    """Sizes times scale, counts by its root, so that rounds fall on both sides of the layout."""
    wire = o.collective and replace(o.collective, bytes=o.collective.bytes * scale)
    dims = o.matmul and replace(o.matmul, m=o.matmul.m * scale)
    return replace(
        o,
        flops={d: f * scale for d, f in o.flops.items()},
        hbm_bytes=o.hbm_bytes * scale,
        host_bytes=o.host_bytes * scale,
        matmul=dims,
        collective=wire,
        count=o.count * scale**0.5,
    )


# Real steps ---------------------------------------------------------------------------------------

MODELS = ["llama-3-8b", "mixtral-8x7b", "deepseek-v3", "nemotron-3-nano-30b-a3b"]
REAL = {
    "v5p:4x4x4": ("stage", "fsdp", "expert", "context", "tensor"),
    "v5e:8x16": ("stage", "fsdp", "expert", "context", "tensor"),
    "8*h100:8": ("stage", "data", "fsdp", "expert", "context", "tensor"),
    "2*v5p:2x4x4": ("replica", "stage", "fsdp", "expert", "context", "tensor"),
}


@st.composite
def real_degrees(draw, text):
    """Powers of two over the axes that a slice uses, multiplying to its devices."""
    piece = parse_slice(text)
    axes, left = REAL[text], piece.chips
    degrees = dict.fromkeys(MESH_AXES, 1)
    for axis in axes[:-1]:
        most = 2 if axis == "replica" else min(left, 8)
        degrees[axis] = draw(st.sampled_from([d for d in (1, 2, 4, 8) if d <= most]))
        left //= degrees[axis]
    degrees[axes[-1]] = left
    return degrees


@st.composite
def real_case(draw):
    text = draw(st.sampled_from(sorted(REAL)))
    meshes = [draw(real_degrees(text)) for _ in range(3)]
    return text, meshes, [draw(st.sampled_from([1.0, 4.0, 16.0])) for _ in meshes]


def _shape(degrees, microbatches, remat, zero, sequence_parallel):
    return TrainShape(
        degrees=degrees,
        sequences=2.0,
        sequence_length=4096,
        microbatches=microbatches,
        stage_share=1.0 / degrees.get("stage", 1.0),
        remat=remat,
        zero=zero,
        sequence_parallel=sequence_parallel,
        dtypes=TrainDtypes(),
    )


@on_drawn(
    40,
    st.sampled_from(MODELS),
    real_case(),
    st.sampled_from(REMAT_POLICIES),
    st.integers(0, 2),
    st.booleans(),
)
def test_real_steps_keep_the_order_and_price_alike_as_columns(model, case, remat, zero, parallel):
    text, meshes, microbatches = case
    piece, cfg = parse_slice(text), load_model(model)
    stacked = {axis: np.array([m[axis] for m in meshes]) for axis in meshes[0]}
    placed = place(piece, stacked)
    assume(np.any(placed.legal))
    floats = {axis: d.astype(float) for axis, d in stacked.items()}
    shape = _shape(floats, np.array(microbatches), remat, zero, parallel)
    columns = price(train_work(cfg, shape), piece.chip, placed)
    for i in np.flatnonzero(np.broadcast_to(placed.legal, len(meshes))):
        degrees = {axis: float(d) for axis, d in meshes[i].items() if d > 1}
        one = _shape(degrees, microbatches[i], remat, zero, parallel)
        alone = price(train_work(cfg, one), piece.chip, place(piece, meshes[i]))
        assert 0 < alone.lower <= alone.expected <= alone.upper < 3600
        for bound in ("lower", "expected", "upper"):
            got = np.broadcast_to(getattr(columns, bound), len(meshes))[i]
            assert got == pytest.approx(getattr(alone, bound), rel=1e-9), bound
