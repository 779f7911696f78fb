"""The fabric under some axes of a mesh that `hardware.place` laid on a slice, and where the blocks
of an exchange go on it."""

from collections.abc import Sequence

import numpy as np

from shardwise.hardware.device_order import device_coordinates
from shardwise.hardware.network import Switched
from shardwise.hardware.placement import Placement
from shardwise.sharding.exchange import exchanged
from shardwise.sharding.simulate.fabric import AxisKind, AxisPiece, Device, Fabric, Physical, Unit
from shardwise.work import Exchange, Sends


def fabric_of(placement: Placement, names: Sequence[str]) -> Fabric:
    """The links under some axes of a placed mesh.

    Physical axes have the names of the placement, and `networks` and `chip`. The placement is of
    plain numbers and fills its slice.
    """
    piece, links = placement.slice, [placement.axes[name] for name in names]
    chip, first = piece.chip, links[0]
    axes, group = [], []
    if piece.count > 1:
        centre = chip.data_centre
        assert centre is not None, "a placement over networks has a data-centre network"
        axes.append(
            Physical(
                name="networks",
                kind="tree",
                size=piece.count,
                rate=centre.chip_oneway,
                hop_seconds=centre.hop_seconds,
                units=_units(chip.network, piece.count),
            )
        )
    for name, size, wraps, part in zip(
        placement.physical, piece.shape, piece.wraps, first.parts, strict=True
    ):
        axes.append(
            Physical(
                name=name,
                kind=_kind(first.kind, wraps),
                size=size,
                rate=float(part.oneway) * (int(part.stride) if first.kind == "torus" else 1),
                hop_seconds=float(part.hop_seconds) / _apart(first.kind, int(part.stride)),
                reduces=first.sharp,
            )
        )
    if chip.jax_devices_per_chip > 1:
        axes.append(
            Physical(
                name="chip",
                kind="chip",
                size=chip.jax_devices_per_chip,
                rate=float(first.within.oneway),
                hop_seconds=float(first.within.hop_seconds),
            )
        )
    for axis in links:
        named = dict(zip(placement.physical, axis.parts, strict=True))
        named |= {"networks": axis.outer, "chip": axis.within}
        for name, part in named.items():
            if int(part.size) > 1:
                group.append(AxisPiece(axis=name, size=int(part.size), stride=int(part.stride)))
    return Fabric(axes=tuple(axes), group=tuple(group))


def targets_of(exchange: Exchange | Sends, placement: Placement) -> dict[Device, Device]:
    """Where the block of each device of the mesh goes, as devices of `fabric_of`."""
    mesh = list(placement.axes)
    places = device_coordinates(placement)
    order = [mesh.index(axis) for axis in exchange.axes]
    places = np.moveaxis(places, order, range(-1 - len(order), -1))
    sizes = places.shape[-1 - len(order) : -1]
    *_, found = exchanged(exchange, sizes)
    piece = placement.slice
    used = [piece.count > 1, *(True for _ in piece.shape), piece.chip.jax_devices_per_chip > 1]
    groups = places.reshape(-1, len(found), places.shape[-1])[..., used]
    return {
        tuple(group[source].tolist()): tuple(group[target].tolist())
        for group in groups
        for target, source in enumerate(found)
    }


def _apart(kind: str, stride: int) -> int:
    return stride if kind == "torus" else 1


def _kind(kind: str, wraps: bool) -> AxisKind:
    if kind == "torus":
        return "ring" if wraps else "line"
    return "full_mesh" if kind == "full_mesh" else "switch"


def _units(network: object, networks: int) -> tuple[Unit, ...]:
    if not isinstance(network, Switched):
        return ()
    return tuple(
        Unit(name=level.name, networks=level.chips // network.domain, rate=level.unit_oneway)
        for level in network.levels
        if network.domain < level.chips < networks * network.domain
    )
