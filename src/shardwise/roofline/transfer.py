"""Copies between memories, hosts and chips: parallel links, hops over a torus, pipelines of stages.

Bandwidths are one-way in bytes/s; arguments may be arrays where they are quantities.
Source: book ch. 2, exercises 2.1, 2.5 and 2.6.
"""

from collections.abc import Sequence

from shardwise.work import Quantity, largest


def parallel_seconds(total_bytes: Quantity, *, links: Quantity, oneway: Quantity) -> Quantity:
    """`total_bytes` spread evenly over `links` links or memories: bytes / (links x rate)."""
    return total_bytes / (links * oneway)


def torus_hops(
    start: Sequence[int], end: Sequence[int], *, shape: Sequence[int], wraps: Sequence[bool]
) -> int:
    """Links on a shortest path between two chips of a slice, given by their coordinates.

    >>> torus_hops((0, 0), (3, 3), shape=(4, 4), wraps=(False, False))
    6
    """
    hops = 0
    for a, b, size, wrap in zip(start, end, shape, wraps, strict=True):
        distance = abs(a - b)
        hops += min(distance, size - distance) if wrap else distance
    return hops


def torus_ports(chip: Sequence[int], *, shape: Sequence[int], wraps: Sequence[bool]) -> int:
    """Links that the chip at these coordinates has within its slice: two per axis, less at an edge.

    >>> torus_ports((0, 0), shape=(4, 4), wraps=(False, False))
    2
    """
    ports = 0
    for at, size, wrap in zip(chip, shape, wraps, strict=True):
        ends = 2 if wrap else (at > 0) + (at < size - 1)
        ports += min(ends, size - 1)
    return ports


def send_seconds(
    payload_bytes: Quantity,
    *,
    ports: Quantity,
    oneway: Quantity,
    hops: Quantity,
    hop_seconds: Quantity,
) -> Quantity:
    """One chip sends to another, split over `ports`: bytes / (ports x rate) + hops x latency.

    The links on the way forward as the bytes arrive, so that the rate is paid once and the latency
    per hop (exercise 2.5). With no bytes it is the time of the first byte.
    """
    return parallel_seconds(payload_bytes, links=ports, oneway=oneway) + hops * hop_seconds


def gather_to_one_seconds(
    total_bytes: Quantity, *, chips: Quantity, ports: Quantity, oneway: Quantity
) -> Quantity:
    """An array spread over `chips` chips is copied to one: the others' (chips - 1)/chips enter it.

    Bound by the receiver's ports: V (n - 1)/n / (ports x rate) (exercise 2.6).
    """
    return parallel_seconds(total_bytes * (chips - 1) / chips, links=ports, oneway=oneway)


def pipelined_lower(stages: Sequence[Quantity]) -> Quantity:
    """The lower bound of any pipeline of these stages: the slowest one."""
    return largest(stages)
