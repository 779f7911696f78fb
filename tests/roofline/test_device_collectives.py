"""Collectives where a chip is several JAX devices: hand-computed, and against chips of one device.

tpu7x has two devices per chip, 600 GB/s one-way between them and 100 GB/s one-way per link;
mi250x two, 200 and 50 GB/s per pair of chips.
"""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.hardware import parse_slice, place
from shardwise.roofline.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    collective_seconds,
    permute,
    ragged_all_to_all,
    reduce_scatter,
)

LINK, DIE, NIC = 1e11, 6e11, 1.25e10
V = 8e9
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "ragged_all_to_all", "permute")


def axes(text, **degrees):
    placed = place(parse_slice(text), degrees)
    assert placed.legal
    return placed.axes


def seconds(kind, links, size=V):
    more = {"fan_out": 4.0} if kind == "ragged_all_to_all" else {}
    return collective_seconds(kind, size, links, **more)


class TestInsideAChip:
    tensor = (axes("tpu7x:2x2x1", fsdp=4, tensor=2)["tensor"],)

    def test_each_device_lacks_half(self):
        wire, latency = all_gather(V, self.tensor)
        assert wire == V / 2 / DIE
        assert latency == 1e-6
        assert reduce_scatter(V, self.tensor) == (wire, latency)
        assert all_reduce(V, self.tensor) == (2 * wire, 2 * latency)
        assert all_gather(V, self.tensor, mode="asymptotic").bandwidth == V / DIE

    def test_an_exchange_moves_a_quarter(self):
        assert all_to_all(V, self.tensor).bandwidth == V / 4 / DIE
        assert all_to_all(V, self.tensor, mode="asymptotic").bandwidth == V / 2 / DIE
        # One of two devices is hit with probability 1 - (1/2)^2.
        ragged = ragged_all_to_all(V, self.tensor, fan_out=2.0)
        assert ragged.bandwidth == V / 4 / DIE * 3 / 4

    def test_a_permute_moves_all(self):
        assert tuple(permute(V, self.tensor)) == (V / DIE, 1e-6)


class TestSharedLinks:
    fsdp = (axes("tpu7x:2x2x1", fsdp=4, tensor=2)["fsdp"],)
    """x[2] y[2], two lines, each link shared by the groups of the two devices of a chip."""

    def test_half_rate(self):
        assert all_gather(V, self.fsdp).bandwidth == V * 3 / 4 / (2 * LINK / 2)
        # Half of the array crosses each line of two; two chips send over each link.
        assert all_to_all(V, self.fsdp).bandwidth == pytest.approx(V / 8 / (LINK / 2))
        assert permute(V, self.fsdp).bandwidth == V / (LINK / 2)

    def test_the_nic_too(self):
        data = axes("2*tpu7x:2x2x1", data=2, fsdp=4, tensor=2)
        assert all_gather(V, [data["data"]]).bandwidth == V / 2 / (NIC / 2)
        both = [data["data"], data["tensor"]]
        assert all_gather(V, both).bandwidth == V / 2 / NIC
        assert permute(V, [data["data"]]).bandwidth == V / (NIC / 2)

    def test_a_full_mesh_too(self):
        mesh = axes("mi250x:8", fsdp=8, tensor=2)
        assert all_gather(V, [mesh["fsdp"]]).bandwidth == pytest.approx(V * 7 / 8 / (7 * 5e10 / 2))
        whole = [mesh["fsdp"], mesh["tensor"]]
        assert all_gather(V, whole).bandwidth == pytest.approx(V / 2 / 2e11)
        # One step between chips, one between the devices of a chip; measured: 2 log2(16) + 1 steps.
        assert all_gather(V, whole).latency == pytest.approx(2 * 1.84e-6)
        assert all_gather(V, whole, measured=True).latency == pytest.approx(9 * 1.84e-6)


class TestBothLevels:
    def test_the_slower_one_counts(self):
        tensor = axes("tpu7x:2x2x1", fsdp=2, tensor=4)["tensor"]
        assert [tensor.within.size, *(p.size for p in tensor.parts)] == [2, 2, 1, 1]
        assert all_gather(V, [tensor]).bandwidth == max(V / 2 / LINK, V / 2 / DIE)
        assert all_gather(V, [tensor]).latency == 2e-6
        # Each direction of the link between the two chips carries 2 x 2 messages of V/16.
        assert all_to_all(V, [tensor]).bandwidth == V / 4 / LINK
        assert permute(V, [tensor]).bandwidth == V / LINK

    def test_many_links_leave_the_chip_as_the_bottleneck(self):
        whole = axes("tpu7x:4x4x4", fsdp=128)["fsdp"]
        assert all_gather(V, [whole]).bandwidth == max(V * 63 / 64 / (6 * LINK), V / 2 / DIE)
        slow = replace(whole, within=replace(whole.within, oneway=LINK))
        assert all_gather(V, [slow]).bandwidth == V / 2 / LINK


def split(piece, devices, oneway):
    """The same slice of chips that are several devices each."""
    chip = replace(piece.chip, jax_devices_per_chip=devices, device_link_oneway=oneway)
    return replace(piece, chip=chip)


@st.composite
def placed_twice(draw):
    """A mesh on chips of one device, and on the same chips split into the devices of axis 'die'."""
    piece = parse_slice(
        draw(st.sampled_from(("v5p:4x8x8", "2*v5e:4x8", "4*h100:8", "2*mi300x:8", "cpu:1")))
    )
    degrees, left, prime = {"data": 1, "fsdp": 1, "tensor": 1}, piece.chips, 2
    while left > 1:
        while left % prime == 0:
            degrees[draw(st.sampled_from(sorted(degrees)))] *= prime
            left //= prime
        prime += 1
    devices = draw(st.sampled_from((2, 4)))
    there = place(split(piece, devices, 1e30), {**degrees, "die": devices})
    return place(piece, degrees), there, devices


groups = st.lists(st.sampled_from(("data", "fsdp", "tensor")), min_size=1, unique=True)
kinds = st.sampled_from(KINDS)


@given(placed_twice(), groups, kinds)
def test_one_device_of_each_chip_has_its_share_of_the_links(case, names, kind):
    here, there, devices = case
    assert here.legal
    assert there.legal
    one = seconds(kind, [replace(here.axes[n], sharp=False) for n in names])
    shared = seconds(kind, [replace(there.axes[n], sharp=False) for n in names])
    assert shared.bandwidth == pytest.approx(devices * one.bandwidth)
    assert shared.latency == one.latency


@given(placed_twice(), groups, st.sampled_from(("all_gather", "all_reduce", "permute")))
def test_all_devices_of_each_chip_have_its_links_whole(case, names, kind):
    here, there, _ = case
    one = seconds(kind, [here.axes[n] for n in names])
    whole = seconds(kind, [there.axes[n] for n in (*names, "die")])
    assert whole.bandwidth == pytest.approx(one.bandwidth, abs=1e-15)
    slow = [
        replace(axis, within=replace(axis.within, oneway=1e9))
        for axis in (there.axes[n] for n in (*names, "die"))
    ]
    assert seconds(kind, slow).bandwidth >= max(
        one.bandwidth * (1 - 1e-12), seconds(kind, slow[-1:]).bandwidth * (1 - 1e-12)
    )


@given(placed_twice(), groups)
def test_an_exchange_over_whole_chips_is_one_of_chips(case, names):
    here, there, _ = case
    one = all_to_all(V, [here.axes[n] for n in names])
    whole = all_to_all(V, [there.axes[n] for n in (*names, "die")])
    assert whole.bandwidth == pytest.approx(one.bandwidth, abs=1e-15)


@given(st.permutations(("fsdp", "context", "tensor")), kinds)
def test_axes_that_share_a_chip_join_in_any_order(names, kind):
    piece = split(parse_slice("v5p:4x4x4"), 4, DIE)
    mesh = place(piece, {"fsdp": 64, "context": 2, "tensor": 2}).axes
    together = place(piece, {"all": 256}).axes["all"]
    got = seconds(kind, [mesh[n] for n in names])
    assert got.bandwidth == pytest.approx(seconds(kind, [together]).bandwidth)
    assert math.prod(mesh[n].within.size for n in names) == 4
