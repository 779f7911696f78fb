"""Run a collective on NumPy blocks: move every part hop by hop, write down what moved, check it.

A block that is sent must have arrived in an earlier round, and no part arrives twice: both are
asserted. The results are arrays per device, in the order of the group (`Fabric.groups`).
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Literal

import numpy as np

from shardwise.errors import BadRequest, check_known
from shardwise.sharding.simulate.fabric import Device, Fabric, Hop, Link
from shardwise.sharding.simulate.schedule import (
    Send,
    backwards,
    exchange_sends,
    following,
    gather_sends,
    grain,
    parts,
    permute_sends,
)
from shardwise.sharding.simulate.trace import BlockTransfer, CollectiveTrace

SimulatedKind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute"]
Blocks = Mapping[Device, np.ndarray]
Results = dict[Device, np.ndarray]
_Store = dict[tuple[Device | str, Hashable], np.ndarray]


def all_gather(fabric: Fabric, shards: Blocks) -> tuple[Results, CollectiveTrace]:
    """Every device gets the shards of its group, stacked: [length] -> [N, length]."""
    length, cuts = _length(fabric, shards), parts(fabric)
    store: _Store = {
        (device, (device, i)): shards[device][part.cut(length)]
        for device in fabric.devices
        for i, part in enumerate(cuts)
    }
    rounds = _move(gather_sends(fabric), store, add=False)
    results = {
        device: np.stack([_whole(store, device, owner, len(cuts)) for owner in members])
        for members in fabric.groups
        for device in members
    }
    return results, _trace("all_gather", fabric, rounds)


def reduce_scatter(fabric: Fabric, arrays: Blocks) -> tuple[Results, CollectiveTrace]:
    """Every device gets its row of the sum over its group: [N, length] -> [length]."""
    length, cuts = _length(fabric, arrays, axis=1), parts(fabric)
    store: _Store = {}
    for members in fabric.groups:
        for device, (row, owner) in product(members, enumerate(members)):
            for i, part in enumerate(cuts):
                store[device, (owner, i)] = arrays[device][row][part.cut(length)]
    rounds = _move(backwards(list(gather_sends(fabric, mirrored=True))), store, add=True)
    assert len(store) == len(fabric.devices) * len(cuts), "a partial sum was left behind"
    results = {d: _whole(store, d, d, len(cuts)) for d in fabric.devices}
    return results, _trace("reduce_scatter", fabric, rounds)


def all_reduce(fabric: Fabric, arrays: Blocks) -> tuple[Results, CollectiveTrace]:
    """Every device gets the sum over its group: a reduce-scatter, then an all-gather.

    Switches that reduce (SHARP) add up themselves, if the group is inside one network.
    """
    if _sharp(fabric):
        return _all_reduce_in_switches(fabric, arrays)
    rows, scattered = reduce_scatter(fabric, arrays)
    results, gathered = all_gather(fabric, rows)
    later = [
        [replace(t, stage=t.stage + len(fabric.dims)) for t in moved] for moved in gathered.rounds
    ]
    return results, _trace("all_reduce", fabric, [*scattered.rounds, *later])


def all_to_all(
    fabric: Fabric, arrays: Blocks, *, split_ties: bool = True
) -> tuple[Results, CollectiveTrace]:
    """Row j of device i becomes row i of device j: [N, length] -> [N, length].

    Without `split_ties` a message to the far side of a ring of even size goes one way as a whole.
    """
    length = _length(fabric, arrays, axis=1)
    cuts = (slice(0, length // 2), slice(length // 2, length))
    store: _Store = {}
    for members in fabric.groups:
        for src, (row, dst) in product(members, enumerate(members)):
            for half, cut in enumerate(cuts):
                store[src, (src, dst, half)] = arrays[src][row][cut]
    rounds = _move(exchange_sends(fabric, split_ties=split_ties), store, add=False, keep=False)
    results = {
        dst: np.stack(
            [np.concatenate([store[dst, (src, dst, half)] for half in (0, 1)]) for src in members]
        )
        for members in fabric.groups
        for dst in members
    }
    return results, _trace("all_to_all", fabric, rounds)


def permute(
    fabric: Fabric, blocks: Blocks, targets: Mapping[Device, Device] | None = None
) -> tuple[Results, CollectiveTrace]:
    """Every device sends its block to its target; without `targets` to the next of its group."""
    length = _length(fabric, blocks)
    cuts = (slice(0, length // 2), slice(length // 2, length))
    store: _Store = {
        (device, (device, half)): block[cut]
        for device, block in blocks.items()
        for half, cut in enumerate(cuts)
    }
    rounds = _move(permute_sends(fabric, targets), store, add=False, keep=False)
    ends = following(fabric) if targets is None else targets
    results = {
        dst: np.concatenate([store[dst, (src, half)] for half in (0, 1)])
        for src, dst in ends.items()
    }
    return results, _trace("permute", fabric, rounds, to_targets=targets is not None)


def simulate(
    kind: SimulatedKind,
    fabric: Fabric,
    elements: int | None = None,
    *,
    dtype: str = "int32",
    targets: Mapping[Device, Device] | None = None,
) -> CollectiveTrace:
    """Run one collective on made-up blocks, compare the result with plain NumPy, give the trace.

    `elements` is the length of one block: the shard of a gather, a row of a reduce-scatter, the
    message of an all-to-all, the payload of a permute; by default the fewest that every part of the
    algorithm divides. With V as in `work.Collective` a block is V/N, V/N^2 of an all-to-all, V of a
    permute, which takes every block to its device's target or, without `targets`, to the next
    device of the group. Raises BadRequest for an unknown kind.
    """
    known = SimulatedKind.__args__
    check_known("collective", kind, known)
    length = grain(fabric) if elements is None else elements
    shape = (length,) if kind in ("all_gather", "permute") else (fabric.size, length)
    draw = np.random.default_rng(0)
    blocks = {d: draw.integers(0, 100, shape, np.uint8).astype(dtype) for d in fabric.devices}
    if targets is None:
        results, trace = _RUNS[kind](fabric, blocks)
        _check(kind, fabric, blocks, results)
        return trace
    assert kind == "permute", f"{kind} has no targets"
    results, trace = permute(fabric, blocks, targets)
    for src, dst in targets.items():
        assert np.array_equal(results[dst], blocks[src]), f"the block of {src} did not reach {dst}"
    return trace


_RUNS: dict[str, Callable[[Fabric, Blocks], tuple[Results, CollectiveTrace]]] = {
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
    "permute": permute,
}


def _check(kind: str, fabric: Fabric, blocks: Blocks, results: Results) -> None:
    """The collective's meaning, without any network."""
    for members in fabric.groups:
        stacked = np.stack([blocks[device] for device in members])
        for i, device in enumerate(members):
            if kind == "all_gather":
                want = stacked
            elif kind == "reduce_scatter":
                want = stacked.sum(0, dtype=stacked.dtype)[i]
            elif kind == "all_reduce":
                want = stacked.sum(0, dtype=stacked.dtype)
            elif kind == "all_to_all":
                want = stacked[:, i]
            else:
                continue
            assert np.array_equal(results[device], want), f"{kind} went wrong at {device}"
        if kind == "permute":
            got = Counter(results[device].tobytes() for device in members)
            assert got == Counter(block.tobytes() for block in stacked)


def _move(
    sends: Iterable[Send], store: _Store, *, add: bool, keep: bool | None = None
) -> list[list[BlockTransfer]]:
    """Carry out sends round by round. Partial sums (`add`) and messages leave their sender."""
    keep = not add if keep is None else keep
    underway: dict[int, list[tuple[Send, Hop, bool, bool]]] = {}
    for send in sends:
        for i, hop in enumerate(send.hops):
            event = (send, hop, i == 0, i == len(send.hops) - 1)
            underway.setdefault(send.start + i, []).append(event)
    carried: dict[int, np.ndarray] = {}
    rounds: list[list[BlockTransfer]] = []
    for number in range(max(underway, default=-1) + 1):
        events = underway.get(number, [])
        for send, hop, first, _ in events:
            if first:
                carried[id(send)] = store[hop.src, send.block]
        if not keep:
            for send, hop, first, _ in events:
                if first:
                    store.pop((hop.src, send.block))
        rounds.append([_transfer(send, hop, carried[id(send)]) for send, hop, *_ in events])
        for send, hop, _, last in events:
            if last:
                _deliver(store, (hop.dst, send.block), carried.pop(id(send)), add)
    return rounds


def _deliver(
    store: _Store, at: tuple[Device | str, Hashable], block: np.ndarray, add: bool
) -> None:
    assert add or at not in store, f"{at} arrives twice"
    store[at] = store[at] + block if at in store else block


def _transfer(send: Send, hop: Hop, block: np.ndarray) -> BlockTransfer:
    return BlockTransfer(hop.src, hop.dst, send.block, block.nbytes, hop.links, send.stage)


def _sharp(fabric: Fabric) -> bool:
    return len(fabric.dims) == 1 and fabric.axes[fabric.dims[0].axis].reduces


def _all_reduce_in_switches(fabric: Fabric, arrays: Blocks) -> tuple[Results, CollectiveTrace]:
    """Rows go up, the switch adds them and sends each down to its owner; back up, down to all."""
    store: _Store = {}
    up, down, back, out = [], [], [], []
    for members in fabric.groups:
        for row, owner in enumerate(members):
            others = [device for device in members if device != owner]
            port = fabric.jump(others[0], owner).links[1]
            switch = f"{port.src} for {owner}"
            for device in others:
                store[device, ("sum", owner)] = arrays[device][row]
                link = fabric.jump(device, owner).links[0]
                up.append(_leg(("sum", owner), 0, device, switch, link))
                out.append(_leg(("all", owner), 1, switch, device, link.back))
            store[owner, ("sum", owner)] = arrays[owner][row]
            down.append(_leg(("sum", owner), 1, switch, owner, port))
            back.append(_leg(("all", owner), 0, owner, switch, port.back))
    rounds = _move([*up, *down], store, add=True)
    for owner in fabric.devices:
        store[owner, ("all", owner)] = store[owner, ("sum", owner)]
    rounds += _move([*back, *out], store, add=False)
    results = {
        device: np.stack([store[device, ("all", owner)] for owner in members])
        for members in fabric.groups
        for device in members
    }
    return results, _trace("all_reduce", fabric, rounds)


def _leg(block: Hashable, start: int, src: Device | str, dst: Device | str, link: Link) -> Send:
    return Send(block, start, (Hop(src, dst, (link,)),), 0)


def _whole(store: _Store, device: Device, owner: Device, count: int) -> np.ndarray:
    return np.concatenate([store[device, (owner, i)] for i in range(count)])


def _length(fabric: Fabric, blocks: Blocks, axis: int = 0) -> int:
    """The length of a block; raises BadRequest unless every device has one of the same shape."""
    shapes = {blocks[device].shape if device in blocks else None for device in fabric.devices}
    shape = shapes.pop()
    rows = () if axis == 0 else (fabric.size,)
    if shapes or shape is None or shape[:-1] != rows:
        want = "[length]" if axis == 0 else f"[{fabric.size}, length]"
        raise BadRequest(f"every device needs a block of the same shape {want}; got {shape}")
    return shape[-1]


def _trace(
    kind: str,
    fabric: Fabric,
    rounds: Iterable[Iterable[BlockTransfer]],
    *,
    to_targets: bool = False,
) -> CollectiveTrace:
    return CollectiveTrace(
        kind=kind,
        algorithm=_TO_TARGETS if to_targets else algorithm(kind, fabric),
        fabric=fabric,
        rounds=tuple(tuple(moved) for moved in rounds),
        lockstep=kind not in ("all_to_all", "permute"),
    )


_TO_TARGETS = (
    "every block that moves the shortest way, one axis after the other, ties half each way"
)


def algorithm(kind: str, fabric: Fabric) -> str:
    """What is run, in words: one phrase per dimension of the group."""
    if kind == "all_reduce" and _sharp(fabric):
        return "the switch adds up (SHARP)"
    if kind == "permute":
        return "each to the next, one way round; lines folded in two"
    if kind == "all_to_all":
        return "every message the shortest way, one axis after the other, ties half each way"
    names = {
        "ring": "both ways round the ring",
        "one_way": "one way round the ring",
        "line": "along the line from neighbour to neighbour",
        "switch": "Bruck's doubling through the switch",
        "tree": "Bruck's doubling between networks",
        "full_mesh": "straight to every peer",
        "chip": "between the devices of a chip",
    }
    steps = [f"{fabric.axes[d.axis].name}: {names[d.kind]}" for d in fabric.dims]
    orders = len({part.order for part in parts(fabric)})
    mixed = f"; {orders} orders of the axes at once" if orders > 1 else ""
    words = "; ".join(steps) + mixed if steps else "nothing to do"
    if kind == "reduce_scatter":
        return f"an all-gather run backwards ({words})"
    return f"a reduce-scatter, then an all-gather ({words})" if kind == "all_reduce" else words
