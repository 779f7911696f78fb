"""Programs that run here, on virtual CPU devices: measured beside compiled and predicted."""

import csv
import json

import jax
import pytest

from runtime.trainer.made import QUICK
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.predict import plan_training
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.commands.program.profiling import (
    profile_function,
    profile_plan,
    profile_result,
    profile_trace,
    trace_result,
    write_profile,
)
from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.plans import ServeDtypes, ServePlan, model_hash
from shardwise.plans.files import plan_dict
from shardwise.profiler.trace import read_trace
from shardwise.runtime.programs import plan_program

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
CODE = """import jax, jax.numpy as jnp
from functools import partial
def s(mesh, shape, *p, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, jax.P(*p)))
def mlp(x, w):
    with jax.named_scope("up"):
        y = x @ w
    with jax.named_scope("turn"):
        return jnp.tanh(y) @ w.T
def args(mesh):
    return s(mesh, (256, 128), "x", None), s(mesh, (128, 512))
@partial(jax.jit, donate_argnums=0)
def update(state, batch, *, rate):
    with jax.named_scope("loop"):
        body = lambda c, _: (c @ batch * rate, None)
        return jax.lax.scan(body, state, None, length=5)[0], state[0, 0]
def named(mesh):
    return (s(mesh, (64, 64)), s(mesh, (64, 64))), {"rate": s(mesh, ())}
def reduced(x, w):
    return jax.lax.with_sharding_constraint(x @ w, jax.P(None, None))
def cut(mesh):
    return s(mesh, (64, 256), None, "x"), s(mesh, (256, 64), "x", None)
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with a user's module in it, as the working directory."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "mine.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def mlp(here):
    """A profile on two devices, and the folder of its capture."""
    keep = here / "kept"
    on = parse_slice("h100:2")
    found = profile_function(
        "mine:mlp", "mine:args", {"x": 2}, on, steps=2, cpu_devices=2, keep=keep, reference=64
    )
    return found, keep


def test_a_function_is_run_and_its_seconds_lie_on_its_ops(mlp):
    found, _ = mlp
    assert len(found.seconds) == 2
    assert min(found.seconds) > 0
    assert len(found.reference_seconds) == 2
    measured = found.measured
    assert (measured.devices, measured.runs) == (2, 2)
    assert measured.unmatched == {}
    products = [op for op in measured.ops if op.op.op.op_class == "matmul"]
    assert all(op.seconds > 0 for op in products)
    assert sum(float(op.op.op.matmul.m) for op in products) >= 2 * 128
    assert measured.matched_seconds > 0


def test_tables_by_class_line_and_scope_stand_beside_the_compiled_program(mlp):
    found, _ = mlp
    result = profile_result(found)
    total = sum(op.seconds for op in found.measured.ops)
    for table in (result.by_class, result.by_line, result.by_scope):
        assert sum(row.measured for row in table) == pytest.approx(total)
    assert {"up", "turn"} <= {row.where for row in result.by_scope}
    assert any(row.where.endswith("mine.py:7") for row in result.by_line)
    matmul = next(row for row in result.by_class if row.where == "matmul")
    assert matmul.flops == 2 * 2 * 128 * 128 * 512
    assert matmul.compiled > 0
    assert matmul.predicted is None
    assert result.step_seconds.compiled.expected > 0
    assert any(
        "ran on 'cpu', and compiled and predicted times are for h100" in n for n in found.notes
    )


def test_a_kept_capture_is_read_back_to_the_same_seconds(mlp, tmp_path):
    found, keep = mlp
    names = write_profile(tmp_path, found, {"result": 1})
    assert sorted(names) == sorted(p.name for p in tmp_path.iterdir())
    with (tmp_path / "ops.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(float(row["seconds"]) for row in rows) == pytest.approx(
        found.measured.matched_seconds
    )
    trace, again = profile_trace(keep, tmp_path / "program.hlo.txt")
    assert again is not None
    assert again.measured.matched_seconds == pytest.approx(found.measured.matched_seconds)
    (chrome,) = keep.rglob("*.trace.json.gz")
    # Chrome's times are rounded to a nanosecond or so.
    other = read_trace(chrome).of(again.measured.module)
    assert other.step_seconds == pytest.approx(found.measured.step_seconds, rel=1e-3)
    result = trace_result(trace)
    assert result.module == again.measured.module
    assert sum(r.measured for r in result.by_op) == pytest.approx(found.measured.matched_seconds)


def test_a_capture_has_its_mesh_and_layouts_and_stands_beside_what_was_expected(mlp, tmp_path):
    found, keep = mlp
    write_profile(tmp_path, found, {"result": 1})
    on = parse_slice("h100:2")
    _, again = profile_trace(keep, tmp_path / "program.hlo.txt", on)
    assert again is not None
    read, ran = profile_result(again), profile_result(found)
    assert read.step_seconds.compiled == ran.step_seconds.compiled
    (axis,) = read.mesh
    assert read.mesh == {axis: 2}
    assert [a.dims for a in read.arguments] == [a.dims for a in ran.arguments]
    mine = [a.layout.replace("_x", f"_{axis}") for a in ran.arguments]
    assert [a.layout for a in read.arguments] == mine
    assert any(f"_{axis}" in layout for layout in mine)
    assert any("--mesh gives them names" in note for note in again.notes)
    _, named = profile_trace(keep, tmp_path / "program.hlo.txt", on, {"x": 2})
    assert named is not None
    assert profile_result(named).arguments == ran.arguments
    assert named.notes == ()


def test_a_capture_that_was_cut_off_is_refused(mlp, tmp_path):
    _, keep = mlp
    (path,) = keep.rglob("*.xplane.pb")
    whole = path.read_bytes()
    (tmp_path / "a.xplane.pb").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadRequest, match="is no capture of jax"):
        read_trace(tmp_path / "a.xplane.pb")


def test_an_argument_that_is_given_away_comes_back_for_the_next_step(here):
    found = profile_function("mine:update", "mine:named", {"x": 1}, steps=4, cpu_devices=1)
    assert len(found.seconds) == 4
    loop = {r.where: r for r in profile_result(found).by_scope}["loop"]
    assert loop.measured > 0
    dot = next(op for op in found.measured.ops if op.op.op.op_class == "matmul")
    assert dot.events == pytest.approx(5)


@pytest.mark.slow
def test_a_collective_has_its_seconds(here):
    found = profile_function("mine:reduced", "mine:cut", {"x": 4}, steps=1, cpu_devices=4)
    (op,) = (op for op in found.measured.ops if op.op.op.collective)
    assert op.op.op.collective.kind == "all_reduce"
    assert op.seconds > 0


def test_more_devices_than_are_here_are_refused(here):
    with pytest.raises(BadRequest, match="runs on 4 devices and 2 of kind 'cpu' are here"):
        profile_function("mine:mlp", "mine:args", {"x": 4}, steps=1, cpu_devices=2)


@pytest.mark.parametrize(("steps", "devices"), [(0, 1), (1, 0)])
def test_no_steps_and_no_devices_are_refused(here, steps, devices):
    with pytest.raises(BadRequest, match=r"--steps|--cpu-devices"):
        profile_function("mine:mlp", "mine:args", {"x": 1}, steps=steps, cpu_devices=devices)


@pytest.mark.slow
def test_a_plan_stands_beside_its_prediction(tmp_path, monkeypatch):
    for name, value in QUICK.items():  # the child compiles in a quarter of the time
        monkeypatch.setenv(name, value)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    planning = plan_training(
        str(tmp_path),
        "h100:2",
        batch="4seq",
        seq=32,
        choices=TrainChoices(pins={"fsdp": 2}, remat="block"),
    )
    found = profile_plan(planning.best.plan, Hardware(), steps=1, cpu_devices=2)
    result = profile_result(found)
    assert result.devices == 2
    matmul = next(row for row in result.by_class if row.where == "matmul")
    assert matmul.measured > 0
    assert matmul.predicted > 0
    # Six FLOPs per weight and token, attention and what is recomputed on top.
    assert matmul.flops > 0.9 * 6 * 4 * 32 / 2 * planning.best.cfg.layers * 64 * 128 * 3
    with pytest.raises(BadRequest, match="--phase decode is not a step of this plan; choose train"):
        profile_plan(planning.best.plan, Hardware(), steps=1, phase="decode", cpu_devices=2)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_a_servers_step_is_timed_at_full_length(tmp_path, phase):
    """What a step reads of the cache depends on its inputs, so they are not zeros."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    plan = ServePlan(
        model=str(tmp_path),
        model_hash=model_hash(load_model(str(tmp_path))),
        slice="h100:1",
        mesh={},
        box=(1,),
        batch=2,
        input_length=48,
        output_length=16,
        dtypes=ServeDtypes(weights="bf16"),
    )
    arguments = plan_program(jax.devices()[:1], plan_dict(plan), phase).arguments[-1]
    if phase == "decode":
        assert [*arguments.cached_D] == [63, 63]
    else:
        assert [*arguments.positions_T] == [*range(48)]
    result = profile_result(profile_plan(plan, Hardware(), phase=phase, steps=1, cpu_devices=1))
    matmul = next(row for row in result.by_class if row.where == "matmul")
    assert matmul.measured > 0
    assert matmul.predicted > 0


def test_a_missing_text_beside_a_capture_is_refused(mlp, tmp_path):
    _, keep = mlp
    with pytest.raises(BadRequest, match=r"cannot read --hlo .*: no such file"):
        profile_trace(keep, tmp_path / "none.txt")
