"""Totals and fat trees beyond the book's entries."""

import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import load_chip
from shardwise.hardware.slices import domain_of
from shardwise.hardware.totals import (
    Totals,
    fat_tree,
    link_both_ways,
    matmul_units,
    node_egress,
    systolic_flops,
    vector_clock,
)


@pytest.mark.parametrize(
    ("name", "clock"), [("v4", 1.05e9), ("v5e", 1.5e9), ("v5p", 1.75e9), ("h100", 1.98e9)]
)
def test_the_clock_behind_the_vector_peak(name, clock):
    """One FLOP per ALU and cycle on a TPU, a multiply-add per lane and cycle on a GPU."""
    assert vector_clock(load_chip(name)) == pytest.approx(clock, rel=2e-3)


@pytest.mark.parametrize("name", ["v4", "v5e", "v5p"])
def test_mxus_times_clock_give_the_peak(name):
    chip = load_chip(name)
    rate = matmul_units(chip) * systolic_flops(chip.matmul_tile, chip.require("clock_hz"))
    assert rate == pytest.approx(chip.peak("bf16"), rel=5e-3)


def test_totals_count_hosts_and_cores():
    some = Totals(chip=load_chip("tpu7x"), chips=6)
    assert (some.hosts, some.cores) == (2, 12)


def test_the_superpod_has_full_bisection_above_the_node():
    node, leaf, spine = fat_tree(load_chip("h100"))
    assert [level.degree for level in (node, leaf, spine)] == [8, 32, 4]
    assert leaf.switch_oneway == 2 * leaf.cable_oneway
    assert spine.switch_oneway == spine.cable_oneway
    assert leaf.collective_oneway == spine.collective_oneway == node_egress(load_chip("h100"))


def test_pods_of_other_networks():
    assert domain_of(load_chip("mi300x")) == 8
    assert domain_of(load_chip("l4")) == 8
    assert domain_of(load_chip("cpu")) == 1


def test_a_question_for_another_network_is_refused():
    with pytest.raises(BadRequest, match="chip 'h100' has no torus"):
        link_both_ways(load_chip("h100"))
    with pytest.raises(BadRequest, match="chip 'v5e' has no switched network"):
        fat_tree(load_chip("v5e"))
