"""A published TPU run's program: the step of its shape on its mesh, whatever was measured."""

import sys
from math import prod
from pathlib import Path

import jax
import pytest
from tests.tiers import spread

from shardwise.evidence.training.table import PUBLISHED, read_table

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from row_programs import row_program

ROWS = {row["id"]: row for row in read_table(PUBLISHED).rows}


def small(**changed):
    """A row of a MaxText-like run on four chips of v5e."""
    row = dict(ROWS["maxtext-v5e-16b-1x256"])
    shape = {"layers": 3, "d_model": 128, "d_ff": 512, "heads": 2, "kv_heads": 2, "head_dim": 64}
    runs = {"num_devices": 4, "fsdp": 2, "tp": 2, "global_batch_seqs": 8, "seq_len": 256}
    row.update({name: str(value) for name, value in {**shape, **runs, "vocab": 512}.items()})
    row.update(changed)
    return row


@pytest.mark.parametrize(
    "mesh", spread([{"fsdp": "2", "tp": "2"}, {"fsdp": "4", "tp": "1"}], slow=1)
)
def test_a_row_becomes_the_step_of_its_shape_and_mesh(mesh):
    row = small(**mesh)
    program = row_program(jax.devices()[:4], row)
    state, batch = program.arguments
    degrees = {"fsdp": int(mesh["fsdp"]), "tensor": int(mesh["tp"])}
    assert dict(program.mesh.shape) == {axis: n for axis, n in degrees.items() if n > 1}
    assert batch["tokens"].shape == (8, 256)
    sizes = {tuple(x.shape) for x in jax.tree.leaves(state["params"])}
    assert {(3, 128, 512), (3, 512, 128), (512, 128)} <= sizes
    held = sum(prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(state["params"]))
    assert held < 0.6 * sum(prod(x.shape) for x in jax.tree.leaves(state["params"]))
    assert "stablehlo.while" in program.function.lower(*program.arguments).as_text()


@pytest.mark.slow
def test_the_measurement_is_no_part_of_the_program():
    one, other = (row_program(jax.devices()[:4], small(step_seconds=v)) for v in ("120", "12"))
    texts = [p.function.lower(*p.arguments).as_text() for p in (one, other)]
    assert texts[0] == texts[1]
