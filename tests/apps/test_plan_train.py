"""`shardwise plan train`: the document, the table, and the book's figures."""

import csv

import pytest
from tests.apps.commands import answer, answered, document, run

pytestmark = pytest.mark.usefixtures("answers_kept")

SMALL = ["plan", "train", "--model", "llama-3-8b", "--on", "v5e:4x4", "--batch", "32seq"]
SMALL += ["--seq", "2048"]
HELD = ["--remat", "block", "--pin", "stage=1"]
"""Choices that leave a small search, for what is not about the search."""
BOOK = ["plan", "train", "--model", "llama-3-70b", "--on", "v5p:16x20x28", "--batch", "4Mi"]
BOOK += ["--seq", "4096", *HELD]


def small(**changes) -> list[str]:
    """The small command with some flags replaced; None leaves a flag out."""
    flags = dict(zip(SMALL[2::2], SMALL[3::2], strict=True))
    flags |= {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    return ["plan", "train", *(x for k, v in flags.items() if v is not None for x in (k, v))]


# The answer ---------------------------------------------------------------------------------------

STABLE = {
    "mesh",
    "chips_used",
    "chips_idle",
    "step_seconds",
    "tokens_per_second",
    "mfu",
    "mfu_6nd",
    "peak_bytes_per_chip",
    "memory_by_kind",
    "bound_by",
    "runners_up",
    "search",
}
"""Names of the design inside `result`."""


@pytest.fixture(scope="module")
def doc():
    """One document for the tests that only read it."""
    return answer(*SMALL)


def test_the_envelope(doc):
    assert doc["schema_version"] == 1
    assert set(doc) == {
        "schema_version",
        "tool_version",
        "inputs",
        "resolved",
        "result",
        "warnings",
        "notes",
        "provenance",
    }
    assert doc["inputs"]["model"] == "llama-3-8b"
    assert doc["inputs"]["batch"] == "32seq"
    assert doc["provenance"]["efficiency"]


def test_the_stable_names(doc):
    result = doc["result"]
    assert set(result) >= STABLE
    assert list(result["step_seconds"]) == ["lower", "expected", "upper"]
    assert set(result["search"]) == {"enumerated", "legal", "candidates", "seconds"}
    assert all(isinstance(degree, int) for degree in result["mesh"].values())


def test_the_figures_agree_with_each_other(doc):
    result = doc["result"]
    step = result["step_seconds"]
    assert 0 < step["lower"] <= step["expected"] <= step["upper"]
    assert result["chips_used"] + result["chips_idle"] == 16
    assert result["tokens_per_second"] == pytest.approx(32 * 2048 / step["expected"])
    assert sum(result["memory_by_kind"].values()) == pytest.approx(result["peak_bytes_per_chip"])
    assert result["peak_bytes_per_chip"] <= result["usable_bytes_per_chip"]
    search = result["search"]
    assert search["enumerated"] >= search["legal"] >= search["candidates"] > 0
    assert result["bound_by"] in result["resource_seconds"]
    assert result["resource_seconds"][result["bound_by"]] == pytest.approx(step["lower"])


def test_runners_up_are_slower_and_say_how_much(doc):
    best = doc["result"]["step_seconds"]["expected"]
    rows = doc["result"]["runners_up"]
    assert len(rows) >= 3
    for row in rows:
        assert row["step_seconds"]["expected"] == pytest.approx(row["times_slower"] * best)
        assert row["times_slower"] >= 1
        assert row["mesh"] != doc["result"]["mesh"]


def test_every_resolved_choice_has_a_value_and_an_origin(doc):
    resolved = doc["resolved"]
    assert resolved["slice"] == {"value": "v5e:4x4", "origin": "flag"}
    assert resolved["global_batch_sequences"] == {"value": 32, "origin": "flag"}
    assert resolved["microbatches"]["origin"] == "computed"
    assert resolved["remat"]["origin"] == "computed"
    assert {"value", "origin"} == {k for entry in resolved.values() for k in entry}


def test_pins_and_remat_have_the_flag_as_their_origin(capsys):
    doc = document(capsys, *SMALL, *HELD, "--pin", "tensor=2")
    assert doc["result"]["mesh"]["tensor"] == 2
    assert doc["resolved"]["mesh.tensor"] == {"value": 2, "origin": "flag"}
    assert doc["resolved"]["remat"] == {"value": "block", "origin": "flag"}
    assert doc["resolved"]["mesh.fsdp"]["origin"] == "computed"


def test_the_page_has_the_answer_and_its_sections_the_rest():
    out, _ = answered(*SMALL, "--tokens", "1T")
    for said in ("8 of 10 runs", "MFU", "GiB a chip", "days", "where the step goes"):
        assert said in out
    assert "chips used" not in out
    detail, _ = answered(*SMALL, "--tokens", "1T", "--detail", "--why")
    for said in ("lower", "chips used", "HBM per chip at the peak", "searched", "GiB (", "why"):
        assert said in detail


def test_top_zero_still_shows_the_other_strategies(capsys):
    assert run(capsys, *SMALL, *HELD, "--top", "0")[0] == 0


@pytest.mark.slow
def test_a_limit_on_memory_is_honoured(doc, capsys):
    free = doc["result"]["peak_bytes_per_chip"]
    tight = document(capsys, *SMALL, "--max-hbm", f"{free * 0.8 / 1e9:.2f}GB")["result"]
    assert tight["peak_bytes_per_chip"] <= 0.8 * free * 1.01


@pytest.mark.slow
def test_a_bare_chip_means_its_smallest_slice_that_fits(capsys):
    result = document(capsys, *small(on="v5e"))["result"]
    chips = result["chips_used"] + result["chips_idle"]
    assert result["slice"] == f"v5e:{result['slice'].split(':')[1]}"
    # 16 bytes of state per parameter are 128 GB of the 135 GB of 8 chips, which leaves too little
    # for a microbatch's gradients and its logits.
    assert chips == 16


def test_a_cloud_name_is_echoed_as_what_it_means(capsys):
    doc = document(capsys, *small(on="v5litepod-16"), *HELD)
    assert doc["result"]["slice"] == "v5e:4x4"
    assert any("v5litepod-16" in w for w in doc["notes"])


def test_csv_has_a_row_per_plan(capsys, tmp_path):
    path = tmp_path / "plans.csv"
    result = document(capsys, *SMALL, "--csv", path)["result"]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1 + len(result["runners_up"])
    assert float(rows[0]["expected_s"]) == result["step_seconds"]["expected"]
    assert rows[0]["remat"] == result["remat"]


def test_price_and_chip_overrides_take_effect(capsys):
    held = [*SMALL, *HELD]
    plain = answer(*held, "--tokens", "1T")["result"]
    priced = document(capsys, *held, "--tokens", "1T", "--price", "v5e=2")["result"]
    assert priced["run"]["usd"] == pytest.approx(2 * priced["run"]["chip_hours"])
    assert priced["run"]["usd"] != plain["run"]["usd"]
    twice = document(capsys, *held, "--set", "chip.peak_flops.bf16=3.94e14")["result"]
    assert twice["step_seconds"]["expected"] < plain["step_seconds"]["expected"]


def test_notes_go_to_stderr_and_into_the_document(capsys):
    args = [*small(on="v5p:4x4x4", batch="251seq", seq="4096"), *HELD]
    code, out, err = run(capsys, *args)
    assert code == 0
    assert "note: a batch of 256 sequences would train" in err
    assert "batch of 256" not in out
    doc = document(capsys, *args)
    assert any("--batch 256seq" in line for line in doc["notes"])
    assert doc["warnings"] == []


@pytest.mark.slow
def test_multi_device_chips(capsys):
    """Ironwood shows two JAX devices per chip; the mesh counts devices, chips_used chips."""
    result = document(capsys, *small(on="tpu7x:2x2x1"))["result"]
    devices = 1
    for degree in result["mesh"].values():
        devices *= degree
    assert devices == 2 * result["chips_used"] == 8
    assert not any("offload was not tried" in reason for reason in result["why"])


# The book -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_llama_3_70b_on_8960_v5p(capsys):
    """ch. 5.1.4 and 6.3: X_opt 1,619 or 1,935 by edition (the book's 4.19e6 tokens give 1,618 and
    1,928; here 4Mi are 4,194,304), so 2048 x 4, beside the placeable plan and its idle chips; 44.3
    days for 15T tokens at 40 % with 70e9 parameters."""
    args = ["--tokens", "15T", "--mfu", "40%", "--params", "70e9"]
    result = document(capsys, *BOOK, *args)["result"]
    assert result["book"]["x"]["latest"] == pytest.approx(1619.09, abs=0.005)
    assert result["book"]["x"]["first"] == pytest.approx(1934.67, abs=0.005)
    assert result["book"]["mesh"]["latest"] == {"fsdp": 2048, "tensor": 4}
    assert result["run"]["days"] == pytest.approx(44.3, abs=0.05)
    assert result["run"]["chip_hours"] == pytest.approx(result["run"]["days"] * 24 * 8960)
    assert result["chips_used"] + result["chips_idle"] == 8960


@pytest.mark.slow
def test_the_book_rule_is_printed_and_the_exact_count_takes_longer(capsys):
    code, out, _ = run(capsys, *BOOK, "--tokens", "15T", "--mfu", "40%", "--book", "--detail")
    assert code == 0
    out = " ".join(out.split())
    assert "X_opt 1,619 (latest edition) or 1,935 (first edition)" in out
    assert "fsdp=2048 x tensor=4 = 8,192 chips, 768 of 8,960 idle" in out
    assert "at 40% MFU of 6*N*tokens with N = 70,553,706,496" in out
    assert "44.7 days" in out
    assert "chips used, " in out


def test_the_book_rule_is_silent_where_it_does_not_apply(capsys):
    """A full mesh of links is neither a torus nor a switch."""
    assert document(capsys, *small(on="mi300x:8"), *HELD)["result"]["book"] == {"lines": []}


def test_the_book_rule_on_gpus(capsys):
    book = document(capsys, *small(on="h100:8"), *HELD)["result"]["book"]
    assert [r["value"] for r in book["rules"] if r["name"] == "data_node"] == [2200]
    assert "2,200 (inside a node) or 2,475 (beyond it)" in book["lines"][0]


@pytest.mark.slow
def test_the_book_rule_heeds_set_and_files(capsys, tmp_path):
    """alpha / 3 = 4.59e14 / (2 x 30e9) / 3 = 2,550 instead of 850, by --set and by a file; what
    is not set is still the book's."""
    args = small(on="v5p:4x4x4", batch="64seq")
    (tmp_path / "slow.toml").write_text('id = "v5p"\nnetwork = { link_oneway = 30e9 }\n')
    (tmp_path / "own.toml").write_text('id = "mine"\nbase = "v5p"\n')
    asked = ("--set", "chip.network.link_oneway=30e9"), ("--hw", str(tmp_path / "slow.toml"))
    for override in asked:
        book = document(capsys, *args, *HELD, *override)["result"]["book"]
        assert [r["value"] for r in book["rules"] if r["name"] == "data_3_axes"] == [2550]
        assert any("FSDP alone over 3 axes needs 2,550" in line for line in book["lines"])
    mine = small(on="mine:4x4x4", batch="64seq")
    book = document(capsys, *mine, *HELD, "--hw", str(tmp_path / "own.toml"))["result"]["book"]
    assert [r["value"] for r in book["rules"] if r["name"] == "data_3_axes"] == [850]


def test_the_utilisation_is_printed_as_it_was_given(capsys):
    code, out, _ = run(capsys, *SMALL, *HELD, "--tokens", "1T", "--mfu", "21.62%")
    assert code == 0
    assert "at 21.62% MFU of 6*N*tokens" in out


def test_the_whole_batch_is_ruled(capsys):
    """333 x 2,048 = 681,984 tokens, not 682,000: X_opt = sqrt(B 2 N / F)."""
    args = small(on="v5p:4x4x4", batch="333seq")
    book = document(capsys, *args, *HELD)["result"]["book"]
    assert book["x"]["latest"] == pytest.approx((333 * 2048 * 2 * 64 / 14336) ** 0.5, rel=1e-12)


# Another plan beside it ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_file_is_priced_beside_the_best(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a short name: a page has thirty lines, the next command in them
    file = "block.yaml"
    flat = [*SMALL, "--pin", "stage=1", "--pin", "tensor=2", "--for", "jax"]
    doc = document(capsys, *flat, "--remat", "block", "-o", file)
    alone = doc["result"]["step_seconds"]["expected"]
    found = document(capsys, *flat, "--remat", "none", "--against", file)["result"]
    against = found["against"]
    assert against["step_seconds"]["expected"] == pytest.approx(alone)
    assert against["times_slower"] == pytest.approx(alone / found["step_seconds"]["expected"])
    rows = {row["field"]: row for row in against["differences"]}
    assert (rows["remat"]["ours"], rows["remat"]["theirs"]) == ("none", "block")
    code, out, _ = run(capsys, *flat, "--remat", "none", "--against", file)
    assert code == 0
    assert f"against {file}" in " ".join(out.split())
    assert "theirs with ours" in out


def test_a_plan_of_another_job_is_refused_with_the_flags_that_plan_it(capsys):
    code, out, err = run(capsys, *SMALL, "--against", "audit:llama-3-405b-16k")
    assert (code, out) == (2, "")
    assert "--on '2048*h100:8' --batch 2048seq --seq 8192" in err


def test_a_slice_on_which_the_usual_program_has_no_mesh_is_planned_for_the_next(capsys):
    """8,960 chips are no power of two: MaxText, which uses them all, has no mesh for the batch."""
    result = document(capsys, *BOOK)["result"]
    assert result["runs_in"] == "JAX (shardwise train)"
    assert result["chips_idle"] > 0
    code, _, err = run(capsys, *BOOK, "--for", "maxtext")
    assert code == 2
    assert "of those that MaxText runs, is legal for a batch of 1024 sequences" in err


def test_uneven_experts_cost_time_and_the_page_says_how_even_they_are(capsys):
    words = small(model="mixtral-8x7b", on="4*h100:8", remat="block", pin="expert=8")
    even = run(capsys, *words)[1]
    uneven = run(capsys, *words, "--expert-imbalance", "1.5")[1]
    assert "experts  balanced load, as in benchmarks (expert_imbalance 1)" in even
    assert "experts  the busiest device has 1.5 times the mean load" in uneven
    assert seconds(uneven) > seconds(even)


def seconds(page: str) -> float:
    """The expected step time of a page, in the unit that it has."""
    (line,) = (line for line in page.splitlines() if line.startswith("  step "))
    return float(line.split()[1])
