"""Small programs through the real TPU compiler: four compiles, kept in one cache."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tiers import spread

from shardwise.boundary.records import plain
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import price_plan
from shardwise.commands.pricing.predict import plan_training
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.commands.program.compile_report import write_report
from shardwise.commands.program.compile_result import program_result
from shardwise.commands.program.compiling import (
    chunk_of,
    compile_function,
    compile_plan,
    held_at_once,
    predicted_of,
    shortfall,
)
from shardwise.errors import BadRequest, MissingPart, ShardwiseError
from shardwise.hardware import parse_slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.models import load_model
from shardwise.planner.serve.server import server_of
from shardwise.plans import ServeDtypes, ServePlan, model_hash
from shardwise.plans.serve import Workload
from shardwise.profiler.ahead import CompileCache, Limits, compile_ahead, target_of
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.stages import read_stages, stages_of

CONFIG = """{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512,
"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
"intermediate_size": 1024, "vocab_size": 2048, "max_position_embeddings": 4096,
"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false,
"torch_dtype": "bfloat16"}"""
FUNCTION = """import jax, jax.numpy as jnp
def mlp(x, w1, w2):
    return jax.nn.gelu(x @ w1) @ w2
def args(mesh, tokens=1024, d=512, f=2048):
    def s(shape, *p):
        at = jax.NamedSharding(mesh, jax.P(*p))
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=at)
    return s((tokens, d), "x", None), s((d, f), None, "y"), s((f, d), "y", None)
def huge(mesh):
    return args(mesh, tokens=2**18, d=2**14, f=2**16)
def whole():
    return jax.ShapeDtypeStruct((8, 128), jnp.bfloat16), {}
def broken(mesh):
    raise ValueError("no arguments today")
NUMBER = 3
"""
HARDWARE = Hardware()
QUICK = {"exec_time_optimization_effort": -1.0}
"""Less is tried to overlap: a fraction of the time of a compile."""


@pytest.fixture(scope="session")
def limits(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return Limits(cache=CompileCache(root=shared / "compiled"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(CONFIG)
    return str(folder / "config.json")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A user's module in the working directory."""
    (tmp_path / "mycode.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compiled(args, limits, on="v5e:2x2", function="mycode:mlp", **more):
    return compile_function(function, args, parse_slice(on), limits=limits, **more)


@pytest.mark.slow
def test_a_function_comes_back_scheduled_counted_and_timed(here, limits):
    heard, staged = [], replace(limits, stages=here)
    program = compiled("mycode:args", staged, watch=lambda stage, s: heard.append(stage))
    made = program.compiled
    kept = read_stages(here / f"{made.key}.json.gz")
    followed = stages_of(kept, read_module(made.hlo), program.work.ops, program.timeline, "mlp")
    assert "dot_general" in followed.stablehlo[0]
    assert {"given", "cut", "layout"} <= {kind for c in followed.changes for kind in c.kinds}
    assert made.fits
    assert made.mesh == {"x": 2, "y": 2}
    assert "is_scheduled=true" in made.hlo
    # One device: 512 tokens, half of F: two matmuls of 2 x 512 x 512 x 1024.
    assert program.work.work.flops() == 2 * 2 * 512 * 512 * 1024
    assert program.collectives == {("all_reduce", ("y",)): (1.0, 512 * 512 * 2)}
    assert program.timeline is not None
    assert program.timeline.lower <= program.timeline.expected <= program.timeline.upper
    assert made.memory["arguments"] == sum(b.bytes for b in made.buffers if b.kind == "argument")
    assert made.memory["peak"] == made.needed_bytes < made.capacity_bytes
    names = {b.op for b in made.buffers if b.kind == "argument"}
    assert names == {"x", "w1", "w2"}
    assert made.versions["jax"]
    assert made.process_peak_bytes > 2**26
    again = compiled("mycode:args", limits)
    assert again.compiled.cached
    assert replace(again.compiled, cached=made.cached) == made


@pytest.mark.slow
def test_a_program_that_does_not_fit_names_its_buffers_and_their_lines(here, limits):
    program = compiled("mycode:huge", limits)
    made = program.compiled
    assert not made.fits
    assert "RESOURCE_EXHAUSTED" in made.refusal
    # x and out [2^17, 2^14] and the hidden [2^17, 2^15] in bf16, weights 2 x [2^14, 2^15].
    known = 2 * 2**32 + 2**33 + 2 * 2**30
    assert made.needed_bytes == pytest.approx(known, rel=0.01)
    text = shortfall(program)
    assert text.startswith("mycode:mlp does not fit v5e:2x2: 18 GiB (19.3 GB) per device, 15.8 GiB")
    assert "8 GiB (8.59 GB) temporary bf16[131072,32768]: " in text
    assert "mycode.py:3" in text
    assert "argument bf16[131072,16384]: x" in text
    assert program_result(program).fits is False


@pytest.mark.slow
def test_a_training_plan_comes_back_beside_its_prediction(tiny, limits, tmp_path):
    choices = TrainChoices(pins={"tensor": 2}, software="any")
    planning = plan_training(tiny, "v5e:2x2", batch="32seq", seq=128, choices=choices)
    done = compile_plan(planning.best.plan, HARDWARE, options=QUICK, limits=limits)
    (program,) = done.programs
    result = program_result(program, planning.best.plan)
    assert program.phase == "train"
    assert result.fits
    predicted = done.priced.answer.work
    kernels = float(program.work.work.where(lambda op: op.op_class == "attention").flops())
    matmuls = float(predicted.where(lambda op: op.op_class == "matmul").flops())
    assert result.flops.compiled - kernels == matmuls
    # Of a kernel the products asked for are counted: the causal half, forward and backward.
    attention = float(predicted.where(lambda op: op.op_class == "attention").flops())
    assert kernels == attention
    assert set(result.memory_by_kind.arguments) >= {"state['params']", "state['optimizer']"}
    assert "splash" in program.compiled.hlo  # the TPU's kernel, not the T x T scores
    assert {kind for kind, _ in program.collectives} & {"all_gather", "all_reduce"}
    files = write_report(tmp_path / "report", done.programs, planning.best.plan, plain(result))
    assert sorted(p.name for p in (tmp_path / "report").iterdir()) == sorted(files)
    assert (tmp_path / "report" / "train.hlo.txt").read_text() == program.compiled.hlo
    started = time.monotonic()
    again = compile_plan(planning.best.plan, HARDWARE, options=QUICK, limits=limits)
    assert again.programs[0].compiled.cached
    assert time.monotonic() - started < program.compiled.seconds["process"] + 60


def serving(tiny, **changes):
    return ServePlan(
        **{
            "model": tiny,
            "model_hash": model_hash(load_model(tiny)),
            "slice": "v5e:2x2",
            "mesh": {"tensor": 4},
            "box": (2, 2),
            "batch": 7,
            "input_length": 512,
            "output_length": 128,
            "dtypes": ServeDtypes(weights="int8"),
            **changes,
        }
    )


@pytest.mark.slow
def test_a_decode_step_keeps_int8_weights_and_a_cache_cut_by_heads_and_batch(tiny, limits):
    done = compile_plan(serving(tiny), HARDWARE, phases=("decode",), limits=limits)
    (program,) = done.programs
    arguments = {b.op: b.shape for b in program.compiled.buffers if b.kind == "argument"}
    # Two KV heads over four devices: one head each, and the sequences (7, filled up to 8) halved;
    # each has ten pages of 64 tokens, in which a head's 64 numbers of key and of value lie side by
    # side.
    found = {name: shape for name, shape in arguments.items() if "pages[0]" in name}
    assert set(found.values()) == {"bf16[4,40,64,128]"}
    assert "our kernel of pages; JAX's kernel serves where keys and" in program.compiled.notes[0]
    assert program.timeline is not None
    assert not program.timeline.uncounted
    values = [
        shape for op, shape in arguments.items() if op.startswith("params['layers'][0]['mlp.up']")
    ]
    assert "s8[4,512,256]" in values
    predicted = program.planned.flops
    assert float(program.work.work.flops()) == pytest.approx(predicted, rel=0.25)


def test_of_a_plan_for_a_load_what_its_pages_hold_is_compiled():
    """Sequences of whole pages in 0.9 of the memory of four chips, fewer than the 602 admitted."""
    plan = replace(
        serving("llama-3-8b"),
        slice="v5e:2x2",
        mesh={"tensor": 4},
        box=(2, 2),
        batch=602,
        input_length=1024,
        output_length=200,
        kv_sharding="heads",
        engine="jax",
        workload=Workload(rate=30.0),
    )
    held = held_at_once(plan, HARDWARE)
    server = server_of(plan, load_model("llama-3-8b"), parse_slice("v5e:2x2"))
    least, most = (server.peak_bytes(held * k)[0] / server.usable_bytes for k in (1, 1.1))
    assert least < 0.9 < most


def test_phases_and_slices_that_a_plan_does_not_have_are_refused(tiny):
    said = "--phase train is not a step of this plan; choose decode, prefill"
    with pytest.raises(BadRequest, match=said):
        compile_plan(serving(tiny), HARDWARE, phases=("train",))
    with pytest.raises(BadRequest, match="cannot be compiled for"):
        compile_plan(serving(tiny, mesh={"tensor": 8}), HARDWARE, on="mi300x:8")


def test_dtypes_that_the_runtime_does_not_serve_are_refused_by_name(tiny):
    plan = serving(tiny, dtypes=ServeDtypes(weights="int8", kv="int4"))
    with pytest.raises(BadRequest, match=r"dtypes\.kv is 'int4'; the runtime keeps its cache in"):
        compile_plan(plan, HARDWARE, phases=("decode",), limits=Limits(cache=None))


@pytest.mark.parametrize(
    ("function", "args", "words"),
    spread(
        [
            (
                "mycode:none",
                "mycode:args",
                r"'mycode:none': module 'mycode' has no 'none'",
            ),
            ("nocode:mlp", "mycode:args", r"there is no module 'nocode' here"),
            ("mycode", "mycode:args", r"function 'mycode' is not MODULE:NAME"),
            ("mycode:NUMBER", "mycode:args", r"is a int; it must be a function"),
        ],
        slow=3,
        rows=True,
    ),
)
def test_names_that_lead_nowhere_are_refused(here, function, args, words):
    with pytest.raises(BadRequest, match=words):
        compiled(args, Limits(cache=None), function=function)


def test_an_error_of_the_users_code_is_its_own(here):
    with pytest.raises(ShardwiseError, match="ValueError: no arguments today"):
        compiled("mycode:broken", Limits(cache=None))


def test_a_compile_that_takes_too_long_is_stopped(here):
    with pytest.raises(ShardwiseError, match=r"the compile for 'v5e:2x2' was stopped after 0\.3 s"):
        compiled("mycode:args", Limits(cache=None, seconds=0.3))


def test_a_compiler_that_crashes_is_an_error_with_its_signal():
    piece = parse_slice("v5p:4x4x4")
    target = target_of(piece, mesh_coordinates(piece, {"x": 64}))
    twisted = replace(target, topology="v5p:4x4x4_twisted")  # libtpu 0.0.42 aborts on it
    with pytest.raises(ShardwiseError, match="it crashed with SIGABRT") as error:
        compile_ahead(twisted, "builtins:len", {}, limits=Limits(cache=None))
    assert error.value.exit_code == 1


def test_a_topology_that_the_compiler_does_not_know_is_refused():
    piece = parse_slice("v5e:2x2")
    target = replace(target_of(piece, mesh_coordinates(piece, {"x": 4})), topology="v9:2x2")
    with pytest.raises(BadRequest, match=r"the compiler does not take 'v5e:2x2' \(as 'v9:2x2'\)"):
        compile_ahead(target, "builtins:len", {}, limits=Limits(cache=None))


@pytest.mark.parametrize(
    ("on", "package", "extra"),
    [
        ("v5e:2x2", "libtpu", "tpu-compile"),
        ("h100:4", "jax_cuda12_plugin", "gpu-compile"),
        ("h100:4", "nvidia.cudnn", "gpu-compile"),
    ],
)
def test_a_missing_compiler_comes_with_its_install_command(here, monkeypatch, on, package, extra):
    import importlib.util

    found = importlib.util.find_spec
    others = {"jax_cuda12_plugin", "nvidia.cudnn"}  # not here, but not what is missing
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda x: None if x == package else found("jax") if x in others else found(x),
    )
    with pytest.raises(MissingPart, match=rf"pip install '\.\[{extra}\]'") as error:
        compiled("mycode:args", Limits(cache=None), on=on)
    assert error.value.exit_code == 5


def test_a_child_ends_with_its_parent(tmp_path):
    (tmp_path / "asleep.py").write_text(
        "import os, pathlib, time\n"
        "def run(path):\n"
        "    pathlib.Path(path).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    code = (
        "from shardwise.profiler import run_function\n"
        f"run_function('asleep:run', {{'path': {str(tmp_path / 'pid')!r}}})\n"
    )
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", code], env=around)
    pid = _written(tmp_path / "pid")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(600):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"process {pid} outlived its parent")


def _written(path):
    for _ in range(600):
        if path.is_file() and path.read_text():
            return int(path.read_text())
        time.sleep(0.1)
    raise AssertionError("the child did not start")


def test_a_prompt_of_several_chunks_is_compiled_and_priced_as_one():
    plan = ServePlan(
        model="llama-3-8b",
        model_hash="",
        slice="v5e:2x4",
        mesh={"data": 4, "tensor": 2},
        box=(2, 4),
        batch=64,
        input_length=3000,
        output_length=128,
        prefill_chunk=1024,
    )
    assert chunk_of(replace(plan, input_length=1024)) is None
    chunk = chunk_of(plan)
    assert chunk == replace(plan, input_length=1000)
    hardware = Hardware()
    whole, part = (predicted_of(price_plan(p, hardware), "prefill") for p in (plan, chunk))
    assert 0.25 < part.flops / whole.flops < 1 / 3
