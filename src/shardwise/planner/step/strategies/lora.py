"""LoRA (arXiv 2106.09685): `W[D, F]` stays, `A[D, r] B[r, F]` is trained beside it.

Adapters stand beside the matmuls of the layers that a plan names, or all but the routed experts.
Frozen rows get no gradient, no optimizer state and no dW; gradients of activations flow through
them as before. Over tensor an adapter is cut where its matrix is: `A[F_tensor, r]` leaves partial
sums that the block's own reduce-scatter adds up.

Quantised rows (QLoRA, arXiv 2305.14314) are unpacked to 16 bits before every product, forward and
backward: read, and write a copy that is gone after the product, as bitsandbytes does with nf4. It
multiplies int8 as it is on the way forward; that is priced as if it was unpacked, too. So are GPTQ
and AWQ, whose kernels of 4 bits have no backward.
"""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.models import Parameter
from shardwise.models.activations import Activation
from shardwise.planner.step.shape import TrainShape
from shardwise.plans.adapters import targeted
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity, largest, make_op

MIXERS = ("attention", "linear_attention")
"""Components of the matrices of a layer's mixer."""
GROUPED = ("experts", "dispatched")
"""How the names of activations begin that routed experts read."""
RANK = "r"
"""The letter of the rank, which no axis cuts."""


def adapters(
    rows: Sequence[Parameter], rank: int, targets: Sequence[str] = ()
) -> tuple[Parameter, ...]:
    """The rows of A and B for the matrices that have them."""
    made: list[Parameter] = []
    for row in rows:
        if targeted(row, targets):
            made += _pair(row, rank)
    return tuple(made)


def _pair(row: Parameter, rank: int) -> list[Parameter]:
    into = tuple(d for d in row.dims if d[0] in row.contracts)
    kept = tuple(d for d in row.dims if d[0] in row.batch)
    out = tuple(d for d in row.dims if d not in into + kept)
    width = ((RANK, rank),)
    return [
        replace(row, name=f"{row.name}.lora_a", dims=kept + into + width),
        replace(row, name=f"{row.name}.lora_b", dims=kept + width + out, contracts=RANK),
    ]


def kept_beside(
    saved: Sequence[Activation], rows: Sequence[Parameter], shape: TrainShape
) -> tuple[Activation, ...]:
    """What a layer with these matrices keeps where adapters are trained: what every A yields, for
    the gradient of its B, and not what matmuls alone read, none of which has an adapter, unless
    quantised matrices keep their inputs. Grouped products of experts keep theirs."""
    read = [r for r in rows if targeted(r, shape.lora_targets)]
    own = (
        Activation(
            name=f"{row.name} adapter",
            width=shape.lora_rank,
            letter="",
            kind="qkv" if row.component in MIXERS else "mlp_in",
        )
        for row in read
    )
    if shape.quantize != "none" and shape.library_row.keeps_inputs:
        return (*saved, *own)
    return (*(a for a in saved if _stays(a, read)), *own)


def _stays(activation: Activation, read: Sequence[Parameter]) -> bool:
    grouped = activation.name.startswith(GROUPED)
    return grouped or not activation.fed or any(_reads(row, activation) for row in read)


def _reads(row: Parameter, activation: Activation) -> bool:
    """Whether a matrix that has an adapter multiplies an activation of its layer."""
    yields_d = any(d == "D" and d not in row.contracts for d, _ in row.dims)
    block = "attention" if row.component in MIXERS else "mlp"
    if activation.kind == "norm":
        side = activation.name.partition(" ")[0]
        return not yields_d and (side not in ("attention", "mlp") or side == block)
    if activation.kind == "activation":
        return yields_d and block == "mlp"
    return True


def with_unpacking(ops: Sequence[Op], rows: Sequence[Parameter], shape: TrainShape) -> list[Op]:
    """Some ops of a layer with what unpacks the quantised matrices before the products of them."""
    packed = {r.name: r for r in rows if shape.quantised(r)}
    if not packed:
        return list(ops)
    made: list[Op] = []
    for op in ops:
        row = packed.get(op.name.removeprefix("re ").removeprefix("d "))
        if row is not None:
            elements = row.size * shape.compute_share(row)
            size = elements * (shape.stored_bytes(row) + dtype_bytes(shape.weights))
            unpack = make_op(f"unpack.{op.id}", op.component, "elementwise", hbm_bytes=size)
            made.append(replace(unpack, phase=op.phase))
        made.append(op)
    return made


def unpacked_bytes(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """The largest matrix that is unpacked at a time."""
    packed = [r.size * shape.compute_share(r) for r in rows if shape.quantised(r)]
    return largest(packed) * dtype_bytes(shape.weights) if packed else 0.0
