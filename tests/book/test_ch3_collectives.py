"""Chapter 3's collectives: its worked numbers from the closed forms and from the executor."""

from dataclasses import replace

import numpy as np
import pytest

from book.oracle import check, entry
from shardwise.hardware import load_chip, parse_slice, place
from shardwise.roofline.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    collective_seconds,
    permute,
)
from shardwise.sharding.simulate import simulate
from shardwise.sharding.simulate.collectives import all_gather as run_all_gather
from shardwise.sharding.simulate.collectives import all_reduce as run_all_reduce
from shardwise.sharding.simulate.collectives import all_to_all as run_all_to_all
from shardwise.sharding.simulate.collectives import reduce_scatter as run_reduce_scatter
from shardwise.sharding.simulate.fabric import torus
from shardwise.sharding.simulate.schedule import grain


def axes(text, **degrees):
    piece = parse_slice(text, lambda name: load_chip(name, constants="book"))
    placed = place(piece, degrees)
    assert placed.legal
    return placed.axes


def ring(size=16):
    """A ring of v5e links, of any size."""
    axis = axes("v5e:16x16", X=16, Y=16)["Y"]
    parts = tuple(replace(p, size=size if p.size > 1 else 1) for p in axis.parts)
    return replace(axis, size=size, parts=parts)


class TestPopQuiz2:
    line = axes("v5e:8x4", X=8, Y=4)["Y"]

    @entry("pop.3.3a.formula")
    def test_as_if_there_were_a_ring(self, e):
        check(e, all_gather(e["inputs"]["V"], [ring()], mode="asymptotic").bandwidth)

    @entry("pop.3.3a.line")
    def test_but_it_is_a_line(self, e):
        size = e["inputs"]["shard"] * 4
        check(e, all_gather(size, [self.line]).bandwidth)
        trace = simulate("all_gather", torus([4], wraps=False))
        assert trace.hops == e["inputs"]["hops"]
        moved = trace.busiest[1] / (4 * grain(trace.fabric))
        check(e, moved * e["inputs"]["shard"] / e["inputs"]["W"])

    @entry("pop.3.3b")
    def test_and_small_arrays_wait_for_hops(self, e):
        check(e, all_gather(e["inputs"]["shard"] * 4, [self.line]).book)


@entry("rule.3.ar")
def test_all_reduce_is_twice_a_gather(e):
    check(e, all_reduce(e["inputs"]["V"], [ring()], mode="asymptotic").bandwidth)


@entry("rule.3.latency_buffer")
def test_latency_bound_buffers(e):
    hop = permute(1.0, [ring()])
    check(e, hop.latency / hop.bandwidth)


@entry("rule.3.exact_uni")
def test_one_way_keeps_the_share_that_stays(e):
    n, size = e["inputs"]["N"], e["inputs"]["V"]
    check(e, all_gather(size, [ring(n)], both_ways=False).bandwidth)
    trace = simulate("all_gather", torus([n], one_way=True))
    moved = trace.busiest[1] / (4 * grain(trace.fabric) * n)
    check(e, moved * size / e["inputs"]["W"])


class TestExercise2:
    mesh = axes("v4:4x4x4", X=4, Y=4, Z=4)

    @entry("3.2.1")
    def test_gather(self, e):
        check(e, all_gather(e["inputs"]["bytes"], [self.mesh["X"]], mode="asymptotic").bandwidth)

    @entry("3.2.3")
    def test_reduce(self, e):
        check(e, all_reduce(e["inputs"]["bytes"], [self.mesh["Z"]], mode="asymptotic").bandwidth)

    @entry("3.2.fun")
    def test_a_replicated_axis_helps(self, e):
        x, y, z = (self.mesh[a] for a in "XYZ")
        part1 = all_gather(2 * 1024 * 1024, [x], idle=[z], mode="asymptotic")
        part2 = all_gather(2 * 1024 * 4096, [x, y], idle=[z], mode="asymptotic")
        check(e, [part1.bandwidth, part2.bandwidth])


@entry("3.8")
def test_the_four_collectives_on_eight_devices(e):
    """Every device holds its own number: what shard_map's collectives give, moved hop by hop."""
    eight = torus([e["inputs"]["devices"]])
    shards = {d: np.full(2, d[0]) for d in eight.devices}
    rows = {d: np.full((8, 2), d[0]) for d in eight.devices}
    summed, _ = run_all_reduce(eight, rows)
    check(e, [float(value) for value in {int(v) for r in summed.values() for v in r.flat}])
    gathered, _ = run_all_gather(eight, shards)
    assert all((r[:, 0] == np.arange(8)).all() for r in gathered.values())
    scattered, _ = run_reduce_scatter(eight, rows)
    assert all((r == 28).all() for r in scattered.values())
    exchanged, _ = run_all_to_all(eight, rows)
    assert all((r[:, 0] == np.arange(8)).all() for r in exchanged.values())


class TestExercise10:
    @entry("3.10.2")
    def test_scalars_over_one_link(self, e):
        """One byte per scalar; N x N of them, D x D messages."""
        n, d = e["inputs"]["N"], e["inputs"]["D"]
        trace = simulate("all_to_all", torus([d], one_way=True), n * n // d**2, dtype="int8")
        assert len(set(trace.link_bytes.values())) == 1
        check(e, float(trace.busiest[1]))

    @entry("3.10.3")
    def test_one_way_an_exchange_is_half_a_gather(self, e):
        exchange, gather = (
            collective(1e9, [ring()], both_ways=False, mode="asymptotic").bandwidth
            for collective in (all_to_all, all_gather)
        )
        check(e, exchange / gather)

    @entry("3.10.5")
    def test_both_ways_an_exchange_is_nearly_four_times_as_fast(self, e):
        """The entry's count has every message to the far side going one way; halved, 3.75."""
        d = e["inputs"]["D"]
        rows = {(i,): np.zeros((d, 2), np.int8) for i in range(d)}
        one_way, both, halved = (
            run_all_to_all(fabric, rows, split_ties=split)[1].busiest[1]
            for fabric, split in (
                (torus([d], one_way=True), False),
                (torus([d]), False),
                (torus([d]), True),
            )
        )
        check(e, one_way / both)
        assert one_way / halved == 3.75
        exact = [all_to_all(1e9, [ring(d)], both_ways=ways).bandwidth for ways in (False, True)]
        assert exact[0] / exact[1] == pytest.approx(3.75)

    @entry("3.10.6")
    def test_both_ways_an_exchange_is_a_quarter_of_a_gather(self, e):
        gather, exchange = (
            collective(1e9, [ring()], mode="asymptotic").bandwidth
            for collective in (all_gather, all_to_all)
        )
        check(e, gather / exchange)


@entry("head.3.ag_measured")
def test_the_measured_gather_beside_the_prediction(e, capsys):
    """Of kind measured: shown beside what is predicted, and nothing is gated on it."""
    assert e["kind"] == "measured"
    fraction, size, per_device = e["correct_value"]
    axis = axes("v5e:8x16", X=8, Y=16)["Y"]
    chip = load_chip("v5e", constants="book")
    wire, latency = collective_seconds("all_gather", size, [axis], measured=True)
    predicted = wire / (wire / chip.efficiency.network + latency)
    with capsys.disabled():
        print(
            f"\n  v5e:8x16 AllGather of {size:.0f} B over 16 ({per_device:.0f} B each): measured "
            f"{fraction:.0%} of the links at its plateau, expected {predicted:.0%} at this size"
        )
    assert 0 < predicted <= 1
