"""Strategies in seconds: the ranking, its reasons, and collective matmuls."""

import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import load_chip, parse_slice, place
from shardwise.roofline import price, rank, seconds
from shardwise.roofline.crossover import crossover
from shardwise.roofline.strategies import collective_matmul, overlappable, rings, times
from shardwise.sharding import Einsum, Mesh, count, resolve, wire_bytes

SIZES = {"I": 8192, "J": 8192, "K": 32768}


def ranked(text, mesh, on, sizes=SIZES, top=5, **options):
    mesh, piece = Mesh.parse(mesh), parse_slice(on)
    placement = place(piece, dict(mesh))
    cost = seconds(piece.chip, placement)
    found = resolve(Einsum.parse(text), mesh, sizes, cost=cost, top=32, **options)
    return rank(found, piece.chip, placement, top=top)


CASES = [
    ("A[I_X, J] * B[J_X, K_Y] -> C[I_X, K_Y]", "X=4,Y=4", "v5e:4x4"),
    ("A[I, J_X] * B[J_X, K] -> C[I, K]", "X=16,Y=16", "v5e:16x16"),
    ("A[I_X, J_Y] * B[J_Y, K] -> C[I_X, K]", "X=4,Y=2", "h100:8"),
    ("A[I_X, J] * B[J, K_Y] -> C[I, K]", "X=2,Y=8", "2*mi300x:8"),
    ("A[I_XYZ, J] -> A[I_Y, J_Z]", "X=4,Y=4,Z=4", "v5p:4x4x4"),
]


@pytest.mark.parametrize(("text", "mesh", "on"), CASES)
def test_every_strategy_has_three_ordered_times(text, mesh, on):
    ranking = ranked(text, mesh, on, top=20)
    expected = [p.expected for p in ranking.strategies]
    assert expected == pytest.approx(sorted(expected))
    for p in ranking.strategies:
        assert p.estimate.lower <= p.estimate.expected <= p.estimate.upper
    assert " at peak rates, of " in ranking.reasons[0]


def test_the_reasons_name_the_next_best():
    ranking = ranked(*CASES[0])
    assert ranking.best.summary == "AllGather_X(B); AllGather_X(B) as collective matmul"
    assert ranking.reasons[0].startswith("net:X is the bound: ")
    assert ranking.reasons[1].startswith("next best, ")
    assert "AllGather_X(B)" in ranking.reasons[1]


def test_an_idle_axis_carries_part_of_a_gather():
    """Exercise 3.2's remark: over X and Z a gather has the links of both."""
    steps = ranked(
        "A[I_X, J_Y] -> A[I, J_Y]", "X=4,Y=4,Z=4", "v4:4x4x4", {"I": 1024, "J": 4096}
    ).best.strategy.program.steps
    assert [str(step) for step in steps] == [
        "A[I_XZ, J_Y] = Slice_Z(A[I_X, J_Y])",
        "A[I, J_Y] = AllGather_XZ(A[I_XZ, J_Y])",
    ]


def test_latency_decides_for_small_arrays():
    """One all-reduce has fewer hops than a scatter and a gather over more axes."""
    small = dict.fromkeys("IJK", 64)
    best = ranked("A[I, J_X] * B[J_X, K] -> C[I, K]", "X=4,Y=4", "v5e:4x4", small).best
    assert best.summary == "AllReduce_X(C)"


def collective_matmuls():
    for text in (
        "A[I, J_X] * B[J, K] -> C[I, K]",
        "A[I_X, J] * B[J, K] -> C[I, K]",
        "A[I, J_X] * B[J_X, K] -> C[I, K_X]",
    ):
        for mesh, on in (("X=4", "v5e:2x2"), ("X=16,Y=16", "v5e:16x16"), ("X=8", "h100:8")):
            yield text, mesh, on


@pytest.mark.parametrize(("text", "mesh", "on"), list(collective_matmuls()))
def test_a_collective_matmul_moves_and_multiplies_the_same(text, mesh, on):
    mesh, piece = Mesh.parse(mesh), parse_slice(on)
    placement = place(piece, dict(mesh))
    found = 0
    for strategy in resolve(Einsum.parse(text), mesh, SIZES, top=20).strategies:
        plain = count(strategy.program)
        for number in overlappable(strategy.program):
            work = collective_matmul(strategy.program, number, placement)
            found += 1
            assert work.flops() == pytest.approx(plain.flops())
            sent = sum(wire_bytes(op, mesh) for op in work.ops)
            assert sent == pytest.approx(strategy.wire_bytes)
            assert work.hbm_bytes() >= plain.hbm_bytes()
            ids = [op.id for op in work.ops]
            assert len(set(ids)) == len(ids)
            for op in work.ops:
                assert all(ids.index(i) < ids.index(op.id) for i in op.after)
            estimate = price(work, piece.chip, placement)
            assert estimate.lower <= estimate.expected <= estimate.upper
    assert found


def test_a_collective_matmul_hides_what_it_moves():
    """On a ring, with math and network alike, the time is near the longer of the two."""
    mesh, piece = Mesh.parse("X=16,Y=16"), parse_slice("v5e:16x16")
    placement = place(piece, dict(mesh))
    text, sizes = "A[I_Y, J_X] * B[J, K] -> C[I_Y, K]", {"I": 131072, "J": 8192, "K": 4096}
    found = resolve(Einsum.parse(text), mesh, sizes, cost=seconds(piece.chip, placement))
    program = next(s for s in found.strategies if s.summary == "AllGather_X(A)").program
    plain = price(count(program), piece.chip, placement)
    (number,) = overlappable(program)
    hidden = price(collective_matmul(program, number, placement), piece.chip, placement)
    assert hidden.lower <= hidden.expected < 0.75 * plain.expected


def test_the_books_times_are_functions_of_sizes_and_degrees():
    chip = load_chip("v5p", constants="book")
    mesh = Mesh.parse("X=4")
    best = resolve(Einsum.parse("x[B, D] * Y[D_X, F] -> Z[B, F]"), mesh, dict.fromkeys("BDF", 64))
    got = times(
        best.best.program,
        chip,
        rings(chip, {"X": 2.5}),
        sizes={"B": 10, "D": 100, "F": 1000},
        degrees={"X": 2.5},
    )
    assert got.math_seconds == pytest.approx(2 * 10 * 100 * 1000 / 4.59e14)
    assert got.comms_seconds == pytest.approx(2 * 100 * 1000 / 1.8e11)


def test_a_crossover_must_exist():
    with pytest.raises(BadRequest, match=r"no crossover between 1 and 2: the second is larger"):
        crossover(lambda x: x, lambda x: x + 1, 1, 2)
