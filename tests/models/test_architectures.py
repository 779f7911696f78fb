"""The tables of classes and of numerics as data: their names, their fields, what rows share."""

import inspect
import tomllib

import pytest

from shardwise.models import families, hybrids, latents, patterns, towers
from shardwise.models.architectures import architectures
from shardwise.models.numerics_table import numerics_rows
from shardwise.models.rows import read_rows
from shardwise.models.zoo import DATA


def written(file):
    return tomllib.loads((DATA / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "home", [families, hybrids, latents, patterns, towers], ids=lambda home: home.__name__
)
def test_every_rule_has_a_row(home):
    said = str(written("architectures.toml"))
    own = ["all_full", "all_dense"]  # the rules of a row that names none
    for name, function in inspect.getmembers(home, inspect.isfunction):
        if function.__module__ == home.__name__ and not name.startswith("_") and name not in own:
            assert f"'{name}'" in said, name


def test_model_types_are_unique():
    types = [row.model_type for row in architectures().values()]
    assert sorted(set(types)) == sorted(types)


def test_what_runs_can_be_read():
    assert set(numerics_rows()) <= {row.model_type for row in architectures().values()}


def test_rows_start_from_others(tmp_path):
    path = tmp_path / "rows.toml"
    path.write_text("""
        [common]
        optional = ["heads"]
        defaults = { bias = false, size = 1 }
        [shared]
        rule = "each"
        defaults = { size = 2 }
        [One]
        like = ["shared"]
        keys = { heads = ["n"] }
        defaults = { heads = 8 }
        [Two]
        like = ["One", "shared"]
        optional = ["size"]
        required = ["bias"]
        rule = "other"
    """)
    rows = read_rows(path)
    one = {"bias": False, "size": 2, "heads": 8}
    assert rows["One"] == {"rule": "each", "keys": {"heads": ["n"]}, "defaults": one}
    two = {"size": None, "heads": 8}
    assert rows["Two"] == {"rule": "other", "keys": {"heads": ["n"]}, "defaults": two}
