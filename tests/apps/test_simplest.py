"""No difference is made where none is known: `plan train` keeps a margin of memory, and of
plans that predictions cannot tell apart the simplest is the answer."""

from dataclasses import replace
from itertools import combinations

import pytest
from tests.apps.commands import answer, answered, flat, run
from tests.tiers import spread

from shardwise.commands.pricing.predict import plan_training
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.planner.search.choices import SIMPLER, strategies
from shardwise.planner.search.loop import search
from shardwise.plans import MESH_AXES
from shardwise.roofline.resolution import read_resolution

TIGHT = ["plan", "train", "--model", "qwen3-4b", "--on", "v5e:4x4", "--for", "jax"]
TIGHT += ["--batch", "64seq", "--seq", "4096", "--pin", "tensor=1", "--pin", "context=1"]
"""The fastest plan that fits pipelines two stages, to 98 % of the memory."""

JOBS = [
    ("qwen3-0.6b", "v5e:2x4", None),
    ("qwen3-4b", "v5e:4x4", "jax"),
    ("llama-3.2-1b", "v6e:2x4", None),
    ("llama-3-8b", "v5p:2x2x2", None),
    ("llama-3-8b", "v6e:4x4", "jax"),
    ("olmoe-1b-7b", "v5p:2x2x2", None),
    ("llama-3.2-3b", "h100:8", None),
    ("llama-3-8b", "h100:8", "torchtitan"),
    ("mistral-nemo-12b", "h100:8", "megatron"),
    ("olmoe-1b-7b", "h100:8", None),
    ("qwen3-4b", "a100:8", None),
    ("llama-3.1-70b", "mi300x:8", None),
]


@pytest.mark.parametrize(
    ("model", "on", "software"),
    spread(JOBS, quick=[0, 6], slow=[5, 8, 11], rows=True),
    ids=[" ".join(j[:2]) for j in JOBS],
)
def test_no_answer_uses_a_strategy_that_a_plan_as_good_does_without(model, on, software):
    choices = TrainChoices(software=software, remat="block")
    planning = plan_training(
        model, on, batch="64seq", seq=2048, choices=choices, top=0, outside=False
    )
    best, request = planning.best.plan, planning.request
    used = strategies(best.mesh, best)
    limit = planning.fastest_rank * (1 + request.apart)
    asked = request.with_margin if planning.margin_kept else request
    assert planning.best_rank <= limit
    for axes in (axes for n in range(used) for axes in combinations(MESH_AXES, n)):
        pins = {axis: 1 for axis in MESH_AXES if axis not in axes}
        found = search(replace(asked, pins=pins, better_than=limit), keep=1).best
        assert not [f for f in found if strategies(f.mesh, f.structure) < used]


@pytest.mark.slow
def test_the_fastest_stands_beside_with_what_it_gains_and_risks():
    result = answer(*TIGHT, "--margin", "0")["result"]
    fastest = result["fastest"]
    assert result["mesh"] == {"fsdp": 16}
    assert len(fastest["mesh"]) > 1
    assert 1 > fastest["times_slower"] >= 1 / (1 + result["told_apart"])
    page = flat(answered(*TIGHT, "--margin", "0")[0])
    said = " % faster by prediction, less than predictions can tell apart (half of these"
    assert page.count(said) == 1
    assert "; 1 strategy more, " in page


def test_what_costs_fewer_chip_seconds_is_cheaper_and_not_faster():
    words = ("plan", "train", "--model", "llama-3.2-1b", "--on", "v5e:4x4", "--batch", "64seq")
    words = (*words, "--seq", "2048", "--remat", "block", "--objective", "cost")
    page = flat(answered(*words)[0])
    assert " % cheaper by prediction, less than predictions can tell apart (half of these" in page
    assert "faster by prediction" not in page


@pytest.mark.slow
def test_the_fastest_is_the_answer_where_it_is_asked_for():
    simple, fastest = (
        answer(*TIGHT, "--margin", "0")["result"],
        answer(*TIGHT, "--fastest")["result"],
    )
    assert fastest["mesh"] == simple["fastest"]["mesh"]
    assert fastest["fastest"] is None
    assert (fastest["told_apart"], fastest["margin"]["share"]) == (0.0, 0.0)
    assert fastest["step_seconds"]["expected"] < simple["step_seconds"]["expected"]
    kept = answer(*TIGHT, "--fastest", "--margin", "10%")["result"]
    assert kept["margin"] == {"share": 0.1, "kept": True}


@pytest.mark.parametrize(
    ("model", "on", "software"), spread([JOBS[8], JOBS[1], JOBS[4]], slow=1, rows=True)
)
def test_the_answer_is_the_same_however_many_stand_beside_it(model, on, software):
    choices = TrainChoices(software=software, remat="block")
    plans = [
        plan_training(model, on, batch="64seq", seq=2048, choices=choices, top=top, outside=False)
        for top in (0, 6)
    ]
    assert plans[0].best.plan == plans[1].best.plan


def test_of_plans_equally_simple_the_fastest_is_the_answer():
    """Two chips: plain copies, not the tensor parallelism that holds less and takes longer."""
    choices = TrainChoices(remat="block", software="any")
    planning = plan_training(
        "llama-3.2-1b", "h100:2", batch="64seq", seq=2048, choices=choices, top=6, outside=False
    )
    best = planning.best
    assert planning.margin_kept
    assert planning.request.apart > 0
    others = [o for o in planning.others if strategies(o.plan.mesh, o.plan) == 1]
    assert others
    for other in others:
        if other.plan.microbatches == best.plan.microbatches:
            assert planning.rank(other) >= planning.best_rank


@pytest.mark.parametrize("on", spread(["rtx3090:2", "rtx4090:2"], quick=0, slow=1))
def test_cards_without_peer_to_peer_hold_copies_rather_than_cut_matrices(on):
    """Every layer of the latter would wait for messages through the host's memory."""
    asked = {"batch": "16seq", "seq": 2048, "outside": False}
    planning = plan_training("llama-3.2-1b", on, choices=TrainChoices(remat="none"), **asked)
    assert planning.best.plan.mesh == {"data": 2}


def test_the_rules_stand_in_one_line_of_why():
    (line,) = [line for line in answer(*TIGHT)["result"]["why"] if SIMPLER[0].title in line]
    assert all(rule.title in line for rule in SIMPLER)
    assert "of usable memory free" in line
    assert "(--margin)" in line


def test_a_faster_plan_says_where_it_gains():
    """And what the timeline put first is called the fastest, not the answer."""
    doc = answer(*TIGHT)
    lines = [line for line in doc["result"]["why"] if "% faster, mostly" in line]
    assert lines
    assert all("(-" in line for line in lines)
    assert not [note for note in doc["warnings"] if note.endswith("so that is the answer")]


def test_a_margin_of_memory_is_kept_and_said():
    kept = answer(*TIGHT)["result"]
    share = read_resolution().margin("jax", "google").value
    assert kept["margin"] == {"share": share, "kept": True}
    assert kept["peak_bytes_per_chip"] <= (1 - share) * kept["usable_bytes_per_chip"]
    for row in kept["runners_up"]:
        assert row["peak_bytes_per_chip"] <= (1 - share) * kept["usable_bytes_per_chip"]


def test_without_a_margin_all_that_fits_is_looked_at():
    result = answer(*TIGHT, "--margin", "0")["result"]
    usable, share = result["usable_bytes_per_chip"], read_resolution().margin("jax", "google").value
    assert (1 - share) * usable < result["fastest"]["peak_bytes_per_chip"] <= usable
    assert result["margin"] == {"share": 0.0, "kept": True}


def test_where_no_plan_keeps_the_margin_the_answer_is_one_that_fits_and_says_so():
    doc = answer(*TIGHT, "--remat", "block", "--pin", "stage=1", "--margin", "90%")
    assert doc["result"]["margin"] == {"share": 0.9, "kept": False}
    assert len([w for w in doc["warnings"] if "leaves 90 % of usable memory free" in w]) == 1


def test_a_plan_given_as_a_file_needs_no_margin(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    words = [*TIGHT, "--margin", "0", "--pin", "stage=2", "--pin", "fsdp=8", "--remat", "block"]
    result = answer(*words, "--schedule", "dualpipe", "-o", str(path))["result"]
    assert result["peak_bytes_per_chip"] > 0.95 * result["usable_bytes_per_chip"]
    code, out, err = run(capsys, "plan", "show", path)
    assert code == 0, err
    assert "15.6 of 15.8 GiB" in out


@pytest.mark.parametrize("given", ["1", "-5%", "much", "100%"])
def test_a_margin_that_is_none_is_refused(given, capsys):
    code, _, err = run(capsys, *TIGHT, "--margin", given)
    assert code == 2
    assert f"--margin '{given}'" in flat(err)
