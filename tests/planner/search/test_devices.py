"""Training plans on chips that are several JAX devices: a mesh counts devices, not chips."""

from math import prod

import pytest

from shardwise.commands.pricing.predict import plan_training
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.errors import BadRequest
from shardwise.hardware import load_chip
from shardwise.hardware.names import DATA

pytestmark = pytest.mark.usefixtures("answers_kept")


def plan(on, **more):
    choices = TrainChoices(**{"schedule": "1f1b", **more})
    return plan_training("llama-3-8b", on, batch="64seq", seq=4096, choices=choices)


@pytest.mark.parametrize(
    ("on", "chips"), [("tpu7x:2x2x1", 4), ("tpu7x:4x4x4", 64), ("mi250x:8", 8)]
)
def test_a_mesh_counts_devices(on, chips):
    planning = plan(on)
    for answer in (planning.best, *planning.runners_up):
        assert prod(answer.plan.mesh.values()) == answer.plan.devices == 2 * answer.chips_used
        assert answer.chips_used == answer.placement.chips_used
        assert answer.chips_used + answer.chips_idle == chips
        assert prod(answer.plan.box) == answer.chips_used
    assert planning.best.chips_used == chips
    expected = planning.best.step_seconds
    assert 0 < expected.lower <= expected.expected <= expected.upper
    assert 0.3 < planning.best.mfu < 1


@pytest.mark.parametrize("on", ["tpu7x:2x2x1", "tpu7x:4x4x4"])
def test_memory_is_given_per_chip_and_limited_per_device(on):
    chip, best = load_chip("tpu7x"), plan(on).best
    assert best.peak_bytes_per_chip == 2 * float(best.memory.peak())
    assert best.peak_bytes_per_chip <= chip.require("hbm_usable_bytes")
    assert sum(best.memory_by_kind.values()) == pytest.approx(best.peak_bytes_per_chip)


def test_a_tight_limit_is_per_chip():
    limit = plan("tpu7x:2x2x1").best.peak_bytes_per_chip * 0.9
    assert plan("tpu7x:2x2x1", max_hbm=limit).best.peak_bytes_per_chip <= limit


def test_a_fully_sharded_state_is_spread_over_the_devices():
    """8.03e9 parameters x 16 bytes: bf16 weight and gradient, f32 master copy and two moments."""
    best = plan("tpu7x:2x2x1", pins={"fsdp": 8}).best
    kinds = best.memory_by_kind
    state = kinds["params"] + kinds["gradients"] + kinds["optimizer"]
    assert state == pytest.approx(8.03e9 * 16 / 4, rel=1e-3)


def test_tensor_two_stays_inside_the_chip():
    best = plan("tpu7x:2x2x1", pins={"fsdp": 4, "tensor": 2}).best
    assert best.placement.describe() == ("fsdp=4: x[2] y[2], lines", "tensor=2: chip[2]")


def test_a_slower_die_link_is_no_faster():
    slow = {"sets": {"chip.device_link_oneway": 10e9}}
    pins = {"fsdp": 4, "tensor": 2}
    fast, slower = (plan("tpu7x:2x2x1", pins=pins, **m).best for m in ({}, slow))
    assert slower.step_seconds.expected > fast.step_seconds.expected


def test_an_unknown_die_link_is_asked_for_and_can_be_given(tmp_path):
    text = (DATA / "v3.toml").read_text(encoding="utf-8").replace('id = "v3"', 'id = "lab"')
    lines = [s for s in text.splitlines() if not s.startswith(("device_link", "aliases", "cloud"))]
    lab = tmp_path / "lab.toml"
    lab.write_text("\n".join(lines))
    with pytest.raises(BadRequest, match=r"chip 'lab'.*--set chip.device_link_oneway=NUMBER"):
        plan("lab:4x4", hw_files=[lab])
    given = {"chip.device_link_oneway": 1e11}
    assert plan("lab:8x8", hw_files=[lab], sets=given).best.plan.devices == 128
