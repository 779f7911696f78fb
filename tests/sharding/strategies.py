"""Strategies as data: layouts and nothing else. What communicates is derived from them."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.errors import unknown
from shardwise.sharding.backward.forward import Forward, forward

_REPLICATED = (
    "In[B_X, D] * W_in[D, F] -> Tmp[B_X, F]",
    "Tmp[B_X, F] * W_out[F, D] -> Out[B_X, D]",
)
_MLP = ("W_in", "W_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Forward lines, which arrays are parameters, and what is stored otherwise than they are."""

    title: str
    source: str
    lines: tuple[str, ...]
    parameters: tuple[str, ...]
    storage: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()

    def forward(self) -> Forward:
        """The lines read and checked."""
        return forward(self.lines, self.parameters, self.storage, self.constants)


STRATEGIES: Mapping[str, Strategy] = {
    "dp": Strategy(
        title="Pure data parallelism",
        source="book 5.1.1",
        lines=_REPLICATED,
        parameters=_MLP,
    ),
    "zero-1": Strategy(
        title="Data parallelism with cut optimizer state (ZeRO-1)",
        source="book 5.1.2; arXiv:1910.02054",
        lines=_REPLICATED,
        parameters=_MLP,
        storage=("dW_in[D, F]{U_X}", "dW_out[F, D]{U_X}", "mW_in[D_X, F]", "mW_out[F, D_X]"),
    ),
    "zero-2": Strategy(
        title="Data parallelism with cut gradients and optimizer state (ZeRO-2)",
        source="book 5.1.2; arXiv:1910.02054",
        lines=_REPLICATED,
        parameters=_MLP,
        storage=("dW_in[D_X, F]", "dW_out[F, D_X]", "mW_in[D_X, F]", "mW_out[F, D_X]"),
    ),
    "fsdp": Strategy(
        title="Fully-sharded data parallelism (FSDP, ZeRO-3)",
        source="book 5.1.2",
        lines=(
            "In[B_X, D] * W_in[D_X, F] -> Tmp[B_X, F]",
            "Tmp[B_X, F] * W_out[F, D_X] -> Out[B_X, D]",
        ),
        parameters=_MLP,
    ),
    "tp": Strategy(
        title="Tensor parallelism (Megatron)",
        source="book 5.1.3",
        lines=(
            "In[B, D_Y] * W_in[D, F_Y] -> Tmp[B, F_Y]",
            "Tmp[B, F_Y] * W_out[F_Y, D] -> Out[B, D_Y]",
        ),
        parameters=_MLP,
    ),
    "fsdp+tp": Strategy(
        title="Mixed FSDP and tensor parallelism",
        source="book 5.1.4",
        lines=(
            "In[B_X, D_Y] * W_in[D_X, F_Y] -> Tmp[B_X, F_Y]",
            "Tmp[B_X, F_Y] * W_out[F_Y, D_X] -> Out[B_X, D_Y]",
        ),
        parameters=_MLP,
    ),
    "gated-fsdp+tp": Strategy(
        title="A gated MLP under FSDP and tensor parallelism",
        source="book 4.2 and 5.1.4",
        lines=(
            "In[B_X, D_Y] * W_gate[D_X, F_Y] -> Gate[B_X, F_Y]",
            "In[B_X, D_Y] * W_up[D_X, F_Y] -> Up[B_X, F_Y]",
            "silu(Gate[B_X, F_Y]) -> Act[B_X, F_Y]",
            "Act[B_X, F_Y] * Up[B_X, F_Y] -> Tmp[B_X, F_Y]",
            "Tmp[B_X, F_Y] * W_out[F_Y, D_X] -> Out[B_X, D_Y]",
        ),
        parameters=("W_gate", "W_up", "W_out"),
    ),
    # Tokens stand in groups G of S; the router's R picks the expert E and the place C in its
    # buffer, so that dispatch and combine are products too (arXiv:2006.16668).
    "expert": Strategy(
        title="Expert parallelism",
        source="book 3.3.1 and 4.4.1; arXiv:2006.16668",
        lines=(
            "In[G_X, S, D] * R[G_X, S, E, C] -> Sent[E, G_X, C, D]",
            "Sent[E, G_X, C, D] * W_in[E_X, D, F] -> Tmp[E_X, G, C, F]",
            "relu(Tmp[E_X, G, C, F]) -> Act[E_X, G, C, F]",
            "Act[E_X, G, C, F] * W_out[E_X, F, D] -> Back[E, G_X, C, D]",
            "Back[E, G_X, C, D] * P[G_X, S, E, C] -> Out[G_X, S, D]",
        ),
        parameters=("W_in", "W_out"),
        constants=("R",),
    ),
    "2d-weight-stationary": Strategy(
        title="2-D weight-stationary",
        source="book 7.6.2 and exercise 7.7; arXiv:2211.05102",
        lines=(
            "In[B, D_XYZ] * W_in[D_X, F_YZ] -> Tmp[B, F_YZ]",
            "Tmp[B, F_YZ] * W_out[F_YZ, D_X] -> Out[B, D_XYZ]",
        ),
        parameters=_MLP,
    ),
    "kv-batch-sharded": Strategy(
        title="Attention over a KV cache cut by heads and batch",
        source="book 7.3.3",
        lines=(
            "X[B, D] * W_Q[D, N_YZ, H] -> Q[B, N_YZ, H]",
            "reshape(Q[B, N_YZ, H]) -> Q'[B_Z, K_Y, M, H]",
            "Q'[B_Z, K_Y, M, H] * K[B_Z, S, K_Y, H] -> A[B_Z, S, K_Y, M]",
            "softmax(A[B_Z, S, K_Y, M]) over S -> P[B_Z, S, K_Y, M]",
            "P[B_Z, S, K_Y, M] * V[B_Z, S, K_Y, H] -> O'[B_Z, K_Y, M, H]",
            "reshape(O'[B_Z, K_Y, M, H]) -> O[B, N_YZ, H]",
            "O[B, N_YZ, H] * W_O[N_YZ, H, D] -> Out[B, D]",
        ),
        parameters=("W_Q", "W_O"),
    ),
}


def strategy(name: str) -> Strategy:
    """The strategy of that name; raises BadRequest with the nearest names."""
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    return STRATEGIES[name]
