"""A mesh index leads to the coordinates that its placement was priced with."""

import numpy as np
import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice, place
from shardwise.hardware.device_order import device_coordinates, mesh_coordinates


def test_an_axis_runs_over_its_own_physical_axes():
    found = device_coordinates(place(parse_slice("v5e:4x4"), {"X": 4, "Y": 4}))
    assert found.shape == (4, 4, 4)
    across = [np.ptp(found, axis=axis).reshape(-1, 4).max(0) for axis in (0, 1)]
    # Each axis of 4 takes one whole physical axis and leaves the other alone.
    assert sorted(map(tuple, across)) == [(0, 0, 3, 0), (0, 3, 0, 0)]


@pytest.mark.parametrize(
    ("text", "degrees"),
    [
        ("v5p:4x4x8", {"fsdp": 16, "context": 2, "tensor": 4}),
        ("2*v5e:4x4", {"replica": 2, "fsdp": 4, "tensor": 4}),
        ("tpu7x:2x2x2", {"fsdp": 4, "tensor": 4}),
        ("v3:4x4", {"data": 2, "tensor": 16}),
        ("4*h100:8", {"data": 8, "tensor": 4}),
        ("v5p:8x8x8", {"fsdp": 512}),
    ],
)
def test_every_device_has_one_place(text, degrees):
    piece = parse_slice(text)
    found = mesh_coordinates(piece, degrees).reshape(-1, 2 + len(piece.shape))
    most = (piece.count, *piece.shape, piece.chip.jax_devices_per_chip)
    assert len({tuple(row) for row in found.tolist()}) == piece.devices == len(found)
    assert found.min() == 0
    assert tuple(found.max(0) + 1) == most


def test_neighbours_of_the_innermost_axis_are_one_hop_apart():
    found = device_coordinates(place(parse_slice("v5p:4x4x8"), {"fsdp": 32, "tensor": 4}))
    hops = np.abs(np.diff(found, axis=1)).sum(-1)
    assert (hops == 1).all()


def test_devices_of_a_chip_go_to_the_innermost_axis():
    found = device_coordinates(place(parse_slice("tpu7x:2x2x1"), {"fsdp": 4, "tensor": 2}))
    assert (np.ptp(found, axis=1) == [0, 0, 0, 0, 1]).all()


def test_a_mesh_that_does_not_fill_the_slice_is_refused():
    with pytest.raises(BadRequest, match=r"the mesh does not fill its part of 'v5e:4x4'"):
        device_coordinates(place(parse_slice("v5e:4x4"), {"X": 8}))


def test_a_mesh_of_another_size_names_both():
    with pytest.raises(BadRequest, match=r"mesh X=8 does not fill 'v5e:4x4', which has 16"):
        mesh_coordinates(parse_slice("v5e:4x4"), {"X": 8})
