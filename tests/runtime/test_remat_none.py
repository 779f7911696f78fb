"""Remat "none" keeps what the planner counts: named activations, not each step between them."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import print_saved_residuals

from shardwise.runtime.options import Options, rematerialised


@pytest.mark.parametrize(("remat", "wide"), [("none", 3), ("matmul_outputs", 2), ("block", 0)])
def test_a_gated_mlp_keeps_as_many_arrays_of_width_F_as_are_counted(capsys, remat, wide):
    options = Options(remat=remat)
    B, D, F = 8, 16, 48

    def body(p, x_BD):
        up_BF = options.mark("mlp_in", x_BD @ p["up"])
        gate_BF = options.mark("mlp_in", x_BD @ p["gate"])
        act_BF = options.mark("activation", jax.nn.silu(gate_BF) * up_BF)
        return options.mark("mlp_out", act_BF @ p["down"])

    p = {"up": jnp.ones((D, F)), "gate": jnp.ones((D, F)), "down": jnp.ones((F, D))}
    run = rematerialised(body, options, looped=True)
    print_saved_residuals(lambda p, x: jnp.sin(run(p, x)).sum(), p, jnp.ones((B, D)))
    kept = [line for line in capsys.readouterr().out.splitlines() if f"f32[{B},{F}]" in line]
    assert len(kept) == wide, kept
