"""Small programs of ch. 3, 9 and 10 run block by block in NumPy, and the tiling of arrays.

What a program over devices must give: each device's block is moved as the collective moves it and
the result is compared with one device's.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.errors import BadRequest
from shardwise.sharding.simulate.collectives import all_reduce
from shardwise.sharding.simulate.fabric import torus


def summed_everywhere(devices: int) -> float:
    """What psum leaves on each of so many devices that hold their own number: 0 + 1 + ...

    The executor moves the blocks over a ring. Raises BadRequest for less than two devices.
    """
    if devices != int(devices) or devices < 2:
        raise BadRequest(f"devices is {devices}; it is a whole number from 2 on")
    ring = torus([int(devices)])
    rows = {d: np.full((int(devices), 1), float(d[0])) for d in ring.devices}
    results, _ = all_reduce(ring, rows)
    values = {float(v) for block in results.values() for v in block.flat}
    assert len(values) == 1, "an all-reduce leaves one value"
    return values.pop()


def mean_of_shards(elements: int, devices: int, taken: int) -> np.ndarray:
    """The first `taken` elements of each device's shard of 0, 1, ..., averaged over devices."""
    _divides("devices", devices, elements)
    shards = np.arange(int(elements), dtype=float).reshape(int(devices), -1)
    return shards[:, : int(taken)].mean(axis=0)


def shard_means(rows: int, columns: int, rows_over: int, columns_over: int) -> np.ndarray:
    """The mean of every device's block of 0, 1, ... as [rows, columns], in the mesh's order."""
    _divides("rows_over", rows_over, rows)
    _divides("columns_over", columns_over, columns)
    whole = np.arange(rows * columns, dtype=float)
    shape = (rows_over, rows // rows_over, columns_over, columns // columns_over)
    return whole.reshape(tuple(map(int, shape))).mean(axis=(1, 3)).ravel()


def _divides(name: str, degree: float, size: float) -> None:
    if degree != int(degree) or degree < 1 or size % degree:
        raise BadRequest(f"{name} is {degree}; it is a whole number that divides {size}")


def routed_experts_gap(tokens: int, d_model: int, d_ff: int, experts: int) -> float:
    """The largest relative difference between tokens routed to experts that lie one on a device,
    each device masking out the others' tokens, and the dense reference (exercise 10.2).

    Runs in f32 on numbers drawn with a fixed seed.
    """
    draw = np.random.default_rng(0)
    S, D, F, E = (_count(n) for n in (tokens, d_model, d_ff, experts))
    a, w = draw.normal(size=(S, D)).astype("f"), draw.normal(size=(E, D, F)).astype("f")
    expert = draw.integers(0, E, S)
    routed = np.zeros((S, F), "f")
    for e in range(E):
        routed += np.where((expert == e)[:, None], a @ w[e], 0)
    return _gap(routed, np.einsum("sd,sdf->sf", a, w[expert]))


def _count(value: float) -> int:
    if value != int(value) or value < 1:
        raise BadRequest(f"{value} is no count; sizes are whole numbers from 1 on")
    return int(value)


def _gap(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def collective_matmul_gap(
    kind: str, batch: int, d_model: int, d_ff: int, degree: int, both_ways: bool = False
) -> float:
    """The largest relative difference between a product overlapped with its collective over Y
    devices and the product on one device (exercises 10.1 to 10.4).

    kind: "all_reduce" for x[B, D_Y] W[D_Y, F] -> [B, F], "reduce_scatter" for
    h[B, F_Y] W[F_Y, D] -> [B, D_Y], "block" for both in a row with a ReLU between, gathering and
    scattering on the way. A partial result passes round the ring and every device adds its
    product; `both_ways` sends halves of it in both directions. Runs in f32 on numbers drawn with a
    fixed seed; raises BadRequest for sizes that the degree does not divide.
    """
    if kind not in ("all_reduce", "reduce_scatter", "block"):
        raise BadRequest(f"kind is '{kind}'; it is all_reduce, reduce_scatter or block")
    B, D, F, Y = (_count(n) for n in (batch, d_model, d_ff, degree))
    for size in (D, F):
        _divides("degree", 2 * Y if both_ways else Y, size)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(B, D)).astype("f")
    w_in, w_out = draw.normal(size=(D, F)).astype("f"), draw.normal(size=(F, D)).astype("f")
    up = x @ w_in
    if kind == "all_reduce":
        rows = [x[:, part] for part in _parts(D, Y)]
        partial = [row @ w_in[part] for row, part in zip(rows, _parts(D, Y), strict=True)]
        return _gap(np.concatenate(_ring_sums(partial, both_ways), axis=1), up)
    hidden = _gathered_product(x, w_in, Y) if kind == "block" else up
    hidden = np.maximum(hidden, 0)
    partial = [hidden[:, part] @ w_out[part] for part in _parts(F, Y)]
    return _gap(np.concatenate(_ring_sums(partial, both_ways), axis=1), np.maximum(up, 0) @ w_out)


def _parts(size: int, degree: int) -> list[slice]:
    each = size // degree
    return [slice(i * each, (i + 1) * each) for i in range(degree)]


def _gathered_product(x: np.ndarray, w: np.ndarray, degree: int) -> np.ndarray:
    """x[B, D_Y] W[D, F_Y] with the blocks of x passed round the ring while products are added."""
    ins, outs = _parts(x.shape[1], degree), _parts(w.shape[1], degree)
    found = np.zeros((x.shape[0], w.shape[1]), "f")
    for hop in range(degree):
        for device in range(degree):
            held = ins[(device - hop) % degree]
            found[:, outs[device]] += x[:, held] @ w[held, outs[device]]
    return found


def _ring_sums(partial: list[np.ndarray], both_ways: bool) -> list[np.ndarray]:
    """A reduce-scatter of every device's partial result: the block that ends on each device, its
    sum passed from neighbour to neighbour."""
    degree = len(partial)
    blocks = _parts(partial[0].shape[1], degree)
    if not both_ways:
        return [_passed(partial, block, d, 1) for d, block in enumerate(blocks)]
    found = []
    for device, block in enumerate(blocks):
        middle = (block.start + block.stop) // 2
        halves = (slice(block.start, middle), 1), (slice(middle, block.stop), -1)
        found.append(np.concatenate([_passed(partial, h, device, s) for h, s in halves], axis=1))
    return found


def _passed(partial: list[np.ndarray], block: slice, end: int, step: int) -> np.ndarray:
    degree = len(partial)
    total = np.zeros_like(partial[0][:, block])
    for hop in range(1, degree + 1):
        total = total + partial[(end + step * hop) % degree][:, block]
    return total


def tiled_elements(dims: Sequence[int], tile: Sequence[int]) -> float:
    """Elements that an array takes in memory once its last dims are padded to whole tiles."""
    if len(tile) > len(dims):
        raise BadRequest(
            f"tile has {len(tile)} dims and the array {len(dims)}; it has at most that"
        )
    sizes = list(dims)
    for place, width in enumerate(reversed(tile), 1):
        sizes[-place] = -(-sizes[-place] // width) * width
    return float(np.prod(sizes))


def packed_offset(
    row: int, column: int, columns: int, tile: Sequence[int], packed_rows: int = 2
) -> int:
    """Where an element of a 16-bit array lies: tiles in rows, and in a tile `packed_rows` rows
    beside one another, as T(2,4)(2,1) has it (ch. 9)."""
    rows, width = tile
    number = row // rows * -(-columns // width) + column // width
    within, across = row % rows, column % width
    group, place = within // packed_rows, within % packed_rows
    return int(number * rows * width + group * packed_rows * width + across * packed_rows + place)
