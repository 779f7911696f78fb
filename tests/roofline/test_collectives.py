"""Collectives: the book's worked numbers, counted messages, and laws that hold on any placement."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadRequest
from shardwise.hardware import (
    AxisLinks,
    Part,
    Slice,
    load_chip,
    parse_slice,
    place,
    place_or_refuse,
)
from shardwise.roofline.collectives import (
    SHARP_GAIN,
    all_gather,
    all_reduce,
    all_to_all,
    collective_seconds,
    permute,
    ragged_all_to_all,
    reduce_scatter,
)

# Figures of How To Scale Your Model by the ids of shared/data/oracle.json (edition of 13 Jul 2026,
# ch. 3 sharding.md and ch. 12 gpus.md); values are exact for the inputs that the tests spell out.
BOOK = {
    "pop.3.3a.formula": 0.0003728270222222222,
    "pop.3.3a.line": 0.0005592405333333334,
    "pop.3.3b": 3e-06,
    "3.2.1": 2.330168888888889e-05,
    "3.2.3": 1.1650844444444444e-05,
    "3.2.fun": [1.1650844444444444e-05, 3.1068918518518516e-05],
    "3.10.3": 0.5,
    "3.10.6": 4,
    "rule.3.ar": 0.022222222222222223,
    "rule.3.exact_uni": 0.019444444444444445,
    "pop.gpu.1": [7.456540444444445e-05, 6.524472888888889e-05],
    "pop.gpu.2": [0.00024305555555555555, 0.0002777777777777778, 0.0001388888888888889],
    "gpu.quiz2.q3": [0.0010439156622222222, 0.0011930464711111112],
    "gpu.quiz4.q4": 4.194304e-05,
    "gpu.quiz4.q5": 0.0019444444444444444,
    "rule.gpu.ag_tree": [514285714285.7143, 412903225806.4516],
    "rule.gpu.a2a_cross": [
        0.0002777777777777778,
        0.00125,
        0.00024305555555555555,
        0.000625,
    ],
    "rule.gpu.ragged_true": [
        0.5349794238683128,
        0.5126953125,
        0.362091064453125,
        0.06009644363075495,
    ],
    "rule.gpu.ragged_approx": [2 / 3, 3 / 4, 7 / 16, 63 / 1024],
}


def near(entry):
    return pytest.approx(BOOK[entry], rel=1e-12)


def links(text, degrees):
    """The links of each mesh axis on a slice of book constants, without SHARP."""
    piece = parse_slice(text, lambda name: load_chip(name, constants="book"))
    axes = place_or_refuse(piece, degrees).axes
    return {name: replace(axis, sharp=False) for name, axis in axes.items()}


def ring(size, oneway=4.5e10, *, closed=True, hop=1e-6):
    part = Part(size=size, oneway=oneway, ring=closed, hop_seconds=hop, stride=1)
    none = Part(size=1, oneway=0.0, ring=False, hop_seconds=0.0, stride=1)
    return AxisLinks(
        size=size,
        within=none,
        devices_per_chip=1,
        parts=(part,),
        outer=none,
        kind="torus",
        sharp=False,
        ramp_bytes=0.0,
    )


class TestBookTori:
    def test_a_line_of_four_on_v5e(self):
        y = links("v5e:4x8", {"X": 8, "Y": 4})["Y"]
        big = all_gather(2048 * 8192 * 2, [y])
        assert big.bandwidth == near("pop.3.3a.line")
        assert big.book == big.bandwidth
        assert all_gather(256 * 256 * 2, [y]).book == near("pop.3.3b")

    def test_the_ring_formula_drops_the_share_that_stays(self):
        closed = all_gather(2048 * 8192 * 2, [ring(16)], mode="asymptotic")
        assert closed.bandwidth == near("pop.3.3a.formula")
        assert all_reduce(1e9, [ring(16)], mode="asymptotic").bandwidth == near("rule.3.ar")

    def test_one_direction_keeps_it(self):
        assert all_gather(1e9, [ring(8, closed=False)]).bandwidth == near("rule.3.exact_uni")

    def test_exercise_2(self):
        mesh = links("v4:4x4x4", {"X": 4, "Y": 4, "Z": 4})
        xs, both = [mesh["X"]], [mesh["X"], mesh["Y"]]
        assert all_gather(2 * 1024 * 1024, xs, mode="asymptotic").bandwidth == near("3.2.1")
        sharded = all_reduce(2 * 256 * 1024, [mesh["Z"]], mode="asymptotic")
        assert sharded.bandwidth == near("3.2.3")
        idle = [
            all_gather(2 * 1024 * 1024, xs, idle=[mesh["Z"]], mode="asymptotic").bandwidth,
            all_gather(2 * 1024 * 4096, both, idle=[mesh["Z"]], mode="asymptotic").bandwidth,
        ]
        assert idle == near("3.2.fun")

    def test_a_tiny_gather_is_latency(self):
        x = links("v4:4x4x4", {"X": 4, "Y": 4, "Z": 4})["X"]
        assert all_gather(2 * 128, [x]).book == 2e-6

    def test_all_to_all_is_a_quarter_or_half_of_a_gather(self):
        gather = all_gather(1e9, [ring(16)], mode="asymptotic").bandwidth
        exchange = all_to_all(1e9, [ring(16)], mode="asymptotic").bandwidth
        assert gather / exchange == near("3.10.6")
        # One direction of a ring carries the whole N(N-1)/2 message hops.
        line = all_to_all(1e9, [ring(16, closed=False)], mode="asymptotic").bandwidth
        assert line == 2 * exchange


class TestBookSwitches:
    @pytest.mark.parametrize(
        ("entry", "shape", "modes"),
        [
            ("gpu.quiz2.q3", (4096, 65536), ("exact", "asymptotic")),
            ("pop.gpu.1", (1024, 16384), ("asymptotic", "exact")),
        ],
    )
    def test_gathers_in_a_node(self, entry, shape, modes):
        node = [links("h100:8", {"tensor": 8})["tensor"]]
        assert [
            all_gather(2 * math.prod(shape), node, mode=mode).bandwidth for mode in modes
        ] == near(entry)

    def test_exchange_in_a_node(self):
        node = [links("h100:8", {"expert": 8})["expert"]]
        assert [
            all_to_all(1e9, node).bandwidth,
            all_to_all(1e9, node, mode="asymptotic").bandwidth,
            ragged_all_to_all(1e9, node, fan_out=4, mode="asymptotic").bandwidth,
        ] == near("pop.gpu.2")

    def test_exchange_over_two_nodes(self):
        one = [links("h100:8", {"expert": 8})["expert"]]
        two = [links("2*h100:8", {"expert": 16})["expert"]]
        assert [
            all_to_all(1e9, group, mode=mode).bandwidth
            for mode in ("asymptotic", "exact")
            for group in (one, two)
        ] == near("rule.gpu.a2a_cross")

    def test_gather_over_two_nodes_is_bound_by_the_node(self):
        two = [links("2*h100:8", {"data": 16})["data"]]
        assert all_gather(1e9, two).bandwidth == near("gpu.quiz4.q5")

    def test_the_rate_of_each_level_of_the_tree(self):
        rates = [
            1e9 / all_gather(1e9, [links(text, {"data": chips})["data"]]).bandwidth
            for text, chips in (("h100:8", 8), ("32*h100:8", 256))
        ]
        assert rates == near("rule.gpu.ag_tree")

    def test_sharp_over_the_spine(self):
        spine = replace(ring(4, oneway=51.2e12 / 4), kind="switched", sharp=True)
        assert all_reduce(2 * 8192 * 32768, [spine]).bandwidth == near("gpu.quiz4.q4")

    @pytest.mark.parametrize("inner", [1, 2, 4, 8, 16, 64])
    def test_an_inner_sharded_axis(self, inner):
        """AllGather_X(bf16[D_X, F_Y]) over 32 nodes: the outer term falls once Y spans nodes."""
        mesh = links("32*h100:8", {"X": 256 // inner, "Y": inner})
        size, whole = 2 * 8192 * 32768 / inner, 2 * 8192 * 32768
        got = all_gather(size, [mesh["X"]], mode="asymptotic").bandwidth
        node = whole / (450e9 * min(inner, 8)) if inner < 8 else 0.0
        assert got == pytest.approx(max(node, whole * 8 / (400e9 * max(8, inner))))

    @pytest.mark.parametrize(("i", "shards"), list(enumerate([3, 4, 8, 64])))
    def test_ragged_exchange(self, i, shards):
        axis = [links("gb200:72", {"expert": shards})["expert"]]
        scale = shards * 900e9 / 1e9
        exact = ragged_all_to_all(1e9, axis, fan_out=4).bandwidth * scale
        assert exact == pytest.approx(BOOK["rule.gpu.ragged_true"][i])
        rough = ragged_all_to_all(1e9, axis, fan_out=4, mode="asymptotic").bandwidth * scale
        kept = (shards - 1) / shards
        assert rough * kept == pytest.approx(BOOK["rule.gpu.ragged_approx"][i])

    def test_a_full_mesh_uses_one_link_per_peer(self):
        pair = load_chip("mi300x", constants="book").network.pair_oneway
        for n in (2, 4, 8):
            axis = [links("mi300x:8", {"tensor": n})["tensor"]]
            assert all_gather(1e9, axis).bandwidth == pytest.approx(1e9 / n / pair)
            assert all_to_all(1e9, axis).bandwidth == pytest.approx(1e9 / n**2 / pair)


def messages_over_busiest_link(dims, closed):
    """Messages over the busiest link and direction when every chip sends one to every other.

    Dimension by dimension, the shorter way round; a tie goes half each way.
    """
    load = {}

    def travel(axis, at, to, weight):
        n = dims[axis]
        ahead = (to - at[axis]) % n
        ways = [(1, to - at[axis], 1.0)] if to > at[axis] else [(-1, at[axis] - to, 1.0)]
        if closed[axis]:
            back = n - ahead
            ways = [(1, ahead, 1.0)] if ahead < back else [(-1, back, 1.0)]
            if ahead == back:
                ways = [(1, ahead, 0.5), (-1, back, 0.5)]
        for step, hops, part in ways:
            place_ = list(at)
            for _ in range(hops):
                key = (axis, tuple(place_), step)
                load[key] = load.get(key, 0) + weight * part
                place_[axis] = (place_[axis] + step) % n

    for start in product(*map(range, dims)):
        for end in product(*map(range, dims)):
            at = list(start)
            for axis in range(len(dims)):
                if at[axis] != end[axis]:
                    travel(axis, at, end[axis], 1)
                    at[axis] = end[axis]
    return max(load.values(), default=0)


@pytest.mark.parametrize(
    ("dims", "closed"),
    [
        *(((n,), (ring_,)) for n in (2, 3, 4, 5, 8, 9, 16) for ring_ in (True, False) if n > 2),
        ((2,), (False,)),
        ((4, 4), (True, True)),
        ((4, 8), (False, False)),
        ((4, 6), (True, False)),
        ((2, 3, 5), (False, False, False)),
    ],
)
def test_all_to_all_is_the_counted_load_of_the_busiest_link(dims, closed):
    axes = [ring(n, oneway=1.0, closed=c) for n, c in zip(dims, closed, strict=True)]
    chips = math.prod(dims)
    parts = tuple(axis.parts[0] for axis in axes)
    group = replace(axes[0], size=chips, parts=parts)
    counted = messages_over_busiest_link(dims, closed)
    # V = N^2 bytes make every message one byte, and a link moves one byte a second.
    assert all_to_all(chips**2, [group]).bandwidth == pytest.approx(counted)


@pytest.mark.parametrize(
    ("n", "closed"), [(2, False), (5, False), (8, False), (5, True), (8, True)]
)
def test_a_gather_is_the_bytes_that_the_worst_chip_receives(n, closed):
    """Shards move one hop per step, both ways round a ring; V = N makes a shard one byte."""
    have = [{i} for i in range(n)]
    received = [0.0] * n
    for _ in range(n):
        fresh = [set() for _ in range(n)]
        for chip in range(n):
            for step in (1, -1):
                other = chip + step
                if closed or 0 <= other < n:
                    fresh[chip] |= have[other % n] - have[chip]
        received = [r + len(f) for r, f in zip(received, fresh, strict=True)]
        have = [h | f for h, f in zip(have, fresh, strict=True)]
    assert all(len(h) == n for h in have)
    ports = 2 if closed else 1
    got = all_gather(n, [ring(n, oneway=1.0, closed=closed)]).bandwidth
    assert got == pytest.approx(max(received) / ports)


SLICES = (
    "v5p:16x16x16",
    "2*v5p:4x8x12",
    "v5e:4x8",
    "6*v5e:16x16",
    "h100:8",
    "12*h100:8",
    "2*mi300x:8",
    "tpu7x:4x4x8",
    "2*tpu7x:2x2x1",
    "mi250x:8",
)
KINDS = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "ragged_all_to_all",
    "permute",
)


@st.composite
def placed(draw):
    """(slice, placement of four axes that fill it)."""
    piece = parse_slice(draw(st.sampled_from(SLICES)))
    degrees = dict.fromkeys(("data", "fsdp", "context", "tensor"), 1)
    left, prime = piece.devices, 2
    while left > 1:
        while left % prime == 0:
            degrees[draw(st.sampled_from(sorted(degrees)))] *= prime
            left //= prime
        prime += 1
    return piece, place(piece, degrees)


groups = st.lists(
    st.sampled_from(("data", "fsdp", "context", "tensor")), min_size=1, max_size=4, unique=True
)
kinds = st.sampled_from(KINDS)


def seconds(kind, size, axes, **more):
    extra = {"fan_out": 4.0} if kind == "ragged_all_to_all" else {}
    return collective_seconds(kind, size, axes, **extra, **more)


@given(placed(), groups, kinds, st.floats(1.1, 8))
def test_faster_links_are_never_slower(case, names, kind, factor):
    piece, here = case
    network = piece.chip.network
    faster = {
        name: getattr(network, name) * factor
        for name in ("link_oneway", "chip_oneway", "pair_oneway")
        if hasattr(network, name)
    }
    link = (piece.chip.device_link_oneway or 1.0) * factor
    chip = replace(piece.chip, network=replace(network, **faster), device_link_oneway=link)
    quick = Slice(chip=chip, count=piece.count, shape=piece.shape)
    there = place(quick, {name: axis.size for name, axis in here.axes.items()})
    slow = seconds(kind, 1e9, [here.axes[n] for n in names])
    fast = seconds(kind, 1e9, [there.axes[n] for n in names])
    assert fast.bandwidth <= slow.bandwidth * (1 + 1e-12)
    assert fast.latency == slow.latency


@given(placed(), groups, st.sampled_from(("exact", "asymptotic")))
def test_all_reduce_is_a_reduce_scatter_and_a_gather(case, names, mode):
    axes = [replace(case[1].axes[n], sharp=False) for n in names]
    parts = [collective(1e9, axes, mode=mode) for collective in (reduce_scatter, all_gather)]
    whole = all_reduce(1e9, axes, mode=mode)
    assert whole.bandwidth == pytest.approx(sum(p.bandwidth for p in parts))
    assert whole.total == pytest.approx(sum(p.total for p in parts))


@given(placed(), groups)
def test_sharp_is_between_once_and_twice_a_gather(case, names):
    axes = [case[1].axes[n] for n in names]
    with_, without = (
        all_reduce(1e9, [replace(axis, sharp=on) for axis in axes]) for on in (True, False)
    )
    assert with_.bandwidth <= without.bandwidth * (1 + 1e-12)
    assert with_.bandwidth >= without.bandwidth / 2
    measured, ring = (
        all_reduce(1e9, [replace(a, sharp=on, ramp_bytes=0.0) for a in axes], measured=True)
        for on in (True, False)
    )
    assert with_.bandwidth <= measured.bandwidth <= ring.bandwidth * (1 + 1e-12)
    assert measured.bandwidth >= ring.bandwidth / SHARP_GAIN * (1 - 1e-12)


@given(placed(), kinds)
def test_an_axis_of_one_is_free(case, kind):
    piece, _ = case
    alone = place(piece, {"one": 1, "all": piece.devices}).axes["one"]
    assert tuple(seconds(kind, 1e9, [alone])) == (0.0, 0.0)
    assert tuple(seconds(kind, 1e9, [])) == (0.0, 0.0)


@given(placed(), groups, kinds)
def test_an_axis_of_one_changes_nothing(case, names, kind):
    piece, here = case
    axes = [here.axes[n] for n in names]
    one = place(piece, {"one": 1, "all": piece.devices}).axes["one"]
    assert seconds(kind, 1e9, [*axes, one]) == seconds(kind, 1e9, axes)
    assert seconds(kind, 1e9, [one, *axes]) == seconds(kind, 1e9, axes)


@given(placed(), groups)
def test_no_gather_beats_the_links_of_a_chip(case, names):
    """Bytes a chip lacks, over all that can reach it: 2 links per axis, NVLink, NIC, own dies."""
    piece, here = case
    axes = [here.axes[n] for n in names]
    chips = math.prod(axis.size for axis in axes)
    network = piece.chip.network
    if axes[0].kind == "torus":
        ingress = 2 * network.link_oneway * len(piece.shape)
    elif axes[0].kind == "full_mesh":
        ingress = network.pair_oneway * (piece.shape[0] - 1)
    else:
        ingress = network.chip_oneway
    ingress += piece.chip.data_centre.chip_oneway if piece.chip.data_centre else 0.0
    ingress += piece.chip.device_link_oneway or 0.0
    assert all_gather(1e9, axes).bandwidth >= 1e9 * (chips - 1) / chips / ingress


@given(placed(), groups)
def test_idle_axes_never_hurt(case, names):
    axes = [case[1].axes[n] for n in names]
    idle = [axis for name, axis in case[1].axes.items() if name not in names]
    assert all_gather(1e9, axes, idle=idle).total <= all_gather(1e9, axes).total


@given(
    placed(),
    groups,
    st.sampled_from(("all_gather", "reduce_scatter", "all_reduce", "all_to_all")),
)
def test_exact_is_at_most_asymptotic(case, names, kind):
    axes = [case[1].axes[n] for n in names]
    exact, rough = (seconds(kind, 1e9, axes, mode=m).bandwidth for m in ("exact", "asymptotic"))
    assert exact <= rough * (1 + 1e-12)


@given(placed(), groups, kinds)
def test_measured_is_never_faster(case, names, kind):
    axes = [case[1].axes[n] for n in names]
    ideal, real = seconds(kind, 1e6, axes), seconds(kind, 1e6, axes, measured=True)
    assert real.bandwidth >= ideal.bandwidth * (1 - 1e-12)


@given(placed(), groups, st.sampled_from(("all_gather", "reduce_scatter", "all_reduce")))
def test_two_levels_are_no_faster_than_either(case, names, kind):
    axes = [case[1].axes[n] for n in names]
    unused = Part(size=1, oneway=0.0, ring=False, hop_seconds=0.0, stride=1)
    for level in ("outer", "within"):
        others = [replace(axis, **{level: unused}, devices_per_chip=1) for axis in axes]
        assert seconds(kind, 1e9, axes).total >= seconds(kind, 1e9, others).total


@given(placed(), groups, kinds)
def test_time_grows_with_bytes(case, names, kind):
    axes = [case[1].axes[n] for n in names]
    once, twice = seconds(kind, 1e6, axes), seconds(kind, 2e6, axes)
    assert twice.bandwidth == pytest.approx(2 * once.bandwidth)
    assert twice.latency == once.latency


@given(st.lists(placed(), min_size=1, max_size=6), groups, kinds)
def test_an_array_costs_what_its_elements_do(cases, names, kind):
    piece = cases[0][0]
    same = [here for other, here in cases if str(other) == str(piece)]
    columns = {name: np.array([here.axes[name].size for here in same]) for name in same[0].axes}
    together = place(piece, columns)
    sizes = np.linspace(1e6, 1e9, len(same))
    got = seconds(kind, sizes, [together.axes[n] for n in names], measured=True)
    for i, here in enumerate(same):
        want = seconds(kind, sizes[i], [here.axes[n] for n in names], measured=True)
        assert np.broadcast_to(got.bandwidth, sizes.shape)[i] == pytest.approx(want.bandwidth)
        assert np.broadcast_to(got.latency, sizes.shape)[i] == pytest.approx(want.latency)


def test_two_mesh_axes_that_continue_each_other_are_one_ring():
    piece = parse_slice("v5e:16x16")
    apart = place(piece, {"data": 16, "a": 4, "b": 4}, finish=True).axes
    whole = place(piece, {"data": 16, "ab": 16}).axes["ab"]
    for kind in KINDS:
        assert seconds(kind, 1e9, [apart["a"], apart["b"]]) == seconds(kind, 1e9, [whole])
        assert seconds(kind, 1e9, [apart["b"], apart["a"]]) == seconds(kind, 1e9, [whole])


def test_permute_goes_one_way_round():
    link = load_chip("v5e").network
    axis = place(parse_slice("v5e:16x16"), {"x": 16, "y": 16}).axes["y"]
    assert tuple(permute(1e9, [axis])) == (1e9 / link.link_oneway, link.hop_seconds)
    line = place(parse_slice("v5e:4x4"), {"x": 4, "y": 4}).axes["y"]
    assert tuple(permute(1e9, [line])) == (1e9 / link.link_oneway, 2 * link.hop_seconds)
    h100 = load_chip("h100")
    stage = place(parse_slice("4*h100:8"), {"stage": 4, "tensor": 8}).axes["stage"]
    assert permute(1e9, [stage]).bandwidth == 1e9 / h100.data_centre.chip_oneway


def test_an_unknown_kind_is_refused():
    with pytest.raises(
        BadRequest, match="unknown collective 'all_gathr'; did you mean 'all_gather'"
    ):
        collective_seconds("all_gathr", 1.0, [])
