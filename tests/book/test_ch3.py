"""Chapter 3's sharded matmuls, and exercise 7.7, answered by the resolver and its strategies.

The resolver finds the programs; they are then evaluated at the entry's numbers as functions of
their sizes and degrees, with V/W as in the book (`roofline.times`), and crossovers are bisected.
"""

import numpy as np

from book.oracle import check, entry
from shardwise.hardware import load_chip, parse_slice, place
from shardwise.roofline import seconds
from shardwise.roofline.crossover import crossover
from shardwise.roofline.strategies import rings, times
from shardwise.sharding import (
    Einsum,
    Layout,
    Mesh,
    bytes_per_device,
    bytes_total,
    local_shape,
    resolve,
    sizes_of,
)


def book_chip(name):
    return load_chip(name, constants="book")


def book_slice(text):
    return parse_slice(text, book_chip)


def strategy(found, summary):
    """The cheapest strategy with these collectives."""
    return next(s for s in found.strategies if s.summary == summary)


@entry("pop.3.1")
def test_bytes_and_load_time(e):
    """The quiz takes the table's two digits of an H100's 3.35e12 bytes/s."""
    layout, mesh = Layout.parse("A[I_XY, J]"), Mesh.of(e["inputs"]["mesh"])
    held = bytes_per_device(layout, sizes_of(layout, e["inputs"]["shape"]), mesh, "f32")
    check(e, [int(held), held / float(f"{book_chip('h100').hbm_bandwidth:.1e}")])


@entry("3.1")
def test_replicated_copies(e):
    layout, mesh = Layout.parse("A[I_X, J, K]"), Mesh.of(e["inputs"]["mesh"])
    sizes = {"I": 64, "J": 3, "K": 5}
    check(e, int(bytes_total(layout, sizes, mesh, "bf16") / (2 * 64 * 3 * 5)))


@entry("code.3.localshape")
def test_local_shapes_of_the_snippet(e):
    mesh = Mesh.of(e["inputs"]["mesh"])
    einsum = Einsum.parse("A[I_X, J_Y] * B[J, K_Y]")
    shapes = [(8, 2048), (2048, 8192)]
    pairs = zip(einsum.operands, shapes, strict=True)
    check(e, [n for a, shape in pairs for n in local_shape(a, sizes_of(a, shape), mesh)])


def exercise_4():
    """Both strategies of exercise 3.4, as times at any batch, D and degree of X on v5p."""
    chip = book_chip("v5p")
    mesh, sizes = Mesh.parse("X=4"), {"B": 4096, "D": 8192, "F": 16384}
    found = resolve(Einsum.parse("x[B, D] * Y[D_X, F] -> Z[B, F]"), mesh, sizes, top=100)

    def evaluated(summary):
        program = strategy(found, summary).program

        def at(batch=4096.0, d=8192.0, degree=4.0):
            degrees = {"X": degree}
            changed = {**sizes, "B": batch, "D": d}
            return times(program, chip, rings(chip, degrees), sizes=changed, degrees=degrees)

        return at

    return evaluated("AllGather_X(Y)"), evaluated("AllReduce_X(Z)")


@entry("3.4.S1_crit")
def test_gathering_first_is_compute_bound_above(e):
    first, _ = exercise_4()
    batch = crossover(
        lambda b: first(batch=b).math_seconds, lambda b: first(batch=b).comms_seconds, 1, 1e6
    )
    check(e, batch)


@entry("3.4.S2_maxX")
def test_reducing_after_is_compute_bound_up_to(e):
    _, second = exercise_4()
    d = e["inputs"]["D"]
    degree = crossover(
        lambda x: second(d=d, degree=x).math_seconds,
        lambda x: second(d=d, degree=x).comms_seconds,
        1.001,
        64,
    )
    check(e, degree)


@entry("3.4.crossover")
def test_reducing_after_beats_gathering_first_above(e):
    first, second = exercise_4()
    d = crossover(lambda d: second(d=d).comms_seconds, lambda d: first(d=d).math_seconds, 16, 1e6)
    check(e, d)


def exercise_5(e):
    """Replicated output, inputs stored as one likes: the three ways that the exercise weighs."""
    mesh = Mesh.parse("X=4,Y=4,Z=4")
    piece = book_slice(f"{e['inputs']['tpu']}:4x4x4")
    placement = place(piece, dict(mesh))
    sizes = {letter: e["inputs"][letter] for letter in "IJK"}
    einsum = Einsum.parse("A[I, J] * B[J, K] -> C[I, K]")
    found = resolve(einsum, mesh, sizes, free_inputs=("A", "B"), top=1000)
    ways = ("AllGather_XYZ(C)", "AllReduce_XYZ(C)", "no communication")
    programs = [strategy(found, way).program for way in ways]
    return [times(p, piece.chip, placement.axes).upper for p in programs]


@entry("3.5.v4p")
def test_lowest_latency_v4p(e):
    check(e, exercise_5(e))


@entry("3.5.v5p")
def test_lowest_latency_v5p(e):
    check(e, exercise_5(e))


@entry("3.6.c")
def test_data_and_tensor_parallel_product(e):
    mesh, piece = Mesh.parse("X=4,Y=4"), book_slice("v5e:4x4")
    placement = place(piece, dict(mesh))
    einsum = Einsum.parse("A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]")
    cost = seconds(piece.chip, placement)
    best = resolve(einsum, mesh, e["inputs"], cost=cost).best
    got = times(best.program, piece.chip, placement.axes)
    check(e, [got.comms_seconds, got.math_seconds])


@entry("3.7.tp")
def test_a_block_in_300_megabytes(e):
    """Weights stored as one likes, the result laid out as one likes: tensor parallelism it is."""
    mesh, piece = Mesh.parse("X=2,Y=2"), book_slice("v5e:2x2")
    chip, placement = piece.chip, place(piece, dict(mesh))
    best = resolve(
        Einsum.parse("In[B, D_XY] * W_in[D, F] * W_out[F, D]"),
        mesh,
        e["inputs"],
        cost=seconds(chip, placement),
        free_inputs=("W_in", "W_out"),
        max_bytes=300e6,
    ).best
    assert best.summary == "AllGather_XY(In), ReduceScatter_XY(C)"
    assert [str(layout) for layout in best.inputs[1:]] == ["W_in[D, F_XY]", "W_out[F_XY, D]"]
    assert best.peak_bytes <= 300e6
    weights = sum(bytes_per_device(w, e["inputs"], mesh, "bf16") for w in best.inputs[1:])
    as_rings = times(best.program, chip, rings(chip, mesh))
    as_lines = times(best.program, chip, placement.axes, mode="exact")
    check(
        e,
        [
            as_rings.comms_seconds,
            as_lines.comms_seconds,
            as_rings.math_seconds,
            weights / chip.hbm_bandwidth,
        ],
    )


@entry("3.7.fsdp")
def test_gathering_both_weights_instead(e):
    """What the resolver chooses for a large batch, at the exercise's sizes."""
    mesh, chip = Mesh.parse("X=2,Y=2"), book_chip("v5e")
    sizes = {**e["inputs"], "B": 2**20}
    fsdp = "In[B_XY, D] * W_in[D_XY, F] * W_out[F, D_XY] -> Out[B_XY, D]"
    best = resolve(Einsum.parse(fsdp), mesh, sizes).best
    assert best.summary == "AllGather_XY(W_in), AllGather_XY(W_out)"
    small = {**e["inputs"], "B": 128}
    check(e, times(best.program, chip, rings(chip, mesh), sizes=small).comms_seconds)


ONE_D = "In[B, D_XYZ] * W_in[D, F_XYZ] * W_out[F_XYZ, D] -> Out[B, D_XYZ]"
TWO_D = "In[B, D_XYZ] * W_in[D_X, F_YZ] * W_out[F_YZ, D_X] -> Out[B, D_XYZ]"
D = 8192


def comms(text, summary, ratio):
    """T_comms of the resolver's program by chips and degree of X; Y and Z share the rest."""
    chip, mesh = book_chip("v5e"), Mesh.parse("X=4,Y=4,Z=4")
    sizes = {"B": 128, "D": D, "F": int(ratio * D)}
    best = resolve(Einsum.parse(text), mesh, sizes, top=1).best
    assert best.summary == summary

    def at(chips, x):
        y = np.sqrt(chips / x)
        degrees = {"X": x, "Y": y, "Z": y}
        return times(best.program, chip, rings(chip, degrees), degrees=degrees).comms_seconds

    return at


def two_d(ratio):
    """The least T_comms of 2-D weight-stationary sharding over all ways to split N chips."""
    at = comms(TWO_D, "AllGather_YZ(In), AllReduce_X(Tmp), ReduceScatter_YZ(Out)", ratio)
    return lambda chips: float(np.min(at(chips, np.geomspace(1.01, chips / 1.1, 20_001))))


def one_d(ratio):
    at = comms(ONE_D, "AllGather_XYZ(In), ReduceScatter_XYZ(Out)", ratio)
    return lambda chips: float(at(chips, chips ** (1 / 3)))


@entry("7.7.comms")
def test_two_dimensional_weight_stationary(e):
    """T = c B D / (sqrt(N) W), W both ways of a link, with F = 4 D."""
    chips, both_ways = 256, 2 * book_chip("v5e").network.link_oneway
    check(e, two_d(4)(chips) * np.sqrt(chips) * both_ways / (128 * D))


@entry("7.7.crit")
def test_chips_above_which_two_dimensions_win(e):
    check(e, [crossover(two_d(ratio), one_d(ratio), 16, 4096) for ratio in (4, 3.5)])
