"""scripts/fit_serving.py: constants that made the times are found again from the times."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwise.evidence.serving.runs import EXPLICIT, PUBLISHED_SERVING, ServingTable, read_serving
from shardwise.evidence.serving.times import features
from shardwise.roofline.engines import ENGINE_CONSTANTS, engine_of

pytest.importorskip("scipy")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import fit_serving  # noqa: E402
import serving_rows  # noqa: E402
from fit.benchmark_flags import benchmark_columns  # noqa: E402
from fit.benchmark_recipes import running_of  # noqa: E402
from fit.rates import read_csv  # noqa: E402
from fit.serving import PRIORS, begin, fit_engines, stacked  # noqa: E402

TRUE = {"vllm": (5e-6, 2e-5, 0.5, 0.2), "trtllm": (3e-6, 1e-5, 0.2, 0.1)}


@pytest.fixture(scope="module")
def groups():
    """Published configurations with the times that known constants give them."""
    table = read_serving(PUBLISHED_SERVING)
    models = ("llama-3.1-70b", "qwen3-32b", "qwen3-235b-a22b")
    chosen = [r for r in table.runs if r.family in TRUE and r.model in models]
    engines = begin(chosen).engines()
    made = []
    for group in features(chosen):
        times = {}
        for family, values in TRUE.items():
            own = dict(zip(ENGINE_CONSTANTS, values, strict=True))
            times[family] = group.times(replace(engines[family], **own))
        runs = tuple(
            replace(
                run, tpot=float(times[run.family].tpot[i]), ttft=float(times[run.family].ttft[i])
            )
            for i, run in enumerate(group.runs)
        )
        made.append(replace(group, runs=runs))
    return made


@pytest.fixture(scope="module")
def runs(groups):
    return [run for group in groups for run in group.runs]


@pytest.fixture(scope="module")
def whole(groups, runs):
    """The fit of all of them."""
    return fit_engines(stacked(groups), begin(runs))


@pytest.mark.slow
def test_constants_are_found_again(whole):
    found = whole.engines()
    for family, values in TRUE.items():
        for name, value in zip(ENGINE_CONSTANTS, values, strict=True):
            # The priors pull a little, in what few runs tell.
            assert getattr(found[family], name) == pytest.approx(value, rel=0.15), (family, name)


def test_without_runs_a_family_has_the_common_constants(groups, runs):
    fitted = fit_engines(stacked(groups), begin(runs), keep=lambda run: run.family != "vllm")
    own = [c for c in fitted.columns if c.level == "family"]
    place = fitted.families.index("vllm")
    assert all(fitted.moves[c.first + place] == pytest.approx(0, abs=1e-6) for c in own)


def test_without_any_run_all_have_their_priors(groups, runs):
    found = fit_engines(stacked(groups), begin(runs), keep=lambda run: False).engines()
    for name in ENGINE_CONSTANTS:
        assert getattr(found["vllm"], name) == pytest.approx(PRIORS[name].value)


@pytest.mark.slow
def test_what_is_written_can_be_read(groups, runs, whole):
    table = ServingTable(rows=len(runs), runs=tuple(runs), left_out={})
    rows = fit_serving.price_with(groups, whole.engines(), runs)
    parts = stacked(groups)
    left = [fit_serving.left_out(parts, groups, runs, what) for what in ("chip", "model")]
    assert [len(x.rows) for x in left] == [len(runs)] * 2
    page = fit_serving.report("2026-01-02", table, rows, whole, left, groups, [])
    assert page.index("## Left out") < page.index("## In-sample")
    assert page == fit_serving.report("2026-01-02", table, rows, whole, left, groups, [])
    text = fit_serving.engines_toml(whole, left, runs, "2026-01-02")
    for name, record in tomllib.loads(text).items():
        engine = engine_of(name, record)
        assert engine.name == name
        low, high = engine.range
        assert 0.5 < low <= high < 2
        assert engine.arrival.sources


def test_a_range_is_as_wide_as_unseen_folds_need():
    """Folds that lie apart: ranges of four of them hold a fifth only where they are wider."""
    rng = np.random.default_rng(1)
    folds = np.repeat(np.arange(10), 40)
    apart = np.exp(rng.normal(0, 0.3, 10)[folds] + rng.normal(0, 0.05, 400))
    alike = np.exp(rng.normal(0, 0.3, 400))
    low, high = fit_serving.fold_range(alike, folds)
    assert ((low <= alike) & (alike <= high)).mean() == pytest.approx(0.8, abs=0.03)
    low, high = fit_serving.fold_range(apart, folds)
    assert ((low <= apart) & (apart <= high)).mean() > 0.84


def test_the_collected_table_gives_the_shipped_rows():
    """Those that rest on no other repository; `scripts/serving_rows.py` makes all. How many `waves`
    a benchmark has, and whether it began `cold`, the repository of its tool tells alone."""
    found, _ = serving_rows.converted(read_csv(serving_rows.COLLECTED), {}, {})
    names = [name for name in EXPLICIT if name not in ("waves", "cold")]
    made = {tuple(row.get(name, "") for name in names) for row in found}
    rows = read_csv(PUBLISHED_SERVING)
    shipped = [tuple(row.get(name, "") for name in names) for row in rows]
    assert sum(row in made for row in shipped) == 785
    by_others = [row for row in shipped if not row[0].startswith("aiconfigurator")]
    assert by_others
    assert made.issuperset(by_others)
    assert {row["waves"] for row in rows} == {"", "10", "20"}


def test_a_benchmark_tells_its_waves():
    row = dict.fromkeys(EXPLICIT, "")
    cases = (("measured=2026-01-01", True), ("aic-auto-gap", False), ("", False))
    told = [benchmark_columns(row, *case)["waves"] for case in cases]
    assert told == ["10", "20", ""]


@pytest.mark.parametrize(
    ("day", "benchmark", "cold"),
    [("2026-01-20", True, "1"), ("2026-01-21", True, ""), ("2026-01-20", False, "")],
)
def test_a_benchmark_was_cold_until_it_sent_requests_before_its_own(day, benchmark, cold):
    row = dict.fromkeys(EXPLICIT, "")
    assert benchmark_columns(row, f"measured={day}T00:00:00Z", benchmark)["cold"] == cold


@pytest.mark.parametrize(
    ("setting", "by_batch", "running"),
    [
        ("CONFIG_FILE=recipes/1k1k/mtp/ctx1_gen4_tep8_batch8_eplb0_mtp3.yaml", False, 8),
        ("CONFIG_FILE=recipes/1k1k/stp/ctx1_gen1_dep8_batch128_eplb0_mtp0.yaml", True, 1024),
        ("DECODE_MAX_BATCH_SIZE=32", True, 256),
        ("CONFIG_FILE=recipes/1k1k/low-latency.yaml", True, None),
    ],
)
def test_a_recipe_of_two_pools_tells_how_many_sequences_a_server_takes(setting, by_batch, running):
    pool = {"tp": 8, "dp-attn": by_batch}
    space = {"prefill": {"tp": 4, "additional-settings": [setting]}, "decode": pool}
    assert running_of(space) == running


def test_servers_that_decode_have_places_in_most_rows_of_two_pools():
    rows = [row for row in read_csv(PUBLISHED_SERVING) if row["workers"] not in ("", "0")]
    told = [row for row in rows if row["max_num_seqs"]]
    assert len(told) >= 0.6 * len(rows)
    assert {row["engine"] for row in told} == {"trtllm"}


def test_a_run_that_a_recipe_tells_is_not_told_again_with_defaults():
    row = dict.fromkeys(EXPLICIT, "1") | {"ttft_ms": "338.336", "tpot_ms": "6.333"}
    told = row | {"converted_from": "the recipe", "drafts": "3", "kv": "fp8"}
    copies = [
        row | {"converted_from": said, "tpot_ms": "6.33", "ttft_ms": "338.34", "drafts": "0"}
        for said in ("", serving_rows.FROM_COPY)
    ]
    other = row | {"converted_from": "", "tpot_ms": "7.11"}
    assert serving_rows.told_once([*copies, told, other]) == ([told, other], 2)


def test_no_shipped_row_is_a_copy_of_another():
    rows = read_csv(PUBLISHED_SERVING)
    assert serving_rows.told_once(rows) == (rows, 0)
