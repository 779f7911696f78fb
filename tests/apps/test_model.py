"""`shardwise model`: the documents with their stable names, the tables and the refusals."""

import csv
import json

import pytest

from shardwise.apps.cli import main
from shardwise.apps.cli.model import model
from shardwise.errors import BadRequest
from shardwise.models import load_model, params_by_component, zoo_names


def run(*args):
    model.main(args=list(args), standalone_mode=False)


def document_of(capsys, *args):
    run(*args, "--json")
    return json.loads(capsys.readouterr().out)


def test_show_has_the_stable_names(capsys):
    doc = document_of(capsys, "show", "llama-3-70b")
    result = doc["result"]
    assert result["params_total"] == result["params_text"] == result["params_active"] == 70553706496
    assert result["params_by_component"] == params_by_component(load_model("llama-3-70b"))
    assert result["kv_bytes_per_token"] == 327680
    assert result["layers"] == 80
    assert result["kv_bytes_per_sequence"] == 327680 * 8192
    assert result["activation_bytes_per_token"]["block"] == 80 * 8192 * 2
    assert doc["provenance"]["hf_id"] == "meta-llama/Meta-Llama-3-70B"


def test_show_counts_flops_at_the_context(capsys):
    short = document_of(capsys, "show", "llama-3-8b", "--seq", "4Ki")["result"]
    long = document_of(capsys, "show", "llama-3-8b", "--seq", "8192")["result"]
    assert short["context"] == 4096
    parts = [r["flops_per_token_by_component"] for r in (short, long)]
    assert parts[1]["attention_core"]["forward"] == 2 * parts[0]["attention_core"]["forward"]
    assert parts[1]["attention"] == parts[0]["attention"]
    total = sum(part["forward"] for part in parts[1].values())
    assert long["forward_flops_per_token"] == pytest.approx(total)


def test_show_takes_the_dtype_of_the_cache(capsys):
    result = document_of(capsys, "show", "llama-3-70b", "--kv", "int8")["result"]
    assert result["kv_bytes_per_token"] == 163840
    assert result["activation_dtype"] == "bf16"


def test_show_says_what_it_took_for_granted(capsys):
    doc = document_of(capsys, "show", "gemma-3-12b")
    assert any("vision tower of gemma-3-12b: counted" in line for line in doc["warnings"])
    taken = doc["resolved"]["text_config.tie_word_embeddings"]
    assert taken["value"] == "True"
    assert "Gemma3TextConfig" in taken["origin"]


def test_show_reads_a_config_and_its_directory(capsys, tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    by_file = document_of(capsys, "show", str(path))["result"]
    by_folder = document_of(capsys, "show", str(tmp_path))["result"]
    assert by_file["params_total"] == by_folder["params_total"]
    layer = 2 * 64 * (64 + 32) + 3 * 64 * 128 + 2 * 64
    assert by_file["params_total"] == 3 * layer + 2 * 100 * 64 + 64


def test_show_prints_tables(capsys):
    run("show", "deepseek-v3", "--detail")
    out = capsys.readouterr().out
    assert "671B, 37.6B active per token" in out
    assert "gated, 8 of 256 experts + 1 shared" in out
    assert "latent (q 1,536, kv 512 + 64)" in out
    assert "attention_core" in out
    assert "GiB (" in out


@pytest.mark.parametrize("name", zoo_names())
def test_show_works_for_the_whole_zoo(capsys, name):
    run("show", name)
    assert f"{name} (" in capsys.readouterr().out
    result = document_of(capsys, "show", name)["result"]
    assert sum(result["params_by_component"].values()) == result["params_total"]
    assert result["training_flops_per_token"] > 0


def test_list_has_every_model(capsys, tmp_path):
    rows = document_of(capsys, "list")["result"]["models"]
    assert [row["name"] for row in rows] == list(zoo_names())
    assert all(row["source"] for row in rows)
    path = tmp_path / "models.csv"
    run("list", "--csv", str(path))
    assert "llama-3-70b" in capsys.readouterr().out
    with path.open() as file:
        assert len(list(csv.reader(file))) == len(rows) + 1


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("deepseek-v3.2", "70,272 B of keys and values and 8,052 B of indexer keys a token"),
        ("nemotron-3-nano", "6,144 B of keys and values a token; 49.1 MB of state, whatever its"),
        (
            "FalconMambaForCausalLM(hidden_size=64, num_hidden_layers=2, vocab_size=99)",
            "KV cache    none: no layer keeps keys and values",
        ),
    ],
)
def test_the_page_says_what_a_sequence_keeps(capsys, name, line):
    run("show", name)
    assert line in capsys.readouterr().out


def test_diff_marks_what_differs(capsys, tmp_path):
    names = ("llama-3-8b", "llama-3-70b")
    result = document_of(capsys, "diff", *names)["result"]
    assert result["decisions"]["d_model D"] == [4096, 8192]
    assert result["decisions"]["F / D"] == [3.5, 3.5]
    assert "d_model D" in result["differing"]
    assert "F / D" not in result["differing"]
    path = tmp_path / "diff.csv"
    run("diff", *names, "--csv", str(path))
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("  *  d_model D") for line in lines)
    assert "  the same for all: architecture, vocabulary V" in "\n".join(lines)
    run("diff", *names, "--detail")
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("     vocabulary V") for line in lines)
    with path.open() as file:
        table = {row[0]: row[1:] for row in csv.reader(file)}
    assert table["d_model D"] == ["4096", "8192"]


def test_diff_of_three_shows_mixed_layers(capsys):
    names = ("gemma-3-12b", "deepseek-v3", "llama-3-70b")
    decisions = document_of(capsys, "diff", *names)["result"]["decisions"]
    assert decisions["attention"][0] == "40 x window 1,024; 8 x full"
    assert decisions["d_ff F"][1] == [18432, 2048]
    assert decisions["experts E"] == [None, 256, None]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("show", "lama-3-70b"), r"unknown model 'lama-3-70b'; did you mean 'llama-3-70b'"),
        (("show", "llama-3-70b", "--kv", "bf17"), r"unknown dtype 'bf17'; did you mean 'bf16'"),
        (("show", "llama-3-70b", "--seq", "0.5"), "it must be a whole number of tokens"),
        (("show", "llama-3-70b", "--seq", "-4"), "must be positive and finite"),
        (("diff", "llama-3-70b"), "model diff needs two models or more, and 'llama-3-70b' is one"),
    ],
)
def test_bad_requests(args, message):
    with pytest.raises(BadRequest, match=message):
        run(*args)


def test_the_command_exits_with_2_and_one_message(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["model", "show", "lama-3-70b"])
    assert exit_.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("error: unknown model")
    assert "Traceback" not in err
