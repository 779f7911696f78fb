"""The passes of a rank: forward (F), backward (B) and weight gradient (W), in order.

Schedules that do not split the backward pass have no W: their B is the whole of it. In the others B
computes only the gradient of the chunk's input, which the rank before waits for, and W the gradient
of its weights, which nobody waits for.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal, NamedTuple

PassKind = Literal["F", "B", "W"]


class Action(NamedTuple):
    """One pass of one rank: of `microbatch`, through the rank's chunk number `chunk`.

    A tuple, as a table has tens of thousands of them, and they are keys.
    """

    kind: PassKind
    microbatch: int
    chunk: int = 0


_PASSES: dict[str, PassKind] = {"F": "F", "B": "B", "W": "W"}

Phase = tuple[str, int]
"""Passes such as "F0 B1 W1" (kind and chunk) and how often they repeat."""


def numbered(phases: Iterable[Phase], first: tuple[int, ...] = (0, 0)) -> Iterator[Action]:
    """Actions of phases: each kind of pass of a chunk takes the microbatches in order, from the
    chunk's `first` one on. A bare "W" is of the oldest B that has none yet."""
    counts: dict[str, int] = {}
    owed: deque[str] = deque()
    for name in chain.from_iterable(passes.split() * times for passes, times in phases):
        if name[0] == "B":
            owed.append(name[1:])
        if name == "W":
            name += owed[0]
        if name[0] == "W":
            owed.remove(name[1:])
        number = counts[name] = counts.get(name, -1) + 1
        chunk = int(name[1:])
        yield Action(_PASSES[name[0]], first[chunk] + number, chunk)
