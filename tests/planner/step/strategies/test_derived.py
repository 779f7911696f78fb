"""The collectives of a gated MLP against those that follow from the layouts alone."""

from collections import Counter

import pytest
from tests.planner.steps import D, F, dense, step

from shardwise.planner.step.parts import (
    gradient_reduction,
    gradient_scatters,
    layer_chains,
    parameter_gathers,
    tensors_of,
)
from shardwise.planner.step.work import train_work
from shardwise.sharding import Mesh
from shardwise.sharding.backward import derive
from shardwise.sharding.backward.forward import forward
from shardwise.sharding.steps import COMMUNICATION, group_bytes

NAMES = {"X": "fsdp", "Y": "tensor", "Z": "data"}
PARAMETERS = ("W_gate", "W_up", "W_out")
BATCH, T = 4, 128


def lines(weights: str, batch: str) -> tuple[str, ...]:
    """A gated MLP whose stream is cut by tokens over Y, its weights by D over `weights`."""
    cut = f"_{weights}" if weights else ""
    return (
        f"In[B_{batch}, T_Y, D] * W_gate[D{cut}, F_Y] -> Gate[B_{batch}, T, F_Y]",
        f"In[B_{batch}, T_Y, D] * W_up[D{cut}, F_Y] -> Up[B_{batch}, T, F_Y]",
        f"silu(Gate[B_{batch}, T, F_Y]) -> Act[B_{batch}, T, F_Y]",
        f"Act[B_{batch}, T, F_Y] * Up[B_{batch}, T, F_Y] -> Tmp[B_{batch}, T, F_Y]",
        f"Tmp[B_{batch}, T, F_Y] * W_out[F_Y, D{cut}] -> Out[B_{batch}, T_Y, D]",
    )


def derived(texts, mesh, storage=()) -> Counter:
    """Bytes V by (phase, kind, axes) of forward and backward."""
    source = forward(texts, PARAMETERS, storage)
    shards = Mesh.parse(mesh)
    sizes = {"B": BATCH * 4, "T": T, "D": D, "F": F}
    found = derive(source, shards, sizes)
    totals: Counter = Counter()
    for phase in ("forward", "backward"):
        for s in found.steps(phase):
            if s.kind in COMMUNICATION:
                axes = tuple(NAMES[a] for a in s.axes)
                volume = group_bytes(s, sizes, shards, {s.inputs[0].name: "bf16"})
                totals[phase, s.kind, axes] += volume
    return totals


def counted(ops, phase) -> Counter:
    totals: Counter = Counter()
    for o in ops:
        if o.collective is not None:
            axes = tuple(a for a in o.collective.axes if a in ("fsdp", "tensor", "data"))
            totals[phase, o.collective.kind, axes] += float(o.collective.bytes)
    return totals


def mlp_of(cfg, shape):
    """What the planner counts for the MLP's three matrices and its exchanges."""
    rows = tensors_of(cfg, shape).rows
    forth, back = layer_chains(cfg, 0, rows, shape)
    ours = [r for r in rows if r.name.startswith("mlp.") and r.group == 0]
    gathers, scatters = parameter_gathers(ours, shape), gradient_scatters(ours, shape)
    mlp = [[o for o in ops if "mlp." in o.id] for ops in (forth, back)]
    reduced = gradient_reduction(ours, shape)
    return counted([*gathers, *mlp[0]], "forward") + counted(
        [*gathers, *mlp[1], *scatters, *reduced], "backward"
    )


def test_fsdp_and_tensor_follow_from_the_layouts():
    """W[D_X, F_Y] is gathered to W[D, F_Y], In[B_X, T_Y, D] to In[B_X, T, D], and back again."""
    cfg, shape = dense(), step(fsdp=4, tensor=2)
    assert mlp_of(cfg, shape) == derived(lines("X", "X"), "X=4,Y=2")


@pytest.mark.parametrize(
    ("zero", "storage"),
    [
        (0, ()),
        (2, ("dW_gate[D_Z, F_Y]", "dW_up[D_Z, F_Y]", "dW_out[F_Y, D_Z]")),
    ],
)
def test_data_parallelism_follows_from_where_gradients_are_stored(zero, storage):
    """dW[D, F]{U_Z} is all-reduced, or scattered to where ZeRO-2 keeps it."""
    cfg, shape = dense(), step(data=4, tensor=2, zero=zero)
    want = derived(lines("", "Z"), "Z=4,Y=2", storage)
    assert mlp_of(cfg, shape) == want


def test_zero_1_and_2_scatter_as_much_but_at_different_times():
    """The same reduce-scatter, once per step or once per microbatch."""
    volumes = []
    for zero in (1, 2):
        work = train_work(dense(), step(data=4, zero=zero, microbatches=4.0))
        volumes.append(work.collective_bytes("reduce_scatter"))
    assert volumes[1] == pytest.approx(4 * volumes[0])
