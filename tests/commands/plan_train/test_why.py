"""What a reader may choose instead: different plans, and what another value of a choice costs."""

from dataclasses import replace

import pytest
from tests.apps.commands import answer, answered, flat
from tests.planner.search.test_train_search import DENSE, plain, request
from tests.planner.steps import dense
from tests.tiers import spread

from shardwise.commands.plan_train.why import differs_in
from shardwise.commands.pricing.predict import slower_text
from shardwise.planner import training
from shardwise.planner.beside import MESH, choices_beside, close_plans
from shardwise.planner.search.choices import AS_FAST, choices_of
from shardwise.planner.training import plan_train, simplicity_of

pytestmark = pytest.mark.usefixtures("answers_kept")

POD = ["plan", "train", "--model", "llama-3-70b", "--on", "v5p:16x16x16", "--batch", "4Mi"]
POD += ["--seq", "4096", "--tokens", "15T"]
"""A slice on which many meshes are one plan: context and fsdp store parameters alike."""
PIPED = ["plan", "train", "--model", "llama-3-70b", "--on", "h100:64", "--batch", "1Mi"]
PIPED += ["--seq", "8192"]


def test_no_row_of_what_was_close_is_the_answer_in_another_order():
    result = answer(*POD)["result"]
    best = result["step_seconds"]["expected"]
    assert result["close"]
    for row in result["close"]:
        apart = abs(row["step_seconds"]["expected"] / best - 1)
        lean = abs(row["peak_bytes_per_chip"] / result["peak_bytes_per_chip"] - 1)
        assert apart > 0.01 or lean > 0.1 or row["differs"]
    page, _ = answered(*POD)
    table = page.split("close alternatives")[1].split("as fast within")[0]
    assert "0.0 %" not in table
    assert "remat block" in table


def test_plans_that_differ_in_their_chunks_alone_are_told_by_them():
    cfg = dense(num_hidden_layers=16)
    best = plan_train(request(cfg, "v5e:4x4", 64, pins={"stage": 2})).best
    few, many = (
        replace(
            best,
            plan=replace(best.plan, pipeline_schedule="interleaved", virtual_stages=chunks),
        )
        for chunks in (2, 4)
    )
    assert differs_in(many, few) == ["4 chunks"]
    assert differs_in(few, few) == []
    other = replace(few, plan=replace(few.plan, remat="block", virtual_stages=4))
    assert differs_in(other, few) == ["remat block"]


def test_plans_as_fast_as_the_answer_are_one_line_and_no_simpler():
    result = answer(*POD)["result"]
    assert len(result["as_fast"]) >= 2
    for row in result["as_fast"]:
        assert abs(row["times_slower"] - 1) <= AS_FAST
        assert len(row["mesh"]) >= len(result["mesh"])
    page, _ = answered(*POD)
    assert flat(page).count("as fast within 0.1 % but not simpler: ") == 1


@pytest.mark.parametrize("words", spread([POD, PIPED], slow=1), ids=["torus", "pipeline"])
def test_every_choice_has_a_next_best_value_with_its_price(words):
    result = answer(*words)["result"]
    rows = {row["choice"]: row for row in result["choices"]}
    assert {"mesh", "remat", "microbatches"} <= set(rows)
    if result["mesh"].get("stage", 1) > 1:
        assert "pipeline_schedule" in rows
    for name, row in rows.items():
        assert row["chosen"] == result[name]
        if row["plan"] is not None:
            assert row["plan"][name] == row["next"] != row["chosen"]
            assert row["plan"]["times_slower"] >= 1 - max(result["told_apart"], AS_FAST)
            assert row["grows_seconds"] >= 0


@pytest.mark.parametrize("words", spread([POD, PIPED], slow=1), ids=["torus", "pipeline"])
def test_why_says_of_each_choice_what_another_costs_and_where(words):
    result = answer(*words)["result"]
    why = result["why"]
    assert sum("compute waits" in line for line in why) <= 1
    assert not any(" 0.0" in line for line in why)
    (remat,) = [line for line in why if line.startswith(f"remat {result['remat']}: with remat ")]
    assert "slower, mostly " in remat
    assert "GiB a chip" in remat
    said = " ".join(why)
    for row in result["choices"]:
        if row["choice"] != "mesh" and row["plan"] and row["plan"]["times_slower"] > 1 + AS_FAST:
            assert row["grows"] in said


def test_steps_that_nobody_can_tell_apart_are_said_to_be_as_fast():
    assert slower_text(1.0) == slower_text(1.0004) == "as fast (within 0.1 %)"
    assert slower_text(1.0011) == "0.1 % slower"
    assert slower_text(0.97) == "3.0 % faster"


def test_a_pipeline_that_its_own_layers_move_down_is_told_in_plain_words():
    """Seven layers over two stages: equal stages are a guess, their own layers are not."""
    cfg = dense(hidden_size=512, intermediate_size=1536, num_hidden_layers=7, vocab_size=16000)
    held = {"remat": ("block",), "pipeline_schedule": ("1f1b",), "zero": (1,)}
    (said,) = plan_train(request(cfg, "v5e:4x4", 32, pins={"stage": 2}, **held)).rank_changes
    assert said.startswith("with equal pipeline stages stage=2 x data=8 (1f1b) looked fastest, at ")
    assert ". With the actual layers of each stage it takes " in said
    assert said.endswith("so that is the answer")
    assert all(len(sentence.split()) <= 25 for sentence in said.split(". "))


def test_a_pipeline_that_moves_down_does_not_call_another_plan_the_answer():
    cfg = dense(hidden_size=512, intermediate_size=1536, num_hidden_layers=7, vocab_size=16000)
    asked = request(cfg, "v5e:4x4", 32, pins={"stage": 2})
    planning = plan_train(replace(asked, apart=0.5))
    assert planning.best is not planning.fastest
    (said,) = planning.rank_changes
    assert ". The answer is simpler" in said
    assert "so that is" not in said
    assert all(len(sentence.split()) <= 25 for sentence in said.split(". "))


def test_a_slower_plan_that_ranks_first_is_not_called_the_fastest():
    asked = request(DENSE, "v5e:4x4", 64, remat=("block",))
    planning = plan_train(asked)
    fast, *_, slow = sorted(planning.others, key=lambda a: float(a.estimate.expected))
    assert training._rank_changes(asked, planning.search, fast, slow, slow) == ()
    assert training._rank_changes(asked, planning.search, slow, fast, fast)


@pytest.mark.parametrize("apart", spread([0.05, 0.0, 0.5], quick=0, slow=1))
def test_of_plans_as_good_the_simplest_is_the_answer(apart):
    asked = request(DENSE, "v5e:4x4", 64, remat=("block",))
    planning = plan_train(replace(asked, apart=apart), top=2)
    limit = planning.fastest_rank * (1 + max(apart, AS_FAST))
    assert planning.best_rank <= limit
    assert planning.fastest_rank == min(map(planning.rank, (planning.best, *planning.others)))
    for other in planning.others:
        if planning.rank(other) <= limit:
            assert simplicity_of(planning.request, planning.best) <= simplicity_of(
                planning.request, other
            )
    assert len(close_plans(planning, choices_beside(planning))) <= 2


@pytest.mark.slow
def test_the_best_of_every_value_is_that_of_every_plan_priced():
    """Of all legal plans, with an axis more at what it is compared at."""
    asked, everything = plain(DENSE, "v5e:2x2", 16, "none", "block")
    planning = plan_train(asked, top=3, exhaustive=True)
    fitting = [a for a in everything if float(a.memory.peak()) <= asked.max_hbm_bytes]
    for (name, value), found in planning.search.by_choice.items():
        alike = [a for a in fitting if choices_of(a.plan).get(name) == value]
        least = min(float(a.estimate.expected) for a in alike)
        assert least <= found.seconds * (1 + 1e-9)
        assert found.seconds <= least * (1 + 7 * AS_FAST)
    pruned = plan_train(asked, top=3).search.by_choice
    assert all(f.rank >= planning.search.by_choice[k].rank * 0.99 for k, f in pruned.items())


def test_what_is_fixed_is_no_choice():
    asked = request(DENSE, "v5e:4x4", 64, remat=("block",))
    planning = plan_train(replace(asked, microbatches=(2,)), top=3)
    names = [row.choice for row in choices_beside(planning)]
    assert names[0] == MESH
    assert not {"remat", "microbatches"} & set(names)


@pytest.mark.slow
def test_a_utilisation_names_its_peak():
    for dtype in ("bf16", "fp8"):
        words = [*SMALL, "--dtype", dtype, "--remat", "block", "--pin", "stage=1"]
        page, _ = answered(*words, "--detail")
        assert f" % of the {dtype} peak" in flat(page)
        assert f"FLOP/s in {dtype} per chip" in flat(page)


SMALL = ["plan", "train", "--model", "llama-3-8b", "--batch", "32seq", "--seq", "2048"]
SMALL += ["--on", "h100:8"]


@pytest.mark.slow
def test_the_smallest_slice_is_one_of_those_tried_where_not_all_were():
    words = ["--remat", "none", "--pin", "stage=1", "--for", "any", "--pin", "tensor=1"]
    for chip, tried in (("a100-40gb", True), ("v5p", False)):
        _, err = answered(*SMALL[:-1], chip, *words)
        assert "is the smallest slice of" in flat(err)
        assert ("(tried: sizes that double)" in flat(err)) is tried


@pytest.mark.slow
def test_the_fewest_chips_are_those_of_the_parts_tried():
    words = ["--objective", "chips", "--remat", "block", "--pin", "tensor=1", "--pin", "stage=1"]
    why = answer(*SMALL, *words)["result"]["why"]
    assert any("fewest chips on which a plan fits; the parts tried" in line for line in why)
