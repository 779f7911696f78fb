"""The executor: what arrives, what goes over each link, and in how many rounds. By hand."""

from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sharding.bounds import lower_bound

from shardwise.errors import BadRequest
from shardwise.sharding.simulate import simulate
from shardwise.sharding.simulate.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    permute,
    reduce_scatter,
)
from shardwise.sharding.simulate.fabric import AxisPiece, Fabric, Physical, Unit, torus
from shardwise.sharding.simulate.schedule import best_shares, grain

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")


def domain(kind, size, **more):
    axis = Physical(name="domain", kind=kind, size=size, **more)
    return Fabric(axes=(axis,), group=(AxisPiece(axis="domain", size=size),))


class TestRings:
    def test_a_gather_by_hand(self):
        """Four on a ring, blocks of two: each gets one neighbour's block from either side, and
        half of the farthest block from each: 3 elements over every link in 2 rounds."""
        ring = torus([4])
        shards = {(i,): np.array([10 * i, 10 * i + 1], np.int32) for i in range(4)}
        results, trace = all_gather(ring, shards)
        assert all((r == np.stack(list(shards.values()))).all() for r in results.values())
        assert set(trace.link_bytes.values()) == {3 * 4}
        assert len(trace.link_bytes) == 8
        assert trace.hops == 2
        assert [len(moved) for moved in trace.rounds] == [16, 8]
        assert sorted({t.bytes for t in trace.rounds[1]}) == [4]

    def test_odd_rings_need_no_halves(self):
        trace = simulate("all_gather", torus([5]), 1)
        assert set(trace.link_bytes.values()) == {2 * 4}
        assert trace.hops == 2

    def test_blocks_that_do_not_halve_are_still_exact(self):
        trace = simulate("all_gather", torus([4]), 3)
        assert set(trace.link_bytes.values()) == {4 * 4, 5 * 4}

    def test_one_way(self):
        ring = torus([8], one_way=True)
        for kind in ("all_gather", "reduce_scatter"):
            trace = simulate(kind, ring)
            assert {link.way for link in trace.link_bytes} == {1}
            assert set(trace.link_bytes.values()) == {7 * 2 * 4}
            assert trace.hops == 7
        exchange = simulate("all_to_all", ring)
        assert set(exchange.link_bytes.values()) == {8 * 7 // 2 * 2 * 4}
        assert exchange.hops == 7

    def test_a_line_is_busiest_at_its_ends(self):
        trace = simulate("all_gather", torus([4], wraps=False), 1)
        right = [trace.link_bytes[link] // 4 for link in sorted(trace.link_bytes) if link.way == 1]
        assert right == [1, 2, 3]
        assert trace.hops == 3

    def test_a_line_loads_opposite_ends_in_the_two_halves_of_an_all_reduce(self):
        trace = simulate("all_reduce", torus([8], wraps=False))
        array = 8 * 2 * 4
        assert set(trace.link_bytes.values()) == {array}
        assert trace.bandwidth_seconds == 2 * array * 7 / 8
        assert lower_bound("all_reduce", torus([8], wraps=False), array) == array


class TestTori:
    def test_equal_sides_take_both_orders_in_equal_parts(self):
        trace = simulate("all_gather", torus([4, 4]))
        assert len(set(trace.link_bytes.values())) == 1
        assert "2 orders" in trace.algorithm

    @pytest.mark.parametrize("sizes", [(2, 3), (4, 8), (3, 5), (2, 2, 3), (4, 2, 3)])
    def test_unequal_sides_are_loaded_alike(self, sizes):
        trace = simulate("all_gather", torus(sizes))
        assert set(trace.link_bytes.values()) == {
            grain(torus(sizes)) * 4 * (prod(sizes) - 1) // (2 * len(sizes))
        }

    def test_a_split_axis_shares_its_links(self):
        """The outer four of a ring of eight, two apart: two groups, both over every link."""
        ring = torus([8], group=[AxisPiece(axis="x", size=4, stride=2)])
        assert len(ring.groups) == 2
        trace = simulate("all_gather", ring, 2)
        assert set(trace.link_bytes.values()) == {2 * 3 * 4}
        assert trace.hops == 4

    def test_inner_parts_are_lines(self):
        ring = torus([8], group=[AxisPiece(axis="x", size=4)])
        trace = simulate("all_gather", ring, 2)
        assert trace.busiest[1] == 3 * 2 * 4
        assert trace.hops == 3

    def test_pieces_with_a_gap_take_turns(self):
        gap = [AxisPiece(axis="x", size=2, stride=1), AxisPiece(axis="x", size=2, stride=4)]
        trace = simulate("all_gather", torus([8], wraps=False, group=gap), 1)
        # 4 groups send 1 block over the middle; then every pair exchanges 2 blocks.
        assert trace.bandwidth_seconds == 4 * 4 + 2 * 4
        assert trace.hops == 5

    def test_orders_of_three_axes(self):
        shares = dict(best_shares((4, 4, 4), (Fraction(3),) * 3))
        assert sum(shares.values()) == 1
        loads = [
            sum(share * 3 * 4 ** order.index(axis) for order, share in shares.items())
            for axis in range(3)
        ]
        assert loads == [21, 21, 21]


class TestSwitches:
    @pytest.mark.parametrize(("n", "rounds"), [(2, 1), (3, 2), (5, 3), (8, 3)])
    def test_bruck(self, n, rounds):
        trace = simulate("all_gather", domain("switch", n), 1)
        assert set(trace.link_bytes.values()) == {(n - 1) * 4}
        assert len(trace.link_bytes) == 2 * n
        assert trace.hops == rounds

    def test_sharp_moves_the_array_once_each_way(self):
        switch = domain("switch", 5, reduces=True)
        trace = simulate("all_reduce", switch, 1)
        assert set(trace.link_bytes.values()) == {5 * 4}
        assert trace.latency_seconds == 2
        assert simulate("all_reduce", domain("switch", 5), 1).busiest[1] == 2 * 4 * 4

    def test_a_full_mesh_sends_straight(self):
        mesh = domain("full_mesh", 4)
        assert set(simulate("all_gather", mesh, 1).link_bytes.values()) == {4}
        assert simulate("all_to_all", mesh).hops == 1

    def test_a_tree_gathers_over_the_spine_first(self):
        """Two leaves of two nodes of two GPUs: N = 8 blocks. A NIC brings 3 (one per other node),
        a leaf's uplink the 4 of the other leaf, a port in the node 4."""
        nodes = Physical(
            name="nodes", kind="tree", size=4, units=(Unit(name="leaf", networks=2, rate=1.0),)
        )
        inside = Physical(name="domain", kind="switch", size=2)
        tree = Fabric(
            axes=(nodes, inside),
            group=(AxisPiece(axis="nodes", size=4), AxisPiece(axis="domain", size=2)),
        )
        trace = simulate("all_gather", tree, 1)
        worst = {}
        for link, size in trace.link_bytes.items():
            worst[link.name] = max(worst.get(link.name, 0), size // 4)
        assert worst == {"nodes": 3, "leaf": 4, "domain": 4}
        assert trace.hops == 3
        for kind in KINDS:
            simulate(kind, tree)


class TestResults:
    def test_reduce_scatter_is_the_transpose_of_all_gather(self):
        """<AG x, y> = <x, RS y>, and every link carries the other direction's bytes."""
        mesh = torus([2, 3], wraps=[False, True])
        draw = np.random.default_rng(1)
        length = grain(mesh)
        x = {d: draw.integers(0, 9, length) for d in mesh.devices}
        y = {d: draw.integers(0, 9, (6, length)) for d in mesh.devices}
        gathered, forward = all_gather(mesh, x)
        scattered, backward = reduce_scatter(mesh, y)
        left = sum((gathered[d] * y[d]).sum() for d in mesh.devices)
        assert left == sum((x[d] * scattered[d]).sum() for d in mesh.devices)
        assert {link.back: b for link, b in forward.link_bytes.items()} == backward.link_bytes

    def test_all_to_all_twice_is_nothing(self):
        ring = torus([5])
        rows = {d: np.arange(10).reshape(5, 2) + 100 * d[0] for d in ring.devices}
        once, _ = all_to_all(ring, rows)
        twice, _ = all_to_all(ring, once)
        assert all((twice[d] == rows[d]).all() for d in ring.devices)

    def test_a_permute_goes_round(self):
        line = torus([5], wraps=False)
        blocks = {d: np.array(d) for d in line.devices}
        start = blocks
        for _ in range(5):
            blocks, trace = permute(line, blocks)
        assert blocks == start
        assert trace.hops == 2
        assert set(trace.link_bytes.values()) == {8}

    def test_a_group_of_one_moves_nothing(self):
        alone = torus([4], group=[])
        for kind in KINDS:
            trace = simulate(kind, alone)
            assert trace.hops == 0
            assert (trace.bandwidth_seconds, trace.latency_seconds) == (0.0, 0.0)

    @given(
        st.lists(st.integers(1, 4), min_size=1, max_size=3),
        st.booleans(),
        st.sampled_from(KINDS),
        st.integers(0, 7),
    )
    @settings(max_examples=20)
    def test_any_length_arrives(self, sizes, wraps, kind, length):
        simulate(kind, torus(sizes, wraps=wraps), length)


class TestRefusals:
    def test_pieces_must_fit(self):
        with pytest.raises(BadRequest, match="3 members 2 apart do not fit axis 'x' of 8"):
            torus([8], group=[AxisPiece(axis="x", size=3, stride=2)])
        with pytest.raises(BadRequest, match="no physical axis 'y'; the fabric has x"):
            torus([8], group=[AxisPiece(axis="y", size=2)])

    def test_blocks_must_be_alike(self):
        with pytest.raises(BadRequest, match=r"every device needs a block .* \[4, length\]"):
            all_reduce(torus([4]), {(i,): np.zeros((3, 2)) for i in range(4)})

    def test_unknown_kinds(self):
        with pytest.raises(BadRequest, match="did you mean 'all_gather'"):
            simulate("all_gathr", torus([4]))
