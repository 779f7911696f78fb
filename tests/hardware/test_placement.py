"""Placement: which physical axes carry a mesh axis, and the links that follow."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadRequest
from shardwise.hardware import (
    boxes,
    load_chip,
    parse_slice,
    place,
    place_or_refuse,
    slices_of,
)

SLICES = (
    "v5p:16x16x16",
    "v5p:16x20x28",
    "v5p:2x2x4",
    "2*v5p:4x8x12",
    "v5e:4x8",
    "6*v5e:16x16",
    "h100:8",
    "12*h100:8",
    "3*gb200:72",
    "2*mi300x:8",
    "cpu:1",
    "tpu7x:4x4x8",
    "2*tpu7x:2x2x1",
    "mi250x:8",
)


@pytest.mark.parametrize(
    ("text", "degrees", "lines"),
    [
        # The innermost axis is contiguous, what it leaves is strided but still a ring.
        (
            "v5p:16x16x16",
            {"fsdp": 1024, "tensor": 4},
            ["fsdp=1024: x[4, stride 4] y[16] z[16], rings", "tensor=4: x[4], line"],
        ),
        # Whole axes that match exactly keep their rings, wherever they are.
        (
            "v5p:4x8x16",
            {"fsdp": 64, "tensor": 8},
            ["fsdp=64: x[4] z[16], rings", "tensor=8: y[8], ring"],
        ),
        (
            "v5p:4x8x16",
            {"fsdp": 16, "tensor": 32},
            ["fsdp=16: z[16], ring", "tensor=32: x[4] y[8], rings"],
        ),
        # Else a whole ring that divides the degree, then part of another axis.
        (
            "v5p:4x16x16",
            {"fsdp": 128, "tensor": 8},
            ["fsdp=128: y[8, stride 2] z[16], rings", "tensor=8: x[4, ring] y[2, line]"],
        ),
        # No axis of a small v5e slice wraps.
        (
            "v5e:4x8",
            {"data": 16, "tensor": 2},
            ["data=16: x[2, stride 2] y[8], lines", "tensor=2: x[2], line"],
        ),
        ("v5e:4x4", {"data": 4, "tensor": 4}, ["data=4: y[4], line", "tensor=4: x[4], line"]),
        # Slices are handed out from the outermost axis.
        (
            "8*v5p:16x16x16",
            {"data": 4, "fsdp": 1024, "tensor": 8},
            [
                "data=4: slices[4]",
                "fsdp=1024: x[2, stride 8] y[16] z[16] slices[2], rings",
                "tensor=8: x[8], line",
            ],
        ),
        (
            "16*h100:8",
            {"data": 4, "tensor": 32},
            ["data=4: domains[4]", "tensor=32: domain[8] domains[4]"],
        ),
        (
            "128*h100:8",
            {"data": 128, "tensor": 8},
            ["data=128: domains[128]", "tensor=8: domain[8]"],
        ),
        # The innermost axis takes the devices of a chip, then chips.
        (
            "tpu7x:2x2x1",
            {"tensor": 2, "fsdp": 4},
            ["tensor=2: y[2], line", "fsdp=4: chip[2] x[2], line"],
        ),
        (
            "tpu7x:2x2x1",
            {"fsdp": 4, "tensor": 2},
            ["fsdp=4: x[2] y[2], lines", "tensor=2: chip[2]"],
        ),
        (
            "2*tpu7x:4x4x4",
            {"data": 2, "fsdp": 32, "tensor": 4},
            [
                "data=2: slices[2]",
                "fsdp=32: x[2, stride 2] y[4] z[4], rings",
                "tensor=4: chip[2] x[2], line",
            ],
        ),
        (
            "mi250x:8",
            {"data": 2, "tensor": 8},
            ["data=2: domain[2]", "tensor=8: chip[2] domain[4]"],
        ),
    ],
)
def test_where_axes_go(text, degrees, lines):
    placed = place_or_refuse(parse_slice(text), degrees)
    assert placed.legal
    assert list(placed.describe()) == lines
    assert placed.chips_idle == 0


def test_a_smaller_mesh_takes_a_box_and_reports_idle_chips():
    placed = place_or_refuse(parse_slice("v5p:16x20x28"), {"fsdp": 1792, "tensor": 4})
    assert (placed.chips_used, placed.chips_idle) == (7168, 1792)
    # y is used in part, so it does not wrap; x and z do.
    assert placed.describe()[0] == "fsdp=1792: x[4, stride 4, ring] y[16, line] z[28, ring]"


def test_a_mesh_takes_no_more_slices_than_it_needs():
    placed = place_or_refuse(parse_slice("4*v5p:4x4x4"), {"data": 2, "fsdp": 64})
    assert placed.describe()[0] == "data=2: slices[2]"
    assert placed.chips_idle == 128


def test_links_of_a_strided_part():
    link = load_chip("v5p").network
    placed = place(parse_slice("v5p:16x16x16"), {"fsdp": 1024, "tensor": 4})
    x, y, _ = placed.axes["fsdp"].parts
    assert (x.size, x.stride, x.ring) == (4, 4, True)
    assert x.oneway == link.link_oneway / 4
    assert x.hop_seconds == 4 * link.hop_seconds
    assert (y.size, y.stride, y.oneway) == (16, 1, link.link_oneway)
    inner = placed.axes["tensor"].parts[0]
    assert (inner.size, inner.ring, inner.oneway) == (4, False, link.link_oneway)
    assert [p.size for p in placed.axes["tensor"].parts] == [4, 1, 1]


@pytest.mark.parametrize(("inner", "outer"), [(2, 8), (4, 4), (8, 2), (16, 1), (1, 16)])
def test_strided_groups_share_links_as_counted(inner, outer):
    """Every group of the outer axis sends one message to its next member round the ring of 16."""
    degrees = {"rest": 16, "outer": outer, "inner": inner}
    placed = place(parse_slice("v5e:16x16"), degrees, finish=True)
    part = max(placed.axes["outer"].parts, key=lambda p: p.size)
    load = [0] * 16
    if outer > 1:
        for start in range(16):
            for hop in range(inner):
                load[(start + hop) % 16] += 1
        assert max(load) == part.stride == inner
        assert part.oneway * max(load) == load_chip("v5e").network.link_oneway
        assert part.ring


def test_the_devices_of_a_chip():
    tpu7x = load_chip("tpu7x")
    placed = place(parse_slice("tpu7x:2x2x1"), {"fsdp": 2, "tensor": 4})
    within = placed.axes["tensor"].within
    assert (within.size, within.stride, within.oneway) == (2, 1, 6e11)
    assert placed.axes["fsdp"].within.size == 1
    assert placed.axes["fsdp"].devices_per_chip == 2
    # Rates of parts are a whole chip's; who shares them depends on the group.
    assert placed.axes["fsdp"].parts[1].oneway == tpu7x.network.link_oneway
    assert (placed.chips_used, placed.chips_idle) == (4, 0)
    single = place(parse_slice("v5e:4x4"), {"fsdp": 16}).axes["fsdp"]
    assert (single.within.size, single.within.oneway, single.devices_per_chip) == (1, 0.0, 1)


def test_several_axes_may_share_a_chip():
    piece = parse_slice(
        "trn2:4x4", lambda name: load_chip(name, set_=["chip.device_link_oneway=1e11"])
    )
    placed = place(piece, {"fsdp": 16, "context": 2, "tensor": 2})
    inside = [placed.axes[name].within for name in ("fsdp", "context", "tensor")]
    assert [(p.size, p.stride) for p in inside] == [(1, 4), (2, 2), (2, 1)]
    three = place(piece, {"fsdp": 32, "tensor": 2}).describe()
    assert three == ("fsdp=32: chip[2] x[4] y[4], rings", "tensor=2: chip[2]")


def test_all_devices_of_a_chip_are_used():
    piece = parse_slice("tpu7x:2x2x1")
    placed = place(piece, {"fsdp": np.array([4, 8, 16, 3, 5])})
    assert placed.legal.tolist() == [False, True, False, False, False]
    assert placed.chips_used.tolist() == [4] * 5
    placed = place_or_refuse(piece, {"fsdp": 2, "tensor": 2})
    assert (placed.chips_used, placed.chips_idle) == (2, 2)


@pytest.mark.parametrize("name", ["v3", "trn2"])
def test_an_unknown_rate_between_devices_is_asked_for(name):
    whole = slices_of(load_chip(name))[-1]
    piece = replace(whole, chip=replace(whole.chip, device_link_oneway=None))
    with pytest.raises(BadRequest, match=f"'{name}'.*--set chip.device_link_oneway=NUMBER"):
        place(piece, {"fsdp": piece.devices})


def test_an_axis_takes_the_faster_part_unless_told_to_finish():
    piece = parse_slice("v5e:16x16")
    degrees = {"fsdp": 16, "context": 4, "tensor": 4}
    assert place(piece, degrees).describe() == (
        "fsdp=16: x[4, stride 4] y[4, stride 4], rings",
        "context=4: y[4], line",
        "tensor=4: x[4], line",
    )
    assert place(piece, degrees, finish=True).describe() == (
        "fsdp=16: y[16], ring",
        "context=4: x[4, stride 4], ring",
        "tensor=4: x[4], line",
    )
    # A ring of stride 2 is as fast as a fresh line and leaves the other axis whole.
    assert place(piece, {"fsdp": 16, "context": 8, "tensor": 2}).describe()[:2] == (
        "fsdp=16: y[16], ring",
        "context=8: x[8, stride 2], ring",
    )


def test_a_switched_domain_has_no_strides_and_no_rings():
    h100 = load_chip("h100")
    placed = place(parse_slice("4*h100:8"), {"data": 8, "tensor": 4})
    part, outer = placed.axes["data"].parts[0], placed.axes["data"].outer
    assert (part.size, part.oneway, part.ring) == (2, h100.network.chip_oneway, False)
    assert (outer.size, outer.oneway) == (4, h100.data_centre.chip_oneway)
    assert placed.axes["tensor"].kind == "switched"
    mesh = place(parse_slice("mi300x:8"), {"tensor": 8}).axes["tensor"]
    assert mesh.kind == "full_mesh"
    assert mesh.parts[0].oneway == load_chip("mi300x").network.pair_oneway


def test_an_oversubscribed_level_limits_axes_that_cross_it():
    piece = parse_slice("128*h100:8")
    network = piece.chip.network
    levels = tuple(
        replace(level, unit_oneway=level.unit_oneway / 4) if level.name == "leaf" else level
        for level in network.levels
    )
    slow = replace(piece, chip=replace(piece.chip, network=replace(network, levels=levels)))
    placed = place(slow, {"replica": 4, "data": 32, "tensor": 8})
    assert placed.axes["replica"].outer.oneway == 50e9 / 4
    assert placed.axes["data"].outer.oneway == 50e9


def test_domains_without_a_known_network_between_them_are_refused():
    with pytest.raises(BadRequest, match=r"data_centre.chip_oneway=NUMBER"):
        place(parse_slice("2*cpu:1"), {"data": 2})


@pytest.mark.parametrize(
    ("text", "degrees", "words"),
    [
        (
            "v5p:16x16x16",
            {"fsdp": 1000, "tensor": 4},
            ["'fsdp' of 1000", "x[4, stride 4] y[16] z[16]", "nearest 'fsdp': 1024"],
        ),
        (
            "v5p:16x20x28",
            {"fsdp": 2048, "tensor": 4},
            ["'fsdp' of 2048", "needs 8192 chips", "nearest 'fsdp': 2240, 1792"],
        ),
        ("v5e:4x4", {"data": 8, "tensor": 4}, ["'data' of 8", "y[4]", "nearest 'data': 4"]),
        ("2*h100:8", {"tensor": 32}, ["domain[8] domains[2]", "has 16 chips", "'tensor': 16"]),
        ("h100:8", {"fsdp": 2, "tensor": 0}, ["'tensor' is 0; a degree is 1 or more"]),
        ("h100:8", {"fsdp": -2, "tensor": 4}, ["'fsdp' is -2"]),
        (
            "tpu7x:2x2x1",
            {"fsdp": 16, "tensor": 2},
            ["leave x[2] y[2]; the mesh needs 32 devices", "has 8 devices", "'fsdp': 4, 2, 1"],
        ),
        ("tpu7x:2x2x1", {"fsdp": 3}, ["leave chip[2] x[2] y[2]", "nearest 'fsdp': 4, 2, 8"]),
    ],
)
def test_refusals(text, degrees, words):
    with pytest.raises(BadRequest) as refused:
        place_or_refuse(parse_slice(text), degrees)
    for word in words:
        assert word in str(refused.value)


def test_an_array_marks_what_does_not_fill_the_slice():
    tensor = np.array([1, 2, 3, 4, 8])
    placed = place(parse_slice("v5e:4x4"), {"data": np.array([16, 8, 5, 4, 4]), "tensor": tensor})
    assert placed.legal.tolist() == [True, True, False, True, False]


def test_boxes():
    found = boxes(parse_slice("v5p:16x20x28"))
    assert found[0] == (16, 20, 28)
    assert (16, 16, 16) in found
    assert len(set(found)) == len(found)
    sizes = [math.prod(box) for box in found]
    assert sizes == sorted(sizes, reverse=True)
    assert boxes(parse_slice("h100:8")) == ((8,), (4,), (2,), (1,))
    # Equal axes are interchangeable.
    assert sum(math.prod(box) == 2048 for box in boxes(parse_slice("v5p:16x16x16"))) == 1


@st.composite
def filled(draw):
    """A slice, and degrees of five axes that multiply to all of its devices."""
    piece = parse_slice(draw(st.sampled_from(SLICES)))
    degrees = dict.fromkeys(("replica", "stage", "fsdp", "context", "tensor"), 1)
    left, prime = piece.devices, 2
    while left > 1:
        while left % prime == 0:
            degrees[draw(st.sampled_from(sorted(degrees)))] *= prime
            left //= prime
        prime += 1
    return piece, degrees


@given(filled())
def test_degrees_that_fill_a_slice_are_placed_on_every_chip_once(case):
    piece, degrees = case
    placed = place(piece, degrees)
    assert placed.legal
    assert math.prod(links.outer.size for links in placed.axes.values()) == piece.count
    within = [links.within.size for links in placed.axes.values()]
    assert math.prod(within) == piece.chip.jax_devices_per_chip
    for name, links in placed.axes.items():
        inner = math.prod(part.size for part in links.parts)
        assert links.size == degrees[name] == links.within.size * inner * links.outer.size
    for i, size in enumerate(piece.shape):
        pieces = sorted(
            (links.parts[i].stride, links.parts[i].size)
            for links in placed.axes.values()
            if links.parts[i].size > 1
        )
        reached = 1
        for stride, factor in pieces:
            assert stride == reached
            reached *= factor
        assert reached == size
    assert place_or_refuse(piece, degrees).legal


@given(filled())
def test_a_part_is_a_ring_iff_its_axis_wraps_and_it_takes_all_the_rest(case):
    piece, degrees = case
    placed = place(piece, degrees)
    for links in placed.axes.values():
        for part, size, wraps in zip(links.parts, piece.shape, piece.wraps, strict=True):
            closes = wraps and part.size > 1 and part.size * part.stride == size
            assert part.ring == closes


@given(st.lists(filled(), min_size=1, max_size=8), st.permutations((0, 1, 2)))
def test_an_array_places_as_its_elements_do(cases, order):
    piece = cases[0][0]
    meshes = [degrees for other, degrees in cases if other.devices == piece.devices]
    columns = {name: np.array([mesh[name] for mesh in meshes]) for name in meshes[0]}
    together = place(piece, columns, order=order)
    for i, mesh in enumerate(meshes):
        assert together.at(i) == place(piece, mesh, order=order)


def test_a_box_may_be_an_array_too():
    piece = parse_slice("v5p:16x16x16")
    placed = place(
        piece,
        {"fsdp": np.array([1024, 512]), "tensor": 4},
        box=(np.array([16, 8]), 16, 16),
    )
    assert placed.legal.tolist() == [True, True]
    assert placed.chips_idle.tolist() == [0, 2048]
    assert placed.at(1) == place(piece, {"fsdp": 512, "tensor": 4}, box=(8, 16, 16))


def test_an_axis_that_is_not_placed_is_named():
    placement = place(parse_slice("v5e:4x4"), {"fsdp": 8, "tensor": 2})
    assert len(placement.links(["fsdp", "tensor"])) == 2
    with pytest.raises(BadRequest, match=r"axis 'expert' .* not placed \(fsdp, tensor are\)"):
        placement.links(["fsdp", "expert"])
