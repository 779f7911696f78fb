"""Chapter 1, rooflines: every entry through the public API with the entry's own inputs."""

from book.oracle import check, entry
from shardwise.roofline import ElementBytes
from shardwise.roofline.chip_roofline import critical_intensity, math_seconds
from shardwise.roofline.matmul import (
    critical_batch_approx,
    first_batch_at_peak,
    matmul_bytes,
    matmul_intensity,
    matmul_times,
    split_contraction_threshold,
    tile_intensity,
)


def uniform(dtype):
    return ElementBytes.of(left=dtype, right=dtype, result=dtype)


@entry("head.1.h100_1e12")
def test_h100_1e12(e):
    check(e, math_seconds(e["inputs"]["flops"], e["inputs"]["peak"]))


@entry("head.1.v6e_1e12")
def test_v6e_1e12(e):
    check(e, math_seconds(e["inputs"]["flops"], e["inputs"]["peak"]))


@entry("head.1.dot_intensity")
def test_dot_intensity(e):
    i = e["inputs"]
    check(e, matmul_intensity(1, i["N"], 1, elements=uniform(i["dtype"]), exact=True))


@entry("head.1.h100_intensity")
def test_h100_critical_batch(e):
    i = e["inputs"]
    width = i["element_bytes"]
    elements = ElementBytes(left=width, right=width, result=width)
    intensity = critical_intensity(i["peak"], i["hbm_bw"])
    check(e, critical_batch_approx(elements=elements, intensity=intensity))


@entry("head.1.vpu_intensity")
def test_vpu_intensity(e):
    check(e, critical_intensity(e["inputs"]["vpu"], e["inputs"]["hbm_bw"]))


@entry("rule.1.matmul_intensity")
def test_matmul_intensity(e):
    i = e["inputs"]
    check(e, matmul_intensity(i["B"], i["D"], i["F"], elements=uniform(i["dtype"])))


@entry("rule.1.tile_intensity")
def test_tile_intensity(e):
    i = e["inputs"]
    check(e, tile_intensity(i["bm"], i["bn"], elements=uniform(i["dtype"])))


@entry("rule.1.two_chip_D")
def test_two_chip_contraction(e):
    i = e["inputs"]
    got = split_contraction_threshold(
        chips=i["chips"], result_bytes=i["result_bytes"], peak_flops=i["C"], oneway=i["W"]
    )
    check(e, got)


@entry("1.1.1")
def test_int8_bytes(e):
    i = e["inputs"]
    moved = matmul_bytes(i["B"], i["D"], i["F"], elements=uniform(i["dtype"]))
    check(e, [moved.read, moved.written])


@entry("1.1.3")
def test_int8_critical_batch(e):
    i = e["inputs"]
    intensity = critical_intensity(i["peak"], i["hbm_bw"])
    check(e, critical_batch_approx(elements=uniform(i["dtype"]), intensity=intensity))


@entry("1.1.4")
def test_int8_times(e):
    i = e["inputs"]
    t = matmul_times(
        i["B"],
        i["D"],
        i["F"],
        elements=uniform(i["dtype"]),
        peak_flops=i["peak"],
        bandwidth=i["hbm_bw"],
    )
    check(e, [t.math_seconds, t.comms_seconds, t.lower, t.upper])


def weight_only(i):
    width = i["activation_bytes"]
    return ElementBytes(left=width, right=i["weight_bytes"], result=width)


@entry("1.2")
def test_int8_weights_critical_batch(e):
    i = e["inputs"]
    intensity = critical_intensity(i["peak"], i["hbm_bw"])
    check(e, critical_batch_approx(elements=weight_only(i), intensity=intensity))


@entry("1.3.crit")
def test_first_batch_at_peak(e):
    i = e["inputs"]
    intensity = critical_intensity(i["peak"], i["hbm_bw"])
    check(
        e,
        [first_batch_at_peak(d, d, elements=weight_only(i), intensity=intensity) for d in i["DF"]],
    )


@entry("1.4")
def test_a_matrix_per_row(e):
    i = e["inputs"]
    got = matmul_intensity(1, i["D"], i["F"], elements=uniform(i["dtype"]), batch=i["B"])
    check(e, got)
