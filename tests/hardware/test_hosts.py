"""Hosts of PCIe cards: how many cards, on how many sockets, with and without peer-to-peer."""

import pytest
from tests.tiers import spread

import shardwise as sw
from shardwise.errors import BadRequest
from shardwise.hardware import Switched, catalogue, load_chip, parse_slice, place

CARDS = [c for c in catalogue() if isinstance(c.network, Switched) and c.network.cards]


def rate(text, **degrees):
    """What a card sends in the groups of the innermost axis."""
    placed = place(parse_slice(text), degrees)
    return placed.axes[list(degrees)[-1]].parts[0].oneway


def host(chip, *sets):
    return load_chip(chip, set_=[f"network.{text}" for text in sets])


@pytest.mark.parametrize("chip", CARDS, ids=lambda chip: chip.id)
def test_a_host_says_all_of_its_rates(chip):
    network = chip.network
    assert network.across_oneway <= network.chip_oneway
    assert network.staged_oneway < network.chip_oneway
    assert chip.chips_per_host == network.domain
    assert chip.data_centre is not None
    for name in ("peer_to_peer", "staged_oneway", "sockets", "across_oneway"):
        assert chip.sources[f"network.{name}"]


def test_without_peer_to_peer_cards_send_through_the_memory_of_the_host():
    """Measured on 4 RTX 4090: 18 GB/s of 32, and 22 with a changed driver."""
    chip = load_chip("rtx4090")
    near = chip.network.staged_oneway
    assert rate("rtx4090:4", tensor=4) == near
    assert near * chip.efficiency.network == pytest.approx(18e9, rel=0.01)
    direct = parse_slice("rtx4090:4", lambda name: host(name, "peer_to_peer=true"))
    assert place(direct, {"tensor": 4}).axes["tensor"].parts[0].oneway == 32e9


def test_a_group_over_two_sockets_sends_less():
    network = load_chip("a10g").network
    assert rate("a10g:8", data=2, tensor=4) == network.staged_oneway
    assert rate("a10g:8", tensor=8) == network.across_oneway < network.staged_oneway
    placed = place(parse_slice("a10g:8"), {"data": 2, "tensor": 4})
    assert placed.axes["data"].parts[0].oneway == network.across_oneway
    one = parse_slice("a10g:8", lambda name: host(name, "sockets=1"))
    assert place(one, {"tensor": 8}).axes["tensor"].parts[0].oneway == network.staged_oneway


def test_a_network_of_switches_has_no_sockets():
    assert load_chip("h100").network.sockets is None
    assert "network.sockets" not in load_chip("h100").numbers()
    with pytest.raises(BadRequest, match=r"is False, which needs 'network.staged_oneway'"):
        host("h100", "peer_to_peer=false")
    with pytest.raises(BadRequest, match=r"is 2, which needs 'network.across_oneway'"):
        host("h100", "sockets=2")


SLICES = ["l4:8", "a10g:4", "2*l4:8", "tpu7x:1x1x1"]


@pytest.mark.parametrize("slice", spread(SLICES, quick=0, slow=4))
def test_they_plan(slice):
    told = sw.plan_train(
        "qwen3-0.6b", slice, batch="16seq", seq=256, pins={"fsdp": 4} if slice == "a10g:4" else {}
    )
    assert told.best.plan.model == "qwen3-0.6b"


SINGLE = [
    "rtx4090",
    "a6000",
    "rtx6000ada",
    "a40",
    "l40",
    "a100-pcie",
    "a800-pcie",
    "h100-nvl",
    "h200-nvl",
    "rtxpro4500",
]


@pytest.mark.parametrize("chip", spread(SINGLE, quick=1, slow=2))
def test_a_single_card_trains_a_small_model(chip):
    told = sw.plan_train("llama-3.2-1b", f"{chip}:1", batch="8seq", seq=2048)
    assert 0.3 < told.mfu < 0.6


@pytest.mark.parametrize("chip", spread(["rtx3090", "rtx5090"], quick=1, slow=1))
def test_a_card_that_runs_above_its_boost_clock_comes_near_its_peak(chip):
    """GPT-2 on an RTX 5090 takes 168 of its 209.5 TFLOP/s (tests/evidence/training/data)."""
    told = sw.plan_train("llama-3.2-1b", f"{chip}:1", batch="8seq", seq=2048)
    assert 0.6 < told.mfu < 0.8


@pytest.mark.parametrize("chip", spread(["t4", "v100", "rtx5090"], quick=0, slow=3))
def test_a_single_card_serves_in_a_dtype_that_it_has(chip):
    """Beside a chip without bf16 the other chips of the answer are those that have its dtype."""
    assert sw.plan_serve("llama-3.2-1b", f"{chip}:1", input=512, output=64).chips == 1


def test_the_page_of_a_card_says_its_host():
    text = " ".join(str(sw.hw_show("rtx4090")).split())
    assert "8 chips per host on 2 sockets, no peer-to-peer: 26.2 GB/s through host memory" in text
    assert "20.9 GB/s for a group over several sockets" in text
    assert "network PCIe 8" in text
