"""Expected seconds of collectives against what was measured."""

import pytest

from shardwise.hardware import load_chip, parse_slice, place
from shardwise.roofline.collectives import collective_seconds


@pytest.mark.parametrize(
    ("kind", "size", "measured"),
    [
        # nccl-tests on 8 H100, µs; ai-dynamo/aiconfigurator@095f58a h100_sxm nccl_perf.
        ("all_gather", 2**10, 10.4),
        ("all_gather", 2**20, 17.13),
        ("all_gather", 2**23, 44.86),
        ("all_gather", 2**26, 208.14),
        ("all_gather", 2**29, 1401.5),
        ("reduce_scatter", 2**26, 200.75),
        ("all_reduce", 2**23, 78.91),
        ("all_reduce", 2**26, 324.53),
        ("all_reduce", 2**29, 2111.06),
        ("all_to_all", 8 * 2**23, 41.36),
        ("all_to_all", 8 * 2**26, 221.29),
    ],
)
def test_expected_is_near_what_was_measured(kind, size, measured):
    chip = load_chip("h100")
    axis = place(parse_slice("h100:8"), {"tensor": 8}).axes["tensor"]
    wire, latency = collective_seconds(kind, size, [axis], measured=True)
    assert wire / chip.efficiency.network + latency == pytest.approx(measured * 1e-6, rel=0.15)
