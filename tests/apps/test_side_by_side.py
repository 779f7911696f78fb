"""`plan sweep` with several chips: one table, a row for each with its own plan and prices."""

import pytest
from tests.apps.commands import answer, answered, refused

from shardwise.hardware import load_chip
from shardwise.hardware.prices import price_range
from shardwise.models import load_model
from shardwise.verbs.layout import HEIGHT, WIDTH
from shardwise.verbs.side_by_side import by_deadline
from shardwise.workflows.inputs import Hardware
from shardwise.workflows.sweep import SweepPoint, slices_between

JOB = ("--model", "llama-3.2-1b", "--batch", "256seq", "--seq", "2048", "--remat", "block")
RUN = ("--tokens", "200B", "--days", "10", "--chips", "1..64", "--for", "any")
SWEEP = ("plan", "sweep", *JOB, *RUN, "--on", "h100,v5p", "--on", "v6e")


def rows():
    return answer(*SWEEP)["result"]["chips"]


def test_each_chip_has_a_row_with_its_plan():
    assert [row["chip"] for row in rows()] == ["h100", "v5p", "v6e"]
    for row in rows():
        words = ("plan", "train", *JOB, "--on", row["slice"], "--for", "any", "--tokens", "200B")
        alone = answer(*words)["result"]
        assert row["mesh"] == alone["mesh"]
        assert row["step_seconds"] == alone["step_seconds"]
        assert row["days"] == pytest.approx(alone["run"]["days"], rel=1e-9)
        assert row["usd_at_price"] == pytest.approx(alone["run"]["usd"], rel=1e-9)


def test_it_is_the_smallest_slice_that_keeps_the_deadline():
    for row in rows():
        assert row["keeps_deadline"] == (row["days"] <= 10)
        half = f"1..{row['chips'] // 2}"
        if row["keeps_deadline"] and row["chips"] > 1:
            words = [*SWEEP[:-4], "--on", row["chip"]]
            words[words.index("--chips") + 1] = half
            points = answer(*words)["result"]["points"]
            assert all(point["days"] is None or point["days"] > 10 for point in points)


def test_dollars_have_the_range_over_providers_and_dates():
    for row in rows():
        found = price_range(row["chip"])
        assert found is not None
        hours = row["days"] * 24 * row["chips"]
        for name, price in (("price_low", found.low), ("price_high", found.high)):
            assert row[name]["as_of"] == price.as_of
            assert row[f"usd_at_{name}"] == pytest.approx(hours * price.usd_per_chip_hour)
    (v5p,) = [row for row in rows() if row["chip"] == "v5p"]
    assert v5p["price"]["as_of"] == load_chip("v5p").price.as_of


def test_the_page():
    out, _ = answered(*SWEEP)
    lines = out.splitlines()
    assert len(lines) <= HEIGHT
    assert max(map(len, lines)) <= WIDTH
    assert "runs in" in lines[1]
    assert "over providers" in lines[1]
    assert any(line.startswith("  v5p $/h") and "2024-12: old" in line for line in lines)
    assert any(line.startswith("  cheapest: ") for line in lines)


def test_of_one_size():
    words = ("plan", "sweep", *JOB, "--on", "h100,v5e", "--chips", "8", "--for", "any")
    found = answer(*words)["result"]["chips"]
    assert [(row["slice"], row["chips"]) for row in found] == [("h100:8", 8), ("v5e:2x4", 8)]
    assert all("days" not in row or row["days"] is None for row in found)
    assert all(row["usd_at_price"] > 0 for row in found)


@pytest.mark.parametrize("rate", [1.0, 3.0, 40.0, 1e4])
def test_the_walk_finds_what_a_look_at_all_finds(rate):
    """Slices of v5e that take days inversely to their chips, from any guess."""
    pieces = slices_between("v5e", 1, 256, Hardware())
    tried = []

    def plan(piece):
        tried.append(piece.chips)
        point = SweepPoint(piece=piece, batch="1", sequence_length=1, answer=None)
        return SweepPoint(**{**fields_of(point), "days": 1000 / rate / piece.chips})

    choice = by_deadline(load_model("llama-3.2-1b"), pieces, 1e12, 30.0, plan)
    all_kept = [p.chips for p in pieces if 1000 / rate / p.chips <= 30]
    assert choice.keeps == bool(all_kept)
    assert choice.point.piece.chips == (min(all_kept) if all_kept else pieces[-1].chips)
    assert len(tried) == len(set(tried))


def fields_of(point):
    return {name: getattr(point, name) for name in SweepPoint.__dataclass_fields__}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on", "h100,v5p"), "side by side need --chips N, or --tokens with --days"),
        (("--on", "h100,,v5p", "--chips", "8"), "lacks a name"),
        (("--on", "h100,v5p", "--chips", "8", "--seq", "512"), "take one --batch and one --seq"),
    ],
)
def test_what_is_refused(capsys, words, said):
    assert said in refused(capsys, ["plan", "sweep", *JOB, *words])


def test_plan_train_says_who_takes_several_chips(capsys):
    said = refused(capsys, ["plan", "train", *JOB, "--on", "h100,v5p"])
    assert "--on h100,v5p names several chips" in said
    assert "plan sweep --on h100,v5p" in said
