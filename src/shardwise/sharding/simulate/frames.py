"""A trace as plain data, for any screen: devices, and per round who sends what to whom."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.boundary.records import Record
from shardwise.sharding.simulate.fabric import Device, Link
from shardwise.sharding.simulate.trace import BlockTransfer, CollectiveTrace
from shardwise.units import format_bytes

MOST_NAMED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMove(Record):
    """What one device sends to another in a round, in one direction."""

    src: int
    """The number of the device that sends; -1 of a switch."""
    dst: int
    """The number of the device that receives; -1 of a switch."""
    from_: str
    """The name of the one that sends."""
    to: str
    """The name of the one that receives."""
    way: int
    """Which of the two links of a ring of two; 0 elsewhere."""
    colour: int
    """The device that the block comes from, or that a partial sum is for."""
    blocks: Sequence[int]
    """The same of every block, each once."""
    bytes: int
    """Bytes of the blocks."""
    text: str
    """The blocks in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFrames(Record):
    """A collective hop by hop."""

    title: str
    """What it is, over how many devices."""
    algorithm: str
    """How it is done."""
    devices: Sequence[str]
    """The names of the devices."""
    places: Sequence[Device]
    """Where each lies on the physical axes."""
    shape: Sequence[int]
    """The sizes of the physical axes."""
    rounds: Sequence[Sequence[BlockMove]]
    """The moves of each round."""
    busiest: Sequence[int]
    """Bytes so far on the busiest link: before the first round, and after each."""


def trace_frames(trace: CollectiveTrace) -> CollectiveFrames:
    """Devices with their places, the moves of each round, and the bytes of the busiest link after
    each."""
    devices = trace.fabric.devices
    number = {device: i for i, device in enumerate(devices)}
    loads: Counter[Link] = Counter()
    busiest, rounds = [0], []
    for moved in trace.rounds:
        for transfer in moved:
            for link in transfer.links:
                loads[link] += transfer.bytes
        rounds.append(_moves(trace.kind, moved, number))
        busiest.append(max(loads.values(), default=0))
    return CollectiveFrames(
        title=f"{trace.kind} over {trace.fabric.size} of {len(devices)} devices",
        algorithm=trace.algorithm,
        devices=[_label(device) for device in devices],
        places=devices,
        shape=[axis.size for axis in trace.fabric.axes],
        rounds=rounds,
        busiest=busiest,
    )


def _moves(
    kind: str, moved: tuple[BlockTransfer, ...], number: dict[Device, int]
) -> list[BlockMove]:
    """One arrow per pair of devices and direction: the blocks that go there, and their bytes."""
    joined: dict[tuple[Any, ...], list[BlockTransfer]] = {}
    for t in moved:
        joined.setdefault((t.src, t.dst, t.links[0].way), []).append(t)
    return [
        BlockMove(
            src=number.get(src, -1),
            dst=number.get(dst, -1),
            from_=_label(src),
            to=_label(dst),
            way=way,
            colour=number.get(_owner(kind, transfers[0]), 0),
            blocks=list(dict.fromkeys(number.get(_owner(kind, t), 0) for t in transfers)),
            bytes=sum(t.bytes for t in transfers),
            text=_text(kind, transfers),
        )
        for (src, dst, way), transfers in joined.items()
    ]


def _owner(kind: str, transfer: BlockTransfer) -> Any:
    """The device that a block comes from, or that a partial sum is for."""
    block: Any = transfer.block
    if kind == "permute":
        return block[0]
    return block[1] if isinstance(block[0], str) else block[0]


def _text(kind: str, transfers: list[BlockTransfer]) -> str:
    owners = list(dict.fromkeys(_label(_owner(kind, t)) for t in transfers))
    more = f" and {len(owners) - MOST_NAMED} more" if len(owners) > MOST_NAMED else ""
    size = format_bytes(sum(t.bytes for t in transfers))
    word = "block" if len(owners) == 1 else "blocks"
    return f"{word} {' '.join(owners[:MOST_NAMED])}{more}, {size}"


def _label(device: Device | str) -> str:
    return device if isinstance(device, str) else ",".join(map(str, device))
