"""Whatever a plan may say either lowers to programs or is refused by name."""

from math import prod

import jax
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from tests.equivalence import cases
from tests.tiers import spread

from shardwise.errors import BadRequest
from shardwise.models.remat import REMAT_POLICIES
from shardwise.plans.context_methods import CONTEXT_METHODS
from shardwise.plans.stacks import GATHERS
from shardwise.plans.train import MESH_AXES
from shardwise.runtime import mesh_of
from shardwise.runtime.parallel import check, place
from shardwise.runtime.parallel.chunks import programs, zero_sums
from shardwise.runtime.parallel.pipeline import microbatches
from shardwise.runtime.parallel.run import place_batch
from shardwise.runtime.parallel.setup import TENSOR_MATMULS, Setup
from shardwise.runtime.parallel.stages import held, pipeline_of, stream_shape
from shardwise.runtime.parallel.step import mesh_loss_and_grads
from shardwise.scheduling.pipeline import PIPELINE_KINDS, schedule_row

STORAGE = [("fsdp",), ("fsdp", "expert"), ("fsdp", "context"), ("fsdp", "expert", "context")]
DOCUMENTS = [(), (5, 8, 3)]


@st.composite
def plans(draw):
    """Plans for up to 8 devices that `TrainPlan` takes, most of them legal to the planner too."""
    name = draw(st.sampled_from(["llama", "gpt2", "mixtral"]))
    used = draw(st.lists(st.sampled_from(MESH_AXES), min_size=1, max_size=3, unique=True))
    mesh = {a: draw(st.sampled_from([2, 2, 4])) for a in MESH_AXES if a in used}
    if prod(mesh.values()) > 8:
        mesh = dict.fromkeys(mesh, 2)
    schedule = draw(st.sampled_from(PIPELINE_KINDS))
    chunks = min(schedule_row(schedule).chunks) if mesh.get("stage", 1) > 1 else 1
    try:
        return name, cases.plan_of(
            name,
            mesh,
            microbatches=draw(st.sampled_from([1, 2, 4, 8])),
            zero=draw(st.sampled_from([0, 1, 2])),
            storage_axes=draw(st.sampled_from(STORAGE)),
            weight_gather=draw(st.sampled_from(GATHERS[:2])),
            sequence_parallel=draw(st.booleans()),
            remat=draw(st.sampled_from(REMAT_POLICIES)),
            attention_kernel=draw(st.sampled_from(["flash", "scores"])),
            pipeline_schedule=schedule,
            virtual_stages=chunks,
            context_method=draw(st.sampled_from(CONTEXT_METHODS)),
            expert_dispatch=draw(st.sampled_from(["dense", "ragged"])),
            expert_over_tensor=draw(st.booleans()),
            packed_lengths=draw(st.sampled_from(DOCUMENTS)),
        )
    except BadRequest:
        reject()


def lower(name, plan, tensor_matmul):
    """Every program of a step's loss and gradients, lowered and not compiled."""
    cfg, mesh, batch = cases.config(name), mesh_of(plan), cases.batch_of()
    params = place(plan, cfg, mesh, cases.start(name, "float32"))
    if plan.degree("stage") == 1:
        setup = Setup(plan=plan, cfg=cfg, mesh=mesh, tensor_matmul=tensor_matmul)
        jax.jit(mesh_loss_and_grads(setup)).lower(params, place_batch(batch, mesh))
        return
    pipe = pipeline_of(plan, cfg, mesh, tensor_matmul)
    parts = [next(microbatches(pipe, rank, batch)) for rank in range(len(params))]
    for (rank, chunk), made in programs(pipe, params, parts).items():
        stage = pipe.schedule.stage_of(rank, chunk)
        mine = held(pipe, params[rank], stage, chunk)
        sums = zero_sums(pipe.setup(rank), pipe.rows(rank), params[rank])
        sums = held(pipe, sums, stage, chunk)
        made.forward.lower(mine, stream_shape(pipe), parts[rank])
        out, kept = jax.eval_shape(made.forward, mine, stream_shape(pipe), parts[rank])
        if made.weights is None:
            made.backward.lower(mine, kept, out, sums)
            continue
        made.backward.lower(mine, kept, out)
        _, left = jax.eval_shape(made.backward, mine, kept, out)
        made.weights.lower(mine, kept, out, left, sums)


@pytest.mark.parametrize("examples", spread([3, 12], quick=0, slow=1))
def test_a_plan_lowers_or_is_refused(examples):
    drawn = given(plans(), st.sampled_from(("plain", *TENSOR_MATMULS)))
    limits = settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    limits(drawn(_lowers_or_is_refused))()


def _lowers_or_is_refused(case, tensor_matmul):
    name, plan = case
    try:
        check(plan, cases.config(name), tensor_matmul)
    except BadRequest:
        return
    lower(name, plan, tensor_matmul)
