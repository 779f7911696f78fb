"""`shardwise plan serve --objective cost`: names, tables, the plan file, chips side by side."""

import contextlib
import csv
import io
import json
from functools import cache

import pytest

from shardwise.apps.cli import main
from shardwise.apps.cli.plan_serve import serve
from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.plans import ServePlan, load_plan

SMALL = ("--objective", "cost", "--model", "llama-3-8b", "--input", "1024", "--output", "128")
GOAL = ("--ttft", "1s", "--tpot", "40ms", "--kv", "bf16", "--weights", "checkpoint")


def run(*args):
    serve.main(args=[*SMALL, *args], standalone_mode=False)


@cache
def found(*args):
    """The document of a request that several tests read."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run(*args, "--json")
    return json.loads(out.getvalue())


def document(capsys, *args):
    run(*args, "--json")
    return json.loads(capsys.readouterr().out)


def test_the_names(capsys):
    doc = found("--on", "v5e:2x2", *GOAL, "--no-confirm")
    result = doc["result"]
    assert result["slice"] == "v5e:2x2"
    assert result["ttft_seconds"] <= 1
    assert result["tpot_seconds"] <= 0.04
    assert (result["weights"], result["kv"]) == ("checkpoint", "bf16")
    assert set(result["usd_per_million_tokens"]) == {"input", "output", "all"}
    assert set(result["limits"]) == {"HBM capacity", "HBM bandwidth", "FLOP/s", "network"}
    whats = [v["what"] for v in result["verdicts"]]
    assert whats == ["disaggregation", "a bigger slice", "speculation"]
    assert all(v["why"] for v in result["verdicts"])
    assert {"matmuls", "kv", "flops", "network"} < set(result["breakdown_seconds"])
    assert result["confirmation"] is None
    assert doc["resolved"]["weights"] == {"value": "checkpoint", "origin": "flag"}
    assert doc["resolved"]["batch"]["origin"] == "computed"
    assert doc["resolved"]["engine"]["value"] == "others"
    assert not any("engine ideal" in line for line in doc["warnings"])
    bare = document(capsys, "--on", "v5e:2x2", *GOAL, "--no-confirm", "--engine", "ideal")
    assert any("no engine overhead counted (engine ideal)" in line for line in bare["warnings"])
    assert bare["result"]["usd_per_million_tokens"]["all"] < result["usd_per_million_tokens"]["all"]


OTHER_GOALS = [pytest.param(goal, marks=pytest.mark.slow) for goal in (("--tpot", "30ms"), ())]


@pytest.mark.parametrize("goal", [("--tpot", "30ms", "--e2e", "3s"), *OTHER_GOALS])
def test_the_front_ends_with_the_answer(capsys, goal):
    """Within every target, none dominated, and the answer is its cheapest point."""
    chip = ("--on", "v5e", "--ttft", "1s", "--no-confirm")
    result = document(capsys, *chip, *goal)["result"]
    front = result["front"]
    assert len(front) > 2
    names = ("slice", "mesh", "layout", "running", "tpot_seconds", "chip_hours_per_million_tokens")
    assert [front[-1][name] for name in names] == [result[name] for name in names]
    costs = [p["chip_hours_per_million_tokens"]["all"] for p in front]
    assert costs == sorted(set(costs), reverse=True)
    steps = [p["tpot_seconds"] for p in front]
    assert steps == sorted(set(steps))
    assert all(p["ttft_seconds"] <= 1 for p in front)
    if goal:
        assert max(steps) <= 0.03
    if "--e2e" in goal:
        assert all(p["e2e_seconds"] <= 3 for p in front)


def test_the_front_is_confirmed(capsys):
    found = document(capsys, "--on", "v5e:2x2", *GOAL)["result"]["confirmation"]
    assert found["fleets"]
    assert sorted(found["order"]) == list(range(len(found["fleets"])))
    assert found["reordered"] == (found["order"] != sorted(found["order"]))
    first = found["fleets"][0]
    assert first["requests"] > 50
    assert first["kept"]
    ratio = first["simulated"]["tpot_seconds"] / first["analytic"]["tpot_seconds"]
    assert 0.7 < ratio < 1.15


def test_chips_side_by_side_and_the_tables(tmp_path, capsys):
    plan, front = tmp_path / "plan.yaml", tmp_path / "front.csv"
    picture = tmp_path / "front.svg"
    files = ("-o", str(plan), "--csv", str(front), "--plot", str(picture))
    run("--on", "v5e:2x2,h100:1", *GOAL, "--no-confirm", *files)
    drawn = picture.read_text()
    assert "<!-- USD per million tokens -->" in drawn
    assert all(f"<!-- {part} -->" in drawn for part in ("matmuls", "kv", "network", "expected"))
    out = capsys.readouterr().out
    assert "llama-3-8b, prompts of 1,024 and answers of 128 tokens" in out
    assert ", engine others: the cheapest plan" in out
    for words in ("per chip", "What limits me", "Would it help?", "each part alone at peak rates"):
        assert words in out
    loaded = load_plan(plan)
    assert isinstance(loaded, ServePlan)
    assert loaded.dtypes.matmuls == "stored"
    with front.open() as file:
        points = list(csv.DictReader(file))
    assert len(points) > 1
    assert float(points[0]["tpot_seconds"]) < float(points[-1]["tpot_seconds"])


def test_a_chip_without_a_price_is_compared_by_chip_hours(capsys):
    doc = document(capsys, "--on", "tpu7x:2x2x1", *GOAL, "--no-confirm")
    assert doc["result"]["usd_per_million_tokens"]["all"] is None
    assert doc["result"]["chip_hours_per_million_tokens"]["all"] > 0
    assert any("no public price for tpu7x" in line for line in doc["warnings"])


def test_a_rate_needs_replicas(capsys):
    one = found("--on", "v5e:2x2", *GOAL, "--no-confirm")["result"]
    rate = str(5 * one["requests_per_second"])
    many = document(capsys, "--on", "v5e:2x2", *GOAL, "--no-confirm", "--rate", rate)["result"]
    assert many["replicas"] + many["prefill_replicas"] >= 4
    assert many["requests_per_second"] == pytest.approx(float(rate))


def test_a_trace_is_the_load(tmp_path, capsys):
    """300 requests of two lengths in 30 s: their means size the fleet, they themselves confirm."""
    path = tmp_path / "trace.jsonl"
    rows = [{"arrival": i / 10, "prompt": 512 + 512 * (i % 2), "output": 64} for i in range(301)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    chosen = ("--model", "llama-3-8b", "--on", "v5e:2x2", "--trace", str(path), *GOAL)
    serve.main(args=["--objective", "cost", *chosen, "--json"], standalone_mode=False)
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["requests_per_second"] == pytest.approx(10)
    first = result["confirmation"]["fleets"][0]
    assert first["kept"]
    assert first["requests"] == pytest.approx(150, abs=2)  # the middle half
    with pytest.raises(BadRequest, match="--input takes no effect with --trace"):
        run("--on", "v5e:2x2", "--trace", str(path))


def test_refusals():
    with pytest.raises(BadRequest, match="--batch takes no effect"):
        run("--on", "v5e:2x2", "--batch", "8")
    with pytest.raises(BadRequest, match=r"--plot 'front\.pdf': the ending says the format"):
        run("--on", "v5e:2x2", "--plot", "front.pdf")
    with pytest.raises(BadRequest, match="percentile"):
        run("--on", "v5e:2x2", "--percentile", "20%")
    with pytest.raises(NoFeasiblePlan, match=r"v5e:1x1: .*; h100:1: "):
        run("--on", "v5e:1x1,h100:1", "--tpot", "1us")
    with pytest.raises(
        NoFeasiblePlan, match=r"no slice of v5e .* within TPOT 1 µs: allow a longer"
    ):
        run("--on", "v5e:2x2", "--tpot", "1us")
    with pytest.raises(
        NoFeasiblePlan, match=r"llama-3-8b fits no slice of v5e .*more memory"
    ) as no:
        run("--on", "v5e:1x1", "--weights", "bf16", "--tpot", "50ms")
    assert "--tpot" not in str(no.value)
    others = ("--model", "llama-3-8b", "--on", "v5e", "--input", "8", "--output", "8")
    with pytest.raises(BadRequest, match="--rate belongs to --objective cost"):
        serve.main(args=[*others, "--rate", "1"], standalone_mode=False)


def test_a_plan_is_exported_and_read_back(tmp_path, capsys):
    plan, out, again = (tmp_path / n for n in ("plan.yaml", "serve.sh", "again.yaml"))
    run("--on", "h100:1", *GOAL, "--no-confirm", "-o", str(plan))
    for target in ("vllm", "sglang"):
        for args in (
            ["export", str(plan), "--to", target, "-o", str(out)],
            ["export", str(out), "--from", target, "-o", str(again)],
        ):
            with pytest.raises(SystemExit) as stop:
                main(args)
            assert not stop.value.code
        assert load_plan(again) == load_plan(plan)
    with pytest.raises(SystemExit) as stop:
        main(["export", str(plan), "--to", "maxtext"])
    assert stop.value.code == 2
    assert "serving plan, which maxtext does not run" in capsys.readouterr().err


def test_one_token_of_output_has_no_time_between_tokens(capsys):
    """Where no time per token is finite (inf), its product with no tokens is 0, not nan."""
    result = document(capsys, "--on", "h100:8", "--rate", "2", "--no-confirm", "--output", "1")[
        "result"
    ]
    assert result["e2e_seconds"] == result["ttft_seconds"]


@pytest.mark.parametrize("objective", ["cost", "smallest"])
@pytest.mark.parametrize("flag", ["--input", "--output"])
def test_longer_requests_than_any_context_are_refused(objective, flag):
    said = f"{flag} is 16,777,217; at most 16,777,216 makes sense"
    with pytest.raises(BadRequest, match=said):
        run("--on", "h100:8", "--objective", objective, flag, "16777217")


def test_a_rate_beyond_a_million_replicas_is_refused():
    said = r"1e\+12 requests per second take [\d,]+ replicas of v5e.*lower the rate \(--rate\)"
    with pytest.raises(BadRequest, match=said):
        run("--on", "v5e:2x2", "--rate", "1e12", "--no-confirm")
