"""`shardwise train` as a row: the trainer of this package, in JAX."""

import numpy as np

from shardwise.models.remat import PART_OF
from shardwise.plans.software.candidates import Candidates
from shardwise.plans.software.limit import about_choices, always
from shardwise.plans.software.row import SoftwareRow

POLICIES = {
    "none": "everything_saveable",
    "matmul_outputs": "dots_with_no_batch_dims_saveable",
    "block": "nothing_saveable",
}


def _cuts(c: Candidates) -> np.ndarray:
    """Sequence parallelism cuts the tokens of a device evenly."""
    cut = c.degree("tensor") * c.degree("context")
    whole = c.sequence_length % cut == 0
    return whole | (c.degree("tensor") == 1) | (not c.structure.sequence_parallel)


JAX = SoftwareRow(
    name="jax",
    title="JAX (shardwise train)",
    stack="xla",
    vendors=("google", "nvidia", "amd", "intel", "aws"),
    words={
        "remat": POLICIES,
        "gradient_reduce": {"per_microbatch": ""},
        "lora_rank": {0: ""},
        "frozen": {(): ""},
        "mtp_layers": {0: ""},
        "logit_chunks": {1: ""},
        "offload_optimizer": {False: ""},
    },
    own=(
        about_choices(
            "remat_kinds",
            ("remat",),
            lambda c: not set(c.structure.remat_kinds) & set(PART_OF),
            "it treats parts of a kind as one",
            "name the whole kind",
        ),
        about_choices(
            "weight_gather",
            ("weight_gather", "storage_axes"),
            lambda c: (
                (c.structure.weight_gather != "per_step")
                | ~c.stored
                | (np.asarray(c.microbatches) == 1)
            ),
            "it gathers for every microbatch",
            "set weight_gather to per_pass or per_microbatch",
        ),
        always(
            "sequence_parallel",
            _cuts,
            "tokens are cut evenly over context x tensor",
            "use a sequence length that they divide, or sequence_parallel false",
        ),
    ),
    builds=None,
)
"""Runs where JAX does."""
