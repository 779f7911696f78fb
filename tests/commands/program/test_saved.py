"""Programs that exist already: saved texts, folders of dumps, values of `jax.stages`."""

import gzip
import importlib
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import shardwise as sw
from shardwise.apps.cli import main
from shardwise.commands.program import saved as entries
from shardwise.commands.program.saved import platform_of
from shardwise.errors import BadRequest
from shardwise.profiler.ahead.saved import saved_program
from shardwise.profiler.ahead.stablehlo import saved_module

DATA = Path(__file__).parents[2] / "profiler" / "explain" / "data"
FAULT = DATA / "gathered_cache.a.fault.hlo.gz"
SCRIPTS = Path(__file__).parents[3] / "scripts"
KEPT = Path(__file__).parents[2] / "kept"
CLEAN = DATA / "good_mlp.a.clean.hlo.gz"
HEAD = """#loc1 = loc("x")
module @jit_step attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=2, "tensor"=2]>
  func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
    return %arg0 : tensor<8x8xf32>
  }
}
"""


def said(capsys, *args):
    """(code, stdout, stderr) of a command."""
    with pytest.raises(SystemExit) as end:
        main(list(map(str, args)))
    out = capsys.readouterr()
    return end.value.code, out.out, out.err


def test_a_compiled_text_is_explained_as_it_is():
    found = sw.explain(FAULT, on="v5e:2x4", mesh="data=4,tensor=2")
    assert found.phase.startswith("jit_")
    assert "gathered cache" in [f.rule for f in found.findings]
    assert not found.warnings


def test_its_mesh_is_read_from_its_collectives(tmp_path):
    text = tmp_path / "program.hlo"
    text.write_bytes(gzip.decompress(CLEAN.read_bytes()))
    found = sw.explain(str(text), on="v5e:2x4")
    named = sw.explain(CLEAN, on="v5e:2x4", mesh={"data": 4, "tensor": 2})
    assert found.step_seconds.expected == pytest.approx(named.step_seconds.expected)
    assert "its axes are named in order" in found.warnings[0]


def test_a_text_says_which_compiler_made_it():
    assert platform_of(gzip.decompress(CLEAN.read_bytes()).decode()) == "tpu"
    assert platform_of(jax.jit(lambda x: x @ x.T).lower(jnp.ones((256, 256))).as_text()) == ""


def test_a_cpus_text_on_a_tpu_is_said_so():
    """The text of a `jax.stages.Compiled` of this process."""
    compiled = jax.jit(lambda x: jnp.tanh(x @ x) @ x).lower(jnp.ones((256, 256))).compile()
    assert "was compiled for a CPU" in sw.explain(compiled, on="v5e:1x1").warnings[0]


def dump(folder):
    """A folder as XLA leaves it: two programs at several stages."""
    for number, (name, path) in enumerate((("jit_small", CLEAN), ("jit_step", FAULT))):
        prefix = f"module_{number:04d}.{name}.cl_933746096"
        text = gzip.decompress(path.read_bytes())
        (folder / f"{prefix}.before_optimizations.txt").write_bytes(b"HloModule x\n" + text * 2)
        (folder / f"{prefix}.after_optimizations.txt").write_bytes(text)
        (folder / f"{prefix}.after_optimizations-buffer-assignment.txt").write_text("")
    return folder


def test_of_a_dump_the_largest_program_is_explained(tmp_path):
    dump(tmp_path)
    found = sw.explain(tmp_path, on="v5e:2x4", mesh="data=4,tensor=2")
    assert found.phase == "jit_step"
    assert "gathered cache" in [f.rule for f in found.findings]
    (warning,) = found.warnings
    assert "largest program" in warning
    assert "module_0000.jit_small.cl_933746096.after_optimizations.txt" in warning


def test_a_programs_name_in_a_dump_is_that_of_its_function(tmp_path):
    for middle in ("sm_9.0_gpu_", "cpu_", "cl_12.", ""):
        folder = tmp_path / f"of{middle}"
        folder.mkdir()
        target = folder / f"module_0007.jit_train_step.{middle}after_optimizations.txt"
        target.write_bytes(gzip.decompress(CLEAN.read_bytes()))
        found = saved_program(folder)
        assert found is not None
        assert found.name == "jit_train_step", middle


@pytest.fixture
def sent(monkeypatch):
    """What would be compiled."""
    asked = []

    def compile_ahead(target, builder, arguments, **_):
        asked.append((target, builder, arguments, Path(arguments["path"]).read_text()))
        raise BadRequest("seen")

    monkeypatch.setattr(entries, "compile_ahead", compile_ahead)
    return asked


def test_stablehlo_is_compiled_on_its_own_mesh(sent, tmp_path, capsys):
    path = tmp_path / "step.mlir.gz"
    path.write_bytes(gzip.compress(HEAD.encode()))
    assert said(capsys, "explain", path, "--on", "v5e:2x2") == (2, "", "error: seen\n")
    ((target, builder, arguments, text),) = sent
    assert (target.slice, builder) == ("v5e:2x2", entries.SAVED_BUILDER)
    assert (arguments["mesh"], text) == ({"data": 2, "tensor": 2}, HEAD)


def test_a_lowered_function_is_compiled_as_it_is(sent):
    def double(x):
        return x * 2

    with pytest.raises(BadRequest, match="seen"):
        sw.explain(jax.jit(double).lower(jnp.ones((8, 8))), on="v5e:1x1")
    assert sent[0][2]["mesh"] == {"x": 1}
    assert 'loc("x")' in sent[0][3]  # names and lines travel


def test_what_was_lowered_for_others_says_so(tmp_path, capsys):
    path = tmp_path / "step.mlir"
    path.write_text(HEAD)
    code, _, err = said(capsys, "explain", path, "--on", "v5e:4x4")
    assert code == 2
    assert "was lowered for 4 devices, and v5e:4x4 has 16" in err
    code, _, err = said(capsys, "explain", path, "--on", "v5e:2x2", "--mesh", "x=8")
    assert code == 2
    assert "mesh x=8 has another number" in err
    code, _, err = said(capsys, "explain", CLEAN, "--on", "v5e:4x4")
    assert code == 2
    assert "was compiled for 8 devices, and v5e:4x4 has 16" in err
    code, _, err = said(capsys, "explain", path)
    assert code == 2
    assert "names no chip; give its slice with --on SLICE" in err


def test_a_compiled_text_is_not_compiled_again(capsys):
    code, _, err = said(capsys, "compile", CLEAN, "--on", "v5e:2x4")
    assert code == 2
    assert "is compiled already; `shardwise explain`" in err


BAD = {
    "picture.png": (b"\x89PNG\r\n", "is a PNG picture"),
    "step.py": (b"import jax\ndef f(x):\n    return x\n", "name a function of it: step:FUNCTION"),
    "host.xplane.pb": (b"\x0a\x10", "profile --capture"),
    "module.hlo.pb": (b"\x0a\x10", "--xla_dump_hlo_as_text"),
    "trace.json": (b'{"displayTimeUnit": "ns", "traceEvents": []}', "profile --capture"),
    "jaxpr": (b"{ lambda ; a:f32[8]. let b:f32[8] = sin a in (b,) }", "is a jaxpr"),
    "step.mlirbc": (b"ML\xefR\x0d", "is MLIR bytecode"),
    "weights.safetensors": (b"\x10\0\0\0\0\0\0\0" + b'{"a":{}}' + b" " * 16, "a safetensors"),
    "before.txt": (b"HloModule jit_f, num_partitions=4\n", "not compiled to the end"),
    "noise": (bytes(range(1, 40)), "binary data of an unknown kind"),
    "empty.hlo": (b"", "is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_program_is_named(tmp_path, capsys, name):
    data, words = BAD[name]
    (tmp_path / name).write_bytes(data)
    code, _, err = said(capsys, "explain", tmp_path / name, "--on", "v5e:2x2")
    assert code == 2
    assert words in " ".join(err.split()), err
    assert "Traceback" not in err


def test_a_folder_without_programs_is_named(tmp_path, capsys):
    code, _, err = said(capsys, "explain", tmp_path, "--on", "v5e:2x2")
    assert code == 2
    assert "it is empty" in err
    (tmp_path / "module_0001.hlo.pb").write_bytes(b"\x0a")
    assert "protocol buffers alone" in said(capsys, "explain", tmp_path, "--on", "v5e:2x2")[2]
    shutil.rmtree(tmp_path)
    (tmp_path / "plugins").mkdir(parents=True)
    assert "profile --capture" in said(capsys, "explain", tmp_path, "--on", "v5e:2x2")[2]


def test_the_child_compiles_a_text_as_it_is(tmp_path):
    """On the CPU, whose client takes the same call."""
    path = tmp_path / "step.mlir"
    text = jax.jit(lambda x: x + 1).lower(jnp.ones((8,))).as_text(debug_info=True)
    path.write_text(text)
    program = saved_module(jax.devices("cpu")[:1], str(path), {"x": 1})
    lowered = program.function.lower(*program.arguments)
    assert lowered.as_text(debug_info=True) == text
    assert lowered.compile({}).as_text().startswith("HloModule")
    assert dict(program.mesh.shape) == {"x": 1}
    path.write_text(text[: len(text) // 2])
    broken = saved_module(jax.devices("cpu")[:1], str(path), {"x": 1})
    with pytest.raises(BadRequest, match="the StableHLO text cannot be read"):
        broken.function.lower().compile({})


@pytest.mark.slow
def test_a_saved_function_is_the_live_one(monkeypatch):
    """What `scripts/kept_programs.py` compiled as a function, compiled from its text."""
    monkeypatch.syspath_prepend(SCRIPTS)
    programs = importlib.import_module("kept_programs")
    on, sizes = programs.PROGRAMS["decode_mlp"]
    mesh = jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))
    traced = jax.jit(programs.decode_mlp).trace(*programs.decode_mlp_args(mesh))
    found = sw.explain(traced.lower(lowering_platforms=("tpu",)), on=on)
    live = sw.explain(KEPT / "decode_mlp.hlo.gz", on=on, mesh=sizes)
    assert found.step_seconds.expected == pytest.approx(live.step_seconds.expected, rel=0.02)
    assert {a.name for a in found.arguments} == {"x", "w_in", "w_out"}
    assert any("kept_programs.py:" in line.where for line in found.lines)


def test_the_builder_is_a_name_that_a_child_finds():
    module, _, name = entries.SAVED_BUILDER.partition(":")
    assert (module, name) == (saved_module.__module__, saved_module.__name__)


def test_a_page_with_code_in_it_is_no_python_source(tmp_path):
    (tmp_path / "notes.md").write_text("# Notes\n\n```\nimport jax\n```\n")
    with pytest.raises(BadRequest) as refused:
        sw.explain(str(tmp_path / "notes.md"), on="v5e:2x2")
    assert "Python source" not in str(refused.value)


def test_lines_of_an_installed_project_are_told_as_the_users(tmp_path):
    text = gzip.decompress(FAULT.read_bytes()).decode()
    program = tmp_path / "program.hlo"
    program.write_text(text.replace('"scripts/', '"/v/lib/python3.12/site-packages/llm/'))
    (finding,) = sw.explain(program, on="v5e:2x4", mesh="data=4,tensor=2", package="llm").findings
    assert finding.where.startswith("llm/explain_programs.py:")
    with pytest.raises(BadRequest, match=r"an installed package of that name; it has .*llm"):
        sw.explain(program, on="v5e:2x4", mesh="data=4,tensor=2", package="lm")
