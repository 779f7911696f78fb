"""A training step: FLOPs, gathers, reductions and transfers against formulas of their own."""

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.planner.steps import (
    ATTENTION,
    ENDS,
    EXPERTS_PER_TOKEN,
    FE,
    LAYER,
    MLP,
    NORMS,
    PARAMS,
    D,
    E,
    F,
    H,
    K,
    L,
    N,
    V,
    dense,
    moe,
    named,
    over,
    runs,
    step,
)

from shardwise.models import load_model
from shardwise.models.remat import REMAT_POLICIES
from shardwise.planner.step.work import train_work
from shardwise.plans import TrainDtypes

TOKENS, T = 4 * 128, 128
MATMULS = 2 * TOKENS * L * (ATTENTION + MLP)
HEAD = 2 * TOKENS * D * V
CORE = 4 * TOKENS * (T / 2) * N * H * L


def test_training_costs_three_forward_passes_and_half_of_attention_again():
    """Forward 1 and backward 2 of every matmul. Attention's backward is 2.5 forwards, as flash
    attention makes the scores again from its statistics; so 3.5 in all."""
    assert train_work(dense(), step()).flops() == pytest.approx(3 * (MATMULS + HEAD) + 3.5 * CORE)


DOWN = 2 * TOKENS * L * D * F
"""The matmuls out of the MLPs, whose result no gradient needs."""


@pytest.mark.parametrize(
    ("remat", "matmuls", "core"),
    [("none", 3, 3.5), ("matmul_outputs", 3, 4.5), ("block", 4, 4.5), ("offload", 4, 4.5)],
)
@pytest.mark.parametrize("whole", [True, False])
def test_remat_repeats_forward_work(remat, matmuls, core, whole):
    """Block: the layers' forward pass once more (6ND becomes 8ND), never the head's. A compiler
    that drops dead code leaves out the last matmul of the block."""
    want = matmuls * MATMULS + 3 * HEAD + core * CORE
    if matmuls == 4 and not whole:
        want -= DOWN
    shape = step(remat=remat, choices={"stack": "megatron" if whole else "xla"})
    assert train_work(dense(), shape).flops() == pytest.approx(want)


DEGREES = st.fixed_dictionaries(
    {
        "replica": st.sampled_from([1, 2]),
        "data": st.sampled_from([1, 2, 4]),
        "fsdp": st.sampled_from([1, 2, 8]),
        "context": st.sampled_from([1, 2, 4]),
        "tensor": st.sampled_from([1, 2]),
        "stage": st.sampled_from([1, 3]),
    }
)


@settings(max_examples=60)
@given(DEGREES, st.sampled_from([1.0, 4.0]), st.sampled_from(REMAT_POLICIES), st.integers(0, 2))
def test_the_devices_share_the_flops_of_the_batch(degrees, microbatches, remat, zero):
    """A batch of 128 sequences: what all devices do together does not depend on the mesh, but that
    the head lies on one stage."""
    shards = degrees["replica"] * degrees["data"] * degrees["fsdp"]
    shape = step(
        sequences=128 / (shards * microbatches),
        microbatches=microbatches,
        remat=remat,
        zero=zero,
        **degrees,
    )
    again = remat in ("block", "offload")
    core = 3.5 if remat == "none" else 4.5
    layers = (3 + again) * MATMULS - again * DOWN + core * CORE
    devices = shards * degrees["context"] * degrees["tensor"]  # of one stage
    want = 128 / 4 * (layers / degrees["stage"] + 3 * HEAD)
    assert train_work(dense(), shape).flops() * devices == pytest.approx(want)


@pytest.mark.parametrize("axis", ["tensor", "fsdp", "data", "replica", "context"])
def test_doubling_an_axis_halves_the_flops(axis):
    """tensor and context cut the work of a sequence, the others leave half as many sequences."""
    batch = axis in ("fsdp", "data", "replica")
    one = train_work(dense(), step()).flops()
    two = train_work(dense(), step(sequences=2.0 if batch else 4.0, **{axis: 2})).flops()
    assert two == pytest.approx(one / 2)


def test_stages_share_the_layers_and_one_keeps_the_head():
    got = train_work(dense(), step(stage=3, microbatches=1.0)).flops()
    assert got == pytest.approx((3 * MATMULS + 3.5 * CORE) / 3 + 3 * HEAD)


def test_the_busiest_of_uneven_stages_counts():
    """Three layers over two stages: one has two of them."""
    got = train_work(dense(), step(stage=2, stage_share=2 / 3)).flops()
    assert got == pytest.approx((3 * MATMULS + 3.5 * CORE) * 2 / 3 + 3 * HEAD)


def test_experts_count_what_is_active():
    layer = ATTENTION + D * E + 3 * EXPERTS_PER_TOKEN * D * FE
    want = 3 * (2 * TOKENS * (L * layer + D * V)) + 3.5 * CORE
    assert train_work(moe(), step()).flops() == pytest.approx(want)
    assert train_work(moe(), step(expert=4)).flops() == pytest.approx(want)


# FSDP ---------------------------------------------------------------------------------------------


def test_fsdp_gathers_parameters_twice_and_scatters_gradients_once():
    """Every parameter, of 2 bytes: the layers' gathered for forward and backward, those of both
    ends once, as their passes need them; all gradients scattered."""
    wires = over(train_work(dense(), step(fsdp=8)), "fsdp")
    assert wires.collective_bytes("all_gather") == pytest.approx((PARAMS + L * LAYER) * 2)
    assert wires.collective_bytes("reduce_scatter") == pytest.approx(PARAMS * 2)


@pytest.mark.parametrize(("choices", "moved"), [({}, 24), ({"fused_loss": True}, 6)])
def test_a_fused_loss_of_pytorch_reads_what_the_head_wrote(choices, moved):
    """In 16 bits: once forward, and backward once more, where the gradient is written."""
    shape = step(choices={"stack": "fsdp", **choices})
    losses = [op for op in train_work(dense(), shape).ops if "logits.softmax" in op.id]
    assert sum(op.hbm_bytes * op.count for op in losses) == pytest.approx(moved * TOKENS * V)


def test_the_head_of_a_pipeline_is_gathered_for_each_of_its_passes():
    """The last stage alone is counted: its layers and the head, for 4 microbatches."""
    wires = over(train_work(dense(), step(fsdp=2, stage=2, microbatches=4.0)), "fsdp")
    ends = wires.where(lambda o: o.body == "last")
    assert ends.collective_bytes("all_gather") == pytest.approx(4 * 2 * (V * D + D) * 2)


def test_each_gather_is_one_layer():
    work = train_work(dense(), step(fsdp=8))
    sizes = {o.body.split(".")[0]: o.collective.bytes for o in over(work, "fsdp").ops}
    assert sizes["forward"] == sizes["backward"] == pytest.approx(2 * LAYER)
    assert sizes["first"] == pytest.approx(2 * V * D)
    assert sizes["last"] == pytest.approx(2 * (V * D + D))
    layers = work.where(lambda o: o.body not in ("first", "last"))
    assert runs(layers, "gather.params", "forward") == L
    assert runs(layers, "gather.params", "backward") == L


def test_fsdp_repeats_per_microbatch():
    """Parameters are dropped after use, so every microbatch gathers them again."""
    wires = over(train_work(dense(), step(fsdp=8, microbatches=4.0)), "fsdp")
    assert wires.collective_bytes() == pytest.approx(4 * 2 * (2 * PARAMS + L * LAYER))


def test_tensor_shrinks_what_fsdp_gathers_but_norms():
    """Norms are replicated over tensor, all matrices are cut."""
    wires = over(train_work(dense(), step(fsdp=8, tensor=2)), "fsdp")
    norms = L * NORMS + D
    assert wires.collective_bytes("reduce_scatter") == pytest.approx(
        2 * ((PARAMS - norms) / 2 + norms)
    )


def test_gathers_travel_in_the_compute_dtype_and_gradients_in_theirs():
    dtypes = TrainDtypes(compute="fp8", grad="f32")
    wires = over(train_work(dense(), step(fsdp=8, dtypes=dtypes)), "fsdp")
    assert wires.collective_bytes("all_gather") == pytest.approx((PARAMS + L * LAYER) * 1)
    assert wires.collective_bytes("reduce_scatter") == pytest.approx(PARAMS * 4)


def test_gathers_wait_for_nothing_and_the_layer_waits_for_them():
    work = train_work(dense(), step(fsdp=8))
    gather = next(o for o in work.ops if o.id == "forward.0/gather.params")
    assert gather.after == ()
    first = named(work, "attention.norm")
    assert gather.id in first.after
    assert gather.stream == "net:fsdp"


# Replicas and ZeRO --------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["data", "replica"])
@pytest.mark.parametrize(
    ("zero", "microbatches", "reduced", "gathered"),
    [
        (0, 1.0, {"all_reduce": 1}, 0),
        (0, 4.0, {"all_reduce": 1}, 0),
        (1, 1.0, {"reduce_scatter": 1}, 1),
        (1, 4.0, {"reduce_scatter": 1}, 1),
        (2, 1.0, {"reduce_scatter": 1}, 1),
        (2, 4.0, {"reduce_scatter": 4}, 1),
    ],
)
def test_gradients_are_summed_over_replicas(axis, zero, microbatches, reduced, gathered):
    """ZeRO-0 all-reduces whole gradients once per step; ZeRO-1 scatters them once and gathers the
    new parameters; ZeRO-2 keeps pieces only, so it scatters after every microbatch."""
    wires = over(train_work(dense(), step(zero=zero, microbatches=microbatches, **{axis: 2})), axis)
    for kind in ("all_reduce", "reduce_scatter"):
        times = reduced.get(kind, 0)
        assert wires.collective_bytes(kind) == pytest.approx(times * PARAMS * 2), kind
    assert wires.collective_bytes("all_gather") == pytest.approx(gathered * PARAMS * 2)


def test_replicas_of_fsdp_groups_sum_only_their_pieces():
    wires = over(train_work(dense(), step(replica=2, fsdp=8)), "replica")
    assert wires.collective_bytes("reduce_scatter") == pytest.approx(PARAMS * 2 / 8)
    assert wires.collective_bytes("all_gather") == pytest.approx(PARAMS * 2 / 8)


def test_the_reduction_of_a_layer_waits_for_its_backward_pass():
    work = train_work(dense(), step(data=2))
    reduce = next(o for o in work.ops if o.id == "backward_last.0/reduce.params")
    last = [o for o in work.ops if o.body == "backward_last.0" and o.stream == "compute"][-1]
    assert reduce.after == (last.id,)
    assert not any(reduce.id in o.after for o in work.ops)


def test_adam_moves_28_bytes_per_parameter():
    """Read the bf16 gradient, read and write two f32 moments and the f32 master, write bf16."""
    adam = named(train_work(dense(), step()), "optimizer.adam")
    assert adam.hbm_bytes == pytest.approx(PARAMS * (2 + 2 * (4 + 4 + 4) + 2))
    piece = named(train_work(dense(), step(data=4, zero=1)), "optimizer.adam")
    assert piece.hbm_bytes == pytest.approx(adam.hbm_bytes / 4)
    whole = named(train_work(dense(), step(data=4, zero=0)), "optimizer.adam")
    assert whole.hbm_bytes == pytest.approx(adam.hbm_bytes)


# Tensor, context, experts, stages -----------------------------------------------------------------


def test_tensor_exchanges_of_a_step():
    """Two gathers and two scatters per layer forward, as many backward, two more gathers of the
    matmuls' inputs for the weight gradients, and one pair each for embedding and head; each of
    B T D activations."""
    wires = over(train_work(dense(), step(tensor=2)), "tensor")
    each = TOKENS * D * 2
    assert wires.collective_bytes("all_gather") == pytest.approx((6 * L + 2) * each)
    assert wires.collective_bytes("reduce_scatter") == pytest.approx((4 * L + 2) * each)


def test_remat_block_repeats_the_exchanges_in_the_chain():
    """The recomputed forward needs its gathers before its matmuls: nothing overlaps them."""
    work = train_work(dense(), step(tensor=2, remat="block"))
    wires = over(work, "tensor")
    each = TOKENS * D * 2
    assert wires.collective_bytes("all_gather") == pytest.approx((6 * L + 2) * each)
    body = [o for o in work.ops if o.body == "backward.0"]
    first = next(o for o in body if o.name == "re attention.norm")
    chained = body[body.index(first) :]
    for before, o in pairwise(chained):
        assert o.after == (before.id,)


def test_context_sums_gradients_like_a_storage_axis():
    """Each context rank sees tokens of its own, so gradients are summed (and stored) over it."""
    wires = over(train_work(dense(), step(context=4)), "context")
    params = wires.where(lambda o: o.collective.axes == ("fsdp", "expert", "context"))
    assert params.collective_bytes("reduce_scatter") == pytest.approx(PARAMS * 2)
    assert params.collective_bytes("all_gather") == pytest.approx((PARAMS + L * LAYER) * 2)
    keys = wires.where(lambda o: o.collective.axes == ("context",))
    # Gathered in the forward pass, and once more for the gradient of the queries.
    assert keys.collective_bytes("all_gather") == pytest.approx(2 * L * TOKENS * 2 * K * H * 2)
    assert keys.collective_bytes("reduce_scatter") == pytest.approx(L * TOKENS * 2 * K * H * 2)


def test_expert_exchange_of_a_step():
    """Dispatch and combine, forward and backward: four all-to-alls per layer."""
    wires = over(train_work(moe(), step(expert=4)), "expert")
    want = 4 * L * (4 * TOKENS) * EXPERTS_PER_TOKEN * D * 2
    assert wires.collective_bytes("all_to_all") == pytest.approx(want)
    again = over(train_work(moe(), step(expert=4, remat="block")), "expert")
    assert again.collective_bytes("all_to_all") == pytest.approx(want * 6 / 4)


def test_experts_are_never_gathered_over_their_own_axis():
    """expert=4: a device keeps its two experts; everything else is stored in quarters."""
    wires = over(train_work(moe(), step(expert=4)), "expert")
    rest = L * (ATTENTION + NORMS + D * E) + ENDS
    assert wires.collective_bytes("reduce_scatter") == pytest.approx(rest * 2)
    both = train_work(moe(), step(expert=4, fsdp=2))
    experts = both.where(lambda o: o.name == "scatter.experts")
    assert experts.collective_bytes() == pytest.approx(L * E / 4 * 3 * D * FE * 2)
    assert {o.collective.axes for o in experts.ops} == {("fsdp", "context")}


@pytest.mark.parametrize("layers", [3, 12])
def test_each_microbatch_crosses_a_stage_once_each_way(layers):
    cfg = dense(num_hidden_layers=layers)
    work = train_work(cfg, step(stage=3, microbatches=8.0, tensor=2))
    wires = over(work, "stage")
    assert runs(wires, "transfer.stage", "forward") == pytest.approx(8)
    assert runs(wires, "transfer.stage", "backward") == pytest.approx(8)
    assert wires.ops[0].collective.bytes == TOKENS / 2 * D * 2
    assert wires.collective_bytes("permute") == pytest.approx(16 * TOKENS / 2 * D * 2)


def test_the_embedding_is_another_stage_s():
    """The device that is counted holds the head; the embedding's ops stand there with count 0."""
    work = train_work(dense(), step(stage=3, microbatches=8.0, fsdp=2))
    counts = {o.count for o in work.ops if o.body == "first"}
    assert counts == {0.0}
    lookup = next(o for o in work.ops if o.name == "embedding.lookup")
    assert lookup.hbm_bytes == 2 * TOKENS * D * 2


def test_offload_copies_block_inputs_out_and_back():
    work = train_work(dense(), step(remat="offload"))
    copies = work.where(lambda o: o.stream == "host")
    assert sum(o.host_bytes * o.count for o in copies.ops) == pytest.approx(2 * L * TOKENS * D * 2)


# Form ---------------------------------------------------------------------------------------------

EVERYTHING = {
    "replica": 2,
    "data": 2,
    "fsdp": 2,
    "expert": 2,
    "context": 2,
    "tensor": 2,
    "stage": 2,
}


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3", "nemotron-3-nano-30b-a3b"])
@pytest.mark.parametrize("remat", REMAT_POLICIES)
@pytest.mark.parametrize("zero", [0, 2])
def test_ids_are_unique_and_every_wait_names_an_op_of_its_body(model, remat, zero):
    work = train_work(
        load_model(model), step(remat=remat, zero=zero, microbatches=4.0, **EVERYTHING)
    )
    ids = [o.id for o in work.ops]
    assert len(set(ids)) == len(ids)
    bodies = {o.id: o.body for o in work.ops}
    for o in work.ops:
        for waited in o.after:
            assert bodies.get(waited) == o.body, f"{o.id} waits for {waited}"
        assert o.phase
        assert o.count >= 0
    assert not work.unknown()


@settings(max_examples=30)
@given(
    st.lists(st.tuples(DEGREES, st.sampled_from([1.0, 3.0])), min_size=2, max_size=4),
    st.sampled_from(REMAT_POLICIES),
    st.integers(0, 2),
)
def test_columns_count_as_scalars(candidates, remat, zero):
    """Sums per key are the same whether a candidate is counted alone or among others."""
    cfg = moe()
    meshes = [degrees for degrees, _ in candidates]
    columns = step(
        remat=remat,
        zero=zero,
        microbatches=np.array([m for _, m in candidates]),
        stage_share=1 / np.array([m["stage"] for m in meshes]),
    )
    degrees = {a: np.array([float(m[a]) for m in meshes]) for a in meshes[0]}
    together = train_work(cfg, _with(columns, degrees)).by_key()
    for i, (mesh, microbatches) in enumerate(candidates):
        alone = train_work(
            cfg,
            step(
                remat=remat,
                zero=zero,
                microbatches=microbatches,
                **{a: d for a, d in mesh.items() if d > 1},
            ),
        ).by_key()
        for key, sums in together.items():
            mine = {k: np.broadcast_to(v, len(candidates))[i] for k, v in sums.items()}
            if key.collective and max(mesh.get(a, 1) for a in key.axes) == 1:
                continue  # over a group of one device: priced as nothing
            if key not in alone:
                mine.pop("runs")  # an op of no bytes: alone it is left out
            want = alone.get(key, dict.fromkeys(mine, 0.0))
            assert mine == pytest.approx(want, rel=1e-12), key


def _with(shape, degrees):
    from dataclasses import replace

    return replace(shape, degrees=degrees)
