"""TorchTitan: its fields for known plans, and that they, not the notes, count."""

import re
from dataclasses import replace

import pytest
from tests.planner.export.exporting import STORED_F32, a_plan

from shardwise.planner.export import export_plan, parse_export


@pytest.fixture
def torch_experts():
    """Experts over the expert and tensor axes: dp_shard 8 = fsdp 2 x expert 4, ep 8 = 4 x 2."""
    return a_plan(
        "moe",
        "4*h100:8",
        {"data": 2, "fsdp": 2, "expert": 4, "tensor": 2},
        zero=0,
        expert_over_tensor=True,
        expert_dispatch="ragged",
        microbatches=4,
        dtypes=STORED_F32,
    )


def test_torchtitan_fields(torch_experts):
    text = export_plan(*torch_experts, "torchtitan")
    found = dict(re.findall(r"config\.parallelism\.(\w+) = (\d+)$", text, re.MULTILINE))
    assert found == {
        "pipeline_parallel_degree": "1",
        "data_parallel_replicate_degree": "2",
        "data_parallel_shard_degree": "8",
        "context_parallel_degree": "1",
        "tensor_parallel_degree": "2",
        "expert_parallel_degree": "8",
    }
    # 512 sequences / 16 data ranks / 4 microbatches = 8 sequences of 256 tokens.
    assert "config.training.local_batch_size = 8\n" in text
    assert "config.training.global_batch_size = 512\n" in text
    assert 'model_registry("moe")' in text
    assert "not expressed" not in text


def test_torchtitan_runs_as_python(torch_experts):
    """The module sets what it says on a config; TorchTitan itself is stood in for."""
    from types import SimpleNamespace

    body = export_plan(*torch_experts, "torchtitan").split("from torchtitan.trainer")[1]
    rope = SimpleNamespace()
    layer = SimpleNamespace(attention=SimpleNamespace(rope=rope))
    spec = SimpleNamespace(model=SimpleNamespace(layers=[layer]))
    sections = ("training", "parallelism", "compile")
    scope = {
        "FullAC": SimpleNamespace(Config=lambda: "full"),
        "CrossEntropyLoss": SimpleNamespace(Config=lambda **_: "loss"),
        "Trainer": SimpleNamespace(
            Config=lambda **_: SimpleNamespace(**{name: SimpleNamespace() for name in sections})
        ),
        "model_registry": lambda name: spec,
        "decoder_vocab_size": lambda _: 256,
    }
    exec(body.partition("\n")[2], scope)
    config = scope["plan"]()
    assert config.parallelism.expert_parallel_degree == 8
    assert config.activation_checkpoint == "full"
    assert rope.scaling == "none"


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        (
            "shard_degree = 8",
            "shard_degree = 16",
            "mesh",
            {"data": 2, "fsdp": 4, "expert": 4, "tensor": 2},
        ),
        (
            "expert_parallel_degree = 8",
            "expert_parallel_degree = 4",
            "mesh",
            {"data": 2, "fsdp": 4, "expert": 2, "tensor": 2},
        ),
        ("FullAC.Config()", "None", "remat", "none"),
        ("seq_len = 256", "seq_len = 128", "sequence_length", 128),
        ("'always'", "'never'", "weight_gather", "per_microbatch"),
        ("sequence_parallel = True", "sequence_parallel = False", "sequence_parallel", False),
    ],
)
def test_an_edited_torchtitan_field_changes_the_plan(torch_experts, old, new, field, value):
    text = export_plan(*torch_experts, "torchtitan")
    assert old in text
    edited = text.replace(old, new)
    if "shard_degree = 16" in edited:  # twice the ranks take twice the tokens
        edited = edited.replace("global_batch_size = 512", "global_batch_size = 1024")
    assert getattr(parse_export(edited, "torchtitan"), field) == value


@pytest.mark.parametrize(
    ("compiled", "fused", "enable", "components"),
    [
        (True, None, True, None),
        (False, None, False, None),
        (True, False, True, "model"),
        (False, True, True, "loss"),
    ],
)
def test_what_is_compiled_is_written_and_read(torch_experts, compiled, fused, enable, components):
    plan, cfg, piece = torch_experts
    plan = replace(plan, compiled=compiled, fused_loss=fused)
    text = export_plan(plan, cfg, piece, "torchtitan")
    assert f"config.compile.enable = {enable}\n" in text
    assert ("compile.components" in text) == (components is not None)
    again = parse_export(text, "torchtitan")
    assert (again.compiled, again.fused_loss) == (compiled, fused)


def test_an_edited_compile_field_counts(torch_experts):
    plan, cfg, piece = torch_experts
    text = export_plan(replace(plan, compiled=True), cfg, piece, "torchtitan")
    edited = text.replace("config.compile.enable = True", "config.compile.enable = False")
    assert parse_export(edited, "torchtitan").compiled is False


def test_torchtitan_uneven_stages_are_named_layers():
    plan, cfg, piece = a_plan(
        "dense",
        "h100:8",
        {"stage": 2, "fsdp": 4},
        layers_per_stage=(11, 13),
        microbatches=4,
        gradient_reduce="per_step",
        pipeline_schedule="zb_v",
        virtual_stages=2,
        dtypes=STORED_F32,
    )
    text = export_plan(plan, cfg, piece, "torchtitan")
    assert parse_export(text, "torchtitan") == plan
    parts = re.findall(r"^        (\[.*\]),$", text, re.MULTILINE)
    counts = [part.count("layers.") for part in parts]
    # A V over two stages: 0, 1, 1, 0; the larger chunk of a stage comes first.
    assert counts == [6, 7, 6, 5]
    moved = text.replace("'layers.5'], ", "], ").replace("'layers.5'", "")
    assert parse_export(moved, "torchtitan").layers_per_stage == (10, 13)
