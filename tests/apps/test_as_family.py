"""--as: a config.json of an unknown class is answered with a family to read it as, and takes it."""

import json

import pytest
import yaml
from tests.apps.commands import document, refused, run

from shardwise.commands.pricing.plans import load_plan
from shardwise.models.zoo import hf_config

pytestmark = pytest.mark.usefixtures("answers_kept")

FAMILY = "LlamaForCausalLM"
TRAIN = ("--on", "v5p:2x2x1", "--batch", "64seq", "--seq", "2048")
TRAINED = (*TRAIN, "--remat", "block", "--for", "maxtext")
COMMANDS = (
    ("model", "show", "m.json"),
    ("model", "diff", "m.json", "llama-3-8b"),
    ("plan", "train", "--model", "m.json", *TRAINED),
    ("plan", "sweep", "--model", "m.json", *TRAINED),
    ("plan", "serve", "--model", "m.json", "--on", "h100:1", "--input", "512", "--output", "64"),
)
MARKED = [
    pytest.param(words, marks=pytest.mark.slow if words[:2] == ("plan", "serve") else ())
    for words in COMMANDS
]


@pytest.fixture(autouse=True)
def unknown(tmp_path, monkeypatch):
    """In the working directory: Llama's keys under a name that nobody knows."""
    monkeypatch.chdir(tmp_path)
    config = {**hf_config("llama-3-8b"), "architectures": ["LabForCausalLM"], "model_type": "lab"}
    (tmp_path / "m.json").write_text(json.dumps(config))


@pytest.mark.parametrize("words", MARKED, ids=" ".join)
def test_an_unknown_class_is_answered_with_the_family_that_it_takes(capsys, words):
    said = refused(capsys, words)
    assert "unknown architecture 'LabForCausalLM'" in said
    assert f"add --as {FAMILY}" in said
    code, out, err = run(capsys, *words, "--as", FAMILY)
    assert code == 0, err
    assert out


@pytest.mark.usefixtures("rows_left_out")
def test_keys_that_the_family_does_not_have_are_named(capsys, tmp_path):
    config = json.loads((tmp_path / "m.json").read_text()) | {"mixer_groups": 4, "rope_new": 1}
    (tmp_path / "keys.json").write_text(json.dumps(config))
    for words in COMMANDS:
        own = [word.replace("m.json", "keys.json") for word in words]
        _, _, err = run(capsys, *own, "--as", FAMILY)
        assert f"a {FAMILY} has no 'mixer_groups'; not read" in " ".join(err.split())
        assert "rope_new" not in err


def test_keys_that_say_nothing_count_for_nothing(capsys, tmp_path):
    nothing = {"sliding_window": None, "mixers": [], "use_sliding_window": False}
    config = hf_config("qwen3-8b") | nothing | {"architectures": ["LabForCausalLM"]}
    (tmp_path / "m.json").write_text(json.dumps(config))
    assert "add --as Qwen3ForCausalLM" in refused(capsys, ["model", "show", "m.json"])
    _, _, err = run(capsys, "model", "show", "m.json", "--as", "Qwen3ForCausalLM")
    assert "read as Qwen3ForCausalLM" in err
    assert "not read" not in err


def test_where_no_class_has_the_keys_the_option_is_named(capsys, tmp_path):
    config = json.loads((tmp_path / "m.json").read_text()) | {"mixer_groups": 4}
    (tmp_path / "m.json").write_text(json.dumps(config))
    assert "add --as CLASS" in refused(capsys, ["model", "show", "m.json"])


def test_a_family_that_there_is_not_is_named(capsys):
    said = refused(capsys, ["model", "show", "m.json", "--as", "LlamaForCausalM"])
    assert f"unknown family 'LlamaForCausalM'; did you mean '{FAMILY}'" in said


def test_a_model_of_the_zoo_takes_no_family(capsys):
    said = refused(capsys, ["model", "show", "llama-3-8b", "--as", FAMILY])
    assert "is in the zoo; leave out the family" in said
    said = refused(capsys, ["model", "diff", "llama-3-8b", "llama-3-70b", "--as", FAMILY])
    assert "all these models are in the zoo" in said


def test_the_plan_keeps_it_and_is_shown_and_exported(capsys, tmp_path):
    words = ("plan", "train", "--model", "m.json", "--as", FAMILY, *TRAINED, "-o", "p.yaml")
    step = document(capsys, *words)["result"]["step_seconds"]
    assert yaml.safe_load((tmp_path / "p.yaml").read_text())["model"] == f"m.json#{FAMILY}"
    assert document(capsys, "plan", "show", "p.yaml")["result"]["step_seconds"] == step
    code, out, err = run(capsys, "export", "p.yaml", "--to", "maxtext")
    assert code == 0, err
    assert f'model: "m.json#{FAMILY}"' in out
    assert "base_num_decoder_layers=32" in out


def test_a_plan_finds_its_model_beside_it_with_the_family(tmp_path, monkeypatch, capsys):
    run(capsys, "plan", "train", "--model", "m.json", "--as", FAMILY, *TRAINED, "-o", "p.yaml")
    monkeypatch.chdir("/")
    assert load_plan(tmp_path / "p.yaml").model == f"{tmp_path / 'm.json'}#{FAMILY}"


def test_the_model_of_an_export_takes_it(capsys, tmp_path):
    run(capsys, "plan", "train", "--model", "m.json", "--as", FAMILY, *TRAINED, "-o", "p.yaml")
    code, out, _ = run(capsys, "export", "p.yaml", "--to", "maxtext")
    (tmp_path / "x.yml").write_text(out)
    assert "give that too" in refused(capsys, ["export", "x.yml", "--from", "maxtext", "--as", "x"])
    said = ["export", "x.yml", "--from", "maxtext", "--model", "m.json", "--on", "v5p:2x2x1"]
    assert f"add --as {FAMILY}" in refused(capsys, said)
    code, out, err = run(capsys, *said, "--as", FAMILY)
    assert code == 0, err
    assert f"m.json#{FAMILY}" in out
