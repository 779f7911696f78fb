"""A dimension of another program's file that contradicts the model is refused, with both values."""

import pytest
from tests.apps.commands import refused
from tests.planner.export.exporting import a_plan

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export import export_plan, parse_export

MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size {hidden} "
    "--num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --bf16"
)
MAXTEXT = (
    "model_name=llama3-8b base_emb_dim={hidden} ici_fsdp_parallelism=16 per_device_batch_size=1 "
    "max_target_length=2048 remat_policy=full"
)


@pytest.mark.parametrize(
    ("target", "text", "on", "flag", "hidden"),
    [
        ("megatron", MEGATRON, "h100:8", "--hidden-size", "4095"),
        ("maxtext", MAXTEXT, "v5e:4x4", "base_emb_dim", "8192"),
    ],
)
def test_a_width_that_is_not_the_models(target, text, on, flag, hidden):
    model, piece = ("llama-3-8b", load_model("llama-3-8b")), parse_slice(on)
    with pytest.raises(
        BadRequest, match=rf"{flag} is {hidden} in the text, and 4096 of the model 'llama-3-8b'"
    ):
        parse_export(text.format(hidden=hidden), target, model=model, piece=piece)
    assert parse_export(text.format(hidden=4096), target, model=model, piece=piece)


def test_other_heads_and_layers_are_refused_too():
    plan, cfg, piece = a_plan("dense", "h100:8", {"fsdp": 8}, weight_gather="per_pass")
    text = export_plan(plan, cfg, piece, "megatron")
    for flag, value in (("--num-attention-heads", 16), ("--ffn-hidden-size", 1024)):
        assert f"{flag}={value}" in text or f"{flag} {value}" in text
        changed = text.replace(f"{flag}={value}", f"{flag}={value * 2}")
        changed = changed.replace(f"{flag} {value}", f"{flag} {value * 2}")
        with pytest.raises(BadRequest, match=f"{flag} is {value * 2} in the text"):
            parse_export(changed, "megatron", model=("dense", cfg), piece=piece)


def test_an_edited_export_that_plan_show_reads_is_checked_too(tmp_path, capsys):
    on = "h100:8"
    model, piece = ("llama-3-8b", load_model("llama-3-8b")), parse_slice(on)
    plan = parse_export(MEGATRON.format(hidden=4096), "megatron", model=model, piece=piece)
    text = export_plan(plan, model[1], piece, "megatron")
    file = tmp_path / "run.sh"
    file.write_text(text.replace("--hidden-size 4096", "--hidden-size 4095"))
    assert "--hidden-size is 4095 in the text" in refused(capsys, ["plan", "show", file])


def test_a_yaml_that_leaves_out_the_policy_recomputes_whole_layers(tmp_path, capsys):
    text = "\n".join(word.replace("=", ": ") for word in MAXTEXT.split()).replace(
        "{hidden}", "4096"
    )
    piece = parse_slice("v5e:4x4")
    plan = parse_export(text.replace("remat_policy: full", ""), "maxtext", piece=piece)
    assert plan == parse_export(text, "maxtext", piece=piece)
    file = tmp_path / "mine.yml"
    wrong = text.replace("base_emb_dim: 4096", "base_emb_dim: 8192")
    file.write_text(f"{wrong}\ncompile_topology: v5e-16\n")
    assert "base_emb_dim is 8192 in the text" in refused(capsys, ["plan", "show", file])
