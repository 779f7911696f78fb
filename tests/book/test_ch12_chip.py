"""Chapter 12, the GPU itself: on-chip counts, intensities and single-chip times."""

from book.oracle import check, entry
from shardwise.hardware import load_chip
from shardwise.hardware.totals import matmul_flops_per_cycle, resident_warps, vector_clock
from shardwise.roofline import ElementBytes
from shardwise.roofline.chip_roofline import (
    chip_critical_intensity,
    critical_intensity,
    elementwise_intensity,
    elementwise_times,
    vector_critical_intensity,
)
from shardwise.roofline.matmul import matmul_times


def with_numbers(name, numbers):
    """The chip with the numbers that a quiz gives."""
    return load_chip(name, set_=[f"{path}={value}" for path, value in numbers.items()])


@entry("head.gpu.warps_resident")
def test_resident_warps(e):
    i = e["inputs"]
    check(e, resident_warps(load_chip(i["gpu"]), i["registers_per_thread"]))


@entry("head.gpu.l2_ratio")
def test_l2_over_hbm(e):
    chip = load_chip(e["inputs"]["gpu"])
    check(e, chip.l2_bandwidth / chip.hbm_bandwidth)


@entry("head.gpu.hbm_b200_text")
def test_b200_memory(e):
    check(e, load_chip(e["inputs"]["gpu"], constants="book").hbm_bandwidth)


@entry("gpu.quiz1.q3")
def test_matmul_intensity(e):
    i = e["inputs"]
    chips = [with_numbers(name, i["set"][name]) for name in i["gpus"]]
    check(e, [chip_critical_intensity(c, dtype=d) for d in ("bf16", "fp8") for c in chips])


@entry("gpu.quiz1.q4")
def test_b200_matmul(e):
    i, chip = e["inputs"], load_chip(e["inputs"]["gpu"], constants="book")
    times = [
        matmul_times(
            batch,
            i["D"],
            i["F"],
            elements=ElementBytes.of(left="f16", right="f16", result="f16"),
            peak_flops=chip.peak("f16"),
            bandwidth=chip.hbm_bandwidth,
        )
        for batch in i["batches"]
    ]
    check(e, [float(t.lower) for t in times])
    assert [t.bound for t in times] == ["HBM", "math"]


@entry("gpu.quiz1.q6")
def test_b200_clock(e):
    check(e, vector_clock(load_chip(e["inputs"]["gpu"])))


@entry("gpu.quiz1.q7")
def test_vector_add(e):
    i, chip = e["inputs"], load_chip(e["inputs"]["gpu"])
    times = [elementwise_times(n, chip, i["arrays"]) for n in i["elements"]]
    intensities = [elementwise_intensity(i["arrays"]), vector_critical_intensity(chip, fma=False)]
    check(e, [*intensities, *(float(t.lower) for t in times)])


@entry("head.gpu.vector_intensity_generations")
def test_vector_intensity_halves(e):
    """Like for like, without fused multiply-add on both."""
    chips = [load_chip(name) for name in e["inputs"]["gpus"]]
    check(e, [vector_critical_intensity(chip, fma=False) for chip in chips])
    h100 = e["inputs"]["h100"]
    assert critical_intensity(h100, chips[0].hbm_bandwidth) == e["correct_value"][0]


@entry("head.gpu.v100_tc")
def test_flops_per_tensor_core(e):
    i = e["inputs"]
    check(e, [matmul_flops_per_cycle(load_chip(name), i["dtype"]) for name in i["gpus"]])


@entry("head.gpu.h200_vs_v5p")
def test_h200_over_v5p(e):
    i = e["inputs"]
    names = (i["gpu"], i["tpu"])
    gpu, tpu = (
        load_chip(name, constants="book", prices={name: usd})
        for name, usd in zip(names, i["usd"], strict=True)
    )
    dollars = [chip.require_price().usd_per_chip_hour for chip in (gpu, tpu)]
    check(
        e,
        [
            gpu.peak("bf16") / tpu.peak("bf16"),
            gpu.hbm_bytes / tpu.hbm_bytes,
            dollars[0] / dollars[1],
        ],
    )
