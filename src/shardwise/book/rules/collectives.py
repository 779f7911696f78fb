"""The book's closed forms of collectives on rings and lines (ch. 3), in seconds and bytes.

V is the bytes of the whole array, W bytes/s of one axis both ways, `oneway` of one link. These are
limits and worked cases; `shardwise.roofline.collectives` prices any axis of a placed mesh.
"""

import numpy as np

from shardwise.hardware import Slice, place
from shardwise.roofline.collectives import all_gather, all_reduce, all_to_all, ragged_all_to_all
from shardwise.roofline.groups import Mode
from shardwise.work import Quantity


def gather_seconds(bytes: Quantity, bandwidth: Quantity, axes: Quantity = 1) -> Quantity:
    """AllGather or ReduceScatter over M axes that are rings: V / (M W) (ch. 3.2)."""
    return bytes / (axes * bandwidth)


def reduce_seconds(bytes: Quantity, bandwidth: Quantity, axes: Quantity = 1) -> Quantity:
    """AllReduce: twice a gather, 2V / (M W) (ch. 3.2.3)."""
    return 2 * gather_seconds(bytes, bandwidth, axes)


def oneway_gather_seconds(bytes: Quantity, chips: Quantity, oneway: Quantity) -> Quantity:
    """AllGather on a ring that sends one way: V (N - 1) / (N W); a chip has its own shard."""
    return bytes * (chips - 1) / (chips * oneway)


def line_gather_seconds(
    shard_bytes: Quantity, hops: Quantity, oneway: Quantity, hop_seconds: Quantity = 0.0
) -> Quantity:
    """AllGather on an axis that does not wrap: as many hops as chips less one, of one shard each
    and of `hop_seconds` at least."""
    return hops * np.maximum(shard_bytes / oneway, hop_seconds)


def exchange_seconds(bytes: Quantity, bandwidth: Quantity) -> Quantity:
    """AllToAll on a ring that sends both ways: a quarter of a gather, V / (4W) (ch. 3.2.4)."""
    return bytes / (4 * bandwidth)


def oneway_exchange_seconds(bytes: Quantity, oneway: Quantity) -> Quantity:
    """AllToAll on a ring that sends one way: half of a gather, V / (2W) (exercise 3.10)."""
    return bytes / (2 * oneway)


def exchange_scalars(size: Quantity, chips: Quantity) -> Quantity:
    """Scalars over each link of a one-way ring in the AllToAll of an N x N array over D chips.
    Messages of (N/D)^2 go 1 to D - 1 hops, N^2 (D - 1) / (2D) in all (exercise 3.10)."""
    return size**2 * (chips - 1) / (2 * chips)


def exchange_gain(chips: Quantity) -> Quantity:
    """How much both directions unload the busier link of an AllToAll.

    D (D - 1) / 2 messages against D/2 (D/2 + 1) / 2, the opposite chip's all one way; towards 4.
    """
    half = chips / 2
    return chips * (chips - 1) / 2 / (half * (half + 1) / 2)


def gather_first_degree(alpha: Quantity, contracted: Quantity) -> Quantity:
    """Largest X at which x[B, D_X] W[D_X, F] with an AllReduce of the result stays compute-bound:
    D / (2 alpha) (exercise 3.4)."""
    return contracted / (2 * alpha)


def reduce_after_width(alpha: Quantity) -> Quantity:
    """D above which reducing the result costs less than the whole product on every chip: 2 alpha
    (exercise 3.4)."""
    return 2 * alpha


def slice_seconds(
    kind: str, bytes: float, slice: Slice, mode: Mode = "exact", fan_out: float | None = None
) -> float:
    """Seconds of a collective over one mesh axis that takes a whole slice, by its bandwidth.

    kind: "all_gather", "all_reduce", "all_to_all"; with `fan_out` picks per token the last is
    ragged. `mode` "asymptotic" leaves (N - 1)/N out.
    """
    links = [place(slice, {"X": slice.chips}).axes["X"]]
    if fan_out is not None:
        found = ragged_all_to_all(bytes, links, fan_out=fan_out, mode=mode)
        return float(found.bandwidth)
    return float(KINDS[kind](bytes, links, mode=mode).bandwidth)


KINDS = {"all_gather": all_gather, "all_reduce": all_reduce, "all_to_all": all_to_all}


def ragged_share(picks: Quantity, shards: Quantity) -> Quantity:
    """A ragged AllToAll over one that sends each token everywhere, K random picks of Z shards:
    (1 - ((Z - 1)/Z)^K) (Z - 1)/Z."""
    stay = (shards - 1) / shards
    return (1 - stay**picks) * stay


def ragged_share_approx(picks: Quantity, shards: Quantity) -> Quantity:
    """The rule of thumb for `ragged_share`: min(K/Z, 1) (Z - 1)/Z."""
    return np.minimum(picks / shards, 1) * (shards - 1) / shards
