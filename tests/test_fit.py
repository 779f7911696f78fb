"""scripts/fit_efficiency.py: constants that made the times are found again from the times."""

import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwise.evidence.training.runs import read_runs
from shardwise.evidence.training.table import read_table

pytest.importorskip("scipy")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from fit import few_runs, outputs  # noqa: E402
from fit.baseline import baseline_logs, constant_mfu  # noqa: E402
from fit.cases import case_of, logs_at, roofline_logs, seconds  # noqa: E402
from fit.constants import (  # noqa: E402
    CHIP_KINDS,
    GENERATIONS,
    STACK_KINDS,
    VENDORS,
    family_of,
    kind_of,
    names,
)
from fit.explain import explain  # noqa: E402
from fit.folds import chosen_levels, folds, left_out_logs, score, together  # noqa: E402
from fit.hierarchy import Hierarchy, Levels, Prior, bounds_of  # noqa: E402
from fit.ranges import (  # noqa: E402
    common_ranges,
    ranges_by,
    samples_of,
    unlike_logs,
    unseen_values,
)
from fit.regressions import regressions  # noqa: E402
from fit.report import Results, report  # noqa: E402
from fit.residuals import Samples  # noqa: E402
from fit.solve import fit_all, least, linear_at, solved, values_of  # noqa: E402
from fit.terms import TERMS, Term  # noqa: E402
from fit.worth import (  # noqa: E402
    WHOLE,
    Fitted,
    comparisons,
    without_constant,
    without_family,
    without_term,
    worth_table,
)

TABLE = ROOT / "src" / "shardwise" / "evidence" / "training" / "data" / "training_runs.csv"
FREE = Levels(common=10.0, vendor=10.0, own=20.0, group=0.001)
"""The runs decide, and no group has an effect of its own."""


def is_small(row: dict[str, str]) -> bool:
    """Dense runs of one stage on an H100: quick to count, told apart by size and length."""
    return (
        row["group"].startswith(("mosaicml", "huggingface"))
        and row["hardware"].startswith("H100")
        and (row["pp"] or "1") == "1"
        and row["compute_dtype"] == "bf16"
    )


@pytest.fixture(scope="module")
def cases():
    runs, _ = read_runs([row for row in read_table(TABLE).rows if is_small(row)][::3])
    return [case_of(run) for run in runs]


@pytest.fixture(scope="module")
def hierarchy():
    owners = ("hopper", "fsdp", "nanotron")
    start = {"sustained": 0.8, "matmul_ramp": 5e-6, "launch_seconds": 5e-6, "passes": 2.0}
    return Hierarchy(
        {
            name: Prior(value=start.get(name.partition(".")[2], 0.6), source="a test")
            for name in names()
            if name.split(".")[0] in owners
        }
    )


@pytest.fixture(scope="module")
def truth(hierarchy):
    """Other values than the priors', inside the bounds."""
    chosen = {"hopper.sustained": 0.9, "hopper.attention": 0.7}
    chosen |= {"nanotron.passes": 2.6, "fsdp.passes": 1.5, "fsdp.attention": 0.5}
    return {name: chosen.get(name, p.value) for name, p in hierarchy.priors.items()}


@pytest.fixture(scope="module")
def made(cases, truth):
    """The same runs, measured on the machine of `truth`."""
    logs = logs_at(cases, truth)
    return [
        replace(c, run=replace(c.run, measured_seconds=c.run.measured_seconds * float(np.exp(log))))
        for c, log in zip(cases, logs, strict=True)
    ]


@pytest.fixture(scope="module")
def fitted(made, hierarchy):
    fit, cases = fit_all(made, hierarchy, FREE)
    return Fitted(fit=fit, cases=cases, hierarchy=hierarchy, levels=FREE)


@pytest.fixture(scope="module")
def left(fitted):
    return folds_of(fitted)


def folds_of(fitted):
    """Every group left out."""
    return folds(fitted.fit, fitted.cases, fitted.cases, fitted.hierarchy, fitted.levels)


@pytest.fixture(scope="module")
def again(made, hierarchy):
    """The same once more, from the same runs."""
    fit, cases = fit_all(made, hierarchy, FREE)
    return Fitted(fit=fit, cases=cases, hierarchy=hierarchy, levels=FREE)


@pytest.fixture(scope="module")
def left_again(again):
    return folds_of(again)


# The fit ------------------------------------------------------------------------------------------


def test_the_constants_behind_the_times_are_found_again(made, hierarchy, truth, fitted):
    before = linear_at(made, {n: p.value for n, p in hierarchy.priors.items()})
    assert np.median(np.abs(before.residuals)) > 0.05
    assert np.max(np.abs(fitted.fit.residuals)) < 0.02
    # What every run feels is recovered; what nearly none does may stay at its prior.
    for name in ("hopper.sustained", "nanotron.passes", "fsdp.passes"):
        assert fitted.fit.values[name] == pytest.approx(truth[name], rel=0.05), name


def test_a_run_with_a_mistake_does_not_drag_the_rest(made, hierarchy, truth):
    wrong = replace(made[0], run=replace(made[0].run, measured_seconds=1e3))
    fit, _ = fit_all([wrong, *made[1:]], hierarchy, FREE)
    assert fit.values["hopper.sustained"] == pytest.approx(truth["hopper.sustained"], rel=0.05)
    assert np.median(np.abs(fit.residuals[1:])) < 0.02


def test_the_same_runs_give_the_same_constants(fitted, left, again, left_again):
    assert again.fit.values == fitted.fit.values
    assert np.array_equal(again.fit.residuals, fitted.fit.residuals)
    assert np.array_equal(together(left_again), together(left))


def test_values_are_what_three_digits_say(fitted):
    """What is written is what was priced."""
    for name, value in fitted.fit.values.items():
        assert value == float(f"{value:.3g}"), name


def test_a_quadratic_problem_with_bounds():
    """0.5 z'Az - b'z over z <= 1: the free minimum (2, 0.5) is cut to (1, 1)."""
    matrix, pull = np.array([[2.0, 1.0], [1.0, 1.5]]), np.array([4.5, 2.75])
    assert np.linalg.solve(matrix, pull) == pytest.approx([2.0, 0.5])
    high = np.array([1.0, np.inf])
    z = least(matrix, pull, np.full(2, -np.inf), high)
    assert z == pytest.approx([1.0, (2.75 - 1.0) / 1.5])


# The hierarchy ------------------------------------------------------------------------------------


def test_few_rows_move_a_constant_little(made, hierarchy):
    """A row moves it less than ten of two groups do, and ten of one group hardly more than one."""
    slow = [replace(c, run=replace(c.run, measured_seconds=c.run.measured_seconds * 1.3))
            for c in made]  # fmt: skip
    levels = Levels(own=0.5)
    linear = linear_at(slow, {n: p.value for n, p in hierarchy.priors.items()})
    at = linear.names.index("hopper.sustained")

    def moved(rows) -> float:
        some = linear.rows(np.array(rows))
        found = solved(some, hierarchy.penalty(levels), levels, bounds_of(linear.names))
        return abs(found.values[at] - linear.point[at])

    first = [i for i, g in enumerate(linear.groups) if g == linear.groups[0]]
    other = [i for i, g in enumerate(linear.groups) if g != linear.groups[0]]
    one = moved(first[:1])
    assert one < 0.5 * moved([*first[:5], *other[:5]]) or one < 0.2
    assert moved(first[:1] * 10) < 2 * one


def test_a_chip_without_runs_is_expected_to_be_like_its_vendors(hierarchy):
    priors = {f"{g}.sustained": Prior(value=0.8, source="a test") for g in GENERATIONS}
    tree = Hierarchy(priors)
    found = {"chip.sustained": 0.5, "google:chip.sustained": 0.3}
    assert tree.expected("google", "sustained", found) == pytest.approx(0.8 + 0.1 * 0.8)
    assert tree.expected("nvidia", "sustained", found) == pytest.approx(0.8 + 0.1 * 0.5)
    assert tree.expected("", "sustained", {"chip.sustained": 9.0}) == 1.0


def test_a_measured_prior_is_left_less():
    assert Prior(value=1.0, source="assumed").closeness(0.1) == 1.0
    assert Prior(value=1.0, source="measured", sigma=0.05).closeness(0.1) == 0.5
    assert Prior(value=1.0, source="measured", sigma=0.5).closeness(0.1) == 1.0


def test_at_most_six_constants_a_generation_and_four_a_stack():
    assert len(CHIP_KINDS) <= 6
    assert len(STACK_KINDS) <= 4
    chips = [chip for group in GENERATIONS.values() for chip in group]
    assert len(chips) == len(set(chips))
    assert set(VENDORS) == set(GENERATIONS)
    assert family_of("hopper.sustained") == "chip.sustained"
    assert family_of("fsdp.attention") == "stack.attention"


# Left out -----------------------------------------------------------------------------------------


def test_a_group_left_out_is_predicted_from_the_others(made, fitted, left):
    assert {f.group for f in left} == {"mosaicml/llm-foundry", "huggingface/nanotron"}
    logs = together(left)
    for fold in left:
        assert [made[i].run.group == fold.group for i in fold.rows] == [True] * len(fold.rows)
        assert np.array_equal(logs[fold.rows], fold.logs)
        assert np.median(np.abs(fold.logs)) >= np.median(np.abs(fitted.fit.residuals[fold.rows]))


def test_the_left_out_group_has_no_part_in_its_fold(made, fitted, hierarchy, left):
    """Its measurements may be anything: what is predicted of it stays."""
    fold = left[0]
    mad = [
        replace(c, run=replace(c.run, measured_seconds=c.run.measured_seconds * (1 + 9 * (i % 2))))
        if i in fold.rows
        else c
        for i, c in enumerate(fitted.cases)
    ]
    linear = linear_at(mad, fitted.fit.values)
    again = folds(replace(fitted.fit, linear=linear), mad, mad, hierarchy, fitted.levels)[0]
    assert again.levels == fold.levels
    assert again.values == pytest.approx(fold.values)


def test_sigmas_are_chosen_by_the_left_out_error(fitted, hierarchy):
    linear = fitted.fit.linear
    best = chosen_levels(linear, hierarchy)
    worse = left_out_logs(linear, hierarchy, Levels())
    chosen = left_out_logs(linear, hierarchy, best)
    assert score(chosen, linear) <= score(worse, linear)


def test_a_run_that_judges_alone_moves_no_constant(made, fitted, hierarchy):
    """It is predicted by the constants of the others, those of its group left out."""
    judge = replace(made[0], run=replace(made[0].run, fitted=False, measured_seconds=1e3))
    known = fitted.cases
    found = folds(fitted.fit, known, [judge], hierarchy, fitted.levels)[0]
    first = next(f for f in folds_of(fitted) if f.group == judge.run.group)
    assert found.values == pytest.approx(first.values)
    stranger = replace(judge, run=replace(judge.run, group="a/stranger"))
    alone = folds(fitted.fit, known, [stranger], hierarchy, fitted.levels)[0]
    assert (alone.values, alone.left) == (fitted.fit.values, 0)


def test_rows_of_a_configuration_share_its_weight(made, hierarchy):
    """Ten times the same row are one look at it."""
    point = {n: p.value for n, p in hierarchy.priors.items()}
    once, often = linear_at(made, point), linear_at([*made, *[made[0]] * 9], point)
    assert often.shares.sum() == pytest.approx(once.shares.sum())
    assert often.shares[0] == pytest.approx(once.shares[0] / (1 + 9 * once.shares[0]))


def test_a_constant_mfu_is_left_out_likewise(made):
    """The logs of a group are full rate over measured, over the MFU of the other group."""
    logs = baseline_logs(made)
    groups = np.array([c.run.group for c in made])
    mine = groups == groups[0]
    mfu = constant_mfu([c for c, m in zip(made, mine, strict=True) if not m])["bf16"]
    one = made[0]
    assert logs[0] == pytest.approx(np.log(one.full_rate / one.run.measured_seconds / mfu))
    assert 0.1 < mfu < 0.9


# What it says -------------------------------------------------------------------------------------


def test_it_says_what_determines_a_constant(fitted):
    found = explain(fitted.fit, fitted.cases, fitted.hierarchy, fitted.levels)
    assert set(found) == set(fitted.hierarchy.priors)
    assert found["nanotron.passes"].single == "huggingface/nanotron"
    assert found["hopper.sustained"].single == ""
    assert "huggingface/nanotron" in found["nanotron.passes"].source


def test_what_a_constant_is_worth(fitted):
    """Without one that the times were made with, the left-out error is larger."""
    whole = fitted.whole
    held = {"hopper.sustained": 0.5}
    assert without_family(fitted, held, "half").score > whole.score
    assert without_constant(fitted, "hopper.sustained").name == "hopper.sustained"


def test_what_a_term_of_plans_is_worth(fitted):
    nothing = Term(name="nothing", without=lambda plan: plan)
    same = without_term(fitted, nothing)
    assert (same.touched, same.score) == (0, fitted.whole.score)
    remat = Term(name="recompute", without=lambda plan: replace(plan, remat="block"))
    other = without_term(fitted, remat)
    assert other.touched
    assert other.score != same.score
    assert len({term.name for term in TERMS}) == len(TERMS)


def test_rows_of_worth_stay_while_constants_and_runs_do(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "WORTH", tmp_path / "worth.json")
    runs, values = [case.run for case in fitted.cases], fitted.fit.values
    assert outputs.kept_worths(values, runs) == ()
    term = replace(fitted.whole, name="a term", touched=3, judges=2, judged=(0.1, 0.2))
    rows = (fitted.whole, term)
    outputs.write_worths({"date": "a day"}, values, runs, rows)
    assert outputs.kept_worths(values, runs) == rows
    assert outputs.kept_worths({**values, "hopper.sustained": 0.1}, runs) == ()
    assert outputs.kept_worths(values, runs[1:]) == ()
    assert outputs.told_worths(values, runs) == worth_table(rows)
    older = outputs.told_worths(values, runs[1:])
    assert older == f"Of the constants of a day, before those below.\n\n{worth_table(rows)}"


def test_the_page_has_the_worth_of_every_constant_and_term(fitted):
    rows = [outputs.worth_from(row) for row in json.loads(outputs.WORTH.read_text())["rows"]]
    assert rows[0].name == WHOLE
    assert worth_table(rows) in outputs.PAGE.read_text(), "run scripts/fit_worth.py"
    assert {term.name for term in TERMS} <= {row.name for row in rows}
    assert set(comparisons(fitted)) - set(fitted.fit.values) <= {row.name for row in rows}


def test_what_is_written_reads_back(fitted):
    found = explain(fitted.fit, fitted.cases, fitted.hierarchy, fitted.levels)
    everything = {
        name: found.get(name) or replace(found["hopper.sustained"], name=name, value=0.5)
        for name in names()
    }
    full = Hierarchy({name: Prior(value=kind_of(name).expected, source="") for name in names()})
    hopper = tomllib.loads(outputs.generation_toml("hopper", everything, "a day"))
    others = tomllib.loads(outputs.others_toml(full, fitted.fit.columns, "a day"))
    assert hopper["sustained"]["value"] == fitted.fit.values["hopper.sustained"]
    assert hopper["sustained"]["prior"] == float(f"{found['hopper.sustained'].prior.value:.3g}")
    assert set(hopper) == {*CHIP_KINDS}
    assert set(others) == {*CHIP_KINDS, "vendors"}
    assert set(others["vendors"]) == set(VENDORS.values())
    stacks = tomllib.loads(outputs.stacks_toml(everything, "a day"))
    assert stacks["fsdp"]["passes"]["value"] == fitted.fit.values["fsdp.passes"]


def results_of(fitted, left) -> Results:
    """All that the page shows of the made runs."""
    cases, logs = fitted.cases, together(left)
    rest = (cases, fitted.fit.linear, fitted.hierarchy, fitted.levels)
    samples = samples_of(cases, logs, unlike_logs(*rest))
    return Results(
        date="a day",
        cases=cases,
        fitted=fitted.fit.residuals,
        left=logs,
        baseline=baseline_logs(cases),
        roofline=roofline_logs(cases),
        mfu=constant_mfu(cases),
        levels=fitted.levels,
        folds=left,
        found=explain(fitted.fit, cases, fitted.hierarchy, fitted.levels),
        table=Samples(samples).table(np.ones(len(samples), bool)),
        ranges=ranges_by(samples),
        common=common_ranges(samples),
        unseen=unseen_values(samples, unlike_logs(*rest, folds=False)),
        regressions=regressions(case.run for case in cases),
        worths=worth_table([compare() for compare in comparisons(fitted).values()]),
    )


@pytest.fixture(scope="module")
def results(fitted, left):
    return results_of(fitted, left)


@pytest.mark.slow
def test_the_same_runs_give_the_same_page(made, left, results, again, left_again):
    page = report(results)
    assert page == report(results_of(again, left_again))
    headline = next(line for line in page.splitlines() if "left out with their group" in line)
    errors = np.abs(np.expm1(together(left)))
    assert f"| {len(made)} | {np.median(errors):.1%} |" in headline
    for name in ("huggingface/nanotron", "hopper/fsdp", "chip.sustained = 1", "fsdp.passes"):
        assert f"| {name} |" in page, name


def test_what_is_left_of_every_run(results):
    r = results
    rows = outputs.unseen_runs(r.cases, r.fitted, r.left, r.baseline, r.ranges)
    assert len({row.fingerprint for row in rows}) == len(rows) == len(r.cases)
    for row, case, log, held in zip(rows, r.cases, r.left, r.ranges, strict=True):
        assert row.predicted == pytest.approx(case.run.measured_seconds * np.exp(log))
        assert held.inside == (row.low <= case.run.measured_seconds <= row.high)


def test_seconds_at_the_values_of_a_fit(fitted):
    """`values_of` undoes the scales, and prices as the fit did."""
    linear = fitted.fit.linear
    assert values_of(linear, linear.point) == pytest.approx(fitted.fit.values)
    case, log = fitted.cases[0], linear.residuals[0]
    predicted = float(seconds(case, fitted.fit.values))
    assert predicted == pytest.approx(case.run.measured_seconds * np.exp(log))


def test_the_section_of_few_runs_stands_once_in_the_page():
    """However often it is made; the page of the repository has it."""
    page = "# Fit\n\n## Ranges\n\ntext\n\n## What each term and constant is worth\n\nmore\n"
    once = few_runs.placed(page, f"{few_runs.TITLE}\nfirst\n")
    twice = few_runs.placed(once, f"{few_runs.TITLE}\nsecond\n")
    assert once.replace("first", "second") == twice
    assert twice.count(few_runs.TITLE) == 1
    assert outputs.PAGE.read_text().count(few_runs.TITLE) == 1
