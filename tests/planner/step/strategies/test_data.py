"""Gradients summed over copies: how many layers travel together, and what that saves."""

import pytest
from tests.planner.steps import dense, step

from shardwise.hardware import parse_slice, place
from shardwise.models.parameters import parameters
from shardwise.planner.step.strategies.data import BUCKET, gradient_reduction
from shardwise.roofline.price import price_op
from shardwise.work import exchange


def reduced(stack, **mesh):
    """The reduction of a layer of the little model, and its parameters."""
    cfg, shape = dense(), step(choices={"stack": stack}, **mesh)
    rows = [row for row in parameters(cfg) if row.group is not None]
    (op,) = gradient_reduction(rows, shape)
    return op, sum(row.size for row in rows), max(row.layers for row in rows)


def test_megatron_sums_by_the_bucket_and_others_by_the_layer():
    op, size, layers = reduced("megatron", data=8)
    assert size * layers < BUCKET[0]
    assert op.collective.merged == layers  # a small model is one bucket
    assert reduced("fsdp", data=8)[0].collective.merged == 1


def test_buckets_grow_with_the_copies(monkeypatch):
    size = reduced("megatron", data=8)[1]
    monkeypatch.setattr("shardwise.planner.step.strategies.data.BUCKET", (size, size / 4))
    merged = [reduced("megatron", data=n)[0].collective.merged for n in (2, 8)]
    assert merged == pytest.approx([1, 2])


def test_a_message_of_several_shares_its_latency():
    placement = place(parse_slice("16*h100:8"), {"data": 128})
    chip = parse_slice("h100:8").chip

    def seconds(size, merged):
        sent = exchange("r", "reduce_scatter", "gradients", ("data",), size, merged=merged)
        return float(price_op(sent, chip, placement).derated)

    alone, four = seconds(1e8, 1.0), seconds(1e8, 4.0)
    assert four == pytest.approx(seconds(4e8, 1.0) / 4)
    assert four < 0.7 * alone
