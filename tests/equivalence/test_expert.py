"""Experts apart over expert (and tensor), dropless and with enough slots, equal one device."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.equivalence import cases

from shardwise.runtime import grouped
from shardwise.runtime.parallel import expert

RAGGED = {"expert_dispatch": "ragged"}
SPREAD = {**RAGGED, "expert_over_tensor": True}
SLOTS = {"expert_dispatch": "dense", "expert_capacity": 2.0}


@cases.combinations(
    ("mixtral", {"expert": 2}, SLOTS),
    slow=[
        ("mixtral", {"fsdp": 2, "expert": 2, "tensor": 2}, RAGGED),
        ("mixtral", {"fsdp": 2, "expert": 2, "tensor": 2}, {**SPREAD, "remat": "block"}),
        ("deepseek-v3", {"expert": 2, "context": 2, "tensor": 2}, RAGGED),
    ],
    long=[
        ("mixtral", {"expert": 4}, RAGGED),
        ("mixtral", {"expert": 2, "tensor": 2}, {**SLOTS, "remat": "block"}),
        ("mixtral", {"expert": 2, "tensor": 2}, {**RAGGED, "sequence_parallel": False}),
        ("mixtral", {"data": 2, "expert": 2}, {"microbatches": 2, "expert_capacity": 2.0}),
        ("gpt-oss", {"expert": 2, "tensor": 2}, SPREAD),
        ("qwen3-next", {"data": 2}, {**RAGGED, "bits": 64}),
        ("deepseek-v3", {"expert": 2, "tensor": 2}, {**RAGGED, "tensor_matmul": "one_way"}),
        ("mixtral", {"expert": 2, "tensor": 2}, {**RAGGED, "bits": 64}),
    ],
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)


def sent(rows, room, offsets, counts, places, coming, *, axis_name):
    """`ragged_all_to_all`, which CPUs lack: rows that a receiver expects and nobody sends are NaN,
    those that it does not expect are lost."""
    axis = axis_name
    all_PRD, me, at = lax.all_gather(rows, axis), lax.axis_index(axis), jnp.arange(len(room))
    theirs = [lax.all_gather(x, axis)[:, me] for x in (offsets, counts, places)]
    for p, (offset, count, place) in enumerate(zip(*theirs, strict=True)):
        number = at - place
        taken = all_PRD[p][jnp.clip(number + offset, 0, len(rows) - 1)]
        taken = jnp.where((number < count)[:, None], taken, jnp.nan)
        here = (number >= 0) & (number < coming[p])
        room = jnp.where(here[:, None], taken, room)
    return room


@cases.combinations(
    slow=[("mixtral", {"expert": 4}, RAGGED)],
    long=[
        ("mixtral", {"expert": 2, "tensor": 2}, SPREAD),
        ("gpt-oss", {"expert": 2, "tensor": 2}, RAGGED),
        ("mixtral", {"expert": 2, "tensor": 4}, RAGGED),
    ],
)
def test_ragged_exchanges_equal_one_device(case, monkeypatch):
    """What TPUs run, row by row as they would send it, into buffers of anything."""
    name, mesh, choices = case
    monkeypatch.setattr(lax, "ragged_all_to_all", sent)
    monkeypatch.setattr(lax, "empty", lambda shape, dtype: jnp.full(shape, jnp.nan, dtype))
    interpreted = partial(grouped.weight_gradient, interpret=True)
    monkeypatch.setattr(grouped, "weight_gradient", interpreted)

    def dispatch(setup):
        made = expert.dispatch_for(setup)
        assert made is not None
        return replace(made, platform="tpu")

    monkeypatch.setattr("shardwise.runtime.parallel.step.dispatch_for", dispatch)
    cases.check(name, mesh, **choices)


@pytest.mark.parametrize(("rows", "sizes"), [(256, [100, 0, 90, 66]), (200, [3, 130, 20, 7])])
def test_the_gradient_of_the_matrices_is_that_of_each_groups_rows(rows, sizes):
    """Rows of no group may be anything."""
    rng = np.random.default_rng(0)
    x, dy = (rng.normal(size=(rows, width)).astype(np.float32) for width in (64, 96))
    ends = np.cumsum(sizes)
    right = [x[end - n : end].T @ dy[end - n : end] for n, end in zip(sizes, ends, strict=True)]
    for array in (x, dy):
        array[ends[-1] :] = np.nan
    given = map(jnp.asarray, (x, dy, np.array(sizes)))
    said = jax.jit(partial(grouped.weight_gradient, dtype=jnp.float32, interpret=True))(*given)
    np.testing.assert_allclose(said, right, rtol=1e-5, atol=1e-4)
