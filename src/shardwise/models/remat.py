"""Remat policies as rows: of every kind of activation whether it is kept, recomputed or offloaded.

The policies of ch. 4.4.2. Counting (`planner/step/strategies/remat.py`), memory
(`activations.py`, `planner/price/working.py`) and `jax.checkpoint` (`runtime/options.py`)
read the row.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from shardwise.errors import entry_of

SavedKind = Literal[
    "block_input", "norm", "qkv", "attention", "attention_out", "mlp_in", "activation", "mlp_out"
]
"""Kinds of activations that a policy may treat apart: the layer's input; outputs of the norms; of
the projections into the mixer; of the mixer's core; of its out projection; of the matmuls into the
MLP; of its activation; of its matmul out. The forward pass marks each of them by this name."""
PartKind = Literal["mlp_gate"]
"""Parts of a kind that a plan may treat apart: of the matmuls into a gated MLP, the one whose
result the activation is applied to. Where a plan does not name it, it is treated as the whole."""
RematKind = SavedKind | PartKind
Saved = Literal["keep", "recompute", "offload"]
RematPolicy = Literal["none", "matmul_outputs", "block", "offload"]

SAVED_KINDS: tuple[SavedKind, ...] = get_args(SavedKind)
PART_OF: Mapping[str, SavedKind] = {"mlp_gate": "mlp_in"}
REMAT_KINDS: tuple[RematKind, ...] = (*SAVED_KINDS, *get_args(PartKind))
"""What `remat_kinds` of a plan may name."""
TREATMENTS: tuple[Saved, ...] = get_args(Saved)
REMAT_POLICIES: tuple[RematPolicy, ...] = get_args(RematPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class RematRow:
    """One remat policy: `kinds` says what becomes of every kind of activation.

    With `tape` a kind that stays is kept as an autograd tape keeps it: all tensors of the kind that
    some gradient needs. Without, only the result that the kind is named after stays. `book_saved`
    is how many intermediates of width D a layer keeps by the book's count, 0 where it counts none.
    """

    name: RematPolicy
    kinds: Mapping[SavedKind, Saved]
    tape: bool = False
    book_saved: int = 0

    @property
    def offloads(self) -> bool:
        """Whether some kind goes to host memory."""
        return "offload" in self.kinds.values()


def _kinds(
    keep: Iterable[SavedKind] = (), offload: Iterable[SavedKind] = ()
) -> Mapping[SavedKind, Saved]:
    """What is kept and offloaded; the rest is recomputed."""
    kinds: dict[SavedKind, Saved] = dict.fromkeys(SAVED_KINDS, "recompute")
    kinds.update(dict.fromkeys(keep, "keep"))
    kinds.update(dict.fromkeys(offload, "offload"))
    return kinds


_ROWS = (
    RematRow(name="none", kinds=_kinds(keep=SAVED_KINDS), tape=True, book_saved=20),
    RematRow(
        name="matmul_outputs",
        kinds=_kinds(keep=("block_input", "qkv", "attention_out", "mlp_in", "mlp_out")),
        book_saved=7,
    ),
    RematRow(name="block", kinds=_kinds(keep=("block_input",)), book_saved=1),
    RematRow(name="offload", kinds=_kinds(offload=("block_input",))),
)
_BY_NAME: Mapping[str, RematRow] = {row.name: row for row in _ROWS}


def remat_row(policy: str) -> RematRow:
    """The row of a policy; BadRequest for a name that there is not.

    >>> remat_row("block").kinds["block_input"], remat_row("block").kinds["qkv"]
    ('keep', 'recompute')
    """
    return entry_of("remat policy", policy, _BY_NAME)
