"""Chapter 2, TPUs: spec tables from the catalogue's book constants, exercises by formula."""

from book.oracle import check, entry
from shardwise.hardware import load_chip, parse_slice
from shardwise.hardware.slices import domain_of
from shardwise.hardware.totals import (
    Totals,
    link_both_ways,
    pod_totals,
    register_bytes_per_core,
    systolic_flops,
    systolic_flops_per_cycle,
    torus_axes,
)
from shardwise.roofline import ElementBytes
from shardwise.roofline.chip_roofline import critical_intensity, math_seconds
from shardwise.roofline.matmul import critical_batch, matmul_flops, matmul_times
from shardwise.roofline.transfer import (
    gather_to_one_seconds,
    parallel_seconds,
    pipelined_lower,
    send_seconds,
    torus_hops,
    torus_ports,
)
from shardwise.units import dtype_bytes


def book(name):
    return load_chip(name, constants="book")


def spec_row(name):
    chip = book(name)
    return [
        domain_of(chip),
        chip.chips_per_host,
        chip.hbm_bytes,
        chip.hbm_bandwidth,
        chip.peak("bf16"),
        chip.peak("int8"),
    ]


def ici_row(name):
    chip = book(name)
    return [chip.network.link_oneway, link_both_ways(chip), torus_axes(chip)]


def pod_row(name):
    pod = pod_totals(book(name))
    return [pod.hosts, pod.cores, pod.flops("bf16"), pod.hbm_bytes]


@entry("table.2.spec.v4p")
def test_spec_v4p(e):
    check(e, spec_row("v4p"))


@entry("table.2.spec.v5p")
def test_spec_v5p(e):
    check(e, spec_row("v5p"))


@entry("table.2.spec.v5e")
def test_spec_v5e(e):
    check(e, spec_row("v5e"))


@entry("table.2.spec.v6e")
def test_spec_v6e(e):
    check(e, spec_row("v6e"))


@entry("table.2.ici.v4p")
def test_ici_v4p(e):
    check(e, ici_row("v4p"))


@entry("table.2.ici.v5p")
def test_ici_v5p(e):
    check(e, ici_row("v5p"))


@entry("table.2.dcn")
def test_data_centre_bandwidth(e):
    check(e, [book(name).data_centre.chip_oneway for name in e["inputs"]["labels"]])


@entry("head.2.mxu_flops")
def test_mxu_flops(e):
    check(e, systolic_flops(e["inputs"]["tile"], e["inputs"]["clock"]))
    assert book("v5e").matmul_tile == tuple(e["inputs"]["tile"])


@entry("head.2.mxu_v6e_ratio")
def test_mxu_ratio(e):
    small, big = e["inputs"]["tile"], e["inputs"]["big_tile"]
    check(e, systolic_flops_per_cycle(big) / systolic_flops_per_cycle(small))
    assert book("v6e").matmul_tile == tuple(big)


@entry("head.2.v5p_pod_flops")
def test_pod_flops(e):
    peak = e["inputs"]["peak"]
    chip = load_chip("v5p", constants="book", set_=[f"chip.peak_flops.bf16={peak}"])
    check(e, Totals(chip=chip, chips=e["inputs"]["chips"]).flops("bf16"))


@entry("head.2.vreg_bytes")
def test_vreg_bytes(e):
    check(e, register_bytes_per_core(book(e["inputs"]["tpu"])))


@entry("head.2.tpu7x_pod")
def test_tpu7x_pod(e):
    chip = book(e["inputs"]["tpu"])
    check(e, domain_of(chip))
    assert chip.network.pod == (4, 4, 576)


@entry("2.1")
def test_weights_from_hbm(e):
    i = e["inputs"]
    weights = i["params"] * dtype_bytes(i["dtype"])
    check(e, parallel_seconds(weights, links=i["chips"], oneway=i["hbm_bw"]))


@entry("2.2.v5e")
def test_pod_v5e(e):
    check(e, pod_row(e["inputs"]["tpu"]))


@entry("2.2.v5p")
def test_pod_v5p(e):
    check(e, pod_row(e["inputs"]["tpu"]))


INT8 = ElementBytes.of(left="int8", right="int8", result="int8")


@entry("2.4.1.crit")
def test_int8_critical_batch(e):
    i = e["inputs"]
    intensity = critical_intensity(i["int8"], i["hbm_bw"])
    check(e, critical_batch(i["D"], i["F"], elements=INT8, intensity=intensity))


@entry("2.4.1.times")
def test_int8_times(e):
    i = e["inputs"]
    times = matmul_times(
        i["B"], i["D"], i["F"], elements=INT8, peak_flops=i["int8"], bandwidth=i["hbm_bw"]
    )
    check(e, [times.math_seconds, times.comms_seconds])


@entry("2.5.1")
def test_first_byte(e):
    i = e["inputs"]
    place = parse_slice(i["slice"])
    hops = torus_hops(i["start"], i["end"], shape=place.shape, wraps=place.wraps)
    assert hops == i["hops"]
    oneway = place.chip.network.link_oneway
    check(e, send_seconds(0, ports=1, oneway=oneway, hops=hops, hop_seconds=i["hop"]))


@entry("2.5.2")
def test_send_over_two_ports(e):
    i = e["inputs"]
    place = parse_slice(i["slice"])
    assert torus_ports(i["start"], shape=place.shape, wraps=place.wraps) == i["ports"]
    seconds = send_seconds(
        i["bytes"], ports=i["ports"], oneway=i["bw"], hops=i["hops"], hop_seconds=i["hop"]
    )
    check(e, seconds)


@entry("2.6.pcie")
def test_load_over_pcie(e):
    i = e["inputs"]
    check(e, parallel_seconds(i["bytes"], links=i["links"], oneway=i["bw"]))


@entry("2.6.flops")
def test_big_matmul_flops(e):
    i = e["inputs"]
    check(e, math_seconds(matmul_flops(i["M"], i["K"], i["N"]), i["C"]))


@entry("2.6.total")
def test_slowest_stage(e):
    i = e["inputs"]
    place = parse_slice(i["slice"])
    ports = torus_ports(i["receiver"], shape=place.shape, wraps=place.wraps)
    stages = [
        parallel_seconds(i["bytes"], links=i["pcie_links"], oneway=i["pcie_bw"]),
        gather_to_one_seconds(i["bytes"], chips=place.chips, ports=ports, oneway=i["ici_bw"]),
        parallel_seconds(i["bytes"], links=1, oneway=i["hbm_bw"]),
        math_seconds(matmul_flops(i["M"], i["K"], i["N"]), i["C"]),
    ]
    check(e, pipelined_lower(stages))
