"""`plan train --days`: of a bare chip the slice that a deadline needs, of a slice whether it keeps
it."""

import pytest
from tests.apps.commands import answer, answered, flat, refused, run

from shardwise.units import format_usd, sig

pytestmark = pytest.mark.usefixtures("answers_kept")

JOB = ("plan", "train", "--model", "llama-3.2-1b", "--batch", "256seq", "--seq", "2048")
HELD = ("--remat", "block", "--for", "any", "--tokens", "200B")


def test_a_bare_chip_has_the_fewest_chips_that_are_in_time():
    doc = answer(*JOB, *HELD, "--on", "v5p", "--days", "15")
    result = doc["result"]
    assert result["slice"] == "v5p:2x2x2"
    assert result["run"]["keeps_deadline"]
    assert result["run"]["deadline_days"] == 15
    said = "slice of fewest chips of v5p that meets the deadline"
    assert any(said in line for line in doc["notes"])
    fewer = answer(*JOB, *HELD, "--on", "v5p:2x2x1", "--days", "15")
    assert not fewer["result"]["run"]["keeps_deadline"]
    assert any(line.startswith("late: ") for line in fewer["warnings"])


def test_chips_that_the_cheapest_plan_leaves_idle_are_told_with_what_the_others_cost():
    few = ("plan", "train", "--model", "llama-3.2-1b", "--batch", "1seq", "--seq", "2048")
    asked = (*few, "--on", "v5e:4x4", "--objective", "cost")
    doc = answer(*asked, "--tokens", "1T")
    result, run = doc["result"], doc["result"]["run"]
    paid = run["usd"] * result["chips_used"] / 16
    (line,) = (line for line in doc["warnings"] if "stay idle" in line)
    assert line.startswith(
        f"{result['chips_idle']} of 16 chips stay idle: --objective cost counts "
    )
    assert (
        f"chips in use, {format_usd(paid)} of the run's {format_usd(run['usd'])}; plan on " in line
    )
    (line,) = (line for line in answer(*asked)["warnings"] if "stay idle" in line)
    assert "only chips in use; plan on " in line
    assert not any("stay idle" in line for line in answer(*asked[:-2])["warnings"])


@pytest.mark.slow
def test_the_fewest_chips_are_claimed_for_the_program_that_was_searched():
    words = ("--remat", "block", "--tokens", "200B", "--on", "v5p", "--days", "15")
    notes = answer(*JOB, *words, "--for", "jax")["notes"]
    said = "that meets the deadline and runs in JAX (shardwise train), of"
    assert any(said in line for line in notes)


@pytest.mark.slow
def test_what_is_lost_counts_against_the_deadline():
    """A tenth more days than a slice takes are enough, but not where a straggler takes a fifth."""
    taken = answer(*JOB, *HELD, "--on", "v5p:2x2x2")["result"]["run"]["days"]
    words, lost = ("--on", "v5p", "--days", f"{1.1 * taken:.4g}"), ("--straggler", "1.2")
    result = answer(*JOB, *HELD, *words, *lost)["result"]
    assert result["run"]["keeps_deadline"]
    assert result["run"]["days"] <= 1.1 * taken
    alone = answer(*JOB, *HELD, *words)["result"]
    assert alone["slice"] == "v5p:2x2x2"
    assert result["slice"] != alone["slice"]


@pytest.mark.slow
def test_the_cheapest_in_time_costs_no_more_than_that_of_the_fewest_chips():
    found = [
        answer(*JOB, *HELD, "--on", "v5e", "--days", "30", "--objective", name)["result"]["run"]
        for name in ("cost", "time")
    ]
    assert all(run["keeps_deadline"] for run in found)
    assert found[0]["usd"] <= found[1]["usd"] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--on", "v5e", "--days", "3"), 2, "--days is the deadline of a run; give --tokens"),
        ((*HELD, "--on", "v5e", "--days", "0.0001"), 3, "no slice of v5e trains it within 0.0001"),
        ((*HELD, "--on", "v5e", "--days", "0"), 2, "--days is 0"),
    ],
)
def test_what_no_slice_keeps_is_said(capsys, words, code, said):
    found, _, err = run(capsys, *JOB, *words)
    assert (found, said in err) == (code, True), err


def test_a_bare_chip_without_a_deadline_points_to_it(capsys):
    _, err = answered(*JOB, *HELD, "--on", "v5e")
    said = " ".join(err.split())
    assert "with --days" not in refused(capsys, [*JOB, "--on", "v5x"])
    assert "--days N takes the smallest that meets the deadline" in said
    assert "`shardwise plan sweep` with the same options shows others" in said


@pytest.mark.slow
def test_a_deadline_that_the_slow_end_misses_is_said_and_what_to_ask_for(capsys):
    taken = answer(*JOB, *HELD, "--on", "v5p:2x2x2")["result"]["run"]
    days = float(f"{(taken['days'] + taken['days_80']['high']) / 2:.3g}")
    words = (*JOB, *HELD, "--on", "v5p", "--days", f"{days:g}")
    doc = answer(*words)
    run_, (said,) = doc["result"]["run"], doc["warnings"]
    assert run_["days"] <= days < run_["days_80"]["high"]
    for quiet in ("-q", "--brief"):
        ends = " to ".join(sig(run_["days_80"][end]) for end in ("low", "high"))
        assert f"days ({ends}: may be late)" in flat(run(capsys, *words, quiet)[1])
    assert f"the slow end misses --days {days:g}; --days " in said
    safe = said.partition("; --days ")[2].split()[0]
    kept = answer(*words[:-1], safe)["result"]["run"]
    assert kept["days_80"]["high"] <= days
    assert "late" not in flat(run(capsys, *words[:-1], "40", "-q")[1])


def test_a_straggler_makes_steps_longer_and_takes_no_time_from_them():
    """It is in the days once: what trains of the time is what checkpoints and failures leave."""
    lost = ("--chip-mtbf", "10y", "--checkpoint-time", "30s", "--restart-time", "10min")
    words = (*JOB, *HELD, "--on", "v5e:4x8")
    trains = []
    for slow in ((), ("--straggler", "1.25")):
        page, _ = answered(*words, *lost, *slow)
        trains.append(flat(page).split(" trains ")[1])
    assert trains[0].split(" of the time")[0] == trains[1].split(" of the time")[0]
    assert "; steps take 1.25 times as long (--straggler)" in trains[1]
    runs = [answer(*words, *lost, *slow)["result"]["run"] for slow in ((), ("--straggler", "1.25"))]
    assert runs[1]["days"] == pytest.approx(1.25 * runs[0]["days"])
