"""HBM over the scheduled program: what of a device's memory is in use at each instruction.

XLA dumps where each value lies (the buffer assignment) and when it is alive (its live range, by
place in the flattened schedule, in which a loop's body stands once). Bytes that several values
share, such as the state of a loop or a donated argument, count once. Arguments, constants and what
the program returns are held from start to end.
"""

import re
from collections.abc import Iterator
from itertools import islice

from shardwise.profiler.ahead.buffers import (
    HBM,
    Buffer,
    buffer_of,
    origins,
    places_of,
    read_allocations,
)

_STEP = re.compile(r"^\s+(\d+):(\S+)$")
_RANGE = re.compile(r"^\s+([\w.\-]+)(\{[\d,]*\}):(\d+)-(\d+)$")
TEMPORARY = "preallocated-temp"


def read_occupancy(assignment: str, live_ranges: str) -> tuple[tuple[str, int], ...]:
    """(instruction, bytes in use from it on) at each change, in the order of the schedule.

    `assignment` is the dump `*buffer-assignment.txt`, `live_ranges` `*live-range.txt`. Empty where
    a compiler dumps neither.
    """
    order, ranges = _read_ranges(live_ranges)
    if not order:
        return ()
    held, places = 0, []
    for size, color, words, values in read_allocations(assignment.splitlines()):
        if color != HBM or "thread-local" in words:
            continue
        if TEMPORARY not in words:
            held += size
            continue
        for value in values:
            span = ranges.get((value.name, value.index))
            if span is not None and value.size:
                places.append((span, value.offset, value.offset + value.size))
    return tuple((order[at], held + size) for at, size in _changes(places, len(order)))


def read_alive(assignment: str, live_ranges: str, hlo: str) -> tuple[Buffer, ...]:
    """The twelve largest temporaries that are alive where most of HBM is in use, largest first."""
    order, ranges = _read_ranges(live_ranges)
    found = [
        (ranges[value.name, value.index], value)
        for _, color, words, values in read_allocations(assignment.splitlines())
        if color == HBM and TEMPORARY in words
        for value in values
        if value.size and (value.name, value.index) in ranges
    ]
    spans = [(span, value.offset, value.offset + value.size) for span, value in found]
    fullest, _ = max(_changes(spans, len(order)), key=lambda change: change[1], default=(0, 0))
    origin, _ = origins(hlo)
    alive = [value for (first, last), value in found if first <= fullest <= last]
    made = (
        buffer_of(v, v.size, "temporary", HBM, origin.get(v.name, ("", "")))
        for v in places_of(alive, origin)
    )
    return tuple(islice(made, 12))


def hbm_peak(peak: int, assignment: str, occupancy: tuple[tuple[str, int], ...]) -> int:
    """Most bytes of HBM in use, from XLA's `peak_memory_in_bytes`: that one counts what lies in
    VMEM along (libtpu 0.0.42: on a v5e up to its 128 MiB, weights copied ahead among them), and in
    the host's memory (all of what a step offloads: 35 GiB of a program that uses 25 of HBM). It is
    at least the peak less all of those, should the occupancy miss a value."""
    elsewhere = 0
    for size, color, words, _ in read_allocations(assignment.splitlines()):
        if color != HBM and "thread-local" not in words:
            elsewhere += size
    return min(peak, max(peak - elsewhere, *(size for _, size in occupancy)))


def _read_ranges(text: str) -> tuple[list[str], dict[tuple[str, str], tuple[int, int]]]:
    """The instructions in order, and (name, index of a tuple) -> first and last of them."""
    order: list[str] = []
    ranges: dict[tuple[str, str], tuple[int, int]] = {}
    for line in text.splitlines():
        if found := _RANGE.match(line):
            index = found[2] if found[2] != "{}" else ""
            ranges[found[1], index] = int(found[3]), int(found[4])
        elif (found := _STEP.match(line)) and int(found[1]) == len(order):
            order.append(found[2])
    return order, ranges


def _changes(
    places: list[tuple[tuple[int, int], int, int]], steps: int
) -> Iterator[tuple[int, int]]:
    """(step, bytes in use) at every step where the bytes change."""
    moments = sorted({0} | {t for (a, b), *_ in places for t in (a, b + 1) if t < steps})
    waiting = sorted(places, key=lambda place: place[0][0], reverse=True)
    alive: list[tuple[int, int, int]] = []
    before = -1
    for now in moments:
        alive = [place for place in alive if place[0] >= now]
        while waiting and waiting[-1][0][0] <= now:
            (_, last), low, high = waiting.pop()
            alive.append((last, low, high))
        used = _covered([(low, high) for _, low, high in alive])
        if used != before:
            yield now, used
        before = used


def _covered(spans: list[tuple[int, int]]) -> int:
    """Bytes that at least one span covers."""
    total, end = 0, 0
    for low, high in sorted(spans):
        total += max(high - max(low, end), 0)
        end = max(end, high)
    return total
