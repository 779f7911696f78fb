"""What the plan predicts is what runs: state per device to the byte, collectives by kind and axes.

The steps are compiled for a described TPU slice, in one child per group of plans.
"""

from dataclasses import replace

import pytest

from shardwise.workflows.planned import (
    Line,
    by_axes,
    compiled_steps,
    planned_lines,
    planned_state,
)
from shardwise.workflows.planned_plans import small_plans
from shardwise.workflows.planned_rules import RULES, compare

PLANS = small_plans()
GROUPS = {
    "data": ("DP", "ZeRO-1", "ZeRO-2, 2 microbatches"),
    "fsdp": ("FSDP", "FSDP, kept gathered", "FSDP, no remat", "HSDP"),
    "tensor": (
        "TP",
        "TP + SP",
        "TP + SP, fewer KV heads",
        "FSDP + TP",
        "DP + FSDP + TP, 2 microbatches",
    ),
    "context": ("FSDP + CP ring", "FSDP + CP all-gather", "FSDP + CP Ulysses"),
    "stages": ("1F1B + FSDP + TP", "ZB-H1 + FSDP + TP", "1F1B + DP"),
    "expert": ("EP ragged", "FSDP + EP, capacity"),
    "expert and tensor": ("EP over TP, ragged", "EP + TP, ragged"),
}


def test_every_plan_is_in_one_group():
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(PLANS)


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_what_is_planned_is_what_runs(group):
    names = GROUPS[group]
    for name, got in zip(names, compiled_steps([PLANS[n] for n in names]), strict=True):
        plan, cfg = PLANS[name]
        assert got.state == planned_state(plan, cfg, plan.degree("stage") - 1), name
        assert got.beside["params"] == 0, name
        assert got.beside["optimizer"] <= 16, name  # counters of steps
        planned = planned_lines(plan, cfg)
        found = compare(plan, cfg, planned, got.lines)
        assert not found.differences, (name, found.differences)
        # Nothing can be taken from the program, or the plan, without a difference to show for it.
        largest = max(got.lines, key=lambda line: line.total)
        without = [line for line in got.lines if line is not largest]
        assert compare(plan, cfg, planned, without).left > 0, name
        more = [*planned, replace(planned[0], bytes=2**30)]
        assert compare(plan, cfg, more, got.lines).left > 2**29, name


# The rules, on lists written by hand --------------------------------------------------------------

FSDP = PLANS["FSDP"]
BOTH = PLANS["FSDP + TP"]


def line(kind, axes, size, name="", **more):
    more = {"count": 1.0, "dtype": "bf16", "elements": size / 2, **more}
    return Line(kind=kind, axes=axes, bytes=float(size), name=name, **more)


def left(case, planned, compiled):
    plan, cfg = case
    found = compare(plan, cfg, planned, compiled)
    rules = [note.rule for note in found.explained]
    assert set(rules) <= set(RULES)
    sides = {
        (row.kind, row.axes): (row.planned_left, row.compiled_left) for row in found.differences
    }
    return rules, sides


def test_equal_lists_need_no_rule():
    lines = [line("all_gather", ("fsdp",), 800), line("reduce_scatter", ("fsdp",), 400)]
    assert left(FSDP, lines, lines) == ([], {})
    assert compare(*FSDP, lines, lines).raw_match == 1.0


def test_counts_do_not_matter_and_bytes_do():
    planned = [line("all_gather", ("fsdp",), 100, count=8.0)]
    assert left(FSDP, planned, [line("all_gather", ("fsdp",), 400)] * 2) == ([], {})
    _, sides = left(FSDP, planned, [line("all_gather", ("fsdp",), 400)])
    assert sides == {("all_gather", ("fsdp",)): (400.0, 0.0)}


def test_axes_matter():
    planned = [line("all_gather", ("fsdp",), 100)]
    _, sides = left(BOTH, planned, [line("all_gather", ("tensor",), 100)])
    assert set(sides) == {("all_gather", ("fsdp",)), ("all_gather", ("tensor",))}


def test_integers_and_scalars_are_set_aside_and_floats_are_not():
    extra = [
        line("all_gather", ("fsdp",), 64, dtype="int32"),
        line("all_reduce", ("fsdp",), 4, dtype="f32", elements=1.0),
    ]
    assert left(FSDP, [], extra) == (["indices", "scalars"], {})
    rules, sides = left(FSDP, [], [line("all_reduce", ("fsdp",), 4096, dtype="f32")])
    assert "scalars" not in rules
    assert sides == {("all_reduce", ("fsdp",)): (0.0, 2048.0)}


def test_wide_sums_count_at_the_width_of_the_plan():
    planned = [line("all_reduce", ("fsdp",), 100)]
    rules, sides = left(FSDP, planned, [line("all_reduce", ("fsdp",), 200, dtype="f32")])
    assert (rules, sides) == (["width"], {})


def test_a_sum_pays_for_a_scatter_of_as_many_bytes_and_no_more():
    planned = [line("reduce_scatter", ("fsdp",), 100)]
    rules, sides = left(FSDP, planned, [line("all_reduce", ("fsdp",), 130)])
    assert rules == ["sum and slice"]
    assert sides == {("all_reduce", ("fsdp",)): (0.0, 30.0)}


def test_a_sum_over_two_axes_pays_for_the_second_on_pieces():
    case = PLANS["HSDP"]  # fsdp=4: the sum over replica is of a quarter
    planned = [
        line("reduce_scatter", ("fsdp",), 400),
        line("reduce_scatter", ("replica",), 100),
    ]
    joined = [line("all_reduce", ("replica", "fsdp"), 400)]
    assert left(case, planned, joined) == (["joined sums"], {})
    _, sides = left(case, planned, [line("all_reduce", ("replica", "fsdp"), 200)])
    assert sides == {
        ("reduce_scatter", ("fsdp",)): (200.0, 0.0),
        ("reduce_scatter", ("replica",)): (50.0, 0.0),
    }


def test_only_what_tensor_leaves_whole_is_summed_over_it_unplanned():
    whole = 2 * (2 * 2 * 256 + 256)  # bf16: two norms of two layers and the last
    fits = [line("all_reduce", ("tensor",), whole)]
    assert left(BOTH, [], fits) == (["replicated over tensor"], {})
    _, sides = left(BOTH, [], [line("all_reduce", ("tensor",), whole + 512)])
    assert sides == {("all_reduce", ("tensor",)): (0.0, 512.0)}


def test_heads_that_tensor_does_not_divide_are_gathered_and_others_not():
    axes, heads = ("tensor",), 2 * 2 * (2 * 16 * 64 * 4 * 2 * 32)  # layers, passes, bf16 k and v
    extra = [line("all_gather", axes, heads + 512)]
    rules, sides = left(PLANS["TP + SP, fewer KV heads"], [], extra)
    assert (rules, sides) == (["whole heads"], {("all_gather", axes): (0.0, 512.0)})
    assert left(PLANS["TP + SP"], [], extra)[0] == []


def test_pieces_between_passes_are_gathered_twice_in_pipelines_alone():
    axes, once = ("tensor",), 16 / 2 * 64 * 256 * 2  # bf16, fsdp=2
    extra = [line("all_gather", axes, once + 512)]
    want = (["pieces between passes"], {("all_gather", axes): (0.0, 512.0)})
    assert left(PLANS["1F1B + FSDP + TP"], [], extra) == want
    split = [line("all_gather", axes, 3 * once + 512)]  # and both blocks of its one layer
    assert left(PLANS["ZB-H1 + FSDP + TP"], [], split) == want
    assert left(BOTH, [], extra)[0] == []


def test_moved_rows_pay_for_the_sums_of_the_table_alone():
    table = line("reduce_scatter", ("fsdp",), 2 * 1280 * 256, "first/scatter.params")
    layers = line("reduce_scatter", ("fsdp",), 300, "backward.0/scatter.params")
    moved = line("all_to_all", ("fsdp",), 5000, "jit(step)/transpose(jvp())/scatter-add")
    rules, sides = left(FSDP, [table, layers], [moved])
    assert rules == ["rows, not the table"]
    _, more = left(FSDP, [replace(table, bytes=2**30)], [moved])
    assert more == {("reduce_scatter", ("fsdp",)): (2**30, 0.0)}
    _, rows = left(FSDP, [], [replace(moved, bytes=2**30)])
    assert rows == {("all_to_all", ("fsdp",)): (0.0, 2**30)}
    assert sides == {("reduce_scatter", ("fsdp",)): (300.0, 0.0)}
    _, sides = left(FSDP, [table], [replace(moved, name="jit(step)/dot_general")])
    assert set(sides) == {("reduce_scatter", ("fsdp",)), ("all_to_all", ("fsdp",))}


def test_a_chain_of_permutes_stands_for_a_gather():
    case = PLANS["TP + SP"]  # tensor=4: three permutes of a quarter
    planned = [line("all_gather", ("tensor",), 400)]
    assert left(case, planned, [line("permute", ("tensor",), 100)] * 3) == (["ring"], {})
    _, sides = left(case, planned, [line("permute", ("tensor",), 100)] * 2)
    assert sides[("all_gather", ("tensor",))][0] == pytest.approx(400 / 3)


def test_ragged_exchanges_stand_for_gathers_of_dispatched_rows_alone():
    """tensor=2 and expert=4: room for the rows of 4 senders, for each of 2 devices."""
    case, tensor = PLANS["EP + TP, ragged"], ("tensor",)
    planned = [
        line("all_gather", tensor, 100, "forward.0/experts.gather"),
        line("reduce_scatter", tensor, 100, "forward.0/experts.scatter"),
    ]
    sent = [line("ragged_all_to_all", tensor, 800, elements=400.0, sent=800.0)] * 2
    assert left(case, planned, sent) == (["rows gathered"], {})
    _, sides = left(case, planned, sent[:1])
    assert sides == {("reduce_scatter", tensor): (100.0, 0.0)}
    _, sides = left(case, [replace(x, name="forward.0/mlp.gather") for x in planned], sent)
    assert set(sides) == {(k, tensor) for k in ("all_gather", "reduce_scatter", sent[0].kind)}


def test_scales_stay_without_remat_and_nothing_else():
    scales, axes = 2 * 2 * 2 * 256, ("fsdp",)  # bf16: two norms of two layers
    planned = [line("all_gather", axes, scales + 512)]
    rules, sides = left(PLANS["FSDP, no remat"], planned, [])
    assert (rules, sides) == (["kept scales"], {("all_gather", axes): (512.0, 0.0)})
    rules, sides = left(FSDP, planned, [])
    assert (rules, sides) == ([], {("all_gather", axes): (scales + 512.0, 0.0)})


def test_forms_show_as_they_are_written():
    planned = [line("all_gather", ("fsdp",), 100)]
    compiled = [line("all_gather", ("fsdp",), 100, form="sum of pieces")]
    found = compare(*FSDP, planned, compiled)
    assert found.raw_match == 0.0
    assert not found.differences
    assert {(r.kind, r.compiled[1]) for r in found.rows} == {("all_gather", 0), ("all_reduce", 100)}


def test_lines_add_up_by_kind_and_axes():
    lines = [line("all_gather", ("fsdp",), 10, count=3.0), line("all_gather", ("fsdp",), 5)]
    assert by_axes(lines) == {("all_gather", ("fsdp",)): (4.0, 35.0)}
