"""Collectives hop by hop on small networks, each of them run on real blocks (ch. 3 and 12).

`sharding.simulate` moves the blocks, checks the result and counts every link; here a network is
made of a few words, and the rounds become frames.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import cos, pi, prod, sin

from shardwise.book.simulators.simulation import (
    Animation,
    Arrow,
    Cell,
    Curve,
    Frame,
    check_size,
    first_frames,
)
from shardwise.errors import BadRequest, check_known, shown
from shardwise.sharding.simulate import (
    CollectiveFrames,
    CollectiveTrace,
    Fabric,
    simulate,
    trace_frames,
)
from shardwise.sharding.simulate.fabric import AxisKind, AxisPiece, Physical
from shardwise.sharding.simulate.schedule import grain

MOST_DEVICES = 64
NETWORKS = {
    "ring": "both ways round a ring, along every axis of the shape",
    "one_way": "one way round a ring, along every axis",
    "line": "neighbours on a line that does not wrap, along every axis",
    "switch": "one switch over all devices",
    "full_mesh": "a link between any two devices",
    "tree": "nodes behind a switch each and a switch above: the shape is nodes x devices",
    "sharp": "one switch that adds up what it is sent",
}
"""Networks by name, and what they are. A torus is "ring" with a shape of two or three axes."""


def collective(
    kind: str = "all_gather",
    network: str = "ring",
    shape: str = "8",
    bytes: float = 8e6,
    bandwidth: float = 4.5e10,
    outer_bandwidth: float = 5e10,
    hop: float = 1e-6,
) -> Animation:
    """One collective of `bytes` in all over the devices of a `shape` such as 8 or 4x4.

    `bandwidth` is that of a link, one-way, `outer_bandwidth` that of a device's NIC in a tree, and
    `hop` the latency of one hop in seconds. The algorithm is that which the network's closed form
    in `roofline/collectives.py` prices. The blocks that are moved are the fewest that it divides;
    their bytes are scaled to `bytes`.
    """
    check_known("network", network, NETWORKS)
    sizes = _sizes(shape)
    for name, value in (("bandwidth", bandwidth), ("outer_bandwidth", outer_bandwidth)):
        check_size(name, value, 1.0)
    fabric = _fabric(network, sizes, bandwidth, outer_bandwidth, check_size("hop", hop))
    trace = simulate(kind, fabric, dtype="int32")  # type: ignore[arg-type]
    scale = check_size("bytes", bytes) / _whole(trace)
    found = animate(trace, scale)
    frames, left_out = first_frames(found.frames)
    return replace(
        found,
        chapter="12" if network in ("tree", "switch", "sharp", "full_mesh") else "3",
        title=f"{kind} over {found.title.partition(' over ')[2]}, {network}: {found.source}",
        source="ch. 12" if network in ("tree", "sharp") else "ch. 3.2 and 3.3",
        settings={
            "kind": kind, "network": network, "shape": "x".join(map(str, sizes)), "bytes": bytes,
            "bandwidth": bandwidth, "outer_bandwidth": outer_bandwidth, "hop": hop,
        },
        readings={
            "rounds": trace.hops,
            "transfers": sum(map(len, trace.rounds)),
            "links_used": len(trace.link_bytes),
            "busiest_link_bytes": found.curves[0].y[-1],
            "bandwidth_seconds": scale * trace.bandwidth_seconds,
            "latency_seconds": trace.latency_seconds,
            "seconds": max(scale * trace.bandwidth_seconds, trace.latency_seconds),
        },
        units={
            "bytes": "bytes", "bandwidth": "bytes/s", "outer_bandwidth": "bytes/s", "hop": "s",
            "busiest_link_bytes": "bytes",
            **dict.fromkeys(("bandwidth_seconds", "latency_seconds", "seconds"), "s"),
        },
        frames=frames,
        frames_left_out=left_out,
        notes=(f"{network}: {NETWORKS[network]}",),
    )  # fmt: skip


def animate(trace: CollectiveTrace, scale: float = 1.0) -> Animation:
    """A collective as it was run, on any links, its bytes times `scale`."""
    data = trace_frames(trace)
    busiest = tuple(scale * size for size in data.busiest)
    return Animation(
        id="collective",
        chapter="3",
        title=data.title,
        source=data.algorithm,
        settings={},
        readings={},
        units={},
        x_label="round",
        x_unit="rounds",
        places=_places(data),
        reduces=trace.kind in ("reduce_scatter", "all_reduce"),
        frames=_frames(data, scale),
        curves=(
            Curve(
                label="most over one link so far",
                x=tuple(map(float, range(len(busiest)))),
                y=busiest,
            ),
        ),
        curve_axes=("round", "bytes"),
    )


def _sizes(shape: str | int) -> tuple[int, ...]:
    words = str(shape).split("x")
    if not all(word.isdecimal() and 0 < int(word) <= MOST_DEVICES for word in words):
        raise BadRequest(f"shape is {shown(str(shape))}; it is sizes with x between, such as 4x4")
    sizes = tuple(map(int, words))
    if not 2 <= prod(sizes) <= MOST_DEVICES:
        raise BadRequest(
            f"shape {shape} has {prod(sizes):,} devices; give from 2 to {MOST_DEVICES}"
        )
    return sizes


def _fabric(network: str, sizes: tuple[int, ...], rate: float, outer: float, hop: float) -> Fabric:
    """The links of a network of these sizes, all its devices one group."""
    if network == "tree":
        if len(sizes) != 2:
            raise BadRequest(f"a tree has nodes x devices, such as 4x2; the shape has {len(sizes)}")
        axes = (
            Physical(name="nodes", kind="tree", size=sizes[0], rate=outer, hop_seconds=hop),
            Physical(name="node", kind="switch", size=sizes[1], rate=rate, hop_seconds=hop),
        )
    elif network in _AXES:
        if len(sizes) > len(_NAMES):
            raise BadRequest(f"a torus has up to {len(_NAMES)} axes; the shape has {len(sizes)}")
        axes = tuple(
            Physical(name=name, kind=_AXES[network], size=size, rate=rate, hop_seconds=hop)
            for name, size in zip(_NAMES, sizes, strict=False)
        )
    else:
        kind = "full_mesh" if network == "full_mesh" else "switch"
        axes = (
            Physical(
                name="port", kind=kind, size=prod(sizes), rate=rate, hop_seconds=hop,
                reduces=network == "sharp",
            ),
        )  # fmt: skip
    return Fabric(axes=axes, group=tuple(AxisPiece(axis=a.name, size=a.size) for a in axes))


_NAMES = ("x", "y", "z")
_AXES: Mapping[str, AxisKind] = {"ring": "ring", "one_way": "one_way", "line": "line"}
"""What the axes of a torus are."""


def _whole(trace: CollectiveTrace) -> float:
    """Bytes of the whole array in the trace: V of `work.Collective`."""
    block = 4 * grain(trace.fabric)
    blocks = {"all_to_all": trace.fabric.size**2, "permute": 1}
    return block * blocks.get(trace.kind, trace.fabric.size)


def _places(data: CollectiveFrames) -> tuple[Cell, ...]:
    """Devices on a circle, or on a grid: of three axes the planes lie beside each other."""
    used = [i for i, size in enumerate(data.shape) if size > 1]
    found = []
    for name, place in zip(data.devices, data.places, strict=True):
        if len(used) <= 1:
            devices = len(data.devices)
            x, y = _round(place[used[0]] if used else 0, devices, 1.5 + devices / 4)
        else:
            *outer, row, column = (place[i] for i in used)
            width = data.shape[used[-1]]
            x, y = column + sum(outer) * (width + 1), row
        found.append(Cell(x=x, y=y, text=name, kind="device"))
    inner = [_round(i, len(_switches(data)), 1.0) for i in range(len(_switches(data)))]
    named = zip(inner, _switches(data), strict=True)
    found += [Cell(x=x, y=y, text=name, kind="switch") for (x, y), name in named]
    return tuple(found)


def _switches(data: CollectiveFrames) -> list[str]:
    """The ends of moves that are no devices: where a switch adds up what it is sent."""
    moves = [move for moves in data.rounds for move in moves]
    ends = [end for m in moves for end, at in ((m.from_, m.src), (m.to, m.dst)) if at < 0]
    return list(dict.fromkeys(ends))


def _round(number: int, count: int, radius: float) -> tuple[float, float]:
    """The place of one of so many on a circle, the first one on top."""
    angle = 2 * pi * number / count - pi / 2
    return round(radius * cos(angle), 6), round(radius * sin(angle), 6)


def _frames(data: CollectiveFrames, scale: float) -> tuple[Frame, ...]:
    found = [Frame(at=0, label="before the first round")]
    place = {name: i for i, name in enumerate([*data.devices, *_switches(data)])}
    for number, moves in enumerate(data.rounds, 1):
        marks = tuple(
            Arrow(
                source=place[move.from_],
                target=place[move.to],
                text=f"{move.from_} -> {move.to}: {move.text.rpartition(',')[0]}",
                kind=data.devices[move.colour],
                bytes=scale * move.bytes,
                blocks=tuple(move.blocks),
            )
            for move in moves
        )
        found.append(Frame(at=number, label=f"round {number}", moves=marks))
    return tuple(found)
