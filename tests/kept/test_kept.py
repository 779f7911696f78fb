"""Kept programs are those that today's sources give to the compiler."""

import json
import sys
from pathlib import Path

import pytest

from kept import FOLDER, hlo

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from kept_programs import PROGRAMS, lowered

DOC = json.loads((FOLDER / "index.json").read_text())


@pytest.mark.slow
def test_what_is_lowered_now_is_what_was_compiled():
    made = {row["name"]: row["lowered"] for row in DOC["rows"]}
    assert made == lowered(), "run `python scripts/kept_programs.py`"


def test_every_program_is_there_and_scheduled():
    assert [row["name"] for row in DOC["rows"]] == list(PROGRAMS)
    for row in DOC["rows"]:
        assert (row["slice"], row["mesh"]) == PROGRAMS[row["name"]]
        assert "is_scheduled=true" in hlo(row["name"]).partition("\n")[0]
