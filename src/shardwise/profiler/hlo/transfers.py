"""Sends and receives: what crosses to another slice, to another device, or to the host.

Between TPU slices the runtime runs a collective for each pair of a send and a receive of one
rendezvous: `_xla_megascale_transfer_type="ALL_REDUCE"`, `_xla_megascale_target="{1,2}x{0:3}"`, the
slices and the devices of each. It starts with the send and ends with the receive's done.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from shardwise.profiler.hlo.groups import Groups, read_pairs
from shardwise.profiler.hlo.numbers import MOST_DEVICES, integer
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation, Instruction, Module
from shardwise.work import CollectiveKind

_TYPES: dict[str, CollectiveKind] = {
    "ALL_REDUCE": "all_reduce",
    "ALL_GATHER": "all_gather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALL_TO_ALL": "all_to_all",
    "ONE_TO_ONE": "permute",
}
_FRONTEND = re.compile(r'(?<!\w)(\w++)="([^"]*)"')
_TARGET = re.compile(r"\{([\d,]+)\}x\{(\d+):(\d+)\}$")


class SentCollective(NamedTuple):
    """What a send starts: V in `bytes` as in `work.Collective`, and what ends it."""

    kind: CollectiveKind
    groups: Groups
    bytes: float
    dtypes: tuple[str, ...]
    done: str


def read_transfer(
    module: Module, computation: Computation, send: Instruction
) -> SentCollective | None:
    """The collective that a send starts; None for one to the host."""
    marks = dict(_FRONTEND.findall(send.attribute("frontend_attributes")))
    kind = _TYPES.get(marks.get("_xla_megascale_transfer_type", ""))
    pairs = marks.get("_xla_send_recv_source_target_pairs", "")
    groups: Groups = ()
    if kind is not None:
        groups = _between_slices(marks.get("_xla_megascale_target", ""), module.devices)
    elif pairs:
        kind, groups = "permute", read_pairs(pairs)
    if kind is None or not groups:
        return None
    payload = list(arrays(computation.shape_of(send.operands[0])))
    members = len(groups[0]) if kind == "all_gather" else 1
    return SentCollective(
        kind=kind,
        groups=groups,
        bytes=sum(array.bytes for array in payload) * members,
        dtypes=tuple(dict.fromkeys(array.dtype for array in payload)),
        done=_received(computation, send, marks.get("_xla_host_transfer_rendezvous", "")),
    )


def slices_of(module: Module) -> int:
    """How many TPU slices a program runs on; its partitions are those of one of them."""
    found = 1
    for computation in module.computations.values():
        for send in (i for i in computation.instructions if i.opcode == "send"):
            marks = dict(_FRONTEND.findall(send.attribute("frontend_attributes")))
            if target := _TARGET.match(marks.get("_xla_megascale_target", "")):
                found = max(found, len(target[1].split(",")))
    return found


def _between_slices(target: str, devices: int) -> Groups:
    """Groups of the devices in one place of every slice; slices are numbered outermost."""
    found = _TARGET.match(target)
    if found is None:
        return ()
    first, last = (integer(text, "a device of a transfer's target") for text in found.group(2, 3))
    if last - first + 1 != devices:
        return ()
    slices = range(len(found[1].split(",")))
    return tuple(tuple(i + n * devices for n in slices) for i in range(devices))


def check_transfer(module: Module, send: Instruction) -> None:
    """Raise BadRequest for a send whose slices or pairs are not those of the program."""
    marks = dict(_FRONTEND.findall(send.attribute("frontend_attributes")))
    if target := _TARGET.match(marks.get("_xla_megascale_target", "")):
        slices = len(target[1].split(","))
        integer(str(slices * module.devices), "the devices of all slices", most=MOST_DEVICES)
        _between_slices(marks["_xla_megascale_target"], module.devices)
    for pair in read_pairs(marks.get("_xla_send_recv_source_target_pairs", "")):
        for device in pair:
            integer(str(device), "a device of a transfer's pairs", most=module.devices - 1)


def _received(computation: Computation, send: Instruction, rendezvous: str) -> str:
    """The done of the receive that belongs to a send; its own name if there is none."""
    receive = _receives(computation).get(rendezvous) if rendezvous else None
    ending = "send-done" if receive is None else "recv-done"
    for reader in computation.readers((receive or send).name):
        if reader.opcode == ending:
            return reader.name
    return send.name


def _receives(computation: Computation) -> Mapping[str, Instruction]:
    """The receives of a computation by all that they have in quotes."""
    if "receives" not in computation.memo:
        found: dict[str, Instruction] = {}
        for i in computation.instructions:
            if i.opcode == "recv":
                for _, text in _FRONTEND.findall(i.attributes):
                    found.setdefault(text, i)
        computation.memo["receives"] = found
    return computation.memo["receives"]
