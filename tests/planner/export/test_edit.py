"""Edits of launch files: a value where it stands, beside its neighbours, and nothing else."""

import pytest

from shardwise.planner.export.edit import _in_toml, diff_of
from shardwise.planner.export.edit.keys import (
    left_out_of_python,
    left_out_of_toml,
    left_out_of_yaml,
    set_in_json,
    set_in_python,
    set_in_toml,
    set_in_yaml,
)
from shardwise.planner.export.edit.script import left_out_of_script, set_in_script
from shardwise.planner.export.torchtitan_keys import is_idle, of_today

TP = "--tensor-model-parallel-size"
SP = "--sequence-parallel"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"run {TP} 8 --x\n", f"run {TP} 2 --x\n"),
        (f"run {TP}=8 \\\n", f"run {TP}=2 \\\n"),
        (f"TP=8\nrun {TP} $TP\n", f"TP=2\nrun {TP} $TP\n"),
        (f"export TP=${{TP:-8}}\nrun {TP} ${{TP}}\n", f"export TP=${{TP:-2}}\nrun {TP} ${{TP}}\n"),
        (f'A=(\n "{TP} 8"\n)\nrun ${{A[@]}}\n', f'A=(\n "{TP} 2"\n)\nrun ${{A[@]}}\n'),
        (f"# {TP} 8\nrun {TP} 8\n", f"# {TP} 8\nrun {TP} 2\n"),
        (f"run {TP.replace('-', '_').replace('__', '--')} 8\n", None),
    ],
)
def test_a_value_changes_where_it_stands(text, wanted):
    found = list(set_in_script(text, TP, "8", "2", []))
    assert (wanted or text.replace("8", "2")) in found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"A=(\n    {TP} 8\n    --x 1\n)\n", f"A=(\n    {TP} 8\n    {SP}\n    --x 1\n)\n"),
        (f"run \\\n  {TP} 8 \\\n  --x\n", f"run \\\n  {TP} 8 \\\n  {SP} \\\n  --x\n"),
        (f"run --x \\\n  {TP} 8\n", f"run --x \\\n  {SP} \\\n  {TP} 8\n"),
        (f'A="--x 1 {TP} 8 --y"\n', f'A="--x 1 {TP} 8 {SP} --y"\n'),
    ],
)
def test_a_flag_is_added_as_its_neighbour_is_written(text, wanted):
    assert wanted in list(set_in_script(text, SP, None, "", [TP]))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A=(\n    --x 1\n    --gone a b\n)\n", "A=(\n    --x 1\n)\n"),
        ("run --x \\\n  --gone a b\nrm y\n", "run --x\nrm y\n"),
        ("run --gone a b --x 1\n", "run --x 1\n"),
    ],
)
def test_a_flag_goes_with_its_values(text, wanted):
    assert wanted in list(left_out_of_script(text, "--gone", "a b"))


def test_words_of_maxtext():
    text = "train base.yml per_device_batch_size=4 steps=1\n"
    assert text.replace("=4", "=2.0") in list(
        set_in_script(text, "per_device_batch_size", "4", "2.0", [])
    )
    assert "train base.yml per_device_batch_size=4 a=1 steps=1\n" in list(
        set_in_script(text, "a", None, "1", ["per_device_batch_size"])
    )


def test_files_of_keys():
    yaml = "a: 1  # why\nmodel:\n  b: 2\n"
    assert next(set_in_yaml(yaml, "a", "3", [])) == yaml.replace("1", "3")
    assert next(set_in_yaml(yaml, "c", "4", ["b"])) == f"{yaml}  c: 4\n"
    assert next(left_out_of_yaml(yaml, "b")) == "a: 1  # why\nmodel:\n"
    toml = "[a]\nx = 1\n\n[b]\nx = 2 # two\n"
    assert next(set_in_toml(toml, "b.x", "3")) == toml.replace("2 #", "3 #")
    assert next(set_in_toml(toml, "a.y", "3")) == toml.replace("x = 1\n", "x = 1\ny = 3\n")
    assert next(set_in_toml(toml, "c.y", "true")).endswith("\n\n[c]\ny = true\n")
    assert list(left_out_of_toml(toml, "a.x")) == [
        toml.replace("x = 1\n", ""),
        toml.replace("x = 2 # two\n", ""),
    ]
    python = "def f():\n    config.a.b = 1\n    return config\n"
    assert next(set_in_python(python, "a.b", "2", [])) == python.replace("1", "2")
    added = next(set_in_python(python, "a.c", "2", ["a.b"]))
    assert added == python.replace("= 1\n", "= 1\n    config.a.c = 2\n")
    assert next(left_out_of_python(python, "a.b")) == python.replace("    config.a.b = 1\n", "")
    assert next(set_in_json('{\n  "a": {\n    "b": 1\n  }\n}\n', "a.b", 2)) == (
        '{\n  "a": {\n    "b": 2\n  }\n}\n'
    )


def test_a_diff_applies_to_the_file():
    assert diff_of("a\nb\nc\nd\n", "a\nB\nc\nd\n", "f.sh") == (
        "--- a/f.sh\n+++ b/f.sh\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
    )


KEY = "parallelism.context_parallel_degree"


@pytest.mark.parametrize("section", ["parallelism", "experimental"])
def test_a_key_of_a_toml_is_changed_where_it_stands(section):
    """A file that has today's key had a second one written under its name of before."""
    text = f"[parallelism]\ntensor_parallel_degree = 8\n\n[{section}2]\nx = 1\n"
    text = text.replace(f"[{section}2]\n", f"[{section}]\n" if section == "experimental" else "")
    text = text.replace("x = 1", "context_parallel_degree = 1")
    (changed,) = _in_toml(text, KEY, 4)
    assert changed == text.replace("context_parallel_degree = 1", "context_parallel_degree = 4")


def test_of_two_names_of_one_key_that_differ_the_one_of_today_counts():
    """The other stays as it is: who reads the file says that it was not read."""
    old = "experimental.context_parallel_degree"
    assert of_today({old: 8, KEY: 1}) == {old: 8, KEY: 1}
    assert of_today({old: 8, KEY: 8}) == of_today({old: 8}) == {KEY: 8}
    assert not is_idle(old, 8)
