"""Planner and compiled program under the same keys: what is counted for a component is compiled."""

import sys
from pathlib import Path

import optax
import pytest
from tests.equivalence import cases
from tests.tiers import spread

from shardwise.commands.program.comparing import scope_sentences, sums_of
from shardwise.models import load_model, parameters
from shardwise.models.components import COMPONENTS, component_of
from shardwise.planner.evaluate import plan_shape
from shardwise.planner.step.work import train_work
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.scopes import component_in, phase_of
from shardwise.profiler.hlo.work import module_work
from shardwise.runtime import mesh_of
from shardwise.sharding import Mesh

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from planned_steps.lowered import lowered_step

DENSE = {"attention", "mlp_dense", "lm_head"}
EXACT = [
    ("llama", {"fsdp": 4, "tensor": 2}, {"remat": "block"}, DENSE),
    ("llama", {"data": 2, "context": 4}, {"remat": "block", "zero": 1}, DENSE),
    ("mixtral", {"expert": 4, "tensor": 2}, {"remat": "block"}, {"attention", "lm_head"}),
]


@pytest.fixture(
    scope="module",
    params=spread(EXACT, slow=[2]),
    ids=lambda case: f"{case[0]}-{'-'.join(case[1])}",
)
def sides(request):
    """(sums by key as planned, as compiled for eight CPU devices, components of exact matmuls)."""
    name, mesh, choices, exact = request.param
    plan, cfg = cases.plan_of(name, mesh, **choices), cases.config(name)
    step = lowered_step(plan, cfg, mesh_of(plan), optax.adam(1e-3)).compile()
    made = module_work(read_module(step.as_text()), Mesh(tuple(mesh.items()))).work
    said = train_work(cfg, plan_shape(plan, cfg))
    return sums_of(said, mesh, "train"), sums_of(made, mesh, "train"), exact


def summed(side, part, **fields):
    return sum(
        float(sums[part])
        for key, sums in side.items()
        if all(getattr(key, name) == value for name, value in fields.items())
    )


def test_matmuls_of_a_component_are_as_planned_in_every_phase(sides):
    said, made, exact = sides
    for component in exact:
        for phase in ("forward", "backward", "recompute"):
            at = {"phase": phase, "component": component, "op_class": "matmul"}
            assert summed(made, "flops", **at) == summed(said, "flops", **at), at


def test_collectives_of_a_block_are_as_planned(sides):
    """Over tensor: gathers into and scatters out of attention and MLPs, exchanges of experts."""
    said, made, _ = sides
    blocks = ("attention", "mlp_dense", "routed_experts")
    for key in {k for k in (*said, *made) if k.component in blocks and k.axes == ("tensor",)}:
        planned = float(said[key]["collective_bytes"]) if key in said else 0.0
        assert float(made[key]["collective_bytes"]) == planned, key


def test_both_sides_speak_of_the_same_components(sides):
    said, made, _ = sides
    assert {key.component for key in said} <= COMPONENTS
    assert {key.component for key in made} <= {*COMPONENTS, ""}
    planned = {key.component for key, sums in said.items() if float(sums["flops"])}
    assert planned <= {key.component for key in made}


def test_what_has_no_scope_is_told(sides):
    """CPUs multiply batches (of heads, of experts) in fusions without a name."""
    _, made, exact = sides
    (text,) = scope_sentences(made)
    lost = summed(made, "flops", component="") / summed(made, "flops")
    assert f"{lost:.1%} of the FLOPs" in text
    assert lost < 0.3 or exact != DENSE


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "gemma-2-27b", "gpt-oss-20b"])
def test_rows_of_the_parameter_table_are_components(name):
    assert {row.component for row in parameters(load_model(name))} <= COMPONENTS


@pytest.mark.parametrize(
    ("op_name", "phase", "component"),
    [
        ("jit(f)/jvp(attention)/attention_core/a,b->c/dot_general", "forward", "attention_core"),
        ("jit(f)/transpose(jvp(mlp_dense))/BTD,DF->BTF/dot_general", "backward", "mlp_dense"),
        ("jit(f)/jvp(parameters)/sharding_constraint", "forward", "parameters"),
        ("jit(f)/transpose(jvp(parameters))/reduce_scatter", "backward", "gradients"),
        ("jit(f)/checkpoint/rematted_computation/parameters/x", "backward", "parameters"),
        ("jit(f)/checkpoint/rematted_computation/attention/norms/mul", "recompute", "norms"),
        ("jit(f)/optimizer/add", "optimizer", "optimizer"),
        ("jit(f)/gradients/add", "backward", "gradients"),
        ("jit(f)/transpose(jvp())/(attention/a:attention/b)", "backward", "attention"),
        ("jit(f)/transpose(jvp())/(attention/a:mlp_dense/b)", "backward", ""),
        ("jit(f)/mine/dot_general", "step", ""),
        ("", "", ""),
    ],
)
def test_an_operation_is_told_by_its_scopes(op_name, phase, component):
    assert (phase_of(op_name), component_in(op_name)) == (phase, component)


def test_the_innermost_scope_that_is_a_component_counts():
    assert component_of("routed_experts/shared_experts/BTD,DF->BTF") == "shared_experts"
    assert component_of("mine/BTD,DF->BTF") == ""
