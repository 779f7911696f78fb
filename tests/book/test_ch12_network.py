"""Chapter 12, networks: nodes, the fat tree, and collectives inside and beyond a node."""

from dataclasses import replace

import pytest

from book.oracle import check, entry
from shardwise.book.figure_index import figure
from shardwise.book.figures import ragged
from shardwise.hardware import load_chip, node_egress, parse_slice, place
from shardwise.hardware.fat_tree import bisection_oneway, effective_oneway, scale_out, switch_counts
from shardwise.hardware.totals import fat_tree
from shardwise.roofline import collectives
from shardwise.roofline.collectives import all_gather, all_to_all, ragged_all_to_all
from shardwise.roofline.tree import gather_bytes, gather_rate, sharp_bytes, tree_seconds


def book(e):
    return load_chip(e["inputs"]["gpu"], constants="book")


def links(spelling):
    """One mesh axis over the whole slice."""
    piece = parse_slice(spelling, lambda name: load_chip(name, constants="book"))
    return [place(piece, {"X": piece.chips}).axes["X"]]


def both_modes(collective, size, spelling):
    return [collective(size, links(spelling), mode=m).bandwidth for m in ("exact", "asymptotic")]


# Nodes and the fat tree -------------------------------------------------------------------------


@entry("gpu.quiz2.q1")
def test_node_bandwidth(e):
    node = fat_tree(book(e))[0]
    check(e, [node.switch_oneway, node.cable_oneway, effective_oneway(node)])


@entry("gpu.quiz2.q2")
def test_node_bisection(e):
    check(e, 2 * bisection_oneway(fat_tree(book(e))[0]))


@entry("gpu.quiz3.q1")
def test_super_pod(e):
    _, leaf, spine = fat_tree(book(e))
    levels = [
        node_egress(book(e)),
        leaf.cable_oneway,
        spine.cable_oneway / spine.degree,
        spine.cable_oneway,
        spine.collective_oneway,
        2 * bisection_oneway(spine),
    ]
    check(e, levels)


@entry("head.gpu.switches")
def test_switches(e):
    check(e, list(switch_counts(book(e)).values()))


@pytest.mark.parametrize(
    ("chips", "switches", "cables"),
    [(1024, (32, 16), 2), (2048, (64, 32), 1), (4096, (128, 128, 64), None)],
)
def test_scaling_out(chips, switches, cables):
    """Quiz 3, question 2: 32 spines for 2,048 GPUs; 128 spines and 64 core switches for 4,096."""
    found = scale_out(load_chip("h100"), chips)
    assert found.switches == switches
    assert cables in (None, found.cables[0])


def test_the_built_tree_is_the_catalogued_one():
    chip = load_chip("h100")
    counts = switch_counts(chip)
    assert scale_out(chip, 1024).switches == (counts["leaf"], counts["spine"])


# Collectives ------------------------------------------------------------------------------------


@entry("gpu.quiz2.q3")
def test_gather_in_a_node(e):
    check(e, both_modes(all_gather, e["inputs"]["V"], e["inputs"]["slice"]))


@entry("pop.gpu.1")
def test_small_gather_in_a_node(e):
    check(e, both_modes(all_gather, e["inputs"]["V"], e["inputs"]["slice"])[::-1])


@entry("pop.gpu.2")
def test_all_to_all_in_a_node(e):
    i = e["inputs"]
    dense = both_modes(all_to_all, i["V"], i["slice"])
    sparse = ragged_all_to_all(i["V"], links(i["slice"]), fan_out=i["fan_out"], mode="asymptotic")
    check(e, [*dense, sparse.bandwidth])


@entry("rule.gpu.a2a_cross")
def test_all_to_all_across_nodes(e):
    i = e["inputs"]
    one, two = (both_modes(all_to_all, i["V"], spelling) for spelling in i["slices"])
    check(e, [one[1], two[1], one[0], two[0]])


@entry("rule.gpu.ragged_true")
def test_ragged_factor(e):
    true, rough = ragged(picks=e["inputs"]["K"]).series
    got = []
    for shards in e["inputs"]["shards"]:
        at = true.x.index(shards)
        got += [true.y[at], rough.y[at]]
    check(e, got)


@entry("rule.gpu.ag_tree")
def test_rates_of_the_tree(e):
    rates = [gather_rate(level) for level in fat_tree(book(e))]
    check(e, [*rates, min(rates)])


@entry("gpu.quiz4.q1")
def test_bytes_through_the_switches(e):
    found = gather_bytes(1.0, e["inputs"]["M"], e["inputs"]["N"])
    check(e, [b for at in ("node", "top") for b in (found[at].ingress, found[at].egress)])


@entry("gpu.quiz4.q2")
def test_bytes_through_a_reducing_switch(e):
    found = sharp_bytes(1.0, e["inputs"]["N"])
    check(e, [found.ingress, found.egress])


@entry("gpu.quiz4.q4")
def test_reduction_at_the_spine(e):
    """Inside a node (question 3) the same array takes 2DF / (Y W_gpu)."""
    i = e["inputs"]
    size = 2 * i["D"] * i["F"]
    check(e, max(tree_seconds(size, fat_tree(book(e)), inner=i["Y"], sharp=True)))
    inside = tree_seconds(size, fat_tree(book(e))[:1], inner=2, sharp=True)
    assert inside == (pytest.approx(size / (2 * 450e9)),)


@entry("gpu.quiz4.q5")
def test_gather_over_two_nodes(e):
    """The tree's terms, and the mesh axis over the same two nodes takes as long."""
    i = e["inputs"]
    node, leaf, _ = fat_tree(book(e))
    pair = replace(leaf, chips=2 * node.chips, degree=2, cable_oneway=2 * node_egress(book(e)))
    terms = tree_seconds(i["V"], [node, pair])
    check(e, [*terms, max(terms)])
    assert all_gather(i["V"], links(i["slice"])).bandwidth == pytest.approx(max(terms))


@pytest.mark.parametrize("inner", [1, 2, 8, 16, 64, 256])
def test_a_mesh_axis_takes_as_long_as_the_tree(inner):
    """The two counts of one gather, over a scalable unit of 32 nodes."""
    chip = load_chip("h100", constants="book")
    piece = parse_slice("32*h100:8", lambda _: chip)
    size = 2.0 * 8192 * 32768
    axis = place(piece, {"X": piece.chips // inner, "Y": inner}).axes["X"]
    by_axis = all_gather(size / inner, [axis]).bandwidth
    by_tree = max(tree_seconds(size, fat_tree(chip)[:2], inner=inner))
    assert by_axis == pytest.approx(by_tree)


@pytest.mark.parametrize("inner", [1, 8, 16, 128, 256, 512])
@pytest.mark.parametrize("units", [1, 2, 3])
def test_no_level_is_below_what_must_enter_a_unit(inner, units):
    """V is gathered over the tree in Y arrays of V/Y: into a unit of S chips, which holds 1/M of
    what it needs, V min(1, S/Y) (M-1)/M must come over its link, M units of that size apart."""
    levels = fat_tree(load_chip("h100", constants="book"))[:units]
    chips = levels[-1].chips
    if inner > chips:
        return
    slowest = max(tree_seconds(1.0, levels, inner=inner))
    for level, unit in zip(levels[1:], levels, strict=False):
        parted = chips / max(unit.chips, inner)
        needed = min(1.0, unit.chips / inner) * (parted - 1) / parted
        assert slowest >= needed / (level.cable_oneway / level.degree) * (1 - 1e-12)


def test_pop_quiz_3():
    """Flat to Y = 8, then halving (the figure, without the 31/32)."""
    y = figure("fig.gpu.sharded_gather").series[0].y
    assert y[:4] == pytest.approx([1.34217728e-3] * 4)
    assert y[4:] == pytest.approx([1.34217728e-3 / 2**k for k in range(1, 5)])


# Measured ---------------------------------------------------------------------------------------


@entry("head.gpu.sharp_bw")
def test_sharp_as_measured(e):
    check(e, e["inputs"]["measured"] * collectives.SHARP_GAIN)


@entry("fig.gpu.ar_curve")
def test_measured_all_reduce(e):
    """The carried points, and the expected all-reduce within 20 % of them from 1 GB on."""
    points = dict(zip(figure(e["id"]).series[0].x, figure(e["id"]).series[0].y, strict=True))
    check(e, [points[size] for size in e["inputs"]["sizes"]])
    chip = load_chip("h100")
    piece = parse_slice("h100:8", lambda _: chip)
    axis = place(piece, {"X": 8}).axes["X"]
    for size in e["inputs"]["sizes"][1:]:
        gather = all_gather(size, [axis], measured=True)
        seconds = 2 * (gather.bandwidth / chip.efficiency.network + gather.latency)
        assert 2 * size / seconds * 7 / 8 == pytest.approx(points[size], rel=0.2)
