"""`shardwise train` as a row: the trainer of this package, in JAX."""

import numpy as np

from shardwise.models.parameters import parameters
from shardwise.models.remat import PART_OF
from shardwise.plans.layouts import storable
from shardwise.plans.optimizers import optimizer_row
from shardwise.plans.software.candidates import Candidates
from shardwise.plans.software.limit import about_choices, always, of_choice
from shardwise.plans.software.row import SoftwareRow
from shardwise.plans.software.shared import OWN_KERNELS

POLICIES = {
    "none": "everything_saveable",
    "matmul_outputs": "dots_with_no_batch_dims_saveable",
    "block": "nothing_saveable",
}

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64"}
"""JAX's names of what the trainer computes in and stores, by those of plans."""


def _moments(c: Candidates) -> bool:
    """The optimizer's state is in a dtype of JAX, or in the optimizer's own."""
    s = c.structure
    return optimizer_row(s.optimizer).own_dtypes or s.dtypes.moments in DTYPES


def _cuts(c: Candidates) -> np.ndarray:
    """Sequence parallelism, and experts over tensor, cut the tokens of a device evenly."""
    cut = c.degree("tensor") * c.degree("context")
    whole, s = c.sequence_length % cut == 0, c.structure
    cuts = s.sequence_parallel & (c.degree("tensor") > 1)
    return whole | ~(cuts | (s.expert_over_tensor and c.cfg.has_experts))


def _stores(c: Candidates) -> np.ndarray:
    """JAX arrays are cut evenly: where storage axes divide a dim of each weight."""
    kept = np.asarray(True)
    for row in {(p.dims, p.role, p.batch): p for p in parameters(c.cfg)}.values():
        s = c.structure
        kept = kept & storable(row, c.degrees, s.storage_axes, s.expert_over_tensor)
    return kept


def _positions(c: Candidates) -> bool:
    """Positions that are learned end."""
    return not c.cfg.position_rows or c.sequence_length <= c.cfg.learned_tokens


JAX = SoftwareRow(
    name="jax",
    title="JAX (shardwise train)",
    stack="jax_gpu",
    tpu_stack="jax",
    former_stack="xla",
    vendors=("google", "nvidia", "amd", "intel", "aws"),
    without=("MME",),  # Gaudi: PyTorch alone (docs.habana.ai, Support Matrix v1.18.0)
    words={
        "remat": POLICIES,
        "gradient_reduce": {"per_microbatch": ""},
        "lora_rank": {0: ""},
        "frozen": {(): ""},
        "compiled": {None: "", True: ""},
        "fused_loss": {None: ""},
        **OWN_KERNELS,
        "mtp_layers": {0: ""},
        "logit_chunks": {1: ""},
        "offload_optimizer": {False: ""},
        "dtypes.param": DTYPES,
        "dtypes.compute": DTYPES,
        "dtypes.grad": DTYPES,
        "dtypes.master": {"none": "", **DTYPES},
    },
    own=(
        about_choices(
            "dtypes.moments",
            ("dtypes", "optimizer"),
            _moments,
            f"it supports {', '.join(DTYPES)}",
            "set dtypes.moments to f32",
        ),
        about_choices(
            "remat_kinds",
            ("remat",),
            lambda c: not set(c.structure.remat_kinds) & set(PART_OF),
            "it treats all parts of a kind alike",
            "name the whole kind",
        ),
        of_choice(
            "weight_gather",
            lambda c: (
                (c.structure.weight_gather != "per_step")
                | ~c.stored
                | (np.asarray(c.microbatches) == 1)
            ),
            "it gathers weights for every microbatch",
            "set weight_gather to per_pass or per_microbatch",
        ),
        about_choices(
            "sequence_parallel",
            ("expert_over_tensor", "sequence_parallel"),
            _cuts,
            "it shards tokens evenly over context x tensor",
            "use a sequence length that they divide, or sequence_parallel false",
        ),
        about_choices(
            "mesh",
            ("storage_axes", "expert_over_tensor"),
            _stores,
            "it shards each weight evenly, and the storage axes divide no dim of some weight",
            "store over fewer devices, and use data for the others",
        ),
        always(
            "sequence_length",
            _positions,
            "the model has learned positions for fewer tokens",
            lambda c: f"set sequence_length to {c.cfg.learned_tokens} or less",
        ),
    ),
    builds=None,
)
"""Runs where JAX does."""
