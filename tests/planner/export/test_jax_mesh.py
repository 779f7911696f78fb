"""The JAX module of an export: it runs, and its constants count."""

import json
import os
import subprocess
import sys

import pytest
from tests.planner.export.exporting import a_plan
from tests.tiers import spread

from shardwise.models.parameters import parameters
from shardwise.planner.export import export_plan, parse_export
from shardwise.plans.layouts import stored_share

CHECK = """
import json, math
mesh = make_mesh()
assert mesh.axis_names == ('fsdp', 'expert', 'tensor')
tokens = jnp.zeros((SEQUENCES, LENGTH), jnp.int32)
placed = jax.device_put(tokens, NamedSharding(mesh, BATCH))
assert placed.addressable_shards[0].data.shape == (SEQUENCES // 4, LENGTH)
local = {n: math.prod(s.shard_shape(tuple(SHAPES[n]))) for n, s in shardings(mesh).items()}
print(json.dumps(local))
"""


def run_on_8_devices(code: str) -> str:
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | flags, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("storage", "spans"),
    spread(
        [(("fsdp", "expert", "context"), False), (("fsdp",), False), (("fsdp",), True)],
        slow=2,
        rows=True,
    ),
)
def test_the_jax_module_places_every_parameter(storage, spans):
    """Each device of 8 holds the bytes that the planner counts for it."""
    mesh = {"fsdp": 2, "expert": 2, "tensor": 2}
    choices = {"storage_axes": storage, "expert_over_tensor": spans}
    plan, cfg, piece = a_plan("moe", "v5e:2x4", mesh, **choices)
    text = export_plan(plan, cfg, piece, "jax")
    shapes = {p.name: [n for _, n in p.dims] for p in parameters(cfg)}
    code = f"{text}\nSHAPES = {shapes!r}\n{CHECK}"
    local = json.loads(run_on_8_devices(code))
    assert parse_export(text, "jax") == plan
    degrees = {a: float(d) for a, d in mesh.items()}
    for row in parameters(cfg):
        share = float(stored_share(row, degrees, storage, spans))
        assert local[row.name] == row.size * share, row.name
        if row.name == "attention.q":  # tensor 2, fsdp 2, and expert 2 where it stores
            assert share == (1 / 8 if "expert" in storage else 1 / 4)


def test_a_kv_head_that_tensor_does_not_divide_is_replicated():
    plan, cfg, piece = a_plan("moe", "v5e:2x4", {"tensor": 8})
    text = export_plan(plan, cfg, piece, "jax")
    assert "'attention.q': P(None, 'tensor', None)" in text
    assert "'attention.k': P(None, None, None),  # [D 64, K 2, H 8]" in text


def test_an_edited_jax_constant_changes_the_plan():
    plan, cfg, piece = a_plan("dense", "v5e:4x4", {"fsdp": 4, "tensor": 4})
    text = export_plan(plan, cfg, piece, "jax")
    edited = text.replace("'fsdp': 4", "'fsdp': 2").replace("nothing_saveable", "DOTS")
    edited = edited.replace("DOTS", "dots_with_no_batch_dims_saveable")
    read = parse_export(edited, "jax")
    assert (read.mesh, read.remat) == ({"fsdp": 2, "tensor": 4}, "matmul_outputs")
