"""What the tables of benchmarks say, and that the catalogue says the same."""

import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from shardwise.hardware import catalogue, load_chip
from shardwise.hardware.catalogue import GENERATIONS

pytest.importorskip("scipy")
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from fit import rates
from tpu_rates import busy_bundles

H100 = load_chip("h100")


def link(**cells):
    plain = {"nodes": "4", "devices": "32", "nics_oneway": "400e9", "collective": "all_reduce"}
    return plain | {name: str(cell) for name, cell in cells.items()}


def test_a_ring_puts_its_bus_bandwidth_on_the_nics():
    assert rates.nic_share(link(busbw=360e9)) == pytest.approx(0.9)


def test_over_two_nodes_a_tree_needs_half():
    """V = 1 over 2 x 8 devices in 1 / 200e9 s: busbw 375 GB/s, and V crosses NICs of 200 GB/s."""
    two = link(nodes=2, devices=16, nics_oneway=200e9, busbw=2 * 15 / 16 * 200e9)
    assert rates.nic_share(two) == pytest.approx(1.0)


def test_half_of_an_all_to_all_leaves_one_of_two_nodes():
    """Each of 16 devices sends 1/16 of V = 16 to each: 8 of its 16 parts over a NIC of 8 bytes/s
    take a second, in which it sent 15 parts in all."""
    two = link(nodes=2, devices=16, nics_oneway=8 * 8, collective="all_to_all", busbw=15)
    assert rates.nic_share(two) == pytest.approx(1.0)


def test_a_faulty_set_up_tells_no_rate():
    table = [{**link(busbw=360e9), "fabric": "x", "fault": fault} for fault in ("", "yes")]
    table[1]["busbw"] = "1e9"
    assert rates.nic_shares(table)[""].n == rates.nic_shares(table)["x"].n == 1


def test_every_chip_has_the_median_share_of_the_nics():
    median = round(rates.nic_shares()[""].median, 3)
    assert {c.efficiency.outer_network for c in catalogue() if c.data_centre} == {median}


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e"])
def test_a_tpu_multiplies_as_its_compiler_expects(chip):
    said = rates.compiled_share(rates.read_csv(rates.COMPILED), chip, "bf16")
    assert said is not None
    assert load_chip(chip).efficiency.matmul == pytest.approx(said.median, abs=6e-4)


def test_the_compiler_is_near_the_one_tpu_that_was_measured():
    said = rates.compiled_share(rates.read_csv(rates.COMPILED), "tpu7x", "bf16")
    assert said is not None
    assert said.median == pytest.approx(load_chip("tpu7x").efficiency.matmul, rel=0.03)


def test_a_ring_step_is_what_bytes_leave():
    wire = 2**28 * 31 / 32 / (8 * 50e9)
    row = {"nodes": "4", "devices": "32", "bytes": str(2**28)}
    row["time_us"] = str((wire + 31 * 20e-6) * 1e6)
    assert rates.ring_step(row, H100) == pytest.approx(20e-6)


def timings(dtype, share, ramp, cast):
    """A table of products as `ProductRate` has them, on an H100."""
    bandwidth = H100.require("hbm_bandwidth") * H100.efficiency.hbm
    peak = H100.peak("fp8" if cast else "bf16")
    sizes = [(m, n, k) for m in (1024, 4096, 8192) for n in (2048, 8192) for k in (1024, 16384)]
    return [
        {
            **{name: str(size) for name, size in zip("mnk", (m, n, k), strict=True)},
            f"h100_sxm {dtype}": str(
                1e3 * (2 * m * n * k / (peak * share) + ramp + cast * m * k / bandwidth)
            ),
        }
        for m, n, k in sizes
    ]


@pytest.mark.parametrize(("dtype", "cast"), [("bfloat16", 0.0), ("fp8", 5.0)])
def test_share_ramp_and_cast_are_told_apart(dtype, cast):
    table = timings(dtype, 0.6, 9e-6, cast)
    peak = H100.peak("fp8" if cast else "bf16")
    found = rates.product_rate(table, "h100_sxm", dtype, peak, cast=cast > 0)
    assert found.share == pytest.approx(0.6, rel=0.02)
    assert found.ramp == pytest.approx(9e-6, rel=0.1)
    assert found.cast_bytes == pytest.approx(cast, rel=0.1)
    assert found.error < 0.01


def test_attention_counts_six_products_of_nine():
    rows = [
        {
            "chip": "v5e",
            "kind": f"splash {kernel}",
            "k": "128",
            "flops": str(flops),
            "share": str(share),
        }
        for kernel, flops, share in (("fwd", 2, 0.5), ("dkv", 4, 1.0), ("dq", 3, 1.0))
    ]
    assert rates.compiled_attention(rows, "v5e") == pytest.approx(6 / (2 / 0.5 + 4 + 3))
    assert rates.compiled_attention(rows, "v6e") is None
    assert rates.compiled_attention(rows, "v5e", head=64) is None


def test_a_head_of_half_a_tile_takes_as_long_as_a_whole_one():
    """What `roofline/price.py` fills heads up to: libtpu schedules as many bundles for both."""
    table = rates.read_csv(rates.COMPILED)
    for chip in {r["chip"] for r in table}:
        narrow, usual = (rates.compiled_attention(table, chip, head) for head in (64, 128))
        assert narrow is not None
        assert usual is not None
        assert 1.85 < usual / narrow < 2.15, chip


def test_bundles_without_a_working_unit_do_not_count(tmp_path):
    rows = [
        "0 0 0 0 0 0 0 0 0 2",
        "4 0 0 0 0 0 0 0 0 0",
        "0 0 1 0 0 0 0 0 0 0",
        "0 0 0 2 0 1 1 1 0 0",
    ]
    head = "== CAPACTIY:\nMXU, XLU\n 4 3\n== UTILIZATION:\n"
    name = "1-splash_mha_dq_no_residuals.1-70-final_hlo-static-per-bundle-utilization.txt"
    (tmp_path / name).write_text(head + "\n".join(rows) + "\n")
    assert busy_bundles(tmp_path, "dq") == 2


def test_priors_are_within_what_can_be():
    for name, prior in rates.compiled_priors(rates.read_csv(rates.COMPILED)).items():
        most = 5e-5 if name.endswith("ramp") else 1.0
        assert 0 < prior.value < most, name
        assert np.isfinite(prior.sigma or 0.0)


def test_measured_priors_are_those_of_the_catalogue():
    """From the tables of the repository alone."""
    for name, prior in rates.measured_priors().items():
        generation, constant = name.split(".")
        row = tomllib.loads((GENERATIONS / f"{generation}.toml").read_text())[constant]
        assert row["prior"] == float(f"{prior.value:.3g}"), name
