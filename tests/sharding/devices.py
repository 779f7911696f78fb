"""Fake devices that hold real blocks: a step runs on blocks alone, and only its group is read.

Written against `block()` and the table in `steps.py`, not against the derivation that it checks.
"""

from itertools import product

import numpy as np

from shardwise.sharding import Layout, Mesh, block, local_shape


def _softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


FUNCTIONS = {
    "relu": lambda _, x: np.maximum(x, 0),
    "relu'": lambda _, dy, y: dy * (y > 0),
    "tanh": lambda _, x: np.tanh(x),
    "tanh'": lambda _, dy, y: dy * (1 - y * y),
    "silu": lambda _, x: x * _sigmoid(x),
    "silu'": lambda _, dy, x: dy * _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "softmax": lambda axis, x: _softmax(x, axis),
    "softmax'": lambda axis, dy, y: y * (dy - (dy * y).sum(axis, keepdims=True)),
    "add": lambda _, *xs: sum(xs),
    "update": lambda _, w, g, m: w - 0.1 * g - 0.01 * m,
}


def call(name, layout, over, *values):
    """A named function of whole arrays or of blocks."""
    return FUNCTIONS[name](layout.letters.index(over) if over else None, *values)


def einsum(layouts, values, output):
    """The product of arrays or blocks by the names of their dims."""
    ids = {}
    number = [[ids.setdefault(d, len(ids)) for d in layout.letters] for layout in layouts]
    pairs = [x for pair in zip(values, number, strict=True) for x in pair]
    return np.einsum(*pairs, [ids[d] for d in output.letters])


class Devices:
    """Every device's blocks, by layout."""

    def __init__(self, mesh: Mesh, sizes):
        self.mesh, self.sizes = mesh, sizes
        self.held = {}

    def put(self, layout: Layout, array):
        assert not layout.unreduced
        self.held[layout] = {at: array[self.region(layout, at)].copy() for at in self.all()}

    def get(self, layout: Layout):
        """The whole array: partial sums added, and all copies the same."""
        shape = [self.sizes[d] for d in layout.letters]
        parts = {}
        for at, value in self.held[layout].items():
            key = tuple(at[i] for i, axis in enumerate(self.mesh) if axis in layout.unreduced)
            whole, seen = parts.setdefault(key, (np.zeros(shape), np.zeros(shape, bool)))
            where = self.region(layout, at)
            if seen[where].all():
                np.testing.assert_array_equal(whole[where], value)
            whole[where], seen[where] = value, True
        assert all(seen.all() for _, seen in parts.values())
        return sum(whole for whole, _ in parts.values())

    def all(self):
        return self.mesh.devices()

    def region(self, layout, at):
        return block(layout, self.sizes, self.mesh, at)

    def group(self, at, axes):
        """The devices that differ from this one only along the axes."""
        free = [range(d) if a in axes else (at[i],) for i, (a, d) in enumerate(self.mesh.items())]
        return product(*free)

    def run(self, step):
        self.held[step.output] = {at: self._run(step, at) for at in self.all()}

    def _run(self, step, at):
        values = [self.held[layout][at] for layout in step.inputs]
        match step.kind:
            case "einsum":
                return einsum(step.inputs, values, step.output)
            case "map":
                return call(step.function, step.output, step.dim, *values)
            case "reshape":
                return values[0].reshape(local_shape(step.output, self.sizes, self.mesh))
            case "reduce_scatter" | "all_reduce":
                others = self.group(at, step.axes)
                return sum(self._read(step, at, [other]) for other in others)
            case "slice":
                return self._read(step, at, [at])
            case _:
                return self._read(step, at, self.group(at, step.axes))

    def _read(self, step, at, others):
        """This device's output block, copied from the input blocks of the others."""
        (before,), after = step.inputs, step.output
        mine = self.region(after, at)
        out = np.full([s.stop - s.start for s in mine], np.nan)
        for other in others:
            theirs = self.region(before, other)
            low = [max(a.start, b.start) for a, b in zip(mine, theirs, strict=True)]
            high = [min(a.stop, b.stop) for a, b in zip(mine, theirs, strict=True)]
            if all(a < b for a, b in zip(low, high, strict=True)):
                to, of = (
                    tuple(
                        slice(a - s.start, b - s.start)
                        for a, b, s in zip(low, high, where, strict=True)
                    )
                    for where in (mine, theirs)
                )
                out[to] = self.held[before][other][of]
        assert not np.isnan(out).any(), f"{step}: a block is not in the group"
        return out
