"""`shardwise plan diff`: choices, times with their bounds, what binds, memory by kind, and fit.

That it says what changes and what it does is in test_plan_show.py.
"""

import json

import pytest
from tests.apps.commands import SERVED, document, refused, run

SMALL = ["plan", "train", "--model", "llama-3.2-1b", "--on", "v5e:4x4", "--batch", "32seq"]
SMALL += ["--seq", "2048"]
SERVE = ["plan", "serve", *SERVED]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A training plan, and the same with another policy."""
    from shardwise.apps.cli import main

    folder = tmp_path_factory.mktemp("plans")
    first, second = folder / "first.yaml", folder / "second.yaml"
    with pytest.raises(SystemExit) as done:
        main([*SMALL, "--remat", "matmul_outputs", "-o", str(first)])
    assert done.value.code == 0
    text = first.read_text()
    second.write_text(text.replace("remat: matmul_outputs", "remat: block"))
    return first, second


@pytest.mark.slow
def test_every_number_is_that_of_plan_show(saved, capsys):
    result = document(capsys, "plan", "diff", *saved)["result"]
    assert set(result["changed"]) == {"remat"}
    for side, path in enumerate(saved):
        shown = document(capsys, "plan", "show", path)["result"]
        for bound in ("lower", "expected", "upper"):
            pair = result["effect"][f"step_seconds.{bound}"]
            assert pair[side] == shown["step_seconds"][bound]
        for name in ("mfu", "tokens_per_second", "peak_bytes_per_chip"):
            assert result["effect"][name][side] == shown[name]
        assert result["bound_by"]["step"][side] == shown["bound_by"]
        kinds = {k: pair[side] for k, pair in result["memory_by_kind"].items() if pair[side]}
        assert kinds == {k: v for k, v in shown["memory_by_kind"].items() if v}


def test_less_is_kept_and_more_is_computed(saved, capsys):
    result = document(capsys, "plan", "diff", *saved)["result"]
    kept, block = result["effect"]["peak_bytes_per_chip"]
    assert block < kept
    before, after = result["effect"]["step_seconds.lower"]
    assert after > before


def test_the_tables(saved, capsys):
    code, out, err = run(capsys, "plan", "diff", *saved)
    assert (code, err) == (0, "")
    for said in ("remat", "matmul_outputs", "step_seconds.expected", "step bound by", "ratio"):
        assert said in out
    assert "HBM per chip at the peak" in out
    same = run(capsys, "plan", "diff", saved[0], saved[0])[1]
    assert "(no choice differs)" in same
    assert "HBM per chip at the peak" not in same


def test_a_plan_that_does_not_fit_is_said(saved, tmp_path, capsys):
    large = tmp_path / "large.yaml"
    text = saved[0].read_text()
    grown = text.replace("global_batch_sequences: 32", "global_batch_sequences: 65536")
    assert grown != text
    large.write_text(grown)
    code, out, _ = run(capsys, "plan", "diff", saved[0], large, "--json")
    assert code == 0
    warnings = json.loads(out)["warnings"]
    assert any(w.startswith(f"{large}: the plan does not fit") for w in warnings)


@pytest.mark.slow
def test_serving_plans_and_mixed_kinds(saved, tmp_path, capsys):
    serve = tmp_path / "serve.yaml"
    code, _, err = run(capsys, *SERVE, "-o", serve)
    assert code == 0, err
    result = document(capsys, "plan", "diff", serve, serve)["result"]
    assert set(result["bound_by"]) == {"prefill", "decode"}
    assert {"ttft_seconds.lower", "tpot_seconds.upper"} <= set(result["effect"])
    shown = document(capsys, "plan", "show", serve)["result"]
    for name in ("requests_per_second", "chips", "usd_per_hour"):
        assert result["effect"][name] == [shown[name], shown[name]]
    tpot = shown["tpot_seconds"]["expected"]
    assert result["effect"]["tpot_seconds.expected"] == [tpot, tpot]
    usd = shown["usd_per_million_tokens"]["all"]
    assert result["effect"]["usd_per_million_tokens.all"] == [usd, usd]
    said = refused(capsys, ["plan", "diff", saved[0], serve])
    assert "one file is a training plan and the other a serving plan; give two of a kind" in said
