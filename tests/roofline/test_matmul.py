"""Single-chip rooflines: the formulas agree with each other, on numbers and on arrays."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shardwise.errors import BadRequest
from shardwise.roofline import ElementBytes
from shardwise.roofline.chip_roofline import Times, attainable_flops, critical_intensity
from shardwise.roofline.matmul import (
    critical_batch,
    critical_batch_approx,
    first_batch_at_peak,
    matmul_bytes,
    matmul_flops,
    matmul_flops_exact,
    matmul_intensity,
    matmul_times,
    padded_flops,
    split_contraction_threshold,
    split_contraction_times,
    tile_intensity,
)

BF16 = ElementBytes.of(left="bf16", right="bf16", result="bf16")
INT8_WEIGHTS = ElementBytes.of(left="bf16", right="int8", result="bf16")
V5E = {"peak_flops": 1.97e14, "bandwidth": 8.2e11}
DIMS = st.integers(1, 10**5)
WIDTHS = st.sampled_from([0.5, 1.0, 2.0, 4.0])
ELEMENTS = st.builds(ElementBytes, left=WIDTHS, right=WIDTHS, result=WIDTHS)


@given(DIMS, DIMS, DIMS, ELEMENTS)
def test_intensity_above_critical_is_compute_bound(m, k, n, elements):
    times = matmul_times(m, k, n, elements=elements, **V5E)
    intensity = matmul_intensity(m, k, n, elements=elements)
    above = intensity >= critical_intensity(*V5E.values())
    assert times.bound == ("math" if above else "HBM") or times.math_seconds == pytest.approx(
        times.comms_seconds
    )
    assert times.lower <= times.upper <= 2 * times.lower
    rate = attainable_flops(intensity, *V5E.values())
    assert rate == pytest.approx(matmul_flops(m, k, n) / times.lower)


@given(DIMS, DIMS, ELEMENTS, st.floats(1, 1000))
def test_the_critical_batch_has_the_critical_intensity(k, n, elements, intensity):
    m = critical_batch(k, n, elements=elements, intensity=intensity)
    if np.isfinite(m) and m < 1e9:  # beyond, both sides of the equation are rounding noise
        assert matmul_intensity(m, k, n, elements=elements) == pytest.approx(intensity, rel=1e-6)
    elif np.isinf(m):
        assert matmul_intensity(1e15, k, n, elements=elements) <= intensity * (1 + 1e-9)


@given(st.integers(2000, 10**5), st.integers(2000, 10**5), ELEMENTS)
def test_the_first_batch_at_peak_is_the_first(k, n, elements):
    m = first_batch_at_peak(k, n, elements=elements, intensity=240.25)
    if np.isfinite(m) and m < 1e6:
        assert matmul_intensity(m, k, n, elements=elements) >= 240.25 * (1 - 1e-9)
        assert matmul_intensity(m - 1, k, n, elements=elements) < 240.25


def test_the_books_approximation_is_the_limit_of_large_matrices():
    for elements in (BF16, INT8_WEIGHTS):
        approx = critical_batch_approx(elements=elements, intensity=240.0)
        exact = critical_batch(1e9, 1e9, elements=elements, intensity=240.0)
        assert exact == pytest.approx(approx, rel=1e-6)
    assert critical_batch_approx(elements=INT8_WEIGHTS, intensity=240.0) == 120


def test_a_small_matrix_never_reaches_peak():
    assert critical_batch(256, 256, elements=BF16, intensity=240.0) == np.inf
    assert first_batch_at_peak(256, 256, elements=BF16, intensity=240.0) == np.inf


def test_a_whole_critical_batch_is_its_own_first_batch():
    """B = I k / (2k - 4I) with int8 weights: 100 * 1000 / 1600 = 62.5; 100 * 400 / 400 = 100."""
    assert first_batch_at_peak(1000, 1000, elements=INT8_WEIGHTS, intensity=100.0) == 63
    assert first_batch_at_peak(400, 400, elements=INT8_WEIGHTS, intensity=100.0) == 100


def test_bytes_by_operand():
    moved = matmul_bytes(10, 20, 30, elements=ElementBytes(left=2, right=0.5, result=4))
    assert moved.read == 2 * 200 + 0.5 * 600
    assert moved.written == 4 * 300
    assert moved.total == moved.read + moved.written


def test_a_matrix_per_row_keeps_intensity_low():
    shared = matmul_intensity(64, 8192, 8192, elements=BF16)
    per_row = matmul_intensity(1, 8192, 8192, elements=BF16, batch=64)
    assert shared > 60
    assert per_row < 1


def test_exact_flops_leave_one_addition_per_element_out():
    assert matmul_flops(3, 5, 7, batch=2) - matmul_flops_exact(3, 5, 7, batch=2) == 2 * 3 * 7


def test_tiles():
    assert tile_intensity(128, 128, elements=BF16) == 64
    assert tile_intensity(512, 512, elements=INT8_WEIGHTS) == pytest.approx(2 * 512 / 3)


@given(DIMS, DIMS, DIMS)
def test_padding_only_adds_and_fills_whole_tiles(m, k, n):
    tile = (8, 128, 256)
    padded = padded_flops(m, k, n, tile=tile)
    assert padded >= matmul_flops(m, k, n)
    assert padded % matmul_flops(*tile) == 0
    assert padded < matmul_flops(m + 8, k + 128, n + 256)


def test_everything_broadcasts():
    m = np.array([[1], [128], [1024]])
    k = np.array([1024, 8192])
    times = matmul_times(m, k, 4096, elements=BF16, **V5E)
    assert times.lower.shape == (3, 2)
    assert padded_flops(m, k, 4096, tile=(8, 128, 128)).shape == (3, 2)
    assert critical_batch(k, m * 4096, elements=BF16, intensity=240.0).shape == (3, 2)
    one = matmul_times(128, 8192, 4096, elements=BF16, **V5E)
    assert times.upper[1, 1] == one.upper


@given(DIMS, DIMS, st.integers(2, 64))
def test_a_split_contraction_depends_on_the_contracting_dim_alone(m, n, chips):
    rates = {"chips": chips, "result_bytes": 2, "peak_flops": 1.97e14, "oneway": 4.5e10}
    k = split_contraction_threshold(**rates)
    times = split_contraction_times(m, k, n, **rates)
    assert times.math_seconds == pytest.approx(times.comms_seconds)
    assert split_contraction_times(m, 1.01 * k, n, **rates).bound == "math"
    assert split_contraction_times(m, 0.99 * k, n, **rates).bound == "network"


def test_two_chips_exchange_whole_partial_sums():
    """Book 1.1.3: T_math = BDF / C and T_comms = 2BF / W."""
    t = split_contraction_times(3, 8, 5, chips=2, result_bytes=2, peak_flops=10.0, oneway=4.0)
    assert t.math_seconds == 3 * 8 * 5 / 10
    assert t.comms_seconds == 2 * 3 * 5 / 4


def test_bound_names_the_channel():
    assert Times(math_seconds=2.0, comms_seconds=1.0, channel="PCIe").bound == "math"
    assert Times(math_seconds=1.0, comms_seconds=2.0, channel="PCIe").bound == "PCIe"


def test_an_unknown_dtype_is_refused():
    with pytest.raises(BadRequest, match="unknown dtype 'bf61'; did you mean 'bf16'"):
        ElementBytes.of(left="bf61", right="bf16", result="bf16")
