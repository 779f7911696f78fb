"""Loading by name and by path, and that the zoo is data of its own."""

import csv
import json
import subprocess
import sys

import pytest
from tests.every import over_every
from tests.models.cases import llama
from tests.work import calls

from shardwise.errors import BadRequest
from shardwise.models import load_model, params_active, params_total, zoo_names
from shardwise.models.describe import model_warnings
from shardwise.models.zoo import DATA


def test_names():
    assert len(zoo_names()) == 194
    assert load_model("llama-3-70b").name == "llama-3-70b"
    assert load_model("Llama-3-70B") == load_model("llama-3-70b")


def test_typo_is_answered_with_near_names():
    with pytest.raises(BadRequest, match=r"unknown model 'llama-3-70'; did you mean 'llama-3-70b'"):
        load_model("llama-3-70")


def test_path_and_directory(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(llama()))
    assert load_model(str(folder)) == load_model(file)
    assert load_model(file).name == "my-model"
    other = tmp_path / "small.json"
    other.write_text(json.dumps(llama()))
    assert load_model(other).name == "small"


def test_paths_that_hold_nothing(tmp_path):
    with pytest.raises(BadRequest, match=r"holds no config\.json"):
        load_model(tmp_path)
    with pytest.raises(BadRequest, match="does not exist"):
        load_model(tmp_path / "absent.json")


@pytest.mark.parametrize("name", ["meta-llama/Meta-Llama-3-8B", "META-llama/meta-llama-3-8b"])
def test_a_hugging_face_id_of_a_zoo_model_is_a_name(name):
    assert load_model(name) == load_model("llama-3-8b")


def test_an_unknown_id_is_answered_with_near_ids():
    name = "meta-llama/Meta-Llama-3-8"
    with pytest.raises(BadRequest, match=f"unknown model '{name}'; did you mean '[^']+/[^']+'"):
        load_model(name)


@pytest.mark.parametrize(
    ("name", "like"),
    [("me/llama-3-8b-ft", ", or name a model of the same shape: llama-3-8b "), ("me/qqqq", " ")],
)
def test_an_id_that_is_near_none_is_answered_with_the_remedy(name, like):
    said = (
        f"unknown model '{name}'; give the path of its config.json{like}\\(`shardwise model list`"
    )
    with pytest.raises(BadRequest, match=said):
        load_model(name)


def test_a_directory_goes_before_an_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bigscience" / "bloom").mkdir(parents=True)
    with pytest.raises(BadRequest, match="directory 'bigscience/bloom' holds no"):
        load_model("bigscience/bloom")


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name(name):
    with pytest.raises(BadRequest, match="is empty; give a zoo name or a"):
        load_model(name)


def test_a_config_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(llama()), encoding="utf-8-sig")
    assert load_model(path).d_model == 64


@over_every(zoo_names())
def test_every_model_says_where_it_is_from(name):
    cfg = load_model(name)
    assert cfg.provenance["repository"]
    assert cfg.provenance["path"]
    assert cfg.provenance["kind"]
    assert cfg.defaults_source


@over_every(zoo_names())
def test_no_counts_are_stored(name):
    held = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    assert set(held) <= {"provenance", "config", "runs"}
    numbers = [v for v in _leaves(held) if isinstance(v, int | float)]
    assert all(v < 20e6 for v in numbers)


def _leaves(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if key != "rope_theta":  # a base of rotations, up to 1e9, is no count
                yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def test_one_model_loads_alone_and_fast():
    load_model.cache_clear()
    load_model("llama-3-8b")  # imports, once
    assert calls(lambda: load_model("deepseek-v3")) < 5000


def test_import_is_light():
    code = (
        "import sys, shardwise.models as m; m.params_total(m.load_model('llama-3-8b'))\n"
        "heavy = {'pydantic', 'yaml', 'rich', 'click'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("hub_id", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
    ],
)
def test_ids_of_tuned_and_renamed_models_have_the_shape_of_the_known_one(hub_id, name):
    assert load_model(hub_id).name == name


def test_an_id_of_another_size_is_no_renamed_one():
    with pytest.raises(BadRequest, match=r"Llama-3\.1-9B"):
        load_model("meta-llama/Llama-3.1-9B")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("nemotron-3-nano", "nemotron-3-nano-30b-a3b"),
        ("qwen3.6-35b-a3b", "qwen3.6-35b-a3b"),
        ("qwen3.6-35b", "qwen3.6-35b-a3b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama3-8b", "llama-3-8b"),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
        ("Mistral-Medium-3.5-128B", "mistral-medium-3.5"),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "qwen3-235b-a22b"),
    ],
)
def test_short_names_that_people_type(word, name):
    assert load_model(word).name == name


@pytest.mark.parametrize(
    ("word", "near"),
    [("gemma-3", "gemma-3-12b"), ("qwen3.6", "qwen3.6-27b"), ("codellama", "codellama-34b")],
)
def test_a_short_name_of_several_models_or_of_another_size_names_the_nearest(word, near):
    with pytest.raises(BadRequest, match=f"did you mean .*'{near}'"):
        load_model(word)


@pytest.mark.parametrize(
    ("word", "model"),
    [
        ("llama-3.3-70b", "llama-3.1-70b"),
        ("meta-llama/llama-3.3-70b-instruct:free", "llama-3.1-70b"),
        ("z-ai/glm-4.6", "glm-4.6"),
        ("deepseek/deepseek-r1-0528", "deepseek-r1"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("qwen2.5-coder-32b", "qwen2.5-32b"),
        ("phi-4-reasoning", "phi-4"),
        ("mistral-small-3.2-24b", "devstral-small-24b"),
        ("llama-4-scout", "llama-4-scout-17b-16e"),
        ("gemma-3n", "gemma-3n-e4b"),
        ("smollm3", "smollm3-3b"),
        ("kimi-k2", "kimi-k2-instruct"),
        ("ring-1t", "ling-1t"),
    ],
)
def test_names_that_people_type(word, model):
    assert load_model(word).name == model


def test_a_model_that_has_the_shape_of_another_says_whose():
    cfg = load_model("kimi-k2-thinking")
    assert cfg.name == "kimi-k2-instruct"
    asked = cfg.provenance["asked"]
    assert asked.startswith("kimi-k2-thinking is read as kimi-k2-instruct: ")
    assert "INT4" in asked
    assert asked in model_warnings(cfg)
    assert "asked" not in load_model("kimi-k2-instruct").provenance


def test_every_row_of_names_is_of_a_model_and_has_its_source():
    with (DATA / "names.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert row["source"]
        assert row["model"] in zoo_names() or row["hf_id"].endswith("/")
        for name in filter(None, (row["hf_id"].removesuffix("/"), *row["names"].split())):
            assert row["hf_id"].endswith("/") or load_model(name).name == row["model"], name
    assert not {name for row in rows for name in row["names"].split()} & set(zoo_names())


@pytest.mark.parametrize(
    ("word", "first"),
    [
        ("falcon-h1", "falcon-h1-0.5b"),
        ("olmo-2", "olmo-2-7b"),
        ("gpt-oss", "gpt-oss-20b"),
        ("qwen3.5-9b", "qwen3.5-4b"),
        ("step-3.5-flash", "step-3.7-flash"),
        ("command-a", "command-r-35b"),
    ],
)
def test_names_of_the_family_are_suggested_first(word, first):
    with pytest.raises(BadRequest, match=f"did you mean '{first}'"):
        load_model(word)


def test_nothing_is_suggested_that_is_not_alike():
    with pytest.raises(BadRequest, match="no known name is similar"):
        load_model("rwkv-6-7b")


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("ling-mini-2.0", "16.3", "1.4"),
        ("ling-1t", "999.7", "51.1"),
        ("step-3.7-flash", "197.0", "12.0"),
        ("minimax-m3", "426.2", "26.0"),
        ("falcon-mamba-7b", "7.3", "7.3"),
        ("muse-glimmer-30b", "27.9", "27.9"),
    ],
)
def test_published_sizes(name, total, active):
    cfg = load_model(name)
    assert f"{params_total(cfg) / 1e9:.1f}" == total
    assert f"{params_active(cfg) / 1e9:.1f}" == active


def test_models_with_names_are_kept_however_many_are_asked_for():
    every = zoo_names()
    first = [load_model(name) for name in every]
    assert all(load_model(name) is cfg for name, cfg in zip(every, first, strict=True))
