"""Stacks: what is read, what is refused, and what each constant does to a priced body."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.errors import BadRequest
from shardwise.hardware import load_chip, parse_slice, place
from shardwise.plans.stacks import STACKS
from shardwise.roofline import load_stack, price, price_op, stack_names
from shardwise.roofline.attention_kernels import kernel_rate
from shardwise.roofline.bodies import OpTime, body_time, overlap
from shardwise.roofline.price import sent_as
from shardwise.roofline.stacks import COMPILED_CONSTANTS, CONSTANTS, IDEAL, stack_of
from shardwise.work import Collective, Matmul, Op, Work, make_op

RECORD = {name: {"value": 1.0, "source": "a test"} for name in CONSTANTS}
RECORD["launch_seconds"] = {"value": 1e-6, "source": "a test"}


def test_every_stack_of_a_plan_has_constants_with_sources():
    ours = {"jax", "jax_gpu"}  # learned from its own programs, not from published runs
    assert set(stack_names()) | ours == set(STACKS)
    for name in STACKS:
        stack = load_stack(name)
        assert set(stack.sources) == set(COMPILED_CONSTANTS if name in ours else CONSTANTS)
        assert all(stack.sources.values())


def test_an_unknown_stack_is_named():
    with pytest.raises(BadRequest, match="unknown software stack 'megatrn'"):
        load_stack("megatrn")


@pytest.mark.parametrize(
    ("constant", "value", "rule"),
    [
        ("overlap", 1.2, "a number from 0 to 1"),
        ("passes", 0.5, "a number from 1 to 20"),
        ("launch_seconds", True, "a number from 0 to 0.01"),
    ],
)
def test_a_constant_out_of_bounds_is_refused(constant, value, rule):
    record = {**RECORD, constant: {"value": value, "source": "a test"}}
    with pytest.raises(BadRequest, match=f"'{constant}' of stack 'x' is .*{rule}"):
        stack_of("x", record)


def test_a_missing_constant_is_named():
    record = {name: entry for name, entry in RECORD.items() if name != "passes"}
    with pytest.raises(BadRequest, match="stack 'x' lacks 'passes'"):
        stack_of("x", record)


def timed(name, seconds, stream="compute", count=10.0, after=(), wire=False) -> OpTime:
    collective = Collective(kind="all_gather", axes=("x",), bytes=1.0) if wire else None
    op = Op(
        id=name,
        name=name,
        phase="forward",
        component="mlp",
        op_class="collective" if wire else "matmul",
        stream=stream,
        count=count,
        after=after,
        collective=collective,
    )
    return OpTime(op=op, derated=seconds, serial=seconds, peak={})


def body(gather, multiply, exchange, count=10.0):
    """A gather that runs ahead, a matmul, and an exchange between matmuls."""
    return (
        timed("g", gather, "net:fsdp", count, wire=True),
        timed("m", multiply, "compute", count, after=("g", "s")),
        timed("s", exchange, "net:tensor", count, after=("m",), wire=True),
    )


@pytest.mark.parametrize("gather", [0.5, 5.0, 9.0])
def test_the_closed_form_is_the_laid_out_body_for_an_ideal_stack(gather):
    ops = body(gather, 3.0, 2.0)
    assert body_time(ops).expected == pytest.approx(overlap(ops))


def test_what_a_stack_does_not_hide_is_added():
    ops = body(2.0, 3.0, 1.0)
    half = body_time(ops, replace(IDEAL, overlap=0.5))
    assert (half.period, half.fill) == pytest.approx((4 + 1, 1))
    nothing = body_time(ops, replace(IDEAL, overlap=0.0))
    assert nothing.expected == pytest.approx(10 * (2 + 3 + 1))


@pytest.mark.parametrize("copied", [1.0, 5.0, 9.0])
def test_copies_to_the_host_show_only_beyond_a_round(copied):
    """A round of 5: a matmul of 3, and a gather of 2 of which nothing hides."""
    ops = (
        timed("g", 2.0, "net:fsdp", 10.0, wire=True),
        timed("c", copied, "host", 10.0),
        timed("m", 3.0, "compute", 10.0, after=("m",)),
    )
    found = body_time(ops, replace(IDEAL, overlap=0.0))
    assert found.period == max(5.0, copied)
    assert found.fill == min(5.0, copied)


def test_the_attention_kernel_is_the_stacks():
    chip, placement = load_chip("h100"), place(parse_slice("h100:1"), {})
    core = Op(
        id="a",
        name="a",
        phase="",
        component="attention",
        op_class="attention",
        flops={"bf16": 1e15},
    )
    rates = chip.efficiency
    best = 1e15 / chip.peak("bf16") / (rates.attention * rates.sustained)
    half = price_op(core, chip, placement, replace(IDEAL, attention=0.5))
    assert half.derated == pytest.approx(2 * best + rates.matmul_ramp)
    assert price_op(core, chip, placement).derated == pytest.approx(best + rates.matmul_ramp)


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("launch", [1e-7, 1e-3])
def test_every_product_of_a_group_is_a_launch(dtype, launch):
    """Of what the host and the kernels take the longer shows, and half of the shorter; a cast of
    the input is a kernel of its own, and one fused kernel has one start."""
    chip, placement = load_chip("h100"), place(parse_slice("h100:1"), {})
    experts = Op(
        id="e",
        name="e",
        phase="",
        component="routed_experts",
        op_class="matmul",
        flops={dtype: 1e12},
        matmul=Matmul(m=512, k=512, n=512, batch=16),
    )
    lazy, eager = (
        price_op(experts, chip, placement, replace(IDEAL, launch_seconds=s)) for s in (0.0, launch)
    )
    host, work = (16 * (2 if dtype == "fp8" else 1) - 1) * launch, lazy.derated
    assert (host < work) == (launch < 1e-5)
    assert eager.derated == pytest.approx(launch + max(host, work) + min(host, work) / 2)
    one = replace(IDEAL, launch_seconds=launch, fused_experts=True)
    assert price_op(experts, chip, placement, one).derated == pytest.approx(work + launch)


def test_a_graph_starts_what_it_captured():
    chip, placement = load_chip("h100"), place(parse_slice("h100:1"), {})
    norm = Op(id="n", name="n", phase="", component="norms", op_class="elementwise", hbm_bytes=1e9)

    def start(*captured):
        stack = replace(IDEAL, launch_seconds=1e-5, captured=frozenset(captured))
        return price_op(norm, chip, placement, stack).launch

    assert start() == start("attention") == pytest.approx(1e-5)
    assert start("norms") == start("full") == pytest.approx(1.3e-6)


def test_narrow_heads_are_slower_on_gpus_and_a_recurrence_runs_at_the_rate_of_vectors():
    chip, placement = load_chip("h100"), place(parse_slice("h100:1"), {})

    def seconds(op_class, head=128):
        op = Op(
            id="a",
            name="a",
            phase="",
            component="attention",
            op_class=op_class,
            flops={"bf16": 1e15},
            head_dims=(head, head),
        )
        return price_op(op, chip, placement).derated

    assert seconds("attention", 64) / seconds("attention") == pytest.approx(4 / 3, rel=1e-3)
    assert seconds("attention", 256) == seconds("attention")
    kept = chip.efficiency.sustained
    assert seconds("scan") == pytest.approx(1e15 / (1.25 * chip.vector_flops * kept))


def test_rows_that_no_whole_load_ends_are_multiplied_slowly_by_pytorch_on_gpus():
    def seconds(words, piece="h100:1", host=1e-5):
        op = make_op("logits", "lm_head", "matmul", flops={"bf16": 1e15})
        op = replace(op, matmul=Matmul(m=8192, k=768, n=words))
        stack, on = replace(IDEAL, host_seconds=host), parse_slice(piece)
        return price_op(op, on.chip, place(on, {}), stack).derated

    assert seconds(50257) / seconds(50304) == pytest.approx(1 / 0.55, rel=2e-3)
    assert seconds(50264) == pytest.approx(seconds(50304), rel=2e-3)
    assert seconds(50257, host=0.0) == pytest.approx(seconds(50304, host=0.0), rel=2e-3)
    assert seconds(50257, "v5e:1x1") == pytest.approx(seconds(50264, "v5e:1x1"), rel=2e-3)


def test_a_library_of_attention_is_as_fast_as_the_chip_lets_it():
    """Version 2 of FlashAttention knows an A100's instructions, and neither Hopper's nor
    Blackwell's; cuDNN knows all."""
    rate = {c: [kernel_rate(k, c) for k in ("fa2", "fa3", "cudnn")] for c in ("ampere", "hopper")}
    assert rate["ampere"] == [1, 1, 1]
    assert rate["hopper"][0] < rate["hopper"][2] == 1 < rate["hopper"][1]
    assert kernel_rate("fa2", "blackwell") < kernel_rate("fa2", "hopper")


def test_passes_and_launches_belong_to_their_ops():
    chip, placement = load_chip("h100"), place(parse_slice("h100:1"), {})
    stack = replace(IDEAL, passes=3.0, launch_seconds=1e-3)
    norm = Op(id="n", name="n", phase="", component="norm", op_class="elementwise", hbm_bytes=1e9)
    adam = replace(norm, id="a", component="optimizer")
    absent = replace(norm, id="z", hbm_bytes=0.0)
    seconds = 1e9 / chip.require("hbm_bandwidth") / chip.efficiency.hbm

    def alone(op):
        return price(Work((op,)), chip, placement, stack=stack).expected

    assert alone(norm) == pytest.approx(3 * seconds + 1e-3)
    assert alone(adam) == pytest.approx(seconds + 1e-3)
    assert alone(absent) == 0


# What XLA for TPUs makes of a reduce-scatter ------------------------------------------------------


def sent(text, degrees, axes, stack=None):
    """(kind, axes, bytes) of a reduce-scatter of 16 bytes over the axes, as it is sent."""
    piece = parse_slice(text)
    wire = Collective(kind="reduce_scatter", axes=axes, bytes=16.0)
    found = sent_as(wire, piece.chip, place(piece, degrees), stack or load_stack("jax"))
    return [(each.kind, each.axes, float(each.bytes)) for each in found]


def test_sums_over_all_of_a_slice_are_whole_and_others_scattered():
    whole = [("all_reduce", ("fsdp",), 16.0)]
    assert sent("v5e:4x4", {"fsdp": 16}, ("fsdp",)) == whole
    assert sent("v4:2x2x2", {"fsdp": 8}, ("fsdp",)) == whole
    scattered = [("reduce_scatter", ("fsdp",), 16.0)]
    assert sent("v5e:2x4", {"fsdp": 8}, ("fsdp",)) == scattered
    assert sent("tpu7x:2x2x4", {"fsdp": 32}, ("fsdp",)) == scattered
    assert sent("v5e:4x4", {"fsdp": 8, "tensor": 2}, ("fsdp",)) == scattered
    assert sent("v5e:4x4", {"fsdp": 16}, ("fsdp",), load_stack("xla")) == scattered


def test_sums_are_scattered_over_one_axis_after_the_other():
    both = sent("v5e:4x4", {"fsdp": 8, "context": 2}, ("fsdp", "context"))
    assert both == [
        ("reduce_scatter", ("fsdp",), 16.0),
        ("reduce_scatter", ("context",), 2.0),
    ]
    assert sent("v5e:4x4", {"fsdp": 16, "context": 1}, ("fsdp", "context")) == [
        ("all_reduce", ("fsdp",), 16.0)
    ]


def test_a_whole_sum_takes_the_seconds_of_an_all_reduce():
    piece = parse_slice("v5e:4x4")
    placed = place(piece, {"fsdp": np.array([16, 8]), "tensor": np.array([1, 2])})

    def seconds(kind, name):
        wire = Collective(kind=kind, axes=("fsdp",), bytes=1e9)
        op = Op(
            id="s",
            name="s",
            phase="backward",
            component="mlp",
            op_class="collective",
            stream="net:fsdp",
            collective=wire,
        )
        return price_op(op, piece.chip, placed, load_stack(name)).derated

    ours, theirs = seconds("reduce_scatter", "jax"), seconds("reduce_scatter", "xla")
    assert ours[0] == seconds("all_reduce", "xla")[0] > 1.9 * theirs[0]
    assert ours[1] == theirs[1]


def test_products_of_routed_experts_have_a_rate_of_their_own():
    piece = parse_slice("v5e:2x2")
    placed, stack = place(piece, {"fsdp": 4}), replace(load_stack("jax"), experts=0.5)

    def seconds(component):
        op = make_op("o", component, "matmul", flops={"bf16": 1e15})
        return price_op(op, piece.chip, placed, stack).rated["math"]

    assert seconds("routed_experts") == pytest.approx(2 * seconds("mlp"))


def test_sorting_tokens_to_experts_moves_more_where_a_stack_says_so():
    piece = parse_slice("v5e:2x2")
    placed, usual = place(piece, {"fsdp": 4}), replace(load_stack("jax"), dispatch=1.0)

    def seconds(component, op_class, stack):
        op = Op(
            id="o",
            name="o",
            phase="forward",
            component=component,
            op_class=op_class,
            hbm_bytes=1e9,
        )
        return price_op(op, piece.chip, placed, stack).rated["HBM"]

    more = replace(usual, dispatch=3.0)
    for op_class in ("elementwise", "gather"):
        once = seconds("routed_experts", op_class, usual)
        assert once == seconds("mlp", op_class, more)
        assert seconds("routed_experts", op_class, more) == pytest.approx(3 * once)
    assert seconds("routed_experts", "matmul", more) == seconds("mlp", "matmul", usual)
