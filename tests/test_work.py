"""Work adds, multiplies and sums; a timeline peaks, on numbers and on arrays."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.work import Collective, Key, Matmul, MemoryTimeline, Op, Work, changed


def op(op_id="a", **fields) -> Op:
    given = {"phase": "forward", "component": "mlp", "op_class": "matmul"} | fields
    return Op(id=op_id, name=op_id, **given)


GATHER = op(
    "g",
    op_class="collective",
    component="parameters",
    collective=Collective(kind="all_gather", axes=("fsdp",), bytes=64.0),
    count=3.0,
    stream="net:fsdp",
)
MUL = op("m", flops={"bf16": 10.0, "f32": 1.0}, hbm_bytes=7.0, count=2.0)


def test_adding_keeps_program_order():
    assert (Work((MUL,)) + Work((GATHER,))).ops == (MUL, GATHER)
    assert (Work() + Work()).ops == ()


def test_multiplying_repeats_and_changes_nothing_else():
    work = Work((MUL, GATHER))
    for tripled in (work * 3, 3 * work):
        assert [o.count for o in tripled.ops] == [6.0, 9.0]
        assert [(o.id, o.flops, o.collective) for o in tripled.ops] == [
            (o.id, o.flops, o.collective) for o in work.ops
        ]
    assert work.ops[0].count == 2.0


def test_sums_count_the_repetitions():
    work = Work((MUL, GATHER))
    assert work.flops() == 22.0
    assert work.flops("bf16") == 20.0
    assert work.flops("f32") == 2.0
    assert work.flops("fp8") == 0.0
    assert work.hbm_bytes() == 14.0
    assert work.collective_bytes() == work.collective_bytes("all_gather") == 192.0
    assert work.collective_bytes("all_reduce") == 0.0
    assert (work * 2.5).flops() == 55.0


def test_sums_of_nothing_are_zero():
    assert Work().flops() == Work().hbm_bytes() == Work().collective_bytes() == 0.0
    assert Work().by_key() == {}


def test_where_keeps_some_ops():
    work = Work((MUL, GATHER))
    assert work.where(lambda o: o.collective is not None).ops == (GATHER,)
    assert work.where(lambda o: False).ops == ()


def test_by_key_groups_what_may_be_named_differently():
    twin = op("other name", flops={"bf16": 5.0}, hbm_bytes=1.0)
    backward = op("b", phase="backward", flops={"bf16": 5.0})
    sums = Work((MUL, GATHER, twin, backward)).by_key()
    forward = Key(phase="forward", component="mlp", op_class="matmul")
    gather = Key(
        phase="forward",
        component="parameters",
        op_class="collective",
        collective="all_gather",
        axes=("fsdp",),
    )
    assert set(sums) == {forward, gather, Key(phase="backward", component="mlp", op_class="matmul")}
    assert sums[forward] == {"flops": 27.0, "hbm_bytes": 15.0, "collective_bytes": 0.0, "runs": 3.0}
    assert sums[gather] == {"flops": 0.0, "hbm_bytes": 0.0, "collective_bytes": 192.0, "runs": 3.0}


def test_by_key_keeps_collectives_over_other_axes_apart():
    other = op(
        "h",
        op_class="collective",
        component="parameters",
        collective=Collective(kind="all_gather", axes=("tensor",), bytes=1.0),
    )
    assert len(Work((GATHER, other)).by_key()) == 2


def test_unknown_ops_are_listed_and_never_dropped():
    mystery = op("?", op_class="unknown")
    work = Work((MUL, mystery))
    assert work.unknown() == (mystery,)
    assert mystery.key in work.by_key()


def test_arrays_broadcast_through_every_sum():
    count = np.array([1.0, 0.0, 4.0])
    wide = op("w", flops={"bf16": np.array([[1.0], [10.0]])}, hbm_bytes=2.0, count=count)
    work = Work((MUL, wide))
    np.testing.assert_array_equal(work.flops("bf16"), [[21, 20, 24], [30, 20, 60]])
    np.testing.assert_array_equal(work.hbm_bytes(), [16, 14, 22])
    np.testing.assert_array_equal((work * count).hbm_bytes(), [16, 0, 14 * 4 + 2 * 16])
    columns = work.by_key()[wide.key]["flops"]
    assert columns.shape == (2, 3)


def test_a_matmul_is_one_product_unless_it_says_more():
    assert Matmul(m=2, k=3, n=4).batch == 1.0


TIMELINE = MemoryTimeline(
    (
        ("backward", {"params": 10.0, "checkpoints": np.array([1.0, 9.0, 2.0])}),
        ("loss", {"params": 10.0, "transient": np.array([5.0, 5.0, 0.0])}),
    )
)


def test_the_peak_is_taken_per_candidate():
    np.testing.assert_array_equal(TIMELINE.total_at(0), [11, 19, 12])
    np.testing.assert_array_equal(TIMELINE.peak(), [15, 19, 12])


def test_the_peak_of_points_of_different_shapes_broadcasts():
    mixed = MemoryTimeline((("a", {"x": 3.0}), ("b", {"x": np.array([1.0, 4.0])})))
    np.testing.assert_array_equal(mixed.peak(), [3, 4])


def test_the_peak_point_is_named_with_its_contents():
    scalar = MemoryTimeline((("a", {"x": 3.0, "y": 1.0}), ("b", {"x": 5.0}), ("c", {})))
    assert scalar.peak() == 5.0
    assert scalar.peak_point() == ("b", {"x": 5.0})


def test_values_are_frozen():
    with pytest.raises(AttributeError):
        MUL.count = 3  # type: ignore[misc]


def test_an_op_is_changed_as_dataclasses_replaces_it():
    assert changed(MUL, name="other", count=3.0) == replace(MUL, name="other", count=3.0)
    assert (MUL.name, MUL.count) == ("m", 2.0)
    with pytest.raises(AssertionError, match="a field that there is not"):
        changed(MUL, nam="other")
