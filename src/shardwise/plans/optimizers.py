"""Optimizers as rows: what each keeps of a parameter, and how it makes the step of a gradient.

Counting (`planner/step/strategies/optimizer.py`), memory (`planner/price/memory.py`) and the
trainer (`runtime/trainer/optimizer.py`) read the row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from shardwise.errors import entry_of
from shardwise.models.parameters import Parameter

Optimizer = Literal["adam", "adam8bit", "adafactor", "muon", "sgd"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
BLOCK_8BIT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRow:
    """One optimizer: `state` is the bytes per element that it keeps of a parameter beside a master
    copy, given those of one moment in the plan's dtype.

    `narrow` does the same with narrower moments. `roots`: it divides by square roots of
    second moments, which PyTorch's lists of tensors hold all at once (torch/optim/adam.py,
    _multi_tensor_adam). `own_dtypes`: it chooses the dtypes of its state itself. `orthogonalises`:
    the momentum of a matrix is made orthogonal, whole.
    """

    name: Optimizer
    state: Callable[[Parameter, float], float]
    narrow: Optimizer | None = None
    roots: bool = False
    own_dtypes: bool = False
    orthogonalises: bool = False


def matrix_of(row: Parameter) -> tuple[int, int]:
    """The two sides of the matrix that a row is (or each of its `batch`)."""
    if row.role == "matmul":
        return row.contracted, row.outputs
    first = row.dims[0][1] if row.dims else 1
    return (first, row.size // first) if len(row.dims) > 1 else (1, row.size)


def orthogonalised(row: Parameter) -> bool:
    """Whether Muon updates a row itself: matrices but embeddings and head."""
    return row.role == "matmul" and row.component not in ("embedding", "lm_head")


def _factored(row: Parameter, moment: float) -> float:
    """f32 row and column sums of every matrix of a row; vectors keep the whole moment."""
    rows, columns = matrix_of(row)
    return 4.0 * (rows + columns) / (rows * columns) if rows > 1 and columns > 1 else 4.0


def _blockwise(row: Parameter, moment: float) -> float:
    """Two moments of one byte and their scales; the last dim ends in a block that may be short."""
    last = row.dims[-1][1] if row.dims else 1
    return 2 * (1 + 4 * -(-last // BLOCK_8BIT) / last)


_ROWS = (
    OptimizerRow(name="adam", state=lambda row, moment: 2 * moment, narrow="adam8bit", roots=True),
    # Two moments of one byte and an f32 scale per block along the last dim (arXiv 2110.02861,
    # blocks of 256 as in bitsandbytes).
    OptimizerRow(name="adam8bit", state=_blockwise, own_dtypes=True),
    # Row and column sums of the second moment in f32 (arXiv 1804.04235), without first moment.
    OptimizerRow(name="adafactor", state=_factored, own_dtypes=True),
    # One momentum for matrices, Adam for the rest (arXiv 2502.16982).
    OptimizerRow(
        name="muon",
        state=lambda row, moment: moment if orthogonalised(row) else 2 * moment,
        orthogonalises=True,
    ),
    OptimizerRow(name="sgd", state=lambda row, moment: 0.0),
)
_BY_NAME: Mapping[str, OptimizerRow] = {row.name: row for row in _ROWS}


def optimizer_row(name: str) -> OptimizerRow:
    """The row of an optimizer; BadRequest for a name that there is not.

    >>> optimizer_row("muon").orthogonalises, optimizer_row("adam").orthogonalises
    (True, False)
    """
    return entry_of("optimizer", name, _BY_NAME)
