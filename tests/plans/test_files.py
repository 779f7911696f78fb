"""Plans as YAML: read back exactly, checked by name, nearest spelling and value."""

import json
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.models.cases import llama
from tests.plans.test_train_plan import PLAN

from shardwise.commands.pricing.plans import load_plan
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.errors import BadRequest
from shardwise.hardware import load_chip
from shardwise.models import load_model
from shardwise.models.remat import REMAT_POLICIES
from shardwise.plans import (
    MESH_AXES,
    ServePlan,
    TrainDtypes,
    TrainPlan,
    model_hash,
    save_plan,
)
from shardwise.plans.files import flat_plan, plan_dict, plan_from
from shardwise.plans.train import PLACINGS

DTYPES = st.sampled_from(["f32", "bf16", "fp8", "mxfp4"])
WORDS = st.text(min_size=1, max_size=20)


@st.composite
def train_plans(draw):
    axes = [a for a in MESH_AXES if draw(st.booleans())]
    mesh = {a: draw(st.integers(1, 64)) for a in axes}
    shards = 1
    for axis in ("replica", "data", "fsdp", "expert"):
        shards *= mesh.get(axis, 1)
    microbatches = draw(st.integers(1, 64))
    return TrainPlan(
        model=draw(WORDS),
        model_hash=draw(WORDS),
        slice=draw(WORDS),
        mesh=mesh,
        box=tuple(draw(st.lists(st.integers(1, 64), min_size=1, max_size=3))),
        placement=draw(st.sampled_from(PLACINGS)),
        global_batch_sequences=shards * microbatches * draw(st.integers(1, 9)),
        sequence_length=mesh.get("context", 1) * draw(st.integers(1, 10**6)),
        microbatches=microbatches,
        layers_per_stage=tuple(draw(st.integers(1, 99)) for _ in range(mesh.get("stage", 1))),
        zero=draw(st.integers(0, 2)),
        sequence_parallel=draw(st.booleans()),
        remat=draw(st.sampled_from(REMAT_POLICIES)),
        dtypes=TrainDtypes(
            param=draw(DTYPES),
            compute=draw(DTYPES),
            grad=draw(DTYPES),
            master=draw(st.one_of(DTYPES, st.just("none"))),
            moments=draw(DTYPES),
        ),
        constants=draw(st.sampled_from(["vendor", "book"])),
    )


@settings(max_examples=40)
@given(plan=train_plans())
def test_a_plan_reads_back_exactly(plan, tmp_path):
    """Names such as "yes", "1e3" or a lone colon are strings and stay strings."""
    path = tmp_path / "plan.yaml"
    save_plan(plan, path)
    again = load_plan(path)
    assert again == plan
    assert isinstance(again, TrainPlan)
    assert list(again.mesh) == list(plan.mesh)
    assert plan_from(plan_dict(plan), "here") == plan


@pytest.fixture
def path(tmp_path) -> Path:
    save_plan(PLAN, tmp_path / "p.yaml")
    return tmp_path / "p.yaml"


def test_the_file_starts_with_its_kind_and_is_json_too(path, tmp_path):
    import json

    assert path.read_text().startswith("kind: train\nmodel: llama-3-8b\n")
    as_json = tmp_path / "p.json"
    as_json.write_text(json.dumps(plan_dict(PLAN)))
    assert load_plan(as_json) == PLAN


def test_choices_left_out_take_their_defaults(tmp_path):
    keep = {k: v for k, v in plan_dict(PLAN).items() if k not in ("dtypes", "remat", "zero")}
    assert plan_from(keep, "here") == PLAN


def test_every_choice_has_a_dotted_path():
    flat = flat_plan(PLAN)
    assert flat["mesh.fsdp"] == 16
    assert flat["dtypes.master"] == "f32"
    assert flat["layers_per_stage"] == [16, 16]
    assert flat["kind"] == "train"


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        ({"remat": "none"}, {"remat": "none"}),
        ({"microbatches": "8"}, {"microbatches": 8}),
        ({"dtypes.compute": "fp8"}, {"dtypes": TrainDtypes(compute="fp8")}),
        ({"sequence_parallel": "false"}, {"sequence_parallel": False}),
        (
            {"mesh": "{fsdp: 16}", "layers_per_stage": "[32]"},
            {"mesh": {"fsdp": 16}, "layers_per_stage": (32,)},
        ),
        ({"layers_per_stage": "[20, 12]"}, {"layers_per_stage": (20, 12)}),
    ],
)
def test_overrides(path, overrides, changes):
    assert load_plan(path, overrides) == replace(PLAN, **changes)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"remta": "block"}, "unknown key 'remta'; did you mean 'remat'?"),
        ({"dtypes.parm": "f32"}, "unknown key 'dtypes.parm'; did you mean 'dtypes.param'"),
        ({"dtypes.param.bits": "3"}, "unknown key 'dtypes.param.bits'"),
        ({"nothing.here": "3"}, "unknown key 'nothing.here'"),
        ({"": "3"}, "unknown key ''"),
        ({"remat": "blok"}, "key 'remat' is 'blok'; it must be 'none', 'matmul_outputs', 'block'"),
        ({"microbatches": "1.5"}, "key 'microbatches' is 1.5; it must be a whole number"),
        ({"microbatches": "many"}, "key 'microbatches' is 'many'; it must be a whole number"),
        ({"zero": "true"}, "key 'zero' is true; it is no switch, so give its value"),
        ({"microbatches": ".nan"}, "--set microbatches: the value is nan; numbers must be finite"),
        ({"microbatches": ""}, "key 'microbatches' is empty; it must be a whole number"),
        ({"mesh": "3"}, "key 'mesh' is 3; it must be a mapping of keys to values"),
        ({"mesh.fsdp": "lots"}, "key 'mesh.fsdp' is 'lots'; it must be a whole number"),
        ({"mesh.tensro": "2"}, "unknown mesh axis 'tensro'; did you mean 'tensor'?"),
        ({"box": "[4, 4, 4.5]"}, "key 'box.2' is 4.5; it must be a whole number"),
        ({"layers_per_stage": "32"}, "key 'layers_per_stage' is 32; it must be a list"),
        ({"model": "7"}, "key 'model' is 7; it must be text"),
        ({"constants": "bok"}, "key 'constants' is 'bok'; it must be 'vendor' or 'book'"),
        ({"kind": "trian"}, "unknown plan kind 'trian'; did you mean 'train'?"),
        ({"kind": "[1]"}, "unknown plan kind '[1]'"),
        ({"remat": "["}, "the value of --set remat is not YAML at line 1 column 2"),
        ({"remat": "2024-13-01"}, "the value of --set remat is not YAML"),
        ({"global_batch_sequences": "100"}, "the nearest legal batch is 128 sequences"),
    ],
)
def test_overrides_that_are_refused(path, overrides, said):
    with pytest.raises(BadRequest) as refused:
        load_plan(path, overrides)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no keys and values"),
        (b"[1, 2]", "has no keys and values"),
        (b"just words", "has no keys and values"),
        (b"kind: train\nmesh: {fsdp: 4, ten", "is not YAML at line 2 column 20"),
        (b"kind: train\n\tmodel: x", "is not YAML at line 2 column 1"),
        (b"\xff\xfe\x00", "is not text in UTF-8"),
        (b"kind: train\nmodel: a\x00b", "is not text: line 2 holds a NUL byte"),
        (b"model: llama-3-8b", "lacks slice, mesh, batch, length"),
        (b"kind: train\nmodel: llama-3-8b", "lacks slice, mesh, batch, length"),
        (b"kind: train\nmodle: llama-3-8b", "unknown key 'modle'; did you mean 'model'"),
        (b"kind: train\n7: llama-3-8b", "the key 7 is not text; quote it"),
    ],
)
def test_files_that_are_no_plan(tmp_path, content, said):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    with pytest.raises(BadRequest) as refused:
        load_plan(path)
    assert said in str(refused.value)
    assert "broken.yaml" in str(refused.value)


def test_a_plan_cut_off_anywhere_is_refused_or_lacks_a_key(path, tmp_path):
    """No prefix of a plan file is taken for a plan of other choices without notice: only the
    trailing defaults may be missing."""
    text = path.read_text()
    cut = tmp_path / "cut.yaml"
    for end in range(0, len(text), 7):
        cut.write_text(text[:end])
        try:
            plan = load_plan(cut)
        except BadRequest:
            continue
        assert plan.slice == PLAN.slice  # type: ignore[union-attr]
        assert plan.mesh == PLAN.mesh  # type: ignore[union-attr]


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(BadRequest, match=r"cannot read the plan .*nowhere\.yaml': no such file"):
        load_plan(tmp_path / "nowhere.yaml")
    with pytest.raises(BadRequest, match=r"cannot read the plan .*: it is a folder"):
        load_plan(tmp_path)
    with pytest.raises(BadRequest, match=r"the folder '.*missing' does not exist"):
        save_plan(PLAN, tmp_path / "missing" / "p.yaml")
    with pytest.raises(BadRequest, match=r"cannot write .*: Is a directory"):
        save_plan(PLAN, tmp_path)
    with pytest.raises(BadRequest, match=r"cannot write .*: File name too long"):
        save_plan(PLAN, tmp_path / ("x" * 300))


def test_serve_plans_read_back_too(tmp_path):
    fields = {
        "model": "llama-3-8b",
        "model_hash": "0123",
        "slice": "v5e:2x2",
        "mesh": {"tensor": 4},
        "box": (2, 2),
        "batch": 32,
        "input_length": 1024,
        "output_length": 256,
    }
    plan = ServePlan(**fields)
    save_plan(plan, tmp_path / "s.yaml")
    assert load_plan(tmp_path / "s.yaml") == plan
    with pytest.raises(BadRequest, match="unknown key 'microbatches'"):
        load_plan(tmp_path / "s.yaml", {"microbatches": "2"})


FIVE = (
    "model: llama-3-8b\nslice: v5p:4x4x8\nmesh: {tensor: 2, fsdp: 64}\nbatch: 4Mi\nlength: 8192\n"
)


def test_a_plan_of_five_keys_is_worked_out(tmp_path):
    path = tmp_path / "five.yaml"
    path.write_text(FIVE)
    plan = load_plan(path)
    assert isinstance(plan, TrainPlan)
    assert (plan.global_batch_sequences, plan.sequence_length) == (512, 8192)
    assert (plan.box, plan.slices, plan.layers_per_stage) == ((4, 4, 8), 1, (32,))
    assert list(plan.mesh) == ["fsdp", "tensor"]  # outermost first, whatever the file's order
    save_plan(plan, tmp_path / "full.yaml")
    assert load_plan(tmp_path / "full.yaml") == plan


def test_all_keys_that_a_plan_by_hand_lacks_are_named_at_once(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text("slice: v5p:4x4x8\nbatch: 4Mi\n")
    with pytest.raises(
        BadRequest, match=r"lacks model, mesh, length\n.* needs five keys, such as:"
    ):
        load_plan(path)
    path.write_text(FIVE.replace("64", "63"))
    with pytest.raises(BadRequest, match="126 devices does not fit v5p:4x4x8, which has 128"):
        load_plan(path)


def test_a_model_s_path_is_seen_from_the_plan_s_file(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "model.json").write_text(json.dumps(llama()))
    (tmp_path / "plans").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    cfg = load_model("model.json")
    plan = replace(PLAN, model="model.json", model_hash=model_hash(cfg))
    save_plan(plan, tmp_path / "plans" / "p.yaml")
    assert "model: ../here/model.json" in (tmp_path / "plans" / "p.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    assert load_model(load_plan("plans/p.yaml").model).layers == cfg.layers


def test_a_key_under_another_name_is_told_by_its_own(tmp_path):
    path = tmp_path / "seq.yaml"
    path.write_text("model: llama-3-8b\nmesh: {fsdp: 8}\nseq: 8192\nglobal_batch: 4Mi\n")
    with pytest.raises(BadRequest) as error:
        load_plan(path)
    told = str(error.value)
    assert "lacks slice, batch (for its 'global_batch'), length (for its 'seq')" in told
    example = "\n".join(line.strip() for line in told.splitlines()[2:])
    path.write_text(example)
    assert load_plan(path).sequence_length == 8192


@pytest.mark.parametrize(
    ("on", "mesh", "software", "stack"),
    [
        ("v5p:4x4x8", "{fsdp: 128}", "maxtext", "xla"),
        ("h100:16", "{data: 2, fsdp: 4, tensor: 2}", "megatron", "megatron"),
        ("v5e:4x4", "{fsdp: 8}", "jax", "jax"),  # MaxText takes whole slices
    ],
)
def test_what_a_plan_by_hand_leaves_out_is_what_a_search_takes(tmp_path, on, mesh, software, stack):
    path = tmp_path / "five.yaml"
    path.write_text(f"model: llama-3-8b\nslice: {on}\nmesh: {mesh}\nbatch: 128seq\nlength: 2k\n")
    plan = load_plan(path)
    assert (plan.software, plan.stack) == (software, stack)
    row = TrainChoices().programs(load_chip(on.partition(":")[0]))
    rows = [row for group in row for row in group if row and row.name == software]
    assert plan.dtypes == TrainChoices().dtypes(rows[0] if rows else None)
    path.write_text(path.read_text() + "software: any\nstack: fsdp\ndtypes: {grad: f32}\n")
    plan = load_plan(path)
    assert (plan.software, plan.stack) == ("any", "fsdp")
    assert (plan.dtypes.grad, plan.dtypes.param) == ("f32", "bf16")


def test_parameters_in_f32_need_no_copy_beside_them(tmp_path):
    path = tmp_path / "plan.yaml"
    plain = FIVE.replace("v5p:4x4x8", "16*h100:8") + "software: any\n"
    path.write_text(plain + "dtypes: {param: f32}\n")
    assert load_plan(path).dtypes == TrainDtypes(param="f32", master="none")
    assert TrainChoices(param_dtype="f32").dtypes(None) == TrainDtypes(param="f32", master="none")
    path.write_text(plain + "dtypes: {param: f32, master: f32}\n")
    assert load_plan(path).dtypes == TrainDtypes(param="f32")
    assert TrainChoices(param_dtype="f32", master="f32").dtypes(None).master == "f32"


def test_a_program_that_a_plan_by_hand_names_is_kept(tmp_path):
    path = tmp_path / "five.yaml"
    path.write_text(FIVE.replace("v5p:4x4x8", "16*h100:8") + "software: torchtitan\n")
    plan = load_plan(path)
    assert (plan.software, plan.stack) == ("torchtitan", "fsdp")
    assert (plan.dtypes.param, plan.dtypes.master) == ("f32", "none")


def test_another_software_comes_with_its_own_stack(tmp_path):
    path = tmp_path / "plan.yaml"
    save_plan(replace(PLAN, slice="h100:8", software="megatron", stack="megatron"), path)
    changed = load_plan(path, {"software": "torchtitan"})
    assert (changed.software, changed.stack) == ("torchtitan", "fsdp")
    assert load_plan(path, {"software": "jax"}).stack == "jax_gpu"
    assert load_plan(path, {"software": "any", "stack": "xla"}).stack == "xla"


def test_a_plan_of_before_a_program_had_its_stack_loads():
    old = Path(__file__).parents[2] / "benchmarks" / "plans" / "train_70b_v5p.yaml"
    assert (load_plan(old).software, load_plan(old).stack) == ("jax", "xla")


def test_a_file_with_the_stack_of_another_program_is_refused(tmp_path):
    path = tmp_path / "plan.yaml"
    save_plan(replace(PLAN, software="megatron", stack="megatron"), path)
    path.write_text(path.read_text().replace("software: megatron", "software: torchtitan"))
    with pytest.raises(BadRequest, match="'megatron', and software torchtitan is priced by fsdp"):
        load_plan(path)
    with pytest.raises(BadRequest, match="leave out the key 'stack'"):
        load_plan(replace(PLAN, software="megatron", stack="megatron"), {"stack": "xla"})
