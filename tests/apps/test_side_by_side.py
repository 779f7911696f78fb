"""`plan sweep` with several chips: one table, a row for each with its own plan and prices."""

from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import pytest
from tests.apps.commands import answer, answered, flat, over, refused
from tests.tiers import spread

from shardwise.apps.cli import main
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.base.layout import HEIGHT, WIDTH
from shardwise.commands.plan_train import deadline
from shardwise.commands.plan_train.deadline import slice_for
from shardwise.commands.plan_train.points import SweepPoint, slices_offered
from shardwise.commands.pricing.plans import load_plan
from shardwise.hardware import load_chip
from shardwise.hardware.prices import price_range, price_text
from shardwise.units import sig

JOB = ("--model", "llama-3.2-1b", "--batch", "256seq", "--seq", "2048", "--remat", "block")
RUN = ("--tokens", "200B", "--days", "10", "--chips", "1..64", "--for", "any")
SWEEP = ("plan", "sweep", *JOB, *RUN, "--on", "h100,v5p", "--on", "v6e")


@cache
def rows():
    return answer(*SWEEP)["result"]["chips"]


@pytest.mark.slow
def test_each_chip_has_a_row_with_its_plan():
    assert [row["chip"] for row in rows()] == ["h100", "v5p", "v6e"]
    for row in rows():
        words = ("plan", "train", *JOB, "--on", row["slice"], "--for", "any", "--tokens", "200B")
        alone = answer(*words)["result"]
        assert row["mesh"] == alone["mesh"]
        assert row["step_seconds"] == alone["step_seconds"]
        assert row["days"] == pytest.approx(alone["run"]["days"], rel=1e-9)
        assert row["usd_at_price"] == pytest.approx(alone["run"]["usd"], rel=1e-9)


def alone(choice, *words):
    """The plan of one slice, as `plan train` finds it."""
    asked = ("plan", "train", *JOB, "--on", choice, "--for", "any", "--tokens", "200B", *words)
    return answer(*asked)["result"]


@pytest.mark.parametrize("objective", spread(["cost", "chips", "time"], quick=0, slow=1))
def test_no_slice_looked_at_is_better(objective):
    """Every slice up to 64 chips, planned alone; of one size the most cube-like."""
    (row,) = answer(*SWEEP[:-4], "--on", "v5p", "--on", "v6e", "--objective", objective)["result"][
        "chips"
    ][:1]
    runs = []
    for piece in slices_offered(load_chip("v5p"), 1, 64):
        found = alone(str(piece))["run"]
        runs.append((piece.chips, found["usd"], found["days"]))
    kept = [run for run in runs if run[2] <= 10]
    place = ("chips", "cost", "time").index(objective)
    best = min(kept, key=lambda run: run[place])
    assert row["keeps_deadline"]
    assert (row["chips"], row["usd_at_price"], row["days"])[place] == pytest.approx(best[place])


@pytest.mark.long
def test_a_deadline_is_kept_by_a_number_of_boxes_that_is_no_power_of_two():
    words = ("--batch", "4Mi", "--seq", "8192", "--tokens", "2T", "--days", "30")
    asked = ("plan", "sweep", "--model", "llama-3-8b", *words, "--on", "h100,v5e")
    few, cheap = (
        answer(*asked, "--chips", "64..256", "--objective", name)["result"]["chips"][0]
        for name in ("chips", "cost")
    )
    assert few["slice"] == "12*h100:8"
    assert cheap["chips"] >= few["chips"]
    assert cheap["usd_at_price"] <= few["usd_at_price"]
    assert few["keeps_deadline"]
    assert cheap["keeps_deadline"]


@pytest.mark.slow
def test_a_late_chip_is_no_winner(capsys, tmp_path):
    file = tmp_path / "plan.yaml"
    words = list(over(SWEEP, "--days", "0.0001", "-o", str(file)))
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 3
    out, err = capsys.readouterr()
    assert "cheapest:" not in out
    assert ": late)" in out
    assert "no slice tried meets 0.0001 days" in out
    assert "was not written" in err
    assert not file.exists()


@pytest.mark.slow
def test_the_chosen_plan_is_written_and_what_comes_next_is_said(tmp_path):
    file = tmp_path / "plan.yaml"
    out, _ = answered(*SWEEP, "-o", str(file))
    priced = [row for row in rows() if row["keeps_deadline"]]
    best = min(priced, key=lambda row: row["usd_at_price"])
    plan = load_plan(file)
    assert (plan.slice, dict(plan.mesh)) == (best["slice"], best["mesh"])
    assert " --to TARGET" not in out
    program = flat(out).split(f"shardwise export {file} --to ")[1].split()[0]
    assert answered("export", str(file), "--to", program)[0]


@pytest.mark.slow
def test_several_batches_stand_below_one_another():
    out, _ = answered(*over(SWEEP[:-4], "--chips", "4..16"), "--on", "v6e,v5e", "--batch", "512seq")
    rows = [line.split()[:2] for line in out.splitlines()]
    start = rows.index(["slice", "batch"])
    assert [row[1] for row in rows[start + 2 : start + 6]] == ["256seq", "512seq"] * 2
    assert max(map(len, out.splitlines())) <= WIDTH


@pytest.mark.slow
def test_another_provider_turns_the_verdict():
    """H100s cost 2.7 to 12 dollars: what is cheapest is said with the price at which it turns."""
    pair = [*over(SWEEP[:-4], "--chips", "4..16"), "--on", "h100,v6e"]
    out, _ = answered(*pair)
    verdict = " ".join(out.split("cheapest: ")[1].split("\n  next")[0].split())
    assert "over providers); " in verdict
    assert "h100:8 costs less where a chip-hour of h100 is below $" in verdict
    price = float(verdict.rpartition("$")[2])
    for dollars, best in ((price + 0.01, "v6e"), (price - 0.01, "h100")):
        said = answer(*pair, "--price", f"h100={dollars:.3f}")["result"]["verdicts"][0]
        assert said.startswith(f"cheapest: {best}:")


@pytest.mark.slow
def test_the_objective_names_what_is_taken():
    """The line names what the objective takes, and where that is not the cheapest, which is."""
    for objective, led in (("chips", "fewest chips"), ("time", "fastest")):
        found = answer(*SWEEP, "--objective", objective)["result"]
        said, rows_ = found["verdicts"][0], found["chips"]
        assert said.startswith(f"{led}: ")
        taken = next(row for row in rows_ if f": {row['slice']}, {row['chips']:,} chips" in said)
        if objective == "chips":
            assert taken["chips"] == min(row["chips"] for row in rows_ if row["keeps_deadline"])
        cheaper = [row for row in rows_ if row["usd_at_price"] < taken["usd_at_price"]]
        assert "the cheapest of those tried is " in said or not cheaper


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_page():
    out, _ = answered(*SWEEP)
    lines = out.splitlines()
    assert len(lines) <= HEIGHT
    assert max(map(len, lines)) <= WIDTH
    title = next(line for line in lines if "over providers" in line)
    assert "runs in" in title
    for name in ("h100", "v5p", "v6e"):
        assert f"{name} price {price_text(name, load_chip(name).price)}" in flat(out)
    assert any(line.startswith("  cheapest: ") for line in lines)


@pytest.mark.slow
def test_a_row_says_its_days_with_their_range_and_whether_the_slow_end_is_in_time():
    out, _ = answered(*SWEEP)
    for row in rows():
        low, high = row["days_80"]["low"], row["days_80"]["high"]
        assert low < row["days"] < high
        late = ": may be late" if high > 10 else ""
        assert f"{sig(row['days'])} ({sig(low)} to {sig(high)}{late})" in out
    some = max(rows(), key=lambda row: row["days"])
    days = (some["days"] + some["days_80"]["high"]) / 2
    words = [f"{days:.4g}" if word == "10" else word for word in SWEEP]
    assert ": may be late)" in answered(*words)[0]


def test_of_one_size():
    words = ("plan", "sweep", *JOB, "--on", "h100,v5e", "--chips", "8", "--for", "any")
    found = answer(*words)["result"]["chips"]
    assert [(row["slice"], row["chips"]) for row in found] == [("h100:8", 8), ("v5e:2x4", 8)]
    assert all("days" not in row or row["days"] is None for row in found)
    assert all(row["usd_at_price"] > 0 for row in found)


@pytest.mark.parametrize("rate", [1.0, 3.0, 40.0, 1e4])
@pytest.mark.parametrize("chip", ["v5e", "h100", "v5p"])
def test_the_walk_finds_what_a_look_at_all_finds(monkeypatch, chip, rate):
    """Steps that take seconds inversely to their chips, and no slice is planned twice."""
    pieces = slices_offered(Hardware().chip(chip), 1, 512)
    monkeypatch.setattr(deadline, "step_of", lambda point: 1000 / rate / point.piece.chips)

    def plan(piece, below, program):
        point = SweepPoint(piece=piece, batch="1", sequence_length=1, answer=None)
        return replace(point, answer=Planned() if 1000 / rate / piece.chips <= below else None)

    choice = slice_for(pieces, plan, lambda _: 30.0, "chips")
    kept = [p.chips for p in pieces if 1000 / rate / p.chips <= 30]
    assert (choice and choice.point.piece.chips) == (min(kept) if kept else None)
    if choice:
        assert len(choice.looked) == len(set(map(str, choice.looked)))


Planned = partial(SimpleNamespace, plan=SimpleNamespace(software="any"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on", "h100,v5p"), "give --chips N, or --tokens with --days"),
        (("--on", "h100,,v5p", "--chips", "8"), "has an empty name"),
        (
            ("--on", "h100,v5p", "--chips", "8", "--objective", "speed"),
            "--objective 'speed'; known: time",
        ),
    ],
)
def test_what_is_refused(capsys, words, said):
    assert said in refused(capsys, ["plan", "sweep", *JOB, *words])


def test_plan_train_says_who_takes_several_chips(capsys):
    said = refused(capsys, ["plan", "train", *JOB, "--on", "h100,v5p"])
    assert "--on h100,v5p names several chips" in said
    assert "`shardwise plan sweep` with the same options and --chips N" in said
