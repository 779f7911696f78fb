"""Names from outside stay names: no export runs them, no reader runs what it is given."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest
import yaml
from tests.planner.export.exporting import DENSE, DENSE_CONFIG, STORED_F32, a_plan
from tests.planner.export.test_serving import a_plan as a_serving_plan

from shardwise.apps.cli import main
from shardwise.errors import BadRequest
from shardwise.models import from_hf
from shardwise.planner.export import export_plan, parse_export
from shardwise.planner.export.serving import SERVE_EXPORTERS, export_serve, parse_serve
from shardwise.planner.export.xpk import job_name
from shardwise.plans import model_hash, save_plan

NAMES = [
    'a"; import os; os.system("touch ran") #',
    "a'; touch ran #",
    "$(touch ran)",
    "`touch ran`",
    "a; touch ran",
    "a | touch ran",
    "a\ntouch ran\n",
    "a\r\ntouch ran",
    "a'\ntouch ran\n'",
    "a\nsetup: touch ran\nrun: touch ran",
    'a"""\nimport os\nos.system("touch ran")\n"""',
    'a"""; __import__("os").system("touch ran"); """',
    'a\\"""\nimport os\nos.system("touch ran")\n"""',
    "a\\",
    '"""',
    "'''",
    '"',
    'a\\"',
    "{0.__class__}{model}",
    "%s%n",
    "a\n# shardwise: microbatches: 7",
    "a\u2028# shardwise: microbatches: 7",
    "a\x85touch ran",
    "a\x00b",
    "a\x1b[2J",
    "-rf --help",
    "null",
    "1e5",
    "&x *x !!python/object/apply:os.system ['touch ran']",
]

LAUNCHERS = (
    "python",
    "python3",
    "torchrun",
    "xpk",
    "vllm",
    "trtllm-serve",
    "pretrain_gpt.py",
    "head",
    "srun",
    "scontrol",
)

STUBS = """
import sys, types
class Anything:
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __setattr__(self, name, value): pass
    def __iter__(self): return iter(())
for name in ("torchtitan", "torchtitan.distributed", "torchtitan.trainer",
             "torchtitan.distributed.activation_checkpoint", "torchtitan.components",
             "torchtitan.components.loss", "torchtitan.models", "torchtitan.models.common",
             "torchtitan.models.common.config_utils", "torchtitan.models.dense"):
    module = types.ModuleType(name)
    module.__getattr__ = lambda _: Anything()
    sys.modules[name] = module
"""


def exports(name):
    """(target, text, the plan that comes back) of a plan of a model of this name, for all."""
    cfg = replace(DENSE, name=name)
    tpu, _, piece = a_plan("dense", "v5e:4x4", {"fsdp": 16})
    gpu, _, gpus = a_plan("dense", "h100:8", {"fsdp": 8}, zero=0)
    tpu, gpu = replace(tpu, model=name), replace(gpu, model=name, dtypes=STORED_F32)
    for target in ("maxtext", "jax", "xpk", "skypilot"):
        text = export_plan(tpu, cfg, piece, target)
        yield target, text, tpu, parse_export(text, target)
    text = export_plan(gpu, cfg, gpus, "torchtitan")
    yield "torchtitan", text, gpu, parse_export(text, "torchtitan")
    gpu, _, _ = a_plan("dense", "h100:8", {"fsdp": 8}, remat="block")
    gpu = replace(gpu, model=name)
    for target in ("megatron", "skypilot"):
        text = export_plan(gpu, cfg, gpus, target)
        yield target, text, gpu, parse_export(text, target)
    serving, _, piece = a_serving_plan(engine="vllm")
    serving = replace(serving, model=name)
    for target in SERVE_EXPORTERS:
        text = export_serve(serving, cfg, piece, target)
        yield target, text, serving, parse_serve(text, target)


def resource_names(name):
    """What the objects of a model may be called."""
    plain = job_name(name)[:40].rstrip("-")
    return [plain, f"{plain}-serve", f"{plain}-bench"]


@pytest.fixture
def shell(tmp_path):
    """Runs a script with stand-ins for what it starts, or Python with stand-ins for what it
    imports, and says what else it left."""
    place, tools = tmp_path / "place", tmp_path / "tools"
    place.mkdir()
    tools.mkdir()
    for name in LAUNCHERS:
        (tools / name).write_text("#!/bin/sh\nexit 0\n")
        (tools / name).chmod(0o755)
    around = os.environ | {"PATH": f"{tools}:/usr/bin:/bin", "MODEL": "m", "CLUSTER": "c"}

    def run(target, text):
        if target in ("torchtitan", "jax"):
            code = STUBS + f"exec(compile({text!r}, 'export.py', 'exec'), made := {{}})\n"
            code += "made.get('plan', lambda: 0)()"
            command = [sys.executable, "-P", "-c", code]
        else:
            command = ["bash", "-c", yaml.safe_load(text)["run"] if target == "skypilot" else text]
        done = subprocess.run(command, cwd=place, env=around, capture_output=True, text=True)
        return done, list(place.iterdir())

    return run


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[1:30])
def test_an_exported_name_runs_nothing_and_the_plan_comes_back(name, shell):
    for target, text, plan, back in exports(name):
        assert back == plan, target
        text.encode()
        assert all(c == "\n" or c.isprintable() for c in text), target
        if target == "skypilot":
            task = yaml.safe_load(text)
            more = {"service", "envs", "setup"} if "service" in task else set()
            assert set(task) == {"name", "num_nodes", "resources", "run"} | more
            assert isinstance(task["name"], str)
        if target == "k8s":
            made = list(yaml.safe_load_all(text))
            assert [d["kind"] for d in made] == ["ConfigMap", "Deployment", "Job", "Service"]
            assert {d["metadata"]["name"] for d in made} <= set(resource_names(name))
            continue  # no shell sees it
        if target == "jax":
            ast.parse(text)
            continue  # it only has rows of a table; JAX takes seconds to import
        done, left = shell(target, text)
        assert (done.returncode, left, done.stderr) == (0, [], ""), target


def test_a_name_that_is_no_text_is_written_as_text():
    """A folder whose name is not UTF-8."""
    plan, _, piece = a_plan("dense", "v5e:4x4", {"fsdp": 16})
    cfg = replace(DENSE, name="a\udcff")
    text = export_plan(replace(plan, model="a\udcff"), cfg, piece, "maxtext")
    assert "run_name=a- " in text
    text.encode()


@pytest.mark.parametrize("name", [n for n in NAMES if "/" not in n and "\0" not in n][:16:3])
def test_a_hostile_model_folder_is_exported_through_the_command(tmp_path, capsys, shell, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DENSE_CONFIG))
    plan, _, _ = a_plan("dense", "h100:8", {"fsdp": 8}, zero=0, dtypes=STORED_F32)
    hashed = model_hash(from_hf(DENSE_CONFIG, name=name))
    save_plan(replace(plan, model=str(folder), model_hash=hashed), tmp_path / "plan.yaml")
    with pytest.raises(SystemExit) as ended:
        main(["export", str(tmp_path / "plan.yaml"), "--to", "torchtitan"])
    assert ended.value.code == 0
    done, left = shell("torchtitan", capsys.readouterr().out)
    assert (done.returncode, left, done.stderr) == (0, [], "")


RUNS = "__import__('os').system('touch ran')"


@pytest.mark.parametrize(
    ("target", "old", "new"),
    [
        ("torchtitan", "degree = 8", f"degree = {RUNS}"),
        ("torchtitan", "FullAC.Config()", RUNS),
        ("torchtitan", "import FullAC", "import FullAC\nconfig.a.b = {[]: 1}\nimport FullAC"),
        ("torchtitan", "import FullAC", f"import FullAC\nconfig.a.b = {'-' * 5000}1\nX = FullAC"),
        ("torchtitan", "degree = 8", f"degree = {'9' * 5000}"),
        ("torchtitan", "degree = 8", f"degree = {'+'.join('1' * 20000)}"),
        ("jax", "MESH_AXES = {'fsdp': 16}", f"MESH_AXES = {RUNS}"),
        ("jax", "MESH_AXES = {'fsdp': 16}", "MESH_AXES = {[]: 1}"),
        ("jax", "MESH_AXES = {'fsdp': 16}", f"MESH_AXES = {'+'.join('1' * 20000)}"),
        ("jax", "SEQUENCES, LENGTH = 512, 256", "SEQUENCES, LENGTH = 512, 256, 1"),
        ("jax", "SEQUENCES, LENGTH = 512, 256", "SEQUENCES, LENGTH = 512, 'a'"),
        ("jax", "SEQUENCES, LENGTH = 512, 256", f"SEQUENCES, LENGTH = 512, 1{'0' * 400}"),
        ("jax", "MICROBATCHES = 1", "MICROBATCHES = [1]"),
        ("jax", "MICROBATCHES = 1", f"MICROBATCHES = [0x1{'0' * 9000}]"),
        ("jax", "{'fsdp': 16}", f"{{'fsdp': 1{'0' * 400}}}"),
        ("jax", '"param": jnp', f"{RUNS}: jnp"),
        ("jax", "nothing_saveable", f"nothing_saveable + {'+'.join('1' * 20000)}"),
        ("maxtext", "per_device_batch_size=32.0", "per_device_batch_size=$(touch ran)"),
        ("maxtext", "per_device_batch_size=32.0", "per_device_batch_size=nan"),
        ("maxtext", "per_device_batch_size=32.0", "per_device_batch_size=inf"),
        ("maxtext", "per_device_batch_size=32.0", "per_device_batch_size=1e400"),
        ("maxtext", "gradient_accumulation_steps=1", "gradient_accumulation_steps=" + "9" * 5000),
        ("xpk", "--num-slices=1", "--num-slices='$(touch ran)'"),
        ("skypilot", "num_nodes: 1", "num_nodes: !!python/object/apply:os.system ['touch ran']"),
        ("skypilot", "num_nodes: 1", "num_nodes: .inf"),
        ("skypilot", "num_nodes: 1", "num_nodes: 0"),
        ("skypilot", "num_nodes: 1", "num_nodes: &a [*a, *a]"),
        ("skypilot", "num_nodes: 1", f"num_nodes: {'[' * 5000}"),
        ("skypilot", "tpu-v5litepod-16", "$(touch ran)"),
        ("torchtitan", "global_batch_size = 512", f"global_batch_size = 1{'0' * 400}"),
        ("megatron", "--attention-backend flash", f"--attention-backend '{'x' * 70000}\x02'"),
        ("torchtitan", "import FullAC", f"import FullAC\n{'a.' * 3000}b = c\nimport FullAC"),
        ("megatron", "--nnodes 1", f"--nnodes 1{'0' * 400}"),
        ("megatron", "--nnodes 1", "--nnodes `touch ran`"),
    ],
)
def test_a_reader_refuses_what_it_would_have_to_run(target, old, new, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = of_dense()[target]
    assert old in text
    with pytest.raises(BadRequest, match=target) as error:
        parse_export(text.replace(old, new), target)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600
    assert list(tmp_path.iterdir()) == []


@cache
def of_dense():
    """The first export for each target."""
    return {target: text for target, text, _, _ in reversed(list(exports("dense")))}


@pytest.mark.parametrize("held", ["[" * 5000, "NaN", "1e400", "9" * 5000, '{"a": 1, "a": 2}'])
def test_a_note_that_is_no_plain_value_is_refused(held):
    text = next(text for target, text, _, _ in exports("dense") if target == "maxtext")
    with pytest.raises(BadRequest, match="is not a note; write"):
        parse_export(f"{text}# shardwise: zero: {held}\n", "maxtext")


@pytest.mark.parametrize("tokens", ["Infinity", "1e400", "[" * 5000])
def test_a_guess_that_is_no_number_is_refused(tokens):
    text = next(text for target, text, _, _ in exports("dense") if target == "vllm")
    given = f'--speculative-config=\'{{"method": "ngram", "num_speculative_tokens": {tokens}}}\''
    with pytest.raises(BadRequest, match="a plan can say method ngram"):
        parse_serve(text.replace("--dtype", f"{given} \\\n  --dtype"), "vllm")
