"""LoRA (arXiv 2106.09685): `W[D, F]` stays, `A[D, r] B[r, F]` is trained beside it.

Adapters stand beside every matmul of the layers but the routed experts. The rows that they stand
beside get no gradient, no optimizer state and no dW; gradients of activations flow through them
as before. Over tensor an adapter is cut where its matrix is: `A[F_tensor, r]` leaves partial sums
that the block's own reduce-scatter adds up.
"""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.models import Parameter
from shardwise.plans.layouts import is_expert

RANK = "r"
"""The letter of the rank, which no axis cuts."""


def adapters(rows: Sequence[Parameter], rank: int) -> tuple[Parameter, ...]:
    """The rows of A and B for every matrix of the layers."""
    made: list[Parameter] = []
    for row in rows:
        if row.role == "matmul" and row.group is not None and not is_expert(row):
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
