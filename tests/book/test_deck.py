"""The slides and the notes: every entry through the public API, and what they got wrong."""

from book.oracle import check, entry
from shardwise.book.rules.gpu import alphas
from shardwise.book.rules.training import (
    data_chips,
    data_limit,
    days,
    largest_replicated,
    petaflop_days,
    tensor_d_ff,
    training_seconds,
    years,
)
from shardwise.hardware import load_chip, node_egress
from shardwise.hardware.slices import domain_of
from shardwise.hardware.totals import systolic_flops_per_cycle, torus_egress
from shardwise.roofline import ElementBytes
from shardwise.roofline.chip_roofline import critical_intensity
from shardwise.roofline.matmul import matmul_intensity
from shardwise.sharding import Layout, Mesh, bytes_per_device

RUNS = (6064, 438_750)
"""Petaflop-days of GPT-3 and LLaMA 3 405B, as the deck has them."""


@entry("deck.ai_matmul")
def test_matmul_intensity(e):
    i = e["inputs"]
    bf16 = ElementBytes.of(left="bf16", right="bf16", result="bf16")
    check(e, float(matmul_intensity(i["m"], i["n"], i["p"], elements=bf16)))


@entry("deck.h100_batch")
def test_sparse_peaks_do_not_count(e):
    i = e["inputs"]
    check(e, critical_intensity(i["sparse_peak"] / 2, i["hbm"]))


@entry("deck.trillium")
def test_trillium(e):
    i = e["inputs"]
    pairs = zip(i["peak"], i["hbm"], strict=True)
    check(e, [critical_intensity(peak, hbm) for peak, hbm in pairs])


@entry("deck.shard")
def test_sharded_bytes(e):
    """Axis Z holds copies, so the devices together hold twice the array."""
    i = e["inputs"]
    mesh = Mesh.parse(",".join(f"{axis}={n}" for axis, n in i["mesh"].items()))
    layout = Layout.parse(i["array"])
    each = bytes_per_device(layout, {"I": i["I"], "J": i["J"]}, mesh, i["dtype"])
    check(e, [int(each), int(each) * mesh.size])


@entry("deck.pfday")
def test_petaflop_days(e):
    check(e, [petaflop_days(days) / 1e15 for days in e["inputs"]["days"]])


def years_of(e):
    rate = e["inputs"]["tflops"] * 1e12
    check(e, [years(training_seconds(petaflop_days(run), 1, rate)) for run in RUNS])


@entry("deck.years.M3")
def test_years_on_a_laptop(e):
    years_of(e)


@entry("deck.years.Trillium")
def test_years_on_trillium(e):
    years_of(e)


@entry("deck.years.H100")
def test_years_on_h100(e):
    years_of(e)


@entry("deck.dp_max")
def test_largest_model(e):
    chips = [load_chip(name, constants="book") for name in e["inputs"]["chips"]]
    check(e, [largest_replicated(chip.hbm_bytes) for chip in chips])


@entry("deck.deepseek47k")
def test_chips_of_40m_tokens(e):
    i = e["inputs"]
    check(e, data_chips(i["batch_tokens"], data_limit(i["alpha"], i["axes"])))


@entry("deck.v5p_pod")
def test_v5p_pod(e):
    chip = load_chip(e["inputs"]["chip"], constants="book")
    check(e, [domain_of(chip), torus_egress(chip)])


@entry("deck.v6e_ici")
def test_v6e_links(e):
    check(e, torus_egress(load_chip(e["inputs"]["chip"], constants="book")))


@entry("deck.cycles")
def test_systolic_flops(e):
    check(e, float(systolic_flops_per_cycle(tuple(e["inputs"]["tile"]))))


@entry("deck.llama70_fsdp")
def test_llama_70b_under_fsdp(e):
    i = e["inputs"]
    chip = load_chip(i["chip"], constants="book")
    limit = data_limit(chip.peak("bf16") / (2 * chip.network.link_oneway), i["axes"])
    chips = data_chips(i["batch_tokens"], limit)
    seconds = training_seconds(i["flops"], chips, chip.peak("bf16"), i["mfu"])
    check(e, [chips, days(seconds)])


# The notes ------------------------------------------------------------------------------------


def gpu(e):
    return load_chip(e["inputs"]["gpu"], constants="book")


@entry("notes.000.dp_h100")
def test_dense_flops_over_one_direction(e):
    check(e, alphas(gpu(e)).node)


@entry("notes.000.tp_D")
def test_least_width_for_8_way_tensor(e):
    i = e["inputs"]
    check(e, tensor_d_ff(alphas(gpu(e)).node, i["Y"]) / i["F_over_D"])


@entry("notes.000.xnode")
def test_inside_over_between_nodes(e):
    chip = gpu(e)
    check(e, chip.network.chip_oneway / (node_egress(chip) / chip.network.domain))
