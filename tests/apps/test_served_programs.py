"""`plan serve` for the programs that serve: memory, prefixes, guesses, files to read back."""

import json

import pytest
from tests.apps.commands import flat, over
from tests.apps.served import RATE, SMALL, found, run, said

from shardwise.commands.plan_serve.serve import ServePlanRequest
from shardwise.commands.pricing.plans import load_plan
from shardwise.errors import BadRequest

pytestmark = pytest.mark.usefixtures("answers_kept")


@pytest.mark.usefixtures("rows_left_out")
def test_a_release_and_an_eager_engine_keep_other_memory():
    new, old, eager = (
        found(*SMALL, *RATE, *more)["result"]["memory"]
        for more in ((), ("--release", "0.15"), ("--eager",))
    )
    assert old["engine"] < eager["engine"] < new["engine"]
    assert eager["cache"] > new["cache"]


@pytest.mark.parametrize("flag", [("--release", "0.15"), ("--eager",)])
def test_what_our_own_server_has_not_is_refused(flag):
    with pytest.raises(BadRequest, match=f"{flag[0]} takes no effect"):
        run(*over(SMALL, "--for", "jax"), *flag)


@pytest.mark.usefixtures("rows_left_out")
def test_a_prefix_is_computed_once_and_kept_in_the_plan(tmp_path, capsys):
    path, out, again = (tmp_path / n for n in ("plan.yaml", "serve.sh", "again.yaml"))
    words = (*SMALL, "--rate", "20", "--tpot", "40ms", "--prefix", "384")
    run(*words, "-o", str(path))
    assert "512 in (384 of them the same), 32 out" in flat(capsys.readouterr().out)
    plan = load_plan(path)
    assert plan.workload.prefix == 384
    first = found(*SMALL, *RATE)["result"]["ttft_seconds"]["expected"]
    assert (
        json.loads(said(capsys, "plan", "show", str(path), "--json")[0])["result"]["ttft_seconds"][
            "expected"
        ]
        < first
    )
    load = json.loads(said(capsys, "simulate", str(path), "--json")[0])["result"]
    assert load["hit_rate"] == pytest.approx(384 / 512, rel=0.01)
    said(capsys, "export", str(path), "--to", "vllm", "-o", str(out))
    assert "--random-input-len=128" in out.read_text()
    assert "--random-prefix-len=384" in out.read_text()
    said(capsys, "export", str(out), "--from", "vllm", "-o", str(again))
    assert load_plan(again) == plan


def test_depths_of_guessing_are_requests_of_a_search():
    words = {"input": 512, "output": 32}
    for acceptance, depths in (("0.8,0.6,0.4", [0, 1, 2, 3]), ("0.7", list(range(9)))):
        asked = ServePlanRequest("llama-3-8b", "h100:1", acceptance=acceptance, **words)
        made = asked.requests("h100:1", asked.demand())
        assert [r.speculation.tokens if r.speculation else 0 for r in made] == depths
        assert [r.scheduling.guesses for r in made] == depths
    (only,) = ServePlanRequest("llama-3-8b", "h100:1", **words).requests("h100:1", asked.demand())
    assert only.speculation is None


@pytest.mark.slow
def test_the_depth_of_guessing_is_searched_and_kept_in_the_plan(tmp_path, capsys):
    """At 9 ms a token steps of one token each hold less than steps that check guesses."""
    tight = (*SMALL, "--tpot", "9ms")
    path, out = tmp_path / "plan.yaml", tmp_path / "serve.sh"
    plain = found(*tight)["result"]["requests_per_second"]
    page, _, _ = said(
        capsys, "plan", "serve", *tight, "--acceptance", "0.8,0.6,0.1", "-o", str(path)
    )
    guesses = load_plan(path).scheduling.guesses
    yields = {2: "2.4", 3: "2.5"}[guesses]
    sentence = f"guesses {guesses} tokens guessed a step, which yields {yields} on average"
    assert sentence in flat(page)
    plan, load = load_plan(path), load_plan(path).scheduling
    assert load.acceptances == (0.8, 0.6, 0.1)
    assert load.guesses in (2, 3)
    assert plan.workload.rate > 1.5 * plain
    said(capsys, "export", str(path), "--to", "vllm", "-o", str(out))
    assert f'"num_speculative_tokens": {load.guesses}' in out.read_text()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--acceptance", "0.5,0.7"), "give a share of the steps for each guess"),
        (("--acceptance", "1.2"), "--acceptance is '1.2'"),
        (("--draft-cost", "0.1"), "--draft-cost is the cost of guesses, and there are none"),
    ],
)
def test_guesses_that_make_no_sense_are_refused(words, what):
    with pytest.raises(BadRequest, match=what):
        run(*SMALL, *RATE, *words)


def test_a_plan_without_a_prefix_says_nothing_of_one(tmp_path):
    path = tmp_path / "plan.yaml"
    run(*SMALL, *RATE, "-o", str(path))
    assert "prefix:" not in path.read_text()
    assert "prefix" not in found(*SMALL, *RATE)["result"]["targets"]
    with pytest.raises(BadRequest, match="--prefix is 512 and prompts have 512 tokens"):
        run(*SMALL, *RATE, "--prefix", "512")


@pytest.mark.usefixtures("rows_left_out")
def test_trtllm_is_planned_exported_and_read_back(tmp_path, capsys):
    plan, out, again = (tmp_path / n for n in ("plan.yaml", "serve.sh", "again.yaml"))
    run(*SMALL, *RATE, "--for", "trtllm", "-o", str(plan))
    said(capsys, "export", str(plan), "--to", "trtllm", "-o", str(out))
    assert load_plan(plan).engine == "trtllm"
    assert said(capsys, "export", str(out), "--from", "trtllm", "-o", str(again))[2] == 0
    assert load_plan(again) == load_plan(plan)
    _, err, code = said(capsys, "export", str(plan), "--to", "k8s")
    assert (code, "it starts vLLM or SGLang" in " ".join(err.split())) == (2, True)


def test_trtllm_is_refused_beyond_its_chips():
    with pytest.raises(BadRequest, match="TensorRT-LLM does not run on v5e, only on chips of nvid"):
        run(*SMALL[:2], "--on", "v5e", *SMALL[4:], "--for", "trtllm")


@pytest.mark.usefixtures("rows_left_out")
def test_int4_weights_are_planned_for_vllm():
    result = found(*SMALL, *RATE, "--weights", "int4")["result"]
    assert result["holds"]
    assert result["memory"]["weights"] / 2**30 == pytest.approx(5.3, abs=0.2)


@pytest.mark.usefixtures("rows_left_out")
def test_an_eager_plan_is_exported_and_read_back(tmp_path, capsys):
    plan, out, again = (tmp_path / n for n in ("plan.yaml", "serve.sh", "again.yaml"))
    run(*SMALL, *RATE, "--eager", "-o", str(plan))
    assert not load_plan(plan).scheduling.graphs
    for target, flag in (("vllm", "--enforce-eager"), ("sglang", "--disable-cuda-graph")):
        said(capsys, "export", str(plan), "--to", target, "-o", str(out), "--force")
        assert flag in out.read_text()
        back = said(capsys, "export", str(out), "--from", target, "-o", str(again), "--force")
        assert back[2] == 0
        assert load_plan(again) == load_plan(plan)


def test_a_plan_is_exported_and_read_back(tmp_path, capsys):
    plan = tmp_path / "plan.yaml"
    run(*SMALL, *RATE, "-o", str(plan))
    for target in ("vllm", "sglang"):
        out, again = tmp_path / f"{target}.sh", tmp_path / f"{target}.yaml"
        for args in (
            ["export", str(plan), "--to", target, "-o", str(out)],
            ["export", str(out), "--from", target, "-o", str(again)],
        ):
            assert said(capsys, *args)[2] == 0
        assert load_plan(again) == load_plan(plan)
    assert "--gpu-memory-utilization=0.9" in said(capsys, "export", str(plan), "--to", "vllm")[0]
    _, err, code = said(capsys, "export", str(plan), "--to", "maxtext")
    assert code == 2
    assert "serving plan, which maxtext does not run" in err
