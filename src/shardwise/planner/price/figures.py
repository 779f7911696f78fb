"""Seconds of the parts of a training step: priced ops added up to what the closed form of a body
and the bounds need, for one plan or for columns of them. `composition.py` puts them together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.roofline.bodies import OpTime, sides_of
from shardwise.work import Quantity

WEIGHT = "weight"
"""The phase of weight gradients."""

SERIAL = "serial"
"""The row of totals that adds up to the upper bound; the other rows are resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds of one part on its keys.

    Per body (rows) and round: `chain` on the compute stream, `wire` of the collectives within the
    chain, `sides` per stream of what runs beside it; `weight` are the weight gradients among the
    chain. `totals` are sums over the bodies, each times its layers: the serial seconds, and every
    resource at peak rates.
    """

    chain: Quantity
    wire: Quantity
    sides: Mapping[str, np.ndarray]
    totals: Mapping[str, np.ndarray]
    weight: Quantity

    def at(self, index: np.ndarray) -> "Figures":
        """The figures of the keys at an index."""
        return Figures(
            chain=_at(self.chain, index),
            wire=_at(self.wire, index),
            sides={name: _at(rows, index) for name, rows in self.sides.items()},
            totals={name: _at(row, index) for name, row in self.totals.items()},
            weight=_at(self.weight, index),
        )


def _at(rows, index: np.ndarray):
    return np.take(rows, index, axis=-1) if isinstance(rows, np.ndarray) else rows


def figures_of(bodies: Sequence[Sequence[OpTime]], layers: Sequence[float], n: int) -> Figures:
    """Add up the priced ops of some bodies on n keys; `layers` is how many layers are like each."""
    rows: dict[str, np.ndarray] = {}
    totals: dict[str, np.ndarray] = {}

    def add(into: dict[str, np.ndarray], name: str, shape: tuple, at, seconds: Quantity) -> None:
        if name not in into:
            into[name] = np.zeros(shape)
        into[name][at] += seconds

    for body, (ops, many) in enumerate(zip(bodies, layers, strict=True)):
        aside = sides_of(tuple(ops))
        for t in ops:
            place = "wire" if t.op.collective is not None else "chain"
            name = f"side {t.op.stream}" if t.op.id in aside else place
            add(rows, name, (len(bodies), n), body, t.total)
            for resource, seconds in ((SERIAL, t.serial), *t.peak.items()):
                add(totals, resource, (n,), ..., seconds * (t.op.count * many))
            if t.op.phase == WEIGHT:
                add(rows, WEIGHT, (len(bodies), n), body, t.total)
    return Figures(
        chain=rows.get("chain", 0.0),
        wire=rows.get("wire", 0.0),
        sides={name[5:]: row for name, row in rows.items() if name.startswith("side ")},
        weight=rows.get(WEIGHT, 0.0),
        totals=totals,
    )


class Sums(dict[str, Quantity]):
    """Seconds by name that add up: of streams, or of resources."""

    def add(self, seconds: Mapping[str, Quantity], times: Quantity = 1.0) -> "Sums":
        """These, and others so many times."""
        once = np.ndim(times) == 0 and times == 1.0
        for name, value in seconds.items():
            more = value if once else value * times
            self[name] = self[name] + more if name in self else more
        return self

    def copy(self) -> "Sums":
        """The same seconds, to add others to."""
        return Sums(self)
