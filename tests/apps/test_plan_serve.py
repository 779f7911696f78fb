"""`shardwise plan serve`: stable names, the page, files, refusals, and that the answer holds."""

import csv
import json

import pytest
from tests.apps.commands import flat, over
from tests.apps.served import RATE, SMALL, found, run, said

from shardwise.commands.pricing.plans import load_plan
from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import load_chip
from shardwise.models import load_model
from shardwise.plans import ServePlan
from shardwise.results.server import cache_text

pytestmark = pytest.mark.usefixtures("answers_kept")


def test_the_stable_names():
    doc = found(*SMALL, *RATE)
    result = doc["result"]
    assert (result["slice"], result["mesh"], result["chips"]) == ("h100:1", {}, 1)
    assert result["holds"]
    assert result["requests_per_second"] == 20
    assert result["tokens_per_second_per_chip"] == pytest.approx(20 * 32)
    for name in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        bounds = result[name]
        assert list(bounds) == ["lower", "expected", "upper"]
        assert bounds["lower"] < bounds["expected"] < bounds["upper"]
    assert result["tpot_seconds"]["expected"] <= 0.04
    assert result["ttft_seconds"]["expected"] <= 2
    usd = result["usd_per_million_tokens"]
    assert list(usd) == ["input", "output", "all"]
    hour = (usd["input"] * 512 + usd["output"] * 32) * 20 * 3600 / 1e6
    assert hour == pytest.approx(result["usd_per_hour"])
    assert result["usd_per_hour"] == pytest.approx(result["price"]["usd_per_chip_hour"])
    assert result["price_range"]["low"] <= result["price"]["usd_per_chip_hour"]
    assert sum(result["where_it_goes"].values()) > 0


def test_every_choice_has_an_origin():
    resolved = found(*SMALL, *RATE)["resolved"]
    assert resolved["software"]["value"] == "vllm"
    assert resolved["weights"] == {"value": "checkpoint", "origin": "computed"}
    assert resolved["ttft"] == {"value": 2.0, "origin": "default"}
    assert resolved["rate"] == {"value": 20.0, "origin": "flag"}


def test_the_page(capsys):
    run(*SMALL, *RATE)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("llama-3-8b on 1 chip of h100, 512 in, 32 out, TTFT <= 2 s, TPOT")
    for words in (
        "1 server of h100:1 (one device)",
        "vLLM, checkpoint's dtype, bf16 cache",
        "20 requests/s = 640 tokens/s out (simulated: ",
        "--max-num-seqs ",
        "9 of 10 requests are faster, in 98 of 100 runs",
        "typical error ",
        "8 of 10 servers of this kind would measure a TTFT of ",
        "per million tokens $",
        "7 providers",
        "fp8: TPOT ",
        "changes answers",
        "simulate PLAN --set replicas=2 --find-rate",
        "next (PLAN above):",
    ):
        assert words in " ".join(out.split())


def test_what_else_would_serve():
    rows = {row["name"]: row for row in found(*SMALL, *RATE)["result"]["instead"]}
    assert next(iter(rows)) == "this"
    assert {"more", "fp8", "separate prefill"} <= set(rows)
    assert rows["separate prefill"]["note"] == "--pools two"
    assert rows["more"]["chips"] == 2


def test_the_front_is_one():
    """Within every target, none dominated, and the answer is its cheapest point."""
    result = found(*SMALL, *RATE)["result"]
    front = result["front"]
    assert front[-1]["name"] == "this"
    assert front[-1]["tpot_seconds"] == result["tpot_seconds"]["expected"]
    costs = [row["usd_per_million_tokens"] for row in front]
    assert costs == sorted(set(costs), reverse=True)
    steps = [row["tpot_seconds"] for row in front]
    assert steps == sorted(set(steps))
    assert all(row["tpot_seconds"] <= 0.04 for row in front)
    assert all(row["ttft_seconds"] <= 2 for row in front)


def test_a_plan_shows_and_simulates_what_was_printed(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    out, _, code = said(capsys, "plan", "serve", *SMALL, *RATE, "-o", str(path))
    assert code == 0
    assert f"{path} written (PLAN above); next: shardwise simulate {path} --rate 20" in flat(out)
    plan = load_plan(path)
    assert isinstance(plan, ServePlan)
    assert plan.workload is not None
    assert (plan.workload.rate, plan.workload.tpot) == (20, 0.04)
    out, _, code = said(capsys, "plan", "show", str(path), "--json")
    shown, result = json.loads(out)["result"], found(*SMALL, *RATE)["result"]
    same = ("ttft_seconds", "tpot_seconds", "chips", "usd_per_hour", "usd_per_million_tokens")
    for name in (*same, "requests_per_second", "in_target", "replicas", "holds", "memory"):
        assert shown[name] == result[name], name
    out, _, code = said(capsys, "simulate", str(path), "--seed", "7", "--json")
    simulated = json.loads(out)["result"]
    assert code == 0
    assert simulated["completed"] == 2000
    assert simulated["good_share"] >= 0.95
    assert simulated["p90_tpot_ms"] / 1e3 <= 1.05 * result["tpot_seconds"]["expected"]
    assert simulated["p90_ttft_ms"] / 1e3 <= 1.05 * result["ttft_seconds"]["expected"]
    assert simulated["usd_per_million_tokens"]["all"] == pytest.approx(
        result["usd_per_million_tokens"]["all"], rel=0.01
    )


@pytest.mark.slow
def test_the_largest_rate_of_a_plan(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    run(*SMALL, *RATE, "-o", str(path))
    capsys.readouterr()
    out, _, code = said(capsys, "simulate", str(path), "--find-rate", "--json")
    assert code == 0
    assert json.loads(out)["result"]["largest_rate"] > 20


@pytest.mark.slow
def test_a_slice_is_filled_and_a_chip_is_one_server():
    doc = found("--model", "llama-3-8b", "--on", "h100:2", *SMALL[4:], "--tpot", "15ms")
    result = doc["result"]
    assert result["chips"] == 2
    assert result["replicas"] * int(result["slice"].split(":")[1]) == 2
    assert result["holds"]


def test_chips_side_by_side(tmp_path, capsys):
    table = tmp_path / "chips.csv"
    args = ("--model", "llama-3-8b", "--on", "h100,v6e", *SMALL[4:], *RATE)
    run(*args, "--csv", str(table))
    out = capsys.readouterr().out
    for name in ("h100", "v6e"):
        assert f"{name} price {load_chip(name).price}" in flat(out)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert {row["chip"] for row in rows} == {"h100", "v6e"}
    costs = [float(row["usd_per_million_tokens_all"]) for row in rows]
    assert costs == sorted(costs)
    assert all(row["requests_per_second"] == "20.0" for row in rows)


@pytest.mark.usefixtures("rows_left_out")
def test_prices_of_a_provider_and_of_the_spot_market():
    spot = found(*SMALL, *RATE, "--spot")["result"]
    assert spot["price"]["kind"] == "spot"
    assert spot["usd_per_hour"] < found(*SMALL, *RATE)["result"]["usd_per_hour"]
    with pytest.raises(BadRequest, match="'h100' has no price on demand of it"):
        run(*SMALL, "--provider", "nobody")
    with pytest.raises(BadRequest, match="leave out --provider and --spot"):
        run(*SMALL, "--spot", "--price", "h100=2")


@pytest.mark.usefixtures("rows_left_out")
def test_a_chip_that_was_not_measured_says_so():
    doc = found("--model", "llama-3-8b", "--on", "tpu7x:2x2x1", *SMALL[4:], "--rate", "5")
    assert doc["result"]["usd_per_million_tokens"]["all"] is None
    assert doc["result"]["typical_error"] is None
    assert any("vLLM was not measured on tpu7x" in line for line in doc["warnings"])
    assert any("no public price for tpu7x" in line for line in doc["notes"])


@pytest.mark.usefixtures("rows_left_out")
def test_a_trace_is_the_load(tmp_path):
    """300 requests of two lengths in 30 s: lengths are drawn, 10 a second come."""
    path = tmp_path / "trace.jsonl"
    rows = [{"arrival": i / 10, "prompt": 512 + 512 * (i % 2), "output": 64} for i in range(301)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    args = ("--model", "llama-3-8b", "--on", "h100", "--trace", str(path), "--tpot", "40ms")
    result = found(*args)["result"]
    assert result["requests_per_second"] == pytest.approx(10)
    assert result["input_tokens"] == pytest.approx(767, abs=1)
    with pytest.raises(BadRequest, match="--input takes no effect with --trace"):
        run(*args, "--input", "8")


def test_what_does_not_hold_is_written_only_anyway(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    args = ("plan", "serve", *SMALL, "--ttft", "12ms", "-o", str(path))
    _, err, code = said(capsys, *args)
    assert code == 3
    assert "the nearest, on h100:1 (one device), has TTFT" in err
    assert not path.exists()
    out, _, code = said(capsys, *args, "--anyway")
    assert code == 0
    assert "DOES NOT HOLD" in out
    assert path.exists()


def test_answers_longer_than_the_cache_hold_no_rate(tmp_path, capsys):
    """All of them are refused: none is under way, and none ends."""
    path = tmp_path / "plan.yaml"
    run(*SMALL, *RATE, "-o", str(path))
    capsys.readouterr()
    show = ("plan", "show", str(path), "--set", "output_length=1000000")
    out, _, code = said(capsys, *show)
    assert code == 0
    assert "requests are refused: longer than the cache" in flat(out)
    assert "TTFT endless, TPOT endless" in flat(out)
    result = json.loads(said(capsys, *show, "--json")[0])["result"]
    assert (result["holds"], result["running"], result["answered"]) == (False, 0, 0)


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (("--tpot", "15"), BadRequest, "--tpot '15' is not a number with a unit"),
        (("--weights", "f32"), BadRequest, "vLLM stores checkpoint, bf16, fp8, int8, int4, nvfp4"),
        (
            ("--for", "any", "--kv", "int4"),
            BadRequest,
            "SGLang stores bf16, fp8; TensorRT-LLM stores bf16, fp8; choose",
        ),
        (("--batch", "-4"), BadRequest, "--batch '-4' must be positive"),
        (("--batch", "1.5"), BadRequest, "--batch is 1.5; it must be a whole number"),
        (("--pools", "three"), BadRequest, "unknown value of --pools 'three'"),
        (("--for", "vlm"), BadRequest, "unknown software 'vlm'; did you mean 'vllm'?"),
        (("--for", "ideal"), BadRequest, "write --for jax"),
        (("--rate", "1e12"), BadRequest, "--rate is"),
        (("--input", "16777217"), BadRequest, "at most 16,777,216 makes sense"),
        (("--price", "v5e=2"), BadRequest, "chip 'v5e', but the chip here is 'h100'"),
        (("--plot", "front.pdf"), BadRequest, "must end in"),
        (("--tpot", "1us"), NoFeasiblePlan, "within TPOT 1 µs; the shortest takes"),
        (("--batch", "2"), NoFeasiblePlan, "use --batch 4 or more"),
        (("--rate", "5000", "--tpot", "40ms"), NoFeasiblePlan, "--max-chips "),
    ],
)
def test_refusals(args, error, text):
    with pytest.raises(error) as raised:
        run(*over(SMALL, *args))
    assert text in str(raised.value)


TIGHT = ("--model", "qwen2-72b", "--on", "h100:2", "--input", "8192", "--output", "128")


@pytest.mark.usefixtures("rows_left_out")
def test_a_server_that_mostly_stands_idle_needs_room_for_few_requests():
    """A load of 0.05 requests/s was refused: room was asked for the swing of one that always
    runs. Nothing fits into 90 % of the memory, so the answer takes 95 %."""
    result = found(*TIGHT, "--rate", "0.05", "--ttft", "2.5s")["result"]
    assert (result["replicas"], result["slice"], result["holds"]) == (1, "h100:2", True)
    assert result["memory"]["share"] == 0.95
    assert result["memory"]["line_requests"] < 5


def test_no_more_memory_is_taken_than_is_asked_for():
    with pytest.raises(NoFeasiblePlan, match="need more memory"):
        run(*TIGHT, "--rate", "0.05", "--memory-share", "0.9")


def test_the_cache_is_said_as_the_engine_prints_it(capsys):
    run(*SMALL, *RATE)
    memory = found(*SMALL, *RATE)["result"]["memory"]
    line = (
        f"GPU KV cache size: {memory['line_tokens']:,} tokens; Maximum concurrency for 544 tokens "
        f"per request: {memory['line_requests']:.2f}x"
    )
    assert line in flat(capsys.readouterr().out)
    assert memory["line_tokens"] == pytest.approx(memory["line_requests"] * 544, rel=1e-3)
    parts = ("weights", "activations", "cache", "engine")
    taken = memory["share"] * memory["usable"]
    assert sum(memory[part] for part in parts) == pytest.approx(taken)


def test_a_model_too_large_says_so():
    with pytest.raises(NoFeasiblePlan, match="llama-3-70b fits no slice of h100"):
        run("--model", "llama-3-70b", *SMALL[2:])
    with pytest.raises(NoFeasiblePlan, match=r"v5e:1x1: .*; l4:1: "):
        run("--model", "llama-3-70b", "--on", "v5e:1x1,l4:1", *SMALL[4:])


@pytest.mark.slow
def test_two_pools(capsys):
    doc = found(*SMALL[:2], "--on", "h100", *SMALL[4:], *RATE, "--pools", "two")
    result = doc["result"]
    assert result["prefill_replicas"] >= 1
    assert result["chips"] >= 2
    assert result["holds"]


def test_answers_on_another_chip(tmp_path, capsys):
    path, words = tmp_path / "plan.yaml", ("--on", "h100:2", "--decode-on", "h200:2")
    run(*SMALL[:2], *words, *SMALL[4:], *RATE, "-o", str(path))
    page = flat(capsys.readouterr().out)
    plan = load_plan(path)
    assert plan.slice.startswith("h200")
    assert plan.prefill is not None
    assert plan.prefill.slice.startswith("h100")
    assert plan.replicas <= 2
    assert plan.prefill_replicas <= 2
    prefill, answer = plan.prefill_replicas, plan.replicas
    hour = prefill * load_chip("h100").price.usd_per_chip_hour
    hour += answer * load_chip("h200").price.usd_per_chip_hour
    assert f"of h100 and {answer} of h200" in page
    assert f"${hour:,.2f}/h" in page
    shown = json.loads(said(capsys, "plan", "show", str(path), "--json")[0])["result"]
    assert shown["usd_per_hour"] == pytest.approx(hour)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--on", "h100,b200", "--decode-on", "h200"), "name one chip or slice each"),
        (("--on", "h100", "--decode-on", "v5e"), "from nvidia and google"),
        (("--on", "mi300x", "--decode-on", "mi250x"), "mi250x has no data-centre network"),
    ],
)
def test_two_chips_that_share_no_caches_are_refused(words, what):
    with pytest.raises(BadRequest, match=what):
        run(*SMALL[:2], *words, *SMALL[4:], *RATE)


@pytest.mark.usefixtures("rows_left_out")
def test_one_token_of_output_has_no_time_between_tokens(capsys):
    doc = found(*SMALL[:6], "--output", "1", "--rate", "2")
    assert doc["result"]["tpot_seconds"]["expected"] == 0
    assert doc["result"]["holds"]


def test_the_picture_marks_the_answer_and_the_target(tmp_path):
    picture = tmp_path / "front.svg"
    run(*SMALL, *RATE, "--plot", str(picture))
    drawn = picture.read_text()
    assert all(f"<!-- {words} -->" in drawn for words in ("the answer", "target", "matmuls"))


@pytest.mark.parametrize(
    ("model", "mesh", "sharding", "said"),
    [
        ("llama-3-8b", {"tensor": 4}, "heads", "KV cache cut by heads over tensor"),
        ("llama-3-8b", {"data": 4}, "heads", "KV cache cut by sequences over data"),
        ("llama-3-8b", {"tensor": 16}, "heads", "tensor, each head replicated on 2 devices"),
        ("llama-3-8b", {"tensor": 16}, "heads_then_batch", "head cut by sequences over 2 devices"),
        ("falcon-7b", {"tensor": 2}, "heads", "KV cache replicated over tensor"),
        ("deepseek-v3", {"tensor": 8}, "heads", "latent KV cache replicated over tensor"),
        (
            "deepseek-v3",
            {"expert": 4, "tensor": 2},
            "heads_then_batch",
            "latent KV cache cut by sequences over expert, cut by sequences over tensor",
        ),
        ("deepseek-v3", {}, "heads", "latent KV cache on one device"),
    ],
)
def test_how_the_cache_lies(model, mesh, sharding, said):
    assert cache_text(load_model(model), mesh, sharding).endswith(said)


LLAMA = ("--model", "llama-3-8b", "--input", "512", "--output", "32")


def test_memory_of_a_chip_of_two_devices_is_that_of_a_device(capsys):
    page = said(capsys, "plan", "serve", *LLAMA, "--on", "tpu7x:2x2x1", "--rate", "5")[0]
    assert "a device (2 a chip) has 94.8 GiB" in " ".join(page.split())


def test_a_chip_without_a_peak_of_16_bits_serves_nothing():
    with pytest.raises(BadRequest, match="'tpu8t' has no peak for dtype 'bf16'"):
        run(*LLAMA, "--on", "tpu8t:2x2x1", "--rate", "5")
