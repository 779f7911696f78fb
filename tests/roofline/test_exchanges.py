"""Exchanges: what is priced is what moves, never below what no routing beats, and chains add up."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.drawn import on_drawn
from tests.sharding.bounds import lower_bound

from shardwise.hardware import load_chip, parse_slice, place
from shardwise.roofline import rank, seconds
from shardwise.roofline.collectives import collective_seconds
from shardwise.sharding import Dim, Einsum, Layout, Mesh, count, resolve
from shardwise.sharding.exchange import exchange_of, exchanged
from shardwise.sharding.reshard import Graph
from shardwise.sharding.simulate import fabric_of, simulate, targets_of
from shardwise.sharding.simulate.schedule import grain
from shardwise.work import Exchange, Sends

SLICES = (
    *("v5e:4x4", "v5e:2x4", "v5e:8x8", "2*v5e:2x2", "v4:4x4x4", "v5p:2x2x4", "tpu7x:2x2x1"),
    *("2*tpu7x:2x2x1", "tpu7x:2x2x4", "trn2:4x4", "h100:8", "3*h100:4", "4*h100:8", "mi300x:8"),
    *("2*mi300x:4", "mi250x:8"),
)
FORMS = ("IJ->IJ", "IJ,JK->IK", "BI,BI->B", "P,P->", "IJ,JK,KL->IL")
ORDER = 1 + 1e-9  # additions in another order


def chip(name):
    """A chip of the catalogue without SHARP; where it lacks the rate between the devices of a chip,
    some rate."""
    found = load_chip(name)
    network = found.network
    if hasattr(network, "sharp"):
        network = replace(network, sharp=False)
    return replace(found, network=network, device_link_oneway=found.device_link_oneway or 1e12)


@st.composite
def meshes(draw, most=64):
    """A slice and a mesh of up to three axes on all of it."""
    piece = parse_slice(draw(st.sampled_from(SLICES)), chip)
    assume(piece.devices <= most)
    degrees, left, prime = {"X": 1, "Y": 1, "Z": 1}, piece.devices, 2
    while left > 1:
        while left % prime == 0:
            degrees[draw(st.sampled_from("XYZ"))] *= prime
            left //= prime
        prime += 1
    used = [f"{axis}={n}" for axis, n in degrees.items() if n > 1]
    return piece, Mesh.parse(",".join(used))


@st.composite
def exchanges(draw):
    """A placed mesh and a permute between two layouts of a matrix on it."""
    piece, mesh = draw(meshes())
    sizes = {"I": piece.devices, "J": piece.devices}
    graph = Graph.of("IJ", sizes, mesh, "bf16", lambda op: 0.0)
    node = draw(st.sampled_from(graph.nodes()))
    moves = [move for move in graph.moves(node) if move.kind == "permute"]
    assume(moves)
    move = draw(st.sampled_from(moves))
    return place(piece, dict(mesh)), exchange_of(node.dims, move.node.dims, move.axes)


@on_drawn(100, exchanges())
def test_what_is_priced_is_what_is_counted(case):
    here, exchange = case
    links = [here.axes[axis] for axis in exchange.axes]
    fabric, targets = fabric_of(here, exchange.axes), targets_of(exchange, here)
    length = grain(fabric)
    trace = simulate("permute", fabric, length, targets=targets)
    size = 4 * length
    form = collective_seconds("permute", size, links, exchange=exchange)
    assert trace.bandwidth_seconds == pytest.approx(form.bandwidth, rel=1e-12)
    assert trace.latency_seconds == pytest.approx(form.latency, rel=1e-12)
    bound = collective_seconds("permute", size, links, exchange=exchange, mode="bound").bandwidth
    assert bound <= form.bandwidth * ORDER
    assert lower_bound("permute", fabric, size, targets) <= form.bandwidth * ORDER
    moved = {src for src, dst in targets.items() if src != dst}
    assert {t.block[0] for moves in trace.rounds for t in moves} == moved


@given(exchanges())
@settings(max_examples=40)
def test_pairs_that_were_read_price_as_the_layouts(case):
    here, exchange = case
    links = [here.axes[axis] for axis in exchange.axes]
    *_, found = exchanged(exchange, [axis.size for axis in links])
    pairs = tuple((int(source), target) for target, source in enumerate(found))
    sends = Sends(axes=exchange.axes, pairs=pairs)
    one, other = (collective_seconds("permute", 1e6, links, exchange=e) for e in (exchange, sends))
    assert one == other


def transposed(text):
    """The links and the exchange of `A[I_X, J_Y] -> A[I_Y, J_X]` on a square slice."""
    piece = parse_slice(text)
    here = place(piece, {"X": piece.shape[0], "Y": piece.shape[1]})
    exchange = Exchange(axes=("X", "Y"), before=(("X",), ("Y",)), after=(("Y",), ("X",)))
    return [here.axes[axis] for axis in "XY"], exchange, piece.chip.network


def test_a_transpose_by_hand():
    """16 x 16 with wraps: the ring distances of i and j add up to 16 x 64 = 1,024 links per axis,
    over 512 directed ones, so two blocks a link. Axis by axis the diagonal chip of a row gets the
    blocks of all others: 7 from either side and half of the farthest."""
    links, exchange, network = transposed("v5e:16x16")
    bound = collective_seconds("permute", 1e9, links, exchange=exchange, mode="bound")
    assert bound.bandwidth == pytest.approx(2e9 / network.link_oneway)
    exact = collective_seconds("permute", 1e9, links, exchange=exchange)
    assert exact.bandwidth == pytest.approx(7.5e9 / network.link_oneway)
    assert exact.latency == pytest.approx(16 * network.hop_seconds)


def test_a_transpose_on_lines_by_hand():
    """4 x 4 without wraps: three blocks go over the last link of the row of the corner."""
    links, exchange, network = transposed("v5e:4x4")
    exact = collective_seconds("permute", 1e9, links, exchange=exchange)
    assert exact.bandwidth == pytest.approx(3e9 / network.link_oneway)
    # |i - j| adds up to 20 over the 16 blocks; along an axis there are 4 lines of 6 directed links.
    bound = collective_seconds("permute", 1e9, links, exchange=exchange, mode="bound")
    assert bound.bandwidth == pytest.approx(20 / 24 * 1e9 / network.link_oneway)


def test_columns_of_placements_price_one_by_one():
    _, exchange, _ = transposed("v5e:4x4")
    piece = parse_slice("v5e:4x4")
    columns = place(piece, {"X": np.array([4, 4]), "Y": np.array([4, 4])}).axes
    both = collective_seconds("permute", 1e9, [columns["X"], columns["Y"]], exchange=exchange)
    links, _, _ = transposed("v5e:4x4")
    one = collective_seconds("permute", 1e9, links, exchange=exchange)
    assert both.bandwidth == pytest.approx([one.bandwidth] * 2)
    assert both.latency == pytest.approx([one.latency] * 2)


# Whole programs -----------------------------------------------------------------------------------


def some_layout(draw, name, letters, mesh, open_sums=True):
    cuts, unreduced = dict.fromkeys(letters, ()), []
    for axis in draw(st.permutations(list(mesh))):
        where = draw(st.sampled_from([*letters, "", *(["U"] if open_sums else [])]))
        if where == "U":
            unreduced.append(axis)
        elif where:
            cuts[where] += (axis,)
    dims = tuple(Dim(x, cuts[x]) for x in letters)
    return Layout(name=name, dims=dims, unreduced=tuple(unreduced))


@st.composite
def einsums(draw):
    """A reshard or a product on a placed mesh, with sizes that divide."""
    piece, mesh = draw(meshes(most=16))
    form = draw(st.sampled_from(FORMS))
    inputs, result = form.split("->")
    operands = [
        some_layout(draw, name, letters, mesh, open_sums=form == "IJ->IJ")
        for name, letters in zip("ABD", inputs.split(","), strict=False)
    ]
    name = "A" if len(operands) == 1 else "C"
    wanted = some_layout(draw, name, result, mesh, open_sums=False)
    sizes = {x: 64 * mesh.size for x in inputs if x.isalpha()}
    return piece, mesh, sizes, Einsum(operands=tuple(operands), result=wanted)


def longest(work, times):
    """The seconds of the longest chain of ops that wait for each other."""
    ends = {}
    for op, spent in zip(work.ops, times, strict=True):
        ends[op.id] = max((ends[i] for i in op.after), default=0.0) + float(spent)
    return max(ends.values(), default=0.0)


def simulated(program, here):
    """Seconds of the network that the executor needs: the bytes of every collective, in turn."""
    spent = 0.0
    for step, op in zip(
        (s for s in program.steps if s.communicates),
        (op for op in count(program).ops if op.collective is not None),
        strict=True,
    ):
        wire = op.collective
        fabric, targets = fabric_of(here, wire.axes), None
        if wire.exchange is not None:
            targets = targets_of(wire.exchange, here)
        length = grain(fabric)
        trace = simulate(step.kind, fabric, length, targets=targets)
        n = fabric.size
        run = 4 * length * {"all_to_all": n * n, "permute": 1}.get(step.kind, n)
        spent += trace.bandwidth_seconds * float(wire.bytes) / run
    return spent


@on_drawn(100, einsums())
def test_expected_holds_every_chain_and_lower_is_below_what_is_executed(case):
    piece, mesh, sizes, einsum = case
    here = place(piece, dict(mesh))
    found = resolve(einsum, mesh, sizes, cost=seconds(piece.chip, here), top=4)
    for priced in rank(found, piece.chip, here, top=20).strategies:
        estimate = priced.estimate
        chain = longest(priced.work, [t.derated for t in estimate.ops])
        assert float(estimate.expected) >= chain / ORDER, priced.summary
        if priced.overlapped:
            continue
        network = [s for name, s in estimate.resources.items() if name.startswith("net:")]
        needed = simulated(priced.strategy.program, here)
        assert max(map(float, network), default=0.0) <= needed * ORDER, priced.summary
