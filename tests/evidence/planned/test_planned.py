"""What the plan predicts is what runs: state per device to the byte, collectives by kind and axes.

The steps were compiled for a described TPU slice by `scripts/planned.py` and are read from
docs/lab/planned.json; a few are compiled again, so that a file of another runtime is noticed.
"""

import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from tests.every import over_every

from shardwise.models import from_hf
from shardwise.plans import ServePlan
from shardwise.profiler.collectives.added import ADDED, added_lines
from shardwise.profiler.collectives.lines import Line, by_axes, read_lines
from shardwise.profiler.collectives.rules import RULES, compare
from shardwise.profiler.collectives.served import as_served

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
from planned_steps.plans import DENSE, small_plans  # noqa: E402
from planned_steps.steps import (  # noqa: E402
    CompiledStep,
    compiled_steps,
    planned_lines,
    planned_state,
)
from planned_table import document, found_of, page, plan_hash, row_of, step_of  # noqa: E402

PLANS = small_plans()
DOC = json.loads((ROOT / "docs" / "lab" / "planned.json").read_text())
ROWS = {row["name"]: row for row in DOC["rows"]}
ANEW = ("FSDP + CP ring", "EP + TP, ragged")
"""Compiled here again: matmuls, attention and experts, over every kind of axis but stages."""


@cache
def found(name):
    """The committed step beside what is planned now."""
    return found_of(ROWS[name])


@over_every(PLANS)
def test_what_is_planned_is_what_runs(name):
    plan, cfg = PLANS[name]
    one = found(name)
    assert ROWS[name]["plan"] == plan_hash(plan), "run `python scripts/planned.py`"
    assert one.got.state == planned_state(plan, cfg, plan.degree("stage") - 1)
    assert one.same
    assert one.got.beside["params"] == 0
    assert one.got.beside["optimizer"] <= 16  # counters of steps
    assert not one.compared.differences
    # Nothing can be taken from the program or the plan, or be there twice, unnoticed.
    changed, tried = one.noticed
    assert changed == tried > len(planned_lines(plan, cfg))


def test_the_page_is_that_of_the_document():
    assert (ROOT / "docs" / "lab" / "planned.md").read_text() == page(
        DOC, lambda row: found(row["name"])
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ANEW)
def test_the_document_is_of_the_runtime_as_it_is(name):
    (got,) = compiled_steps([PLANS[name]], DOC["topology"])
    assert step_of(ROWS[name]) == got, "run `python scripts/planned.py`"


def test_rows_are_lossless_whatever_repeats_and_in_whatever_order():
    (a, b), (plan, _) = [line("all_gather", ("fsdp",), x) for x in (8, 4)], FSDP
    got = CompiledStep(lines=(a, b, a, a, b), state={"params": 1}, beside={"params": 0})
    row = row_of("x", plan, got)
    assert len(row["lines"]) == 2
    assert step_of(json.loads(document({"schema_version": 1, "rows": [row]}))["rows"][0]) == got


# The rules, on lists written by hand --------------------------------------------------------------

FSDP = PLANS["FSDP"]
BOTH = PLANS["FSDP + TP"]


def line(kind, axes, size, name="", **more):
    more = {"count": 1.0, "dtype": "bf16", "elements": size / 2, **more}
    return Line(kind=kind, axes=axes, bytes=float(size), name=name, **more)


def left(case, planned, compiled):
    """The rules used and what is left, of a program that has what our runtime adds as well."""
    plan, cfg = case
    added = list(added_lines(plan, cfg, planned))
    found = compare(plan, cfg, planned, [*compiled, *added])
    noted = [note.rule for note in found.explained]
    assert set(noted) <= {*RULES, *ADDED}
    rules = [rule for rule in noted if rule in RULES]
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
    assert left(FSDP, [], extra) == (["beside the list", "beside the list"], {})
    rules, sides = left(FSDP, [], [line("all_reduce", ("fsdp",), 4096, dtype="f32")])
    assert "beside the list" not in rules
    assert sides == {("all_reduce", ("fsdp",)): (0.0, 2048.0)}


def test_wide_sums_count_at_the_width_of_the_plan():
    planned = [line("all_reduce", ("fsdp",), 100)]
    rules, sides = left(FSDP, planned, [line("all_reduce", ("fsdp",), 200, dtype="f32")])
    assert (rules, sides) == (["width"], {})


def test_a_sum_pays_for_a_scatter_of_as_many_bytes_and_no_more():
    planned = [line("reduce_scatter", ("fsdp",), 100)]
    rules, sides = left(FSDP, planned, [line("all_reduce", ("fsdp",), 130)])
    assert rules == ["as a sum"]
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


def test_a_sum_over_two_axes_pays_for_both_or_for_neither():
    planned = [line("reduce_scatter", ("fsdp",), 400)]
    joined = [line("all_reduce", ("replica", "fsdp"), 400)]
    rules, sides = left(PLANS["HSDP"], planned, joined)
    assert rules == []
    assert sides == {
        ("reduce_scatter", ("fsdp",)): (400.0, 0.0),
        ("all_reduce", ("replica", "fsdp")): (0.0, 400.0),
    }


def test_integers_as_many_as_tokens_are_set_aside_and_no_more():
    ids = line("all_gather", ("fsdp",), 4 * 16 * 64, dtype="int32", elements=16.0 * 64)
    assert left(FSDP, [], [ids]) == (["beside the list"], {})
    _, sides = left(FSDP, [], [replace(ids, elements=16.0 * 64 + 1)])
    assert set(sides) == {("all_gather", ("fsdp",))}


def test_scalars_are_at_most_one_for_each_parameter_and_for_each_microbatch_and_one():
    one = line("all_reduce", ("fsdp",), 4, dtype="f32", elements=1.0)
    most = 3 + 9 + 1 + 1  # embedding, head and last norm; seven matmuls and two norms
    assert left(FSDP, [], [one] * most) == (["beside the list"], {})
    assert set(left(FSDP, [], [one] * (most + 1))[1]) == {("all_reduce", ("fsdp",))}


def test_a_gather_that_is_made_again_is_the_one_of_the_plan_and_its_copies():
    gather = line("all_gather", ("fsdp",), 800)
    copies = [gather, replace(gather, again=True)]
    assert left(FSDP, [gather], copies) == (["again, or once"], {})
    assert set(left(FSDP, [gather, gather], copies)[1]) == {("all_gather", ("fsdp",))}


def test_a_hop_that_two_passes_share_is_made_once_and_no_part_of_one():
    keys = line("permute", ("context",), 300, "backward.0/re.attention.ring")
    both = line("permute", ("context",), 600, "backward.0/d.attention.ring")
    plan, cfg = PLANS["FSDP + CP ring"]
    for arrays, missing in ((2, 0.0), (3, 100.0)):  # keys and values, or something else
        sent = [line("permute", ("context",), 900 / arrays)] * arrays
        got = compare(plan, cfg, [keys, both], sent)
        lost = {(r.kind, r.axes): r.planned_left for r in got.differences}
        assert lost.get(("permute", ("context",)), 0.0) == missing


def test_rows_that_move_pay_for_the_first_sum_of_the_table_alone():
    table = line("reduce_scatter", ("fsdp",), 2 * 1280 * 256, "first/scatter.params")
    layers = line("reduce_scatter", ("fsdp",), 300, "backward.0/scatter.params")
    rows = 2 * 16 * 64 * 256  # bf16: D for every token
    moved = line("all_to_all", ("fsdp",), rows, "jit(step)/transpose(jvp())/scatter-add")
    rules, sides = left(FSDP, [table, layers], [moved])
    assert rules == ["rows, not the table"]
    assert sides == {("reduce_scatter", ("fsdp",)): (300.0, 0.0)}
    both = {("reduce_scatter", ("fsdp",)), ("all_to_all", ("fsdp",))}
    for other in (
        replace(moved, bytes=moved.bytes - 512),
        replace(moved, bytes=moved.bytes + 512),
        replace(moved, name="jit(step)/dot_general"),
    ):
        assert set(left(FSDP, [table], [other])[1]) == both
    assert set(left(FSDP, [], [moved])[1]) == {("all_to_all", ("fsdp",))}


def test_rows_that_move_within_a_replica_are_of_its_tokens():
    axes = ("fsdp",)
    table = line("reduce_scatter", axes, 2 * 1280 * 256, "first/scatter.params")
    moved = line("all_gather", axes, 16 * 64 * 256, "jit(step)/scatter-add")  # replica=2: half
    assert left(PLANS["HSDP"], [table], [moved]) == (["rows, not the table"], {})


# What our runtime adds ----------------------------------------------------------------------------


def added(name, planned=()):
    found = added_lines(*PLANS[name], planned)
    return {x.name: (x.kind, x.axes, x.total) for x in found}


def test_without_tensor_or_a_ring_nothing_is_added():
    lines = {name: added(name, planned_lines(*PLANS[name])) for name in PLANS}
    none = {name for name, found in lines.items() if not found}
    assert none == {n for n, (plan, _) in PLANS.items() if plan.degree("tensor") == 1} - {
        "FSDP + CP ring"
    }


def test_only_what_tensor_leaves_whole_is_summed_over_it():
    whole, name = 2 * (2 * 2 * 256 + 256), "replicated over tensor"  # bf16: all norms
    assert added("TP + SP")[name] == ("all_reduce", ("tensor",), whole)
    assert added("FSDP + TP")[name][2] == whole / 4  # the piece
    assert added("DP + FSDP + TP, 2 microbatches")[name][2] == whole  # half a piece, twice
    assert added("1F1B + FSDP + TP")[name][2] == 4 * 2 * (2 * 256 + 256) / 2  # one of two layers
    heads = 2 * 2 * 2 * 256 * 4 * 32  # layers, keys and values, bf16, D K H
    assert added("TP + SP, fewer KV heads")[name][2] == whole + heads
    routers = 2 * 2 * 256 * 8
    assert added("EP + TP, ragged")[name][2] == (whole + routers) / 4
    assert name not in added("TP")


def test_gradients_of_heads_that_tensor_does_not_divide_are_gathered():
    heads = 2 * 2 * (2 * 16 * 64 * 4 * 32)  # layers, keys and values, bf16
    got = added("TP + SP, fewer KV heads")["whole heads"]
    assert got == ("all_gather", ("tensor",), heads)
    assert "whole heads" not in added("TP + SP")


def test_pieces_between_passes_are_gathered_twice_in_pipelines_alone():
    once, name = 2 * 16 / 2 * 64 * 256, "pieces between passes"  # bf16, fsdp=2
    assert added("1F1B + FSDP + TP")[name] == ("all_gather", ("tensor",), once)
    assert added("ZB-H1 + FSDP + TP")[name][2] == 3 * once  # and both blocks of its one layer
    assert name not in added("FSDP + TP")


def test_statistics_are_three_for_every_token_of_a_shard():
    assert added("TP")["statistics"] == ("all_reduce", ("tensor",), 3 * 2 * 16 * 64)
    assert added("FSDP + TP")["statistics"][2] == 3 * 2 * 16 * 64 / 4


def test_a_ring_sends_its_gradients_home():
    keys = line("permute", ("context",), 300, "backward.0/re.attention.ring")
    both = line("permute", ("context",), 600, "backward.0/d.attention.ring", count=2.0)
    assert added("FSDP + CP ring", [keys, both])["home"] == ("permute", ("context",), 200.0)


def test_a_decode_step_exchanges_logits_for_whole_rows():
    """Of 16 sequences, where tensor divides those of a copy of the weights, else all rows are
    gathered; to the byte."""
    _, cfg = FSDP
    line_ = whole_rows(serving({"tensor": 4}), cfg)
    assert line_.key == ("all_to_all", ("tensor",))
    assert line_.total == 4 * 16 * cfg.vocabulary  # float32
    assert whole_rows(serving({"data": 2, "tensor": 8}), cfg).total == line_.total / 2
    assert whole_rows(serving({"data": 4, "tensor": 8}), cfg).kind == "all_gather"
    case = serving({"tensor": 4}), cfg
    assert compare(*case, [], [line_]).left == 0
    for more in (-2.0, 2.0):
        other = replace(line_, bytes=line_.bytes + more)
        assert compare(*case, [], [other]).left == pytest.approx(1.0)  # at the activations' width


def whole_rows(plan, cfg):
    ((_, _, (made,)),) = as_served(plan, cfg, [])
    return made


def test_an_exchange_within_parts_of_an_axis_counts_all_of_them():
    """Pairs of four: 2 x the total of a pair, as an exchange over all four is counted."""
    text = """HloModule m, num_partitions=4

ENTRY %main (x: bf16[8,128]) -> bf16[8,128] {
  %x = bf16[8,128]{1,0} parameter(0)
  ROOT %all-to-all = bf16[8,128]{1,0} all-to-all(%x), replica_groups={GROUPS}, dimensions={0}
}
"""
    pairs = read_lines(text.replace("GROUPS", "{0,1},{2,3}"), serving({"tensor": 4}))
    whole = read_lines(text.replace("GROUPS", "{0,1,2,3}"), serving({"tensor": 4}))
    assert [x.total for x in pairs] == [x.total for x in whole] == [4 * 8 * 128 * 2.0]


def serving(mesh):
    devices = 1
    for degree in mesh.values():
        devices *= degree
    return ServePlan(
        model="small-dense",
        model_hash="x",
        slice="v5e:4x4",
        mesh=mesh,
        box=(devices,),
        batch=16,
        input_length=64,
        output_length=8,
    )


def test_both_gradients_of_a_tied_table_are_summed():
    plan, cfg = PLANS["FSDP"]
    table = line("reduce_scatter", ("fsdp",), 300, "first/scatter.params")
    others = [line("all_gather", ("fsdp",), 300, "first/gather.params"), table]
    tied = from_hf({**DENSE, "tie_word_embeddings": True}, name="tied")
    assert [x.name for x in added_lines(plan, cfg, others)] == []
    (found,) = added_lines(plan, tied, others)
    assert (found.name, found.key, found.total) == ("tied table", table.key, 300.0)


def test_a_sum_over_two_axes_may_be_one_over_each():
    """Over fsdp=2 the whole, over context=4 a half; a gather of the rest is not paid for."""
    case = PLANS["FSDP + CP all-gather"]
    planned = [line("reduce_scatter", ("fsdp", "context"), 800)]
    parts = [line("reduce_scatter", ("fsdp",), 800), line("all_reduce", ("context",), 400)]
    assert left(case, planned, parts) == (["joined sums"], {})
    _, sides = left(case, planned, [parts[0], replace(parts[1], bytes=200.0)])
    assert sides == {
        ("reduce_scatter", ("fsdp", "context")): (400.0, 0.0),
        ("reduce_scatter", ("fsdp",)): (0.0, 400.0),
    }


@pytest.mark.parametrize("hops", [7, 9])
def test_a_ring_beside_a_matmul_has_a_hop_less_or_a_hop_more_than_pieces(hops):
    planned = [line("reduce_scatter", ("fsdp",), 800)]  # eight pieces of 100
    name = "jit(step)/transpose(jvp())/BTD,DF->BTF/dot_general"
    hop = line("permute", ("fsdp",), 100, name)
    assert left(FSDP, planned, [hop] * hops) == (["ring"], {})
    looped = [replace(hop, count=4.0 * (hops - 1)), replace(hop, count=4.0)]
    assert left(FSDP, [replace(planned[0], count=4.0)], looped) == (["ring"], {})
    both = {("reduce_scatter", ("fsdp",)), ("permute", ("fsdp",))}
    assert set(left(FSDP, planned, [hop] * (hops + 1))[1]) <= both
    assert left(FSDP, planned, [hop] * (hops + 1))[1]
    _, sides = left(FSDP, [line("reduce_scatter", ("fsdp",), 900)], [hop] * hops)
    assert sides == {("reduce_scatter", ("fsdp",)): (100.0, 0.0)}
    _, sides = left(FSDP, [line("reduce_scatter", ("fsdp",), 400)], [hop] * hops)
    assert sides == {("permute", ("fsdp",)): (0.0, 50.0 * hops)}


@pytest.mark.parametrize("rule", sorted({*ADDED} - {"home", "tied table"}))
def test_what_is_added_must_be_there_to_the_byte(rule):
    names = [n for n in PLANS if rule in added(n)]
    assert names
    for name in names:
        lines = list(added_lines(*PLANS[name], ()))
        assert compare(*PLANS[name], [], lines).left == 0
        (mine,) = [x for x in lines if x.name == rule]
        others = [x for x in lines if x is not mine]
        for more in (-2.0, 2.0):
            other = replace(mine, bytes=mine.bytes + more)
            assert compare(*PLANS[name], [], [*others, other]).left == pytest.approx(2.0)
        assert compare(*PLANS[name], [], others).left == pytest.approx(mine.bytes)


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
    assert left(case, planned, sent) == (["ragged rows"], {})
    _, sides = left(case, planned, sent[:1])
    assert sides == {("reduce_scatter", tensor): (100.0, 0.0)}
    _, sides = left(case, [replace(x, name="forward.0/mlp.gather") for x in planned], sent)
    assert set(sides) == {(k, tensor) for k in ("all_gather", "reduce_scatter", sent[0].kind)}


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
