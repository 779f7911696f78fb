"""DualPipe: exchanges of tokens beside the chain, and half of the microbatches at each end.

DeepSeek-V3 report, arXiv 2412.19437, section 3.2.1: a forward pass runs together with a backward
pass of the other direction, whose compute hides its all-to-alls; both ends of the pipeline hold
embedding and head.
"""

from dataclasses import replace

import pytest
from tests.planner.closed import closed_form
from tests.planner.search.test_train_search import bytes_of, request, seconds
from tests.planner.steps import moe, runs, step
from tests.searched import search
from tests.tiers import spread

from shardwise.hardware import load_chip, parse_slice, place
from shardwise.planner.evaluate import plan_of
from shardwise.planner.step.work import train_work
from shardwise.plans import MESH_AXES
from shardwise.roofline import body_times, price
from shardwise.roofline.stacks import IDEAL
from shardwise.work import Work

M = 16.0
PAIRED = {"pipeline_schedule": "dualpipe", "virtual_stages": 2}


def counted(choices, **changes) -> Work:
    mesh = {"stage": 2, "expert": 4}
    return train_work(moe(), step(microbatches=M, choices=choices, **mesh, **changes))


def exchanges(work: Work):
    return [o for o in work.ops if o.name.endswith(("experts.dispatch", "experts.combine"))]


def test_nothing_of_the_chain_waits_for_exchanges_where_passes_are_paired():
    for choices, beside in ((PAIRED, True), ({"pipeline_schedule": "1f1b"}, False)):
        work = counted(choices)
        awaited = {i for o in work.ops for i in o.after}
        assert exchanges(work)
        for op in exchanges(work):
            assert (op.id not in awaited and not op.after) == beside


def test_paired_exchanges_move_the_same_bytes():
    plain, paired = counted({"pipeline_schedule": "1f1b"}), counted(PAIRED)
    sums = []
    for work in (plain, paired):
        moved = [o.collective.bytes * o.count for o in exchanges(work) if o.collective]
        sums.append(float(sum(moved)))
    assert sums[0] == pytest.approx(sums[1])


def test_paired_passes_take_as_long_as_exchanges_or_the_rest_where_all_hides():
    """The book hides everything: what is left is the longer one of chain and busiest network."""
    piece = parse_slice("8*h100:8")
    mesh = {"stage": 2, "expert": 4, "data": 8}
    placement = place(piece, {axis: mesh.get(axis, 1) for axis in MESH_AXES})
    shape = step(microbatches=M, length=4096, choices=PAIRED, stage=2, expert=4, data=8)
    work = train_work(moe(), shape)
    estimate = price(work, piece.chip, placement, stack=IDEAL)
    streams: dict[str, float] = {}
    for t in estimate.ops:
        if t.op.body == "forward.0":
            streams[t.op.stream] = streams.get(t.op.stream, 0.0) + float(t.total)
    ops = [t for t in estimate.ops if t.op.body == "forward.0"]
    body = body_times(ops)["forward.0"]
    assert streams["net:expert"] > 0
    assert float(body.count * body.period) == pytest.approx(max(streams.values()), rel=1e-9)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_each_holder_runs_the_ends_for_half_of_the_microbatches(zero):
    work = counted(PAIRED, zero=zero, data=2)
    assert runs(work, "embedding.lookup", "forward") == M / 2
    assert runs(work, "logits.softmax", "forward") == M / 2
    assert runs(work, "dW lm_head") == M / 2
    last = [o for o in work.ops if o.body == "last" and o.component == "gradients"]
    reduced = [o for o in last if o.collective is not None and "data" in o.collective.axes]
    assert reduced
    assert {float(o.count) for o in reduced} == {M / 2 if zero == 2 else 1.0}


def test_other_schedules_run_them_for_all():
    for kind, chunks, lookups in (("1f1b", 1, 0.0), ("zb_v", 2, M)):
        work = counted({"pipeline_schedule": kind, "virtual_stages": chunks})
        assert runs(work, "logits.softmax", "forward") == M
        assert runs(work, "embedding.lookup", "forward") == lookups


def test_on_one_stage_nothing_is_paired():
    alone = {"pipeline_schedule": "dualpipe", "virtual_stages": 1}
    work = train_work(moe(), step(microbatches=M, expert=4, choices=alone))
    assert all(op.after for op in exchanges(work))
    assert runs(work, "logits.softmax", "forward") == M


CHOICES = [
    {"pipeline_schedule": ("dualpipe",)},
    {"pipeline_schedule": ("1f1b", "zb_v", "dualpipe")},
    {"pipeline_schedule": ("dualpipe",), "mtp_layers": 1},
    {"pipeline_schedule": ("1f1b", "dualpipe"), "stack": "megatron", "cuda_graph": ("full",)},
]


def slow_nics(name):
    """A chip whose NIC is narrow enough for paired passes to be among the best."""
    return load_chip(name, set_=["data_centre.chip_oneway=12.5e9"])


@pytest.mark.parametrize("choices", spread(CHOICES, slow=3))
def test_the_search_prices_paired_passes_as_a_plan_does(choices):
    cfg = replace(moe(), pattern=(0,) * 6)
    piece, pins = parse_slice("4*h100:8", slow_nics), {"stage": 2, "expert": 4}
    given = {"piece": piece, "sequence_length": 2048, "pins": pins}
    asked = request(cfg, "4*h100:8", 128, **given, **choices)
    report, all_ = search(asked, keep=12), search(asked, keep=12, exhaustive=True)
    assert any(f.structure.paired for f in all_.best)
    for found in all_.best:
        answer = closed_form(plan_of(asked, found), cfg, asked.piece)
        assert seconds(answer) == pytest.approx(found.seconds, rel=1e-9)
        assert bytes_of(answer) == pytest.approx(found.memory, rel=1e-9)
    for mine, theirs in zip(report.best, all_.best, strict=True):
        assert mine.seconds == pytest.approx(theirs.seconds, rel=1e-12)
