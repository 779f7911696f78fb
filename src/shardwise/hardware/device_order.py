"""Where each device of a mesh lies on its slice, as `placement.place` laid the axes.

Placement gives every mesh axis an ordered list of (physical axis, factor, stride); read as digits
of a mixed-radix number they give coordinates, which is what a JAX mesh needs to be built in the
order that was priced.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shardwise.errors import BadRequest
from shardwise.hardware.placement import Placement, place
from shardwise.hardware.slices import Slice


def device_coordinates(placement: Placement) -> np.ndarray:
    """Coordinates [*degrees, 2 + physical axes] of a mesh: slice, physical axes, device in chip.

    Index i along a mesh axis is written in the digits slice, x, y, z, device of its parts, the
    first the most significant; digit d of a part with stride s lies d * s along its physical axis.
    Raises BadRequest for a placement that does not fill its box.
    """
    if not placement.legal:
        raise BadRequest(
            f"the mesh does not fill its part of '{placement.slice}'; its degrees must multiply "
            "to the devices of the box"
        )
    degrees = tuple(int(links.size) for links in placement.axes.values())
    found = np.zeros((*degrees, 2 + len(placement.physical)), np.int64)
    for axis, links in enumerate(placement.axes.values()):
        index = np.arange(degrees[axis])
        for column, part in reversed(list(enumerate((links.outer, *links.parts, links.within)))):
            shape = [-1 if i == axis else 1 for i in range(len(degrees))]
            found[..., column] += ((index % part.size) * part.stride).reshape(shape)
            index = index // part.size
    return found


def mesh_coordinates(piece: Slice, degrees: Mapping[str, int]) -> np.ndarray:
    """Coordinates of a mesh on all of a slice, as `device_coordinates`.

    No rate is needed for an order, so links that the catalogue has no rate for do not matter.
    Raises BadRequest where the degrees do not multiply to the devices of the slice.
    """
    chip = replace(piece.chip, device_link_oneway=piece.chip.device_link_oneway or 1.0)
    placement = place(replace(piece, chip=chip), degrees)
    if not placement.legal:
        text = ",".join(f"{axis}={n}" for axis, n in degrees.items())
        raise BadRequest(
            f"mesh {text} does not fill '{piece}', which has {piece.devices} devices; its "
            "degrees must multiply to them"
        )
    return device_coordinates(placement)
