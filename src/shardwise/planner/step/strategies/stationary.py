"""2-D weight-stationary sharding (ch. 7.6.2; Pope et al., arXiv 2211.05102, 3.2.2): serving only.

Weights are cut along F over `tensor` and along D over `fsdp`, and never move. The stream between
blocks is x[B, D_{fsdp,tensor}]:

    x[B, D_fsdp]              gathered over tensor
    h[B, F_tensor]{U_fsdp}    from W_in[D_fsdp, F_tensor]; the sums are scattered over fsdp, the
                              activation runs on a part, and the parts are gathered
    y[B, D_fsdp]{U_tensor}    from W_out[F_tensor, D_fsdp]; scattered over tensor

Over n devices both exchanges shrink with the root of n where 1-D ones stay. A mixer scatters its
sums by sequences, so that each of the `fsdp` devices attends for its own, with their cache, and
gathers them again. Rows without D (between the projections of latent attention) lie whole over fsdp
and multiply a device's own sequences.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.models import Parameter
from shardwise.planner.step.shape import LayerShape
from shardwise.units import dtype_bytes
from shardwise.work import CollectiveKind, Op, Quantity, exchange

AXIS = "fsdp"


def cut_by_width(row: Parameter) -> bool:
    """Whether a row lies cut along D."""
    return any(letter == "D" for letter, _ in row.dims)


def contracts_width(row: Parameter) -> bool:
    """Whether its product is a sum over D, of which every device has a part."""
    return cut_by_width(row) and "D" in row.contracts


def local_matmul(
    row: Parameter, m: Quantity, k: Quantity, n: Quantity, degree: Quantity
) -> tuple[Quantity, Quantity, Quantity]:
    """m, k and n of one device: D is cut; a row without D sees the device's own tokens."""
    if not cut_by_width(row):
        return m / degree, k, n
    return (m, k / degree, n) if "D" in row.contracts else (m, k, n / degree)


def sums(op_id: str, component: str, rows: Sequence[Parameter], shape: LayerShape) -> list[Op]:
    """ReduceScatter of the partial sums of all matmuls that contract D."""
    inward = [(r, r.outputs) for r in rows if contracts_width(r)]
    return _moved(op_id, "reduce_scatter", component, inward, shape)


def parts(op_id: str, component: str, rows: Sequence[Parameter], shape: LayerShape) -> list[Op]:
    """AllGather of the inputs of all matmuls whose output has D."""
    outward = [(r, r.contracted) for r in rows if cut_by_width(r) and not contracts_width(r)]
    return _moved(op_id, "all_gather", component, outward, shape)


def _moved(
    op_id: str,
    kind: CollectiveKind,
    component: str,
    sides: Sequence[tuple[Parameter, int]],
    shape: LayerShape,
) -> list[Op]:
    degree = np.asarray(shape.stationary)
    if not sides or not np.any(degree > 1):
        return []
    width: Quantity = 0.0
    for row, side in sides:
        width = width + float(row.active * row.batches * side) * shape.compute_share(row)
    size = shape.tokens * width * dtype_bytes(shape.activations)
    count = np.where(degree > 1, 1.0, 0.0)
    return [exchange(op_id, kind, component, (AXIS,), size, count=count)]
