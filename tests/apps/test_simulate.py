"""`shardwise simulate`: a plan under a load, its document, its files, and what it refuses."""

import csv
import json
import re
import tracemalloc

import pytest
from tests.apps.commands import document, flat, over, run
from tests.apps.commands import refused as refusal
from tests.apps.test_plan_train import HELD

import shardwise as sw
from shardwise.commands.plan_serve.simulate import (
    LoadSimulated,
    OverloadedSimulated,
    SteadySimulated,
)
from shardwise.models import load_model
from shardwise.plans import ServePlan, ServeScheduling, Workload, model_hash, save_plan

MADE = ("--rate", "20", "--requests", "60", "--input", "500", "--output", "40")


@pytest.fixture
def plan_file(tmp_path):
    """Llama-3-8B on one H100, twice."""

    def save(**changes):
        values = {
            "model": "llama-3-8b",
            "model_hash": model_hash(load_model("llama-3-8b")),
            "slice": "h100:1",
            "mesh": {"tensor": 1},
            "box": (1,),
            "batch": 32,
            "input_length": 1024,
            "output_length": 128,
            "prefill_chunk": 1024,
            "replicas": 2,
        }
        path = tmp_path / "plan.yaml"
        save_plan(ServePlan(**{**values, **changes}), path)
        return path

    return save


def test_a_benchmark_is_simulated_beside_what_was_measured(plan_file, tmp_path, capsys):
    """What was simulated, as measured: no error; a time to the first token of twice that: half."""
    path, bench, rows = plan_file(), tmp_path / "bench.json", tmp_path / "rows.csv"
    run(capsys, "simulate", str(path), *MADE, "--csv", str(rows))
    with rows.open() as file:
        made = list(csv.DictReader(file))
    value = {name: [float(row[name]) for row in made] for name in made[0] if name != "refusal"}
    ttft, whole = value["ttft_seconds"], value["e2el_seconds"]
    columns = {
        "input_lens": [500] * 60,
        "output_lens": [40] * 60,
        "start_times": [7 + at for at in value["arrival_seconds"]],
        "ttfts": [2 * one for one in ttft],
        "itls": [[(b - a) / 39] * 39 for a, b in zip(ttft, whole, strict=True)],
    }
    bench.write_text(json.dumps(columns))
    words = ("simulate", str(path), "--replay", str(bench))
    code, out, _ = run(capsys, *words, "--csv", str(rows), "--force")
    assert code == 0
    assert "Each request beside what was measured" in out
    found = json.loads(run(capsys, *words, "--json")[1])["result"]["replayed"]
    errors = {one["name"]: (one["median_error"], one["p90_error"]) for one in found}
    assert errors["tpot"] == pytest.approx((0, 0), abs=1e-9)
    assert errors["ttft"] == pytest.approx((0.5, 0.5))
    with rows.open() as file:
        first = next(csv.DictReader(file))
    assert float(first["measured_ttft_seconds"]) == pytest.approx(2 * float(first["ttft_seconds"]))
    assert float(first["ttft_error"]) == pytest.approx(-0.5)
    said = refused(capsys, str(path), "--replay", str(bench), "--rate", "3")
    assert "--rate takes no effect with --replay" in said


def test_prompts_that_begin_alike_are_found(plan_file, capsys):
    words = (str(plan_file()), *MADE, "--prefix", "384", "--json")
    result = json.loads(run(capsys, "simulate", *words)[1])["result"]
    assert result["hit_rate"] == pytest.approx(384 / 500, rel=0.1)
    assert "--prefix is 500 and prompts" in refused(
        capsys, str(plan_file()), *MADE, "--prefix", "500"
    )


def refused(capsys, *args):
    """The message of a refused simulation."""
    return refusal(capsys, ("simulate", *args))


def simulated(capsys, *args):
    """The document."""
    return document(capsys, "simulate", *args)


def test_the_document(plan_file, capsys):
    found = simulated(capsys, plan_file(), *MADE, "--ttft", "1s", "--tpot", "50ms")
    result = found["result"]
    assert result["completed"] == 60
    assert result["total_output_tokens"] == 60 * 40
    assert result["chips"] == 2
    assert 0 < result["median_ttft_ms"] <= result["p99_ttft_ms"]
    assert result["mean_tpot_ms"] == pytest.approx(result["mean_itl_ms"], rel=0.05)
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert result["usd"] > 0
    assert sum(r["requests"] for r in result["replicas"]) == 60
    assert found["resolved"]["scheduling.policy"] == {"value": "chunked", "origin": "file"}
    assert found["provenance"]["definitions"]["itl"]
    assert "and not their text, so the prefix cache finds nothing" in found["notes"][0]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--set", "replicas=1000000"), "has 1,000,000 replicas; at most 10,000"),
        (("--set", "replicas=9000", "--requests", "9k"), "9,000 requests on 9,000 replicas"),
        (("--tile", "100000"), "the load has 6000000 requests; at most 150,000"),
        (("--requests", "100k", "--output", "100k"), "10,000,000,000 tokens in all"),
    ],
)
def test_a_load_that_would_not_end_is_refused_with_its_limit(plan_file, capsys, args, said):
    message = refused(capsys, plan_file(), *over(MADE, *args))
    assert said in message
    assert any(remedy in message for remedy in ("replicas=N", "--requests"))


@pytest.mark.slow
def test_idle_replicas_take_little_memory(plan_file, capsys):
    """Pages are listed once they are held: 5.8 GB for 10,000 replicas before."""
    tracemalloc.start()
    try:
        result = simulated(capsys, plan_file(replicas=2000), *MADE)["result"]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result["completed"] == 60
    assert most < 150e6


def test_the_same_seed_gives_the_same_document(plan_file, capsys):
    path = plan_file()
    first, again = (simulated(capsys, path, *MADE, "--seed", "4") for _ in range(2))
    assert first == again
    assert simulated(capsys, path, *MADE, "--seed", "5")["result"] != first["result"]


def test_a_choice_of_the_plan_changes_the_answer(plan_file, capsys):
    path = plan_file()
    chunked = simulated(capsys, path, *MADE)["result"]
    found = simulated(capsys, path, *MADE, "--set", "scheduling.policy=interleaved")
    assert found["resolved"]["scheduling.policy"] == {"value": "interleaved", "origin": "flag"}
    assert found["result"]["p99_itl_ms"] != chunked["p99_itl_ms"]
    slow = simulated(capsys, path, *MADE, "--set", "chip.hbm_bandwidth=1e12")["result"]
    assert slow["mean_tpot_ms"] > 2 * chunked["mean_tpot_ms"]
    alone = simulated(capsys, path, *MADE, "--set", "prefill_replicas=1")["result"]
    pool = "{slice: h100:2, mesh: {tensor: 2}, box: [2]}"
    wide = ("--set", "prefill_replicas=1", "--set", f"prefill={pool}")
    faster = simulated(capsys, path, *MADE, *wide)["result"]
    assert faster["mean_ttft_ms"] < 0.8 * alone["mean_ttft_ms"]
    # The second token waits for the cache over the links of the smaller end.
    assert faster["mean_tpot_ms"] == pytest.approx(alone["mean_tpot_ms"], rel=0.05)
    assert [r["role"] for r in alone["replicas"]] == ["serve", "serve", "prefill"]
    assert alone["prefilled_tokens"] == 60 * 500


def test_traces_files_and_pictures(plan_file, capsys, tmp_path):
    trace = tmp_path / "own.jsonl"
    rows = [
        {"arrival": i / 10, "prompt": 300, "output": 10, "hash_ids": [0, i], "block_size": 128}
        for i in range(20)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    out = {name: tmp_path / f"out.{name}" for name in ("csv", "json.gz", "svg")}
    found = simulated(
        capsys,
        plan_file(routing="prefix_aware", engine="vllm"),
        *("--trace", trace, "--requests", "15", "--speed", "2", "--tile", "2"),
        *("--csv", out["csv"], "--perfetto", out["json.gz"], "--plot", out["svg"]),
    )
    assert found["warnings"] == []
    result = found["result"]
    assert result["completed"] == 30
    assert result["hit_rate"] > 0.2
    with out["csv"].open() as file:
        table = list(csv.DictReader(file))
    assert sum(int(row["hit_tokens"]) for row in table) == result["hit_tokens"]
    assert out["svg"].read_text().startswith("<?xml")
    assert out["json.gz"].stat().st_size > 1000


def test_a_person_reads_tables_and_definitions(plan_file, capsys):
    code, out, err = run(capsys, "simulate", plan_file(), *MADE, "--ttft", "1s", "--detail")
    assert code == 0
    for text in ("2 x h100:1", "TTFT", "request_goodput", "100.0% of the requests", "as of vllm"):
        assert text in out
    assert ", engine ideal: chunked" in out
    assert "finds nothing" in err
    assert "no engine overhead is counted (engine ideal); --set engine=vllm adds" in err


def test_a_threshold_that_is_missed_exits_with_4(plan_file, capsys):
    path = plan_file()
    code, _, err = run(capsys, "simulate", path, *MADE, "--tpot", "1ms", "--check", "90%")
    assert code == 4
    assert "0.0% of the requests met the objectives, below --check 90.0%" in err
    code, _, _ = run(capsys, "simulate", path, *MADE, "--tpot", "1s", "--check", "90%")
    assert code == 0


def test_an_overload_is_said(plan_file, capsys):
    load = ("--rate", "2000", "--requests", "400", "--input", "4000", "--output", "100")
    found = simulated(capsys, plan_file(), *load)
    assert any(w.startswith("overloaded: ") for w in found["warnings"])


def test_a_queue_that_rises_is_said_before_a_tenth_waits(plan_file, capsys):
    """A quarter over the rate at which 400 requests that come at once are answered."""
    path = plan_file(replicas=1)
    load = ("--requests", "400", "--input", "500", "--output", "200")
    most = simulated(capsys, path, *load, "--rate", "1000")["result"]["request_throughput"]
    over = simulated(capsys, path, *load, "--rate", str(1.25 * most))
    [said] = [w for w in over["warnings"] if w.startswith("overloaded: ")]
    assert "of the first third of the load waited" in said
    for share in (0.5, 0.8):
        calm = simulated(capsys, path, *load, "--rate", str(share * most))
        assert not any(w.startswith("overloaded: ") for w in calm["warnings"])
    few = ("--requests", "19", "--input", "500", "--output", "200", "--rate", "1000")
    assert not any("of the first third" in w for w in simulated(capsys, path, *few)["warnings"])


def test_what_is_longer_than_the_cache_is_refused_and_said(plan_file, capsys):
    load = ("--rate", "1", "--requests", "2", "--input", "900000", "--output", "10")
    found = simulated(capsys, plan_file(), *load)
    assert found["result"]["completed"] == 0
    assert found["result"]["refused"] == {"longer than the cache": 2}
    assert any("refused: 2 longer than the cache" in w for w in found["warnings"])


def test_a_model_without_room_for_a_cache_has_no_plan(plan_file, capsys):
    code, _, err = run(capsys, "simulate", plan_file(slice="v5e:1x1", box=(1, 1)), *MADE)
    assert code == 3
    assert "llama-3-8b leaves no room for a cache on v5e:1x1" in err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), "a load needs --trace FILE, or --rate"),
        *(
            (over(MADE, f"--{name}", value), f"--{name} is '{value}'; it must be a number")
            for name in ("rate", "speed", "cv")
            for value in ("nan", "inf", "-1")
        ),
        (
            over(MADE, "--cv", "1e200"),
            "--cv is '1e200'; it must be a number of at least 0 and at most 100",
        ),
        (over(MADE, "--rate", "1e-9"), "a load of at most 1e+09 s (30 years) can be simulated"),
        (over(MADE, "--seed", "-1"), "--seed is '-1'; it must be a whole number of at least 0"),
        ((*MADE, "--seed", "9" * 5000), "it must be a whole number"),
        (over(MADE, "--requests", "1e12"), "--requests is '1e12'; it must be a whole number"),
        (over(MADE, "--requests", "1e9"), "at most 150,000 can be simulated"),
        (over(MADE, "--tile", "1e5"), "at most 150,000 can be simulated"),
        (over(MADE, "--tile", "0"), "--tile is '0'; it must be a whole number of at least 1"),
        (over(MADE, "--check", "90%"), "--check needs objectives; give --ttft, --tpot, --e2e"),
        (over(MADE, "--lengths", "q.csv"), "--lengths 'q.csv' is not FILE:CATEGORY"),
        (over(MADE, "--csv", "/nowhere/a.csv"), "the folder '/nowhere' does not exist"),
        (("--trace", "/nowhere/a.csv"), "cannot read the trace '/nowhere/a.csv'"),
        (over(MADE, "--set", "scheduling.policy=chunky"), "key 'scheduling.policy'"),
        (over(MADE, "--set", "engine=vlm"), "engine 'vlm'"),
    ],
)
def test_bad_requests(plan_file, capsys, args, text):
    assert text in refused(capsys, plan_file(), *args)


def test_a_trace_that_says_lengths_takes_no_others(plan_file, capsys, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,5\n1,5,5\n")
    path = plan_file()
    said = refused(capsys, path, "--trace", trace, "--cv", "2")
    assert "--cv takes no effect" in said
    said = refused(capsys, path, "--trace", trace, "--rate", "2", "--speed", "2")
    assert "--rate and --speed both set" in said
    rates = tmp_path / "r.csv"
    rates.write_text("window_start_s,requests_per_s\n0,5\n60,6\n")
    said = refused(capsys, path, "--trace", rates)
    assert "holds rates of arrival alone; give lengths with --lengths" in said
    lengths = tmp_path / "q.csv"
    lengths.write_text(
        "category,field,mean,p1,p50,p99\nchat,input_tokens,9,10,100,1000\n"
        "chat,output_tokens,9,5,20,80\n"
    )
    load = ("--trace", rates, "--lengths", f"{lengths}:chat", "--requests", "50")
    assert simulated(capsys, path, *load)["result"]["completed"] == 50
    drawn = ("--rate", "9", "--lengths", f"{lengths}:chat", "--requests", "50")
    assert simulated(capsys, path, *drawn)["result"]["completed"] == 50
    faster = simulated(capsys, path, "--trace", trace, "--rate", "10")["result"]
    assert faster["duration"] < 1


def test_a_training_plan_answers_no_requests(capsys, tmp_path):
    path = tmp_path / "train.yaml"
    train = ("plan", "train", "--model", "llama-3-8b", "--on", "v5e:4x4", "--batch", "32seq")
    document(capsys, *train, "--seq", "2048", *HELD, "-o", path)
    assert "this is a training plan" in refused(capsys, path, *MADE)


def test_swapping_and_the_host_cache_need_the_hosts_memory(plan_file, capsys):
    kept = ServeScheduling(host_cache_share=0.5, swap=True)
    path = plan_file(scheduling=kept)
    assert simulated(capsys, path, *MADE)["result"]["cache"]["host_pages"] > 0
    unknown = plan_file(scheduling=kept, slice="a100:1")
    assert "the hosts of a100:1 have no 'host_dram_bytes'" in refused(capsys, unknown, *MADE)
    memory = ("--set", "chip.host_dram_bytes=1e12")
    assert simulated(capsys, unknown, *MADE, *memory)["result"]["cache"]["host_pages"] > 0


LOADED = Workload(rate=10.0, ttft=2.0, tpot=0.03)


def test_how_busy_a_server_is_and_how_full_are_two_figures(plan_file, capsys):
    """Steps run nearly always where a few sequences of many do."""
    path = plan_file(batch=302, replicas=1)
    _, out, _ = run(capsys, "simulate", path, *MADE)
    lines = {line.split()[0]: flat(line) for line in out.splitlines() if line.strip()}
    assert re.search(r"^running \S+ sequences of at most 302 on a server$", lines["running"])
    busy = [line for line in out.splitlines() if line.startswith("  steps run ")]
    assert re.search(r"% of the time$", busy[0])
    assert "utilisation" not in out


@pytest.mark.slow
def test_an_overload_is_said_with_what_holds(plan_file, capsys):
    """Rates and dollars are of what is answered, not of what comes."""
    path = plan_file(engine="vllm", workload=LOADED)
    code, out, _ = run(capsys, "simulate", path, "--rate", "500", "--requests", "1000")
    assert code == 0
    words = flat(out)
    assert "DOES NOT HOLD: " in words
    assert "requests/s may hold; --find-rate finds the rate" in words
    assert f"next: shardwise simulate {path} --requests 1000 --find-rate" in words
    over = simulated(capsys, path, "--rate", "500", "--requests", "1000")["result"]
    most = simulated(capsys, path, "--find-rate")["result"]
    assert not over["holds"]
    assert over["request_goodput"] <= over["request_throughput"]
    assert over["request_throughput"] < 0.5 * 500
    assert over["holds_about"] == pytest.approx(most["largest_rate"], rel=0.15)
    dollars = over["chips"] * 3.99 / 3600 / over["total_token_throughput"] * 1e6
    assert over["usd_per_million_tokens"]["all"] == pytest.approx(dollars, rel=0.05)


def test_a_load_that_holds_is_said_to(plan_file, capsys):
    path = plan_file(engine="vllm", workload=LOADED)
    _, out, _ = run(capsys, "simulate", path)
    assert "within targets in this run: 100.0% of the requests" in out


def test_each_kind_of_run_has_its_own_fields(plan_file):
    """Those of the steady state only where there is one, and a rate only where it is asked for."""
    path = plan_file(engine="vllm", workload=LOADED)
    steady = sw.simulate(path, requests=30)
    assert isinstance(steady, SteadySimulated)
    assert (steady.holds, steady.good_share) == (True, 1.0)
    burst = sw.simulate(path, rate=5, requests=30, cv=2)
    assert type(burst) is LoadSimulated
    assert not hasattr(burst, "holds")
    over = sw.simulate(path, rate=5000, requests=30)
    assert isinstance(over, OverloadedSimulated)
    assert over.result["holds_about"] == over.holds_about


RATES = ("request_throughput", "output_throughput", "total_token_throughput", "request_goodput")


@pytest.mark.parametrize("rate", ["1e-9", "0.001", "10", "60", "5000", "1e6"])
@pytest.mark.parametrize("requests", ["1", "2", "3", "30", "150"])
def test_rates_are_of_a_window_that_is_not_empty(plan_file, capsys, requests, rate):
    """From 0 to what comes, at whatever load; and of what the servers can, within a factor."""
    path = plan_file(engine="vllm", workload=LOADED)
    result = simulated(capsys, path, "--rate", rate, "--requests", requests)["result"]
    assert result["completed"] == int(requests)
    assert result["duration"] == pytest.approx(int(requests) / float(rate), rel=1e-4)
    assert 0 <= result["answered"] <= 1
    assert 0 < result["request_throughput"] <= float(rate) * 1.0001
    assert all(0 <= result[name] < 1e6 for name in RATES)
    if float(rate) <= 10:
        assert result["request_throughput"] == pytest.approx(float(rate), rel=0.25)
        assert result["holds"]
    if float(rate) >= 5000:
        assert 10 < result["request_throughput"] < 300
        assert not result["holds"]
        assert result["holds_about"] > 10


def test_a_rate_of_no_time_is_none(plan_file, capsys, tmp_path):
    """All are refused at the moment at which they come."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival": 0, "prompt": 2000000, "output": 1}\n')
    path = plan_file()
    result = simulated(capsys, path, "--trace", trace)["result"]
    assert (result["completed"], result["duration"], result["request_throughput"]) == (0, 0.0, None)
    assert re.search(r"request_throughput +-\n", run(capsys, "simulate", path, "--trace", trace)[1])


@pytest.mark.parametrize("days", [0.2, 1, 400])
def test_a_day_is_simulated_as_an_hour_is(plan_file, capsys, tmp_path, days):
    """18,447 s are 2^64 ticks."""
    trace, rows = tmp_path / "trace.csv", tmp_path / "rows.csv"
    lines = [f"{i * days * 864:.3f},{100 + i},{5 + i}" for i in range(101)]
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(lines))
    steps, picture = tmp_path / "steps.json", tmp_path / "picture.svg"
    files = ("--csv", rows, "--plot", picture, "--perfetto", steps)
    found = simulated(capsys, plan_file(), "--trace", trace, *files)["result"]
    assert found["completed"] == 101
    assert found["duration"] == pytest.approx(days * 86400, rel=0.01)
    assert found["over_time"]["seconds"][-1] == pytest.approx(found["duration"])
    with rows.open() as file:
        times = [float(row["ttft_seconds"]) for row in csv.DictReader(file)]
    assert 0 < min(times) <= max(times) < 0.1


NUMBERS = ("requests", "rate", "speed", "tile", "cv", "input", "output", "seed")
NUMBERS += ("ttft", "tpot", "e2e", "interactivity", "check")


@pytest.mark.parametrize("value", ["-5", "nan", "inf", "1e300", "-1e-300", "x", ""])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_makes_no_sense_is_named(plan_file, capsys, name, value):
    said = refused(capsys, plan_file(), *over(("--rate", "2"), f"--{name}", value))
    assert f"--{name}" in said
    assert value in said


@pytest.mark.parametrize("more", [(), ("--find-rate",)])
def test_a_load_of_its_own_has_limits_too(plan_file, capsys, more):
    """A plan that keeps its load is simulated in the steady state; 100,000 idle servers hung."""
    path = plan_file(engine="vllm", workload=LOADED)
    said = refused(capsys, path, "--set", "replicas=100000", "--requests", "10", *more)
    assert "the plan has 100,000 replicas; at most 10,000 can be simulated" in said


@pytest.mark.slow
def test_a_long_trace_is_refused_with_its_limit(plan_file, capsys, tmp_path):
    trace = tmp_path / "trace.csv"
    head = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    trace.write_text(head + "0,5,5\n" * 160_000)
    said = refused(capsys, plan_file(), "--trace", trace)
    assert "has 160000 requests; at most 150,000 can be simulated: cut it with --requests N" in said
