"""Calibration: known machines come back from their rows, and the file prices plans."""

import json
from dataclasses import replace

import pytest
from tests.apps.commands import document

from shardwise.boundary.records import plain
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.run.calibration.machine import (
    MachineTimes,
    Saturation,
    TimedOp,
    calibrate_machine,
    calibration,
    fit,
    fit_network,
    measured_machine,
    saturation,
)
from shardwise.errors import BadRequest
from shardwise.hardware import load_chip, parse_slice, place
from shardwise.profiler import child
from shardwise.roofline.price import price_op
from shardwise.work import Collective, Matmul, Op

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")


def product(dtype, n, rate, ramp):
    flops, size = 2.0 * n**3, [n, n, n]
    seconds = ramp + flops / rate
    return TimedOp(what="matmul", dtype=dtype, size=size, flops=flops, seconds=seconds)


def compute_rows(rate=40e9, ramp=2e-6, bandwidth=8e9, fused=0.5, attention=0.25):
    """The rows of a machine without noise; bf16 runs at half the rate."""
    rows = [product("f32", n, rate, ramp) for n in (64, 256, 1024, 2048)]
    rows += [product("bf16", n, rate / 2, ramp) for n in (64, 256, 1024)]
    rows += [
        TimedOp(what="memory", size=[s], bytes=2.0 * s, seconds=2.0 * s / bandwidth)
        for s in (2**26, 2**28)
    ]
    # In the caches, where it is faster: no figure of the main memory.
    rows.append(TimedOp(what="memory", size=[2**20], bytes=2.0**21, seconds=1e-6))
    rows += [
        TimedOp(what="elementwise", size=[n], bytes=1e8, seconds=1e8 / (bandwidth * fused))
        for n in ("adam", "gate")
    ]
    seconds = 1e9 / (rate * attention)
    rows.append(TimedOp(what="attention", dtype="f32", size=[512], flops=1e9, seconds=seconds))
    rows.append(TimedOp(what="overhead", size=["matmul"], seconds=3e-7))
    return rows


def wire_rows(devices, oneway, hop):
    """What a full mesh of the catalogue's kind takes."""
    chip = load_chip("mi300x")
    network = replace(chip.network, domain=devices, pair_oneway=oneway, hop_seconds=hop)
    ideal = replace(chip.efficiency, network=1.0)
    chip = replace(chip, network=network, efficiency=ideal)
    placement = place(replace(parse_slice("mi300x:8"), chip=chip, shape=(devices,)), {"x": devices})
    rows = []
    for kind in KINDS:
        for size in (2**14, 2**20, 2**23):
            wire = Collective(kind=kind, axes=("x",), bytes=float(size))
            op = Op(
                id="c",
                name="c",
                phase="",
                component="",
                op_class="collective",
                collective=wire,
                stream="net:x",
            )
            seconds = float(price_op(op, chip, placement).derated)
            rows.append(TimedOp(what=kind, size=[size], bytes=float(size), seconds=seconds))
    return rows


def said(rows, devices=1):
    return MachineTimes(
        rows=tuple(rows),
        kind="cpu",
        platform="cpu",
        devices=devices,
        memory_bytes=16e9,
        cores=2,
        versions={"jax": "0"},
    )


@pytest.mark.parametrize("rate", [5e9, 40e9, 3e12])
@pytest.mark.parametrize("ramp", [0.0, 2e-6])
def test_a_machine_comes_back_from_its_rows(rate, ramp):
    rates = fit(compute_rows(rate=rate, ramp=ramp, bandwidth=9e9, fused=0.4, attention=0.3), 1)
    for dtype, true in (("f32", rate), ("bf16", rate / 2)):
        assert rates.peaks[dtype] * rates.kept[dtype] == pytest.approx(true, rel=1e-6)
    assert rates.ramp == pytest.approx(ramp, abs=1e-12)
    assert rates.bandwidth == pytest.approx(9e9)
    assert rates.fused == pytest.approx(0.4)
    assert rates.attention == pytest.approx(0.3)
    assert rates.oneway is None


@pytest.mark.parametrize(
    ("devices", "oneway", "hop"), [(2, 5e9, 4e-6), (4, 1e9, 0.0), (8, 2e11, 1e-6)]
)
def test_links_come_back_from_what_collectives_take(devices, oneway, hop):
    found = fit_network(wire_rows(devices, oneway, hop), devices)
    assert found[0] == pytest.approx(oneway, rel=1e-6)
    assert found[1] == pytest.approx(hop, rel=1e-6, abs=1e-12)
    assert found[2] < 1e-9


@pytest.mark.parametrize("devices", [1, 4])
def test_the_file_prices_what_was_measured(tmp_path, devices):
    rows = compute_rows() + (wire_rows(devices, 5e9, 4e-6) if devices > 1 else [])
    made = calibration("mine", said(rows, devices))
    file = tmp_path / "mine.toml"
    file.write_text(made.text)
    piece = Hardware(files=[str(file)]).slice(f"mine:{devices}").slice
    placement = place(piece, {"x": devices})
    for row in rows:
        if row.what == "matmul":
            n = float(row.size[0])
            op = Op(
                id="m",
                name="m",
                phase="",
                component="",
                op_class="matmul",
                flops={row.dtype: row.flops},
                matmul=Matmul(m=n, k=n, n=n),
            )
        elif row.what in KINDS:
            op = Op(
                id="c",
                name="c",
                phase="",
                component="",
                op_class="collective",
                collective=Collective(kind=row.what, axes=("x",), bytes=row.bytes),
                stream="net:x",
            )
        else:
            continue
        # The file keeps four digits.
        assert float(price_op(op, piece.chip, placement).derated) == pytest.approx(
            row.seconds, rel=2e-3
        )
    assert piece.chip.core_kind == "cpu device"
    assert all("measured" in s or "definition" in s for s in _sources(piece.chip))


def _sources(chip):
    own = {path: s for path, s in chip.sources.items() if not path.startswith("prices")}
    return [s.replace("shardwise calibrate on", "measured") for s in own.values()]


def test_the_result_is_plain_and_names_the_slice():
    made = calibration("mine", said(compute_rows() + wire_rows(2, 5e9, 0.0), 2))
    result = json.loads(json.dumps(plain(measured_machine(made))))
    assert result["slice"] == "mine:2"
    assert result["pair_oneway"] == pytest.approx(5e9)
    assert result["op_overhead_seconds"] == pytest.approx(3e-7)
    assert result["median_errors"]["matmul f32"] < 1e-9


@pytest.mark.parametrize("name", ["", "4x", "a:b", "Mine", "a b"])
def test_a_name_that_no_slice_could_have_is_refused(name):
    with pytest.raises(BadRequest, match="is not a chip name"):
        calibrate_machine(name)


def test_no_devices_are_refused():
    with pytest.raises(BadRequest, match="--cpu-devices is 0"):
        calibrate_machine("mine", cpu_devices=0)


def test_the_devices_of_ones_own_flags_are_measured_all_together(monkeypatch, tmp_path):
    """Eight CPU devices by XLA_FLAGS, without --cpu-devices: links too, so that four of them are a
    whole machine."""

    def run_function(job, request, **how):
        n = how["devices"]
        rows = [plain(row) for row in compute_rows() + (wire_rows(n, 5e9, 4e-6) if n > 1 else [])]
        of = said([], n)
        fields = ("kind", "platform", "devices", "memory_bytes", "cores", "versions")
        return {"rows": rows, **{name: getattr(of, name) for name in fields}}

    monkeypatch.setattr(child, "run_function", run_function)
    flags = "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=8"
    monkeypatch.setenv("XLA_FLAGS", flags)
    made = calibrate_machine("here")
    assert made.times.devices == 8
    assert made.rates.oneway == pytest.approx(5e9)
    (tmp_path / "here.toml").write_text(made.text)
    piece = Hardware(files=[str(tmp_path / "here.toml")]).slice("here:4").slice
    placement = place(piece, {"data": 2, "tensor": 2})
    wire = Collective(kind="all_reduce", axes=("tensor",), bytes=2.0**20)
    op = Op(
        id="c",
        name="c",
        phase="",
        component="",
        op_class="collective",
        collective=wire,
        stream="net:tensor",
    )
    assert float(price_op(op, piece.chip, placement).derated) > 0
    monkeypatch.setenv("XLA_FLAGS", "")
    assert calibrate_machine("here").times.devices == 1


STEP = """import jax, jax.numpy as jnp
def step(x, w, v):
    h = jnp.tanh(x @ w)
    return jax.lax.with_sharding_constraint(h @ v, jax.P("data", None))
def args(mesh):
    def array(shape, *spec):
        at = jax.NamedSharding(mesh, jax.P(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=at)
    up, down = array((128, 256), None, "tensor"), array((256, 128), "tensor")
    return array((256, 128), "data"), up, down
"""


@pytest.mark.slow
def test_this_machine_is_measured_with_its_links_and_all_that_asks_for_them_answers(
    tmp_path, monkeypatch, capsys
):
    """Four CPU devices by XLA_FLAGS and short programs: noisy figures, but every one of them, so
    that plan, explain and profile on two or all of them lack none."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    made = calibrate_machine("here", program_seconds=0.001)
    measured = {row.what for row in made.times.rows}
    assert measured == {"matmul", "memory", "elementwise", "attention", "overhead", *KINDS}
    assert all(row.seconds > 0 for row in made.times.rows)
    assert made.times.reference_seconds > 0
    assert made.times.devices == 4
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.toml").write_text(made.text)
    chip = Hardware(files=["here.toml"]).chip("here")
    assert chip.peak("f32") > 1e8
    assert chip.require("hbm_bandwidth") > 1e7
    assert chip.network.pair_oneway > 1e5
    assert f"# all_reduce {2**20}" in made.text

    (tmp_path / "own_step.py").write_text(STEP)
    monkeypatch.delenv("XLA_FLAGS")
    function = ["own_step:step", "--args", "own_step:args", "--hw", "here.toml"]
    plan = ["plan", "train", "--model", "llama-3.2-1b", "--batch", "8seq", "--seq", "128"]
    plan += ["--hw", "here.toml", "--dtype", "f32", "--optimizer", "sgd", "--for", "any"]
    result = document(capsys, *plan, "--on", "here:4")["result"]
    assert result["step_seconds"]["expected"] > 0
    whole = [*function, "--on", "here:4", "--mesh", "data=2,tensor=2"]
    result = document(capsys, "explain", *whole, "--quick")["result"]
    assert [c["kind"] for c in result["collectives"]] == ["all_reduce"]
    assert result["exposed_communication"] > 0
    half = [*function, "--on", "here:2", "--mesh", "data=1,tensor=2", "--cpu-devices", "2"]
    result = document(capsys, "profile", *half)["result"]
    assert result["step_seconds"]["compiled"]["expected"] > 0


def test_collectives_saturate_where_their_rate_flattens():
    """The least size from which all reach nine tenths of the best rate."""
    rates = {1e3: 1e6, 1e4: 9.5e8, 1e5: 5e8, 1e6: 9.1e8, 1e7: 1e9}
    rows = [
        TimedOp(what="all_gather", size=[int(b)], bytes=b, seconds=b / r) for b, r in rates.items()
    ]
    assert saturation(rows) == {"all_gather": Saturation(bytes=1e6, bytes_per_second=1e9)}
    assert saturation([]) == {}
