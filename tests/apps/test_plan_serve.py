"""`shardwise plan serve`: the document's stable names, the tables, files, refusals and speed."""

import csv
import json
import re
import resource
import subprocess
import sys

import pytest

from shardwise.apps.cli import main
from shardwise.apps.cli.plan_serve import serve
from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.models import load_model
from shardwise.plans import ServePlan, load_plan
from shardwise.workflows.inputs import Hardware
from shardwise.workflows.plan_file import price_plan
from shardwise.workflows.predict_serve import cache_text

SMALL = ("--model", "llama-3-8b", "--on", "v5e:2x2", "--input", "1024", "--output", "128")
ISSUE = ("--model", "llama-3-70b", "--on", "v5e", "--input", "8192", "--output", "512")


def run(*args):
    serve.main(args=list(args), standalone_mode=False)


def document(capsys, *args):
    run(*args, "--json")
    return json.loads(capsys.readouterr().out)


def exit_code(*args):
    with pytest.raises(SystemExit) as stop:
        main(["plan", *args])
    return stop.value.code


def test_the_stable_names(capsys):
    doc = document(capsys, *SMALL)
    result = doc["result"]
    for name in ("slice", "mesh", "batch", "ttft_seconds", "tpot_seconds", "front"):
        assert name in result
    assert result["slice"] == "v5e:2x2"
    assert list(result["usd_per_million_tokens"]) == ["input", "output"]
    for name in ("ttft_seconds", "tpot_seconds", "prefill_seconds"):
        bounds = result[name]
        assert list(bounds) == ["lower", "expected", "upper"]
        assert bounds["lower"] <= bounds["expected"] <= bounds["upper"]
    rate = result["batch"] / result["tpot_seconds"]["expected"] / 4
    assert result["tokens_per_second_per_chip"] == pytest.approx(rate)
    assert set(result["memory_by_kind"]) == {"weights", "kv", "activations"}
    total = sum(result["memory_by_kind"].values())
    assert result["peak_bytes_per_chip"] == pytest.approx(total)
    assert total <= result["usable_bytes_per_chip"]
    assert set(result["bound_by"]) == {"prefill", "decode"}
    assert result["price"]["as_of"]
    assert result["price"]["source"]
    assert doc["provenance"]["definitions"]["ttft_seconds"].endswith("no queueing")


def test_every_choice_has_an_origin(capsys):
    resolved = document(capsys, *SMALL, "--kv", "int8", "--pin", "tensor=2")["resolved"]
    assert resolved["slice"] == {"value": "v5e:2x2", "origin": "flag"}
    assert resolved["kv"] == {"value": "int8", "origin": "flag"}
    assert resolved["weights"] == {"value": "checkpoint", "origin": "default"}
    assert resolved["batch"]["origin"] == "computed"
    assert resolved["mesh.tensor"] == {"value": 2, "origin": "flag"}
    assert resolved["mesh.data"] == {"value": 2, "origin": "computed"}


def test_a_bare_chip_gives_the_smallest_slice_within_the_target(capsys):
    result = document(capsys, *ISSUE, "--tpot", "15ms")["result"]
    assert result["slice"] == "v5e:4x4"
    assert result["tpot_seconds"]["expected"] <= 0.015
    assert [t["slice"] for t in result["too_small"]] == ["v5e:1x1", "v5e:2x2", "v5e:2x4"]
    assert all("GB too much" in t["why"] for t in result["too_small"])
    assert any(p["meets_targets"] for p in result["front"])
    assert any("v5e:2x4 is too small" in reason for reason in result["why"])


def test_the_books_numbers(capsys):
    """Chapter 8: 4x4, 4x2, 2x2 for bf16, int8, int4, and prefill of 8192 tokens in 0.91 s."""
    chips = {}
    for dtype in ("bf16", "int8", "int4"):
        args = ("--constants", "book", "--weights", dtype, "--kv", dtype)
        chips[dtype] = document(capsys, *ISSUE, *args)["result"]["slice"]
    assert chips == {"bf16": "v5e:4x4", "int8": "v5e:2x4", "int4": "v5e:2x2"}
    args = ("--constants", "book", "--mfu", "40%", "--params", "70e9")
    prefill = document(capsys, *ISSUE, *args)["result"]["prefill_seconds"]
    assert round(prefill["expected"], 2) == 0.91


def test_the_tables(capsys):
    run(*ISSUE, "--tpot", "15ms")
    out = capsys.readouterr().out
    assert out.startswith("llama-3-70b on v5e:4x4 (16 chips), 8,192 in, 512 out")
    header = next(line for line in out.splitlines() if line.startswith("  predicted"))
    assert header.split() == ["predicted", "lower", "expected", "upper"]
    for words in (
        "TTFT (prefill + one step)",
        "TPOT (one step of the batch)",
        "while it decodes; ",
        "where a decode step goes",
        "HBM per chip at the peak",
        "15.8 GiB (16.9 GB)",
        "\nPareto front: no other point has a faster step and more tokens/s per chip\n",
        "KV cache cut by heads over tensor",
        "Too small",
        "binds decode: at peak rates it alone takes",
        "servers (mesh x batch) priced",
    ):
        assert words in out


def test_a_target_is_met_by_what_is_printed(capsys):
    """Meshes priced beside each other had other kernels than alone: 50.1 ms for 50."""
    asked = ("--on", "v5p:2x2x2", "--tpot", "50ms", "--input", "4096", "--output", "1024")
    result = document(capsys, "--model", "deepseek-v3", *asked)["result"]
    assert result["tpot_seconds"]["expected"] <= 0.05
    assert all(r["tpot_seconds"]["expected"] <= 0.05 for r in result["runners_up"])


def test_the_batch_is_as_its_help_says(capsys):
    """Fixed in sequences, with or without the unit; else of most tokens/s per chip in time."""
    assert document(capsys, *SMALL, "--batch", "24")["result"]["batch"] == 24
    assert document(capsys, *SMALL, "--batch", "24seq")["result"]["batch"] == 24
    with pytest.raises(BadRequest, match="--batch '24tok' is not a number"):
        run(*SMALL, "--batch", "24tok")
    with pytest.raises(BadRequest, match="--batch"):
        run(*SMALL, "--batch", "")
    result = document(capsys, *SMALL, "--tpot", "12ms")["result"]
    inside = [p for p in result["front"] if p["meets_targets"] and p["slice"] == result["slice"]]
    best = max(p["tokens_per_second_per_chip"] for p in inside)
    assert result["tokens_per_second_per_chip"] == pytest.approx(best)
    (help_,) = (o.help for o in serve.params if o.name == "batch")
    assert "most tokens/s per chip" in help_


def test_the_front_as_csv(tmp_path, capsys):
    path = tmp_path / "front.csv"
    picture = tmp_path / "front.svg"
    files = ("--csv", str(path), "--plot", str(picture))
    front = document(capsys, *SMALL, *files)["result"]["front"]
    assert all(f"<!-- {p['slice']} -->" in picture.read_text() for p in front)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(front) > 2
    assert float(rows[0]["tpot_expected_seconds"]) == front[0]["tpot_seconds"]["expected"]
    assert rows[0]["mesh"] == "tensor=4"


def test_a_plan_file_prices_the_same(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    doc = document(capsys, *SMALL, "-o", str(path))
    result = doc["result"]
    [said] = [w for w in doc["warnings"] if "holds no prefill servers" in w]
    decode, prefill = (int(n) for n in re.findall(r"replicas=(\d+)", said))
    assert prefill >= decode * result["prefill_servers_per_decode_server"]
    plan = load_plan(path)
    assert isinstance(plan, ServePlan)
    priced = price_plan(plan, Hardware())
    for name in ("ttft_seconds", "tpot_seconds", "memory_by_kind", "usd_per_million_tokens"):
        assert priced.result[name] == pytest.approx(result[name])
    assert exit_code("show", str(path)) == 0
    assert f"tensor=4, {plan.batch} sequences at once" in capsys.readouterr().out
    assert exit_code("show", str(path), "--set", "batch=100000") == 3
    assert "most of it is kv" in capsys.readouterr().err


def test_an_unknown_price_is_said_and_can_be_given(capsys):
    args = ("--model", "llama-3-8b", "--on", "tpu7x:2x2x1", "--input", "512", "--output", "64")
    doc = document(capsys, *args)
    assert doc["result"]["usd_per_million_tokens"] == {"input": None, "output": None}
    assert any("no public price for tpu7x" in w for w in doc["warnings"])
    assert doc["result"]["tokens_per_second_per_chip"] > 0
    run(*args)
    assert "cost    unknown: no price in the catalogue" in capsys.readouterr().out
    paid = document(capsys, *args, "--price", "tpu7x=12")
    assert paid["result"]["usd_per_million_tokens"]["output"] > 0
    assert not any("no public price" in w for w in paid["warnings"])


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (("--tpot", "15"), BadRequest, "--tpot '15' is not a number with a unit"),
        (("--weights", "int9"), BadRequest, "unknown dtype 'int9'; did you mean 'int8'"),
        (("--batch", "-4"), BadRequest, "--batch '-4' must be positive"),
        (("--batch", "1.5"), BadRequest, "--batch is 1.5; it must be a whole number"),
        (("--mfu", "140%"), BadRequest, "--mfu '140%' is outside 0..100%"),
        (("--compute", "fp8"), BadRequest, "chip 'v5e' has no peak for dtype 'fp8'"),
        (("--pin", "expert=2"), BadRequest, "no mesh divides the model's heads and experts"),
        (("--tpot", "10us"), NoFeasiblePlan, "ask for --tpot "),
        (("--ttft", "1ms"), NoFeasiblePlan, "ask for --ttft "),
        (("--batch", "1e5"), NoFeasiblePlan, "use a smaller --batch, shorter sequences, --kv int8"),
        (("--batch", "1e12"), BadRequest, "--batch is 1,000,000,000,000; at most 1,000,000 makes"),
        (("--prefill-chunk", "1e12"), BadRequest, "at most 100,000,000 makes sense"),
        (("--price", "h100=2"), BadRequest, "chip 'h100', but the chip here is 'v5e'"),
        (("--top", "51"), BadRequest, "--top is 51; it must be a whole number"),
    ],
)
def test_refusals(args, error, text):
    with pytest.raises(error) as raised:
        run(*SMALL, *args)
    assert text in str(raised.value)


def test_exit_codes(capsys):
    assert exit_code("serve", *SMALL, "--tpot", "10us") == 3
    assert "no plan for llama-3-8b meets TPOT 10 µs; the nearest, on v5e:2x2" in (
        capsys.readouterr().err
    )
    assert exit_code("serve", *SMALL, "--kv", "int9") == 2


def test_a_bare_chip_is_answered_quickly_without_jax():
    """Two seconds is the promise; other tests share the machine, so twice that, of CPU, is the
    gate."""
    code = (
        "import sys; from shardwise.apps.cli import main; code = main(sys.argv[1:]);"
        "sys.exit(code or 'jax' in sys.modules)"
    )
    args = ["plan", "serve", *ISSUE, "--tpot", "15ms", "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 4
    assert json.loads(done.stdout)["result"]["slice"] == "v5e:4x4"


def test_the_rate_with_the_servers_that_prefill(capsys):
    result = document(capsys, *SMALL)["result"]
    alone, ratio = result["tokens_per_second_per_chip"], result["prefill_servers_per_decode_server"]
    assert result["tokens_per_second_per_chip_with_prefill"] == pytest.approx(alone / (1 + ratio))


def test_what_the_reader_should_know(capsys):
    warnings = document(capsys, *SMALL)["warnings"]
    assert any("of the usable HBM is taken: nothing is left for frag" in w for w in warnings)
    args = ("--model", "llama-3-8b", "--on", "v5e:2x2", "--input", "8192", "--output", "1")
    warnings = document(capsys, *args, "--batch", "2")["warnings"]
    assert len(warnings) == 1
    assert warnings[0].startswith("sequences of 8,193 tokens are longer than the 8,192")


def test_one_of_a_thing_is_singular(capsys):
    run("--model", "llama-3-8b", "--on", "h100:1", "--input", "512", "--output", "64")
    out = capsys.readouterr().out
    assert "on h100:1 (1 chip), " in out
    assert "KV cache on one device" in out
    assert exit_code("serve", *SMALL, "--top", "51") == 2
    assert "--top is 51" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("model", "on", "said"),
    [
        ("deepseek-v3", "v5e:2x2", "use --weights int4, or chips with more HBM; more chips: use v"),
        ("llama-3-70b", "h100:1", "; more chips: use h100:2 (2 chips) or more"),
        ("llama-3-70b", "l4", "; more chips: l4 can be used up to l4:1 (1 chip), as the catalogue"),
    ],
)
def test_a_model_too_large_is_told_a_slice_that_exists(capsys, model, on, said):
    args = ("--model", model, "--on", on, "--input", "1024", "--output", "128")
    assert exit_code("serve", *args) == 3
    assert said in capsys.readouterr().err


def test_no_smaller_batch_than_one_is_advised(capsys):
    args = ("--model", "llama-3-8b", "--on", "v5e:1x1", "--input", "1e6", "--output", "9")
    assert exit_code("serve", *args, "--weights", "int8", "--kv", "int8") == 3
    said = capsys.readouterr().err
    assert "use shorter sequences, --kv int4, or chips with more HBM" in said
    assert "--batch" not in said


def test_an_engine_has_a_range(capsys):
    args = (*ISSUE[:3], "v5e:4x4", *ISSUE[4:], "--batch", "4")
    ideal = document(capsys, *args)["result"]
    served = document(capsys, *args, "--engine", "vllm")
    result = served["result"]
    assert (ideal["tpot_interval"], ideal["engine"]) == (None, "ideal")
    assert result["tpot_seconds"]["expected"] > ideal["tpot_seconds"]["expected"]
    low, high = result["tpot_interval"]
    assert low < result["tpot_seconds"]["expected"] < high
    assert served["resolved"]["engine"] == {"value": "vllm", "origin": "flag"}
    assert "docs/fit_serving.md" in served["provenance"]["engine"]["kernel_seconds"]
    run(*args, "--engine", "vllm")
    assert "8 of 10 runs of vllm: " in capsys.readouterr().out
