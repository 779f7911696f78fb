"""What a plan "for jax" may say, by the row that plans are made by, is what the trainer takes."""

from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st
from tests.planner.export.exporting import plans

from drawn import on_drawn
from shardwise.planner.export import refusal
from shardwise.plans import TrainDtypes
from shardwise.plans.software import JAX
from shardwise.plans.train import broken_laws
from shardwise.runtime.parallel import check
from shardwise.runtime.trainer.optimizer import Settings, optimizer_of

KINDS = st.sampled_from(("f32", "f32", "bf16", "f16", "f64", "fp8", "int4"))
CHOICES = {
    "remat": ["none", "matmul_outputs", "block", "offload"],
    "zero": [0, 1, 2],
    "optimizer": ["adam", "adam8bit", "adafactor", "muon", "sgd"],
    "context_method": ["all_gather", "ring", "ulysses"],
    "expert_dispatch": ["dense", "ragged"],
    "expert_over_tensor": [False, True],
    "sequence_parallel": [False, True],
    "weight_gather": ["per_pass", "per_microbatch"],
    "remat_kinds": [{}, {}, {"mlp_in": "keep"}],
    "storage_axes": [("fsdp", "expert", "context"), ("fsdp",)],
    "schedules": ["1f1b", "gpipe", "interleaved", "zb_h1"],
    "uneven": True,
}


@on_drawn(
    400,
    drawn=st.booleans().flatmap(lambda tpu: plans(tpu, **CHOICES)),
    kinds=st.one_of(st.just(("bf16",) * 4), st.tuples(KINDS, KINDS, KINDS, KINDS)),
    master=st.sampled_from(("none", "f32", "bf16", "fp8")),
    tokens=st.sampled_from((256, 384, 96)),
)
def test_a_plan_that_the_row_takes_is_trained(drawn, kinds, master, tokens):
    plan, cfg, piece = drawn
    param, compute, grad, moments = kinds
    own = TrainDtypes(param=param, compute=compute, grad=grad, moments=moments, master=master)
    assume(tokens % (plan.degree("context") * 2) == 0)
    plan = replace(plan, dtypes=own, sequence_length=tokens, software=JAX.name)
    assume(not list(broken_laws(plan, cfg)))
    if not refusal(plan, cfg, piece, JAX.name):
        check(plan, cfg)
        optimizer_of(plan, cfg, Settings(steps=1))
