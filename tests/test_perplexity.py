"""docs/lab/perplexity.json and its table: all pairs of dtypes are measured on one trained model."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import perplexity

RECORD = json.loads(perplexity.RECORD.read_text(encoding="utf-8"))


def test_the_record_has_every_pair_and_its_model():
    assert [(row["weights"], row["cache"]) for row in RECORD["rows"]] == list(perplexity.PAIRS)
    assert set(RECORD["made"]) == {"date", "commit", "versions"}
    assert set(RECORD["model"]) == {"steps", "tokens", "weights"}
    assert RECORD["model"]["tokens"] == perplexity.WINDOW * perplexity.WINDOWS


def test_the_model_had_learned_something():
    """Bytes of text have a perplexity of 20 to 30 where only their frequencies are known."""
    whole = RECORD["rows"][0]
    assert (whole["weights"], whole["cache"]) == ("f32", "f32")
    assert 1 < whole["perplexity"] < 10


def test_fewer_bits_cost_as_little_as_they_should():
    """8 bits less than 1 %, 4 bits less than 5 %: a scale that is lost or in the wrong place costs
    far more."""
    whole = RECORD["rows"][0]["perplexity"]
    for row in RECORD["rows"]:
        bound = 0.05 if row["weights"] == "int4" else 0.01
        assert abs(perplexity.change(row, whole)) < bound, row


def test_the_page_has_the_table_of_the_record():
    page = perplexity.PAGE.read_text(encoding="utf-8")
    first, last = perplexity.MARKS
    table = page.partition(first)[2].partition(last)[0].strip()
    assert table == perplexity.lines_of(RECORD)
