"""`shardwise schema`: every command with --json has a JSON Schema that its documents follow.

That they do is checked for every document that a test of tests/apps prints (`conftest.py`); here
stand calls of what other tests leave out, on which the schemas are made, too.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.apps.commands import document, refused, run
from tests.apps.documents import KEPT, check, problems, schema

import shardwise as sw
from shardwise.book.figure_index import figure_ids
from shardwise.commands.tables.schema import DATA

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import options
import schemas

COMMANDS = [name for name, _ in options.commands() if name not in schemas.SILENT]
TRAIN = ("plan", "train", "--model", "gpt2", "--on", "v5e:2x2", "--batch", "16seq", "--seq", "512")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_schema_of_its_keys(name):
    found = sw.schema(name).result
    assert found["title"] == f"shardwise {name} --json"
    assert sw.schema(name).table()
    command = dict(options.commands())[name]
    assert any("--json" in p.opts for p in command.params)


def test_no_schema_is_of_a_command_that_is_gone():
    assert sorted(p.stem for p in DATA.glob("*.json")) == sorted(
        name.replace(" ", "-") for name in COMMANDS
    )


@pytest.mark.parametrize("figure_id", figure_ids())
def test_figures(capsys, figure_id):
    document(capsys, "book", "figure", figure_id)


@pytest.mark.parametrize(
    "words",
    [
        ("book", "list"),
        ("book", "list", "--chapter", "12"),
        ("book", "errata", "--chapter", "5", "--edition", "first"),
        ("book", "rule", "tensor_limit", "--on", "v5p", "--set", "d_ff=2550,5100"),
        ("book", "rule", "fat_tree", "--on", "h100"),
        ("book", "show", "8.evict"),
        ("book", "quiz", "--chapter", "6"),
        ("book", "quiz", "head.7.appA", "--answer", "0.1"),
        ("book", "quiz", "pop.3.1", "--answer", "1,2.5"),
        ("report",),
        ("report", "--top", "3", "--phase", "train"),
        ("roofline", "--on", "v5p", "--matmul", "64x4096x4096", "--level", "dcn"),
        ("roofline", "--on", "h100", "--matmul", "1x4096x4096", "--batch", "1,64"),
        ("hw", "list"),
        ("hw", "show", "gb200"),
        ("hw", "show", "v5p"),
        ("hw", "diff", "v5e", "h100"),
        ("hw", "diff", "v5p", "v2"),
        ("hw", "diff", "v2", "h100"),
        ("validate", "--source", "torchtitan-h100-2024-08"),
        ("model", "list"),
        ("model", "diff", "llama-3-8b", "gpt2"),
        pytest.param(("validate",), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("scores_kept")
def test_tables(capsys, words):
    document(capsys, *words)


@pytest.mark.slow
def test_a_plan_and_what_is_made_of_it(capsys, tmp_path):
    plan, other = tmp_path / "plan.yaml", tmp_path / "other.yaml"
    document(capsys, *TRAIN, "-o", plan)
    document(capsys, *TRAIN, "--tokens", "1B", "-o", other, "--remat", "block")
    document(capsys, "plan", "show", plan)
    document(capsys, "plan", "diff", plan, other)
    document(capsys, "plan", "sweep", *TRAIN[2:4], "--on", "v5e:2x2,v5e:2x4", *TRAIN[6:])
    document(capsys, "export", plan, "--to", "jax")


# What is checked and refused ----------------------------------------------------------------------


def test_a_document_that_differs_is_found(monkeypatch):
    """The checker sees what is missing, what is more, and what is of another type."""
    monkeypatch.delenv(KEPT, raising=False)
    of = schema("roofline")
    doc = json.loads(json.dumps(_roofline()))
    assert list(problems(of, doc, "doc")) == []
    del doc["result"]["flops"]
    doc["result"]["bytes"] = "many"
    doc["result"]["more"] = 1
    assert list(problems(of, doc, "doc")) == [
        "doc.result has no flops",
        "doc.result.bytes is many, not object",
        "doc.result.more is not in the schema",
    ]
    with pytest.raises(AssertionError, match=r"run scripts/schemas\.py if that is meant"):
        check("roofline", doc)


def _roofline():
    from shardwise.apps.cli.output import document_of
    from shardwise.boundary.records import plain

    return plain(document_of(sw.matmul_roofline(on="v5e", matmul="8x64x64"), {}))


def test_schemas_are_printed_and_listed(capsys):
    code, out, err = run(capsys, "schema", "book", "figure")
    assert (code, err) == (0, "")
    assert json.loads(out)["properties"]["schema_version"] == {"const": 1}
    code, out, _ = run(capsys, "schema")
    assert code == 0
    assert out.splitlines()[: len(COMMANDS)] == sorted(COMMANDS)
    assert sw.schema("hw list").table()[0]["key"]


def test_other_words_are_refused(capsys):
    said = refused(capsys, ("schema", "book", "figur"))
    assert "unknown command with a document 'book figur'; did you mean 'book figure'" in said


def test_importing_no_schema_costs_anything():
    code = "import sys, shardwise.apps.cli.schema as s; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
