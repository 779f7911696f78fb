"""Tables of runs: their columns, the documents of the format, and what is refused."""

import json
import sys
from pathlib import Path

import pytest

from shardwise.errors import BadRequest
from shardwise.evidence.training.runs import read_run
from shardwise.evidence.training.table import RunRow, read_table, row_of

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from runs_page import page

TABLE = Path(__file__).parent / "data" / "training_rows.csv"


def test_a_column_that_is_not_known_is_named(tmp_path):
    path = tmp_path / "mine.csv"
    header, first, *_ = TABLE.read_text().splitlines()
    path.write_text(f"{header},overlaps\n{first},all\n")
    found = read_table(path)
    assert found.warnings == ("not read: unknown column 'overlaps'; did you mean 'overlap'?",)
    assert len(found.rows) == 1


def test_former_names_of_columns_are_read(tmp_path):
    path = tmp_path / "mine.csv"
    names = (
        "id",
        "model",
        "chip",
        "devices",
        "stack",
        "global_batch_seqs",
        "seq_len",
        "zero_stage",
    )
    path.write_text(",".join((*names, "step_seconds")) + "\na,llama-3-8b,h100,8,fsdp,8,8192,3,9\n")
    (cells,) = read_table(path).rows
    assert read_run({**cells, "fsdp": "8"}).piece.chips == 8
    assert row_of(cells).zero == 3


def test_the_page_and_the_schema_are_of_the_format():
    docs = Path(__file__).parents[3] / "docs"
    assert all(field.description for field in RunRow.model_fields.values())
    assert (docs / "runs.md").read_text() == page()
    assert json.loads((docs / "runs.schema.json").read_text()) == RunRow.model_json_schema()


def test_a_table_that_is_none(tmp_path):
    with pytest.raises(BadRequest, match="cannot read the table"):
        read_table(tmp_path / "missing.csv")
    short = tmp_path / "short.csv"
    short.write_text("id,source\n1,mine\n")
    with pytest.raises(BadRequest, match="lacks the column"):
        read_table(short)
