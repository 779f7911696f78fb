"""What is shown is what runs: the table of layouts that answers print, and the trainer's arrays."""

from dataclasses import replace

import jax
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tests.equivalence import cases
from tests.runtime import goldens
from tests.tiers import spread

from shardwise.models import Moe, from_hf
from shardwise.plans import layout_table
from shardwise.plans.identity import model_hash
from shardwise.runtime import mesh_of
from shardwise.runtime.init import is_buffer, rows_tree
from shardwise.runtime.parallel.abstract import abstract_state
from shardwise.runtime.parallel.data import deferred_axes
from shardwise.runtime.parallel.setup import Setup, axes_of, one_or_all
from shardwise.runtime.parallel.stages import pipeline_of
from shardwise.runtime.parallel.step import mesh_loss_and_grads, options_for
from shardwise.runtime.sharding import batch_sharding, spec_of

LENGTH = 48
"""Tokens of a row: a size that no dim of a weight has."""
PLANS = [
    ("llama", {"data": 8}, {"zero": 1}),
    ("llama", {"fsdp": 8}, {}),
    ("llama", {"fsdp": 4, "tensor": 2}, {}),
    ("llama", {"fsdp": 4, "tensor": 2}, {"sequence_parallel": False}),
    ("llama", {"replica": 2, "data": 2, "tensor": 2}, {"zero": 2, "microbatches": 2}),
    ("llama", {"data": 2, "fsdp": 2, "tensor": 2}, {"microbatches": 4}),
    ("llama", {"fsdp": 2, "context": 2, "tensor": 2}, {"context_method": "ring"}),
    ("llama", {"fsdp": 2, "context": 4}, {"context_method": "ulysses"}),
    ("llama", {"fsdp": 2, "context": 4}, {"storage_axes": ("fsdp",)}),
    ("llama", {"data": 2, "tensor": 4}, {}),
    ("llama", {"stage": 2, "data": 2, "tensor": 2}, {"microbatches": 2}),
    ("llama", {"stage": 2, "fsdp": 4}, {"microbatches": 2}),
    ("odd", {"fsdp": 2, "tensor": 4}, {}),
    ("gpt2", {"data": 2, "context": 2, "tensor": 2}, {}),
    ("mixtral", {"fsdp": 2, "expert": 2, "tensor": 2}, {"expert_dispatch": "ragged"}),
    ("mixtral", {"expert": 4, "tensor": 2}, {"expert_over_tensor": False}),
    ("mixtral", {"expert": 2, "tensor": 2}, {"expert_over_tensor": True}),
    ("mixtral", {"tensor": 4}, {"expert_over_tensor": True, "sequence_parallel": False}),
    ("mixtral", {"stage": 2, "expert": 2, "tensor": 2}, {"microbatches": 2}),
    ("mixtral", {"data": 2, "expert": 4}, {"storage_axes": ("fsdp", "context")}),
    ("gpt-oss", {"fsdp": 4, "expert": 2}, {}),
    ("deepseek-v3", {"fsdp": 2, "tensor": 2}, {}),
    ("deepseek-v3", {"fsdp": 2, "expert": 2, "tensor": 2}, {}),
]


def case_of(name, mesh, choices):
    """The plan and its model; "odd" has a vocabulary and a width that tensor does not divide."""
    plan = replace(cases.plan_of("llama" if name == "odd" else name, mesh, **choices))
    cfg = cases.config(plan.model)
    if name == "odd":
        raw = goldens.document("llama")["config"]
        cfg = from_hf({**raw, "vocab_size": 63, "intermediate_size": 47}, name="odd")
        plan = replace(plan, model_hash=model_hash(cfg))
    return replace(plan, sequence_length=LENGTH), cfg


@pytest.fixture(
    scope="module",
    params=spread(PLANS, quick=[2, 10, 14], slow=[4, 6, 8, 12, 18, 22]),
    ids=lambda case: "-".join([case[0], *map("{0[0]}{0[1]}".format, case[1].items()), *case[2]]),
)
def case(request):
    plan, cfg = case_of(*request.param)
    return plan, cfg, layout_table(plan, cfg)


def shown(table, row):
    """The entry of a parameter: one of its own where its group lies otherwise."""
    return table.get(f"layers{row.group}.{row.name}", table.get(row.name))


def test_parameters_are_stored_as_shown(case):
    plan, cfg, table = case
    mesh = mesh_of(plan)
    state = abstract_state(plan, cfg, mesh, optax.sgd(0.1))["params"]
    if plan.degree("stage") > 1:
        pipe = pipeline_of(plan, cfg, mesh)
        pairs = [(pipe.rows(rank), tree) for rank, tree in enumerate(state)]
    else:
        pairs = [(rows_tree(cfg), state)]
    seen = set()
    for rows, tree in pairs:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        for (path, leaf), row in zip(leaves, jax.tree.leaves(rows), strict=True):
            if is_buffer(path):
                continue
            spec = spec_of(shown(table, row))
            assert leaf.sharding.spec == (spec if row.group is None else P(None, *spec)), row.name
            seen.add(row.name)
    parameters = {name for name in table if not name.startswith(("activations", "layers"))}
    assert seen == parameters


def constraints(jaxpr):
    """(dims, spec) of everything that a trace constrains, or hands to and takes from shard_map."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "sharding_constraint":
            yield eqn.invars[0].aval.shape, eqn.params["sharding"].spec
        elif eqn.primitive.name == "shard_map":
            sides = (eqn.invars, eqn.params["in_specs"]), (eqn.outvars, eqn.params["out_specs"])
            for values, specs in sides:
                yield from ((v.aval.shape, s) for v, s in zip(values, specs, strict=True))
            continue
        for value in jax.tree.leaves(tuple(eqn.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from constraints(inner)


def whole(shape, spec, deferred):
    """Dims and cuts without the dim that is mapped over: its axes cut the batch first."""
    cut = [axes_of(entry) for entry in (*spec, *(None,) * (len(shape) - len(spec)))]
    if deferred and cut and cut[0] == deferred and len(cut) > 1:
        shape, cut = (shape[0] * shape[1], *shape[2:]), [(*cut[0], *cut[1]), *cut[2:]]
    return shape, tuple(cut)


def hooked(plan, cfg):
    """(name in the forward pass, dims of one shard of the deferred axes, name in the table)."""
    tensor = plan.degree("tensor")
    for name in ("embedding", "block_input", "attention_out", "mlp_out"):
        yield name, (cfg.d_model,), "activations"
    yield "lookup", (cfg.d_model,), "activations.lookup"
    yield "logits", (cfg.vocabulary,), "activations.logits"
    for layer in cfg.groups:
        mixer = layer.attention
        named = {"norm": ((cfg.d_model,), "norm"), "attention": ((mixer.heads, 4), "q")}
        for at, (dims, name) in named.items():
            yield at, dims, f"activations.{name}"
        yield "qkv", (mixer.heads, 4), "activations.q"
        yield "qkv", (getattr(mixer, "kv_heads", mixer.heads), 4), "activations.kv"
        if isinstance(layer.mlp, Moe) and layer.mlp.routes_all:
            yield "routed", (cfg.d_model,), "activations.routed"
        else:
            yield "mlp_in", (tensor * 3,), "activations.mlp"


def check_hook(plan, cfg, setup, table):
    """The hook of the forward pass, by the name of the activation."""
    options, deferred = options_for(setup), deferred_axes(setup)
    rows = cases.B // plan.microbatches
    for axis in deferred:
        rows //= setup.degree(axis)
    for name, dims, key in hooked(plan, cfg):
        x = jax.ShapeDtypeStruct((rows, LENGTH, *dims), "float32")
        traced = jax.make_jaxpr(lambda x, name=name: options.at(name, x))(x)
        *_, (_, spec) = constraints(traced.jaxpr)
        batch, *rest = (dim.axes for dim in table[key].dims)
        want = (tuple(a for a in batch if a not in deferred), *rest)
        assert tuple(spec) == tuple(map(one_or_all, want)), (name, key)


def test_activations_are_constrained_as_shown(case):
    """Every array [B, T, ...] of a traced step lies as one of the table's of as many dims, and
    every entry of the table is constrained somewhere."""
    plan, cfg, table = case
    mesh = mesh_of(plan)
    setups = [Setup(plan=plan, cfg=cfg, mesh=mesh)]
    if plan.degree("stage") > 1:
        setups = pipeline_of(plan, cfg, mesh).setups
    for setup in setups:
        check_hook(plan, cfg, setup, table)
        assert batch_sharding(setup.mesh).spec == spec_of(table["activations.tokens"])
    if plan.degree("stage") > 1:
        return
    (setup,) = setups
    params = abstract_state(plan, cfg, mesh, optax.sgd(0.1))["params"]
    ids = jax.ShapeDtypeStruct((cases.B, LENGTH), "int32", sharding=batch_sharding(mesh))
    traced = jax.make_jaxpr(mesh_loss_and_grads(setup))(params, {"tokens": ids, "targets": ids})
    rows, deferred = cases.B // plan.microbatches, deferred_axes(setup)
    written = {
        tuple(dim.axes for dim in layout.dims): name
        for name, layout in table.items()
        if "activations" in name and name != "activations.tokens"
    }
    found = set()
    for shape, spec in constraints(traced.jaxpr):
        shape, cut = whole(shape, spec, deferred)
        if shape[:2] == (rows, LENGTH) and len(shape) > 2:
            assert cut in written, (shape, cut)
            found.add(cut)
    assert found == set(written), [written[cut] for cut in set(written) - found]
