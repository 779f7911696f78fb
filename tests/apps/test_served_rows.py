"""What a page of `plan serve` says beside the answer: what to type next, rows of more servers."""

import json
from pathlib import Path

import pytest
from tests.apps.commands import flat
from tests.apps.served import RATE, SMALL, found, run, said

from shardwise.commands.pricing.plans import load_plan
from shardwise.errors import NoFeasiblePlan
from shardwise.hardware import load_chip
from shardwise.hardware.prices import price_range

pytestmark = pytest.mark.usefixtures("answers_kept")


def test_no_server_can_be_left_out(tmp_path, capsys):
    """The answer is the cheapest that holds: with one server less it does not, and `plan show` of
    that says why."""
    path = tmp_path / "plan.yaml"
    words = ("--on", "h100", "--input", "512", "--output", "32", "--rate", "150", "--tpot", "12ms")
    run("--model", "llama-3-8b", *words, "-o", str(path))
    printed = capsys.readouterr().out
    plan = load_plan(path)
    assert plan.replicas > 1
    rows = {line.split()[0]: line for line in printed.splitlines() if line.startswith("  ")}
    assert float(rows["fewer"].split()[2]) < 150
    fewer = f"replicas={plan.replicas - 1}"
    out, _, _ = said(capsys, "plan", "show", str(path), "--set", fewer)
    assert ": DOES NOT HOLD (" in out
    assert "when simulated, but " in " ".join(out.split())


def test_a_step_that_is_too_long_is_said_with_whose_constants_it_is():
    """The book's chapter 8 on 16 v5e: by our server's compiled steps even one sequence takes more
    than 20 ms."""
    words = ("--model", "llama-3-70b", "--on", "v5e:4x4", "--input", "8192", "--output", "512")
    words += ("--weights", "int8", "--kv", "int8", "--for", "jax", "--tpot", "20ms")
    with pytest.raises(
        NoFeasiblePlan, match=r"the shortest takes 2\d\.\d ms with the constants of jax"
    ):
        run(*words)


def test_what_to_type_next(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    run(*SMALL, *RATE, "-o", str(path))
    out = capsys.readouterr().out
    assert f"shardwise simulate {path} --rate 20" in flat(out)
    assert f"or: shardwise export {path} --to vllm" in flat(out)
    _, err, code = said(capsys, "export", str(path), "--to", "sglang")
    assert code == 0
    assert "the plan's times are those of vllm, not of sglang" in " ".join(err.split())
    _, err, _ = said(capsys, "export", str(path), "--to", "vllm")
    assert "times are those" not in err


def of_row(row):
    """What the options of a row answer."""
    words = row["option"].split()
    if words[0] == "simulate":
        return None
    changed = dict(zip(SMALL[::2], SMALL[1::2], strict=True))
    changed |= dict(zip(RATE[::2], RATE[1::2], strict=True))
    changed |= dict(zip(words[::2], words[1::2], strict=True))
    return found(*[word for pair in changed.items() for word in pair])["result"]


@pytest.mark.slow
def test_each_row_names_what_to_type_for_it():
    """Running it gives the row's chips, and its rate and dollars as near as an estimate is."""
    first, *rows = found(*SMALL, *RATE)["result"]["instead"]
    assert not first["option"]
    assert {row["name"] for row in rows} >= {"fp8", "separate prefill"}
    assert all(row["option"] for row in rows)
    for row in rows:
        if other := of_row(row):
            assert other["chips"] == row["chips"], row
            assert other["requests_per_second"] == pytest.approx(row["requests_per_second"])
            dollars = other["usd_per_million_tokens"]["all"]
            assert dollars == pytest.approx(row["usd_per_million_tokens"], rel=1e-6)


BUSY = ("--model", "llama-3-8b", "--on", "h100", "--input", "512", "--output", "32")
BUSY += ("--tpot", "12ms", "--rate", "150")
FREE = BUSY[:-2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name"),
    [((*SMALL, *RATE), "more"), (FREE, "more"), (BUSY, "fewer"), (BUSY, "more")],
)
def test_a_row_of_more_or_fewer_servers_is_what_its_simulation_finds(capsys, tmp_path, words, name):
    """On the edge of a queue a rate holds by luck: two searches that try other rates end 5 % apart.
    A row and its command ask for one search, so they say one rate."""
    path = tmp_path / "plan.yaml"
    said(capsys, "plan", "serve", *words, "-o", str(path))
    (row,) = (r for r in found(*words)["result"]["instead"] if r["name"] == name)
    verb, *options = row["option"].split()
    out, _, code = said(capsys, verb, str(path), *options, "--json")
    assert code == 0
    rate = json.loads(out)["result"]["largest_rate"]
    assert rate == pytest.approx(row["requests_per_second"], rel=1e-9 if name == "more" else 0.05)


@pytest.mark.slow
def test_interactivity_is_a_target_of_the_plan_and_its_simulation(capsys, tmp_path):
    """95 % of the requests get so many tokens a second, of the answer over the whole request."""
    path = str(tmp_path / "plan.yaml")
    out, _, code = said(capsys, "plan", "serve", *SMALL, "--interactivity", "60", "-o", path)
    assert code == 0
    assert "interactivity >= 60 tokens/s" in flat(out)
    assert "interactivity: 60.0" in Path(path).read_text()
    out, _, code = said(capsys, "simulate", path, "--json")
    result = json.loads(out)["result"]
    assert (code, result["holds"]) == (0, True)
    assert result["p90_e2el_ms"] <= 32 / 60 * 1e3
    _, err, code = said(capsys, "simulate", path, "--interactivity", "500", "--check", "90%")
    assert (code, "0.0" in err) == (4, True)


def test_whole_boxes_are_said_where_a_fleet_fills_none(capsys):
    result = found(*SMALL, *RATE)["result"]
    boxes = result["whole_boxes"]
    assert (result["chips"], boxes["chips_per_box"], boxes["chips"]) == (1, 8, 8)
    assert boxes["usd_per_hour"] == pytest.approx(8 * result["usd_per_hour"])
    run(*SMALL, *RATE)
    out = capsys.readouterr().out
    assert "in whole boxes of 8, if a provider rents nothing smaller: 8 chips, $" in out
    told = flat(out)
    assert f"at {load_chip('h100').price}" in told
    assert f"prices: {price_range('h100')}" in told
    v5e = found("--model", "llama-3-8b", "--on", "v5e:2x2", *SMALL[4:], "--tpot", "50ms")
    assert v5e["result"]["whole_boxes"] is None


@pytest.mark.slow
def test_a_trace_lies_beside_the_plan(tmp_path, monkeypatch, capsys):
    """The plan's file names it as seen from there, whatever the folder that one works in."""
    rows = [f"{0.05 * i:.2f},{400 + i % 50},{20 + i % 9}" for i in range(200)]
    (tmp_path / "plans").mkdir()
    trace = tmp_path / "load.csv"
    trace.write_text("\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows]))
    monkeypatch.chdir(tmp_path)
    run(*SMALL[:4], "--trace", "load.csv", "--tpot", "40ms", "-o", "plans/plan.yaml")
    printed = capsys.readouterr().out
    assert "trace: ../load.csv" in (tmp_path / "plans" / "plan.yaml").read_text()
    monkeypatch.chdir(tmp_path.parent)
    out, _, code = said(capsys, "plan", "show", str(tmp_path / "plans" / "plan.yaml"))
    assert code == 0
    assert out.splitlines()[2] == printed.splitlines()[2]
