"""What an op is for: the names that parameters, the planner's ops and compiled programs share.

A row of the parameter table and an op of the planner carry one of `COMPONENTS`. The runtime runs
each part of a step inside `jax.named_scope` of the same name; compilers keep the scopes of an
operation (`op_name` in HLO), so that a compiled op is told by the innermost scope that is one.
"""

CORE = "attention_core"
"""QK^T and PV (and an indexer's scores) with what moves keys and values for them."""
SCAN = "scan"
"""A recurrence and its convolution."""

COMPONENTS = frozenset(
    {
        *("embedding", "embedding_per_layer", "norms", "lm_head", "other", "mtp"),
        *("attention", CORE, "linear_attention", SCAN),
        *("mlp_dense", "router", "routed_experts", "shared_experts", "moe_latent"),
        *("parameters", "gradients", "optimizer", "pipeline", "offload"),
    }
)
"""Parts of the model; then parameters on their way to where they are used, gradients to where they
are kept, the update, and what pipeline stages and the host are sent."""


def component_of(scope: str) -> str:
    """The component of an op in these named scopes, outermost first; "" where none is one.

    >>> component_of("attention/attention_core/BTNH,BSNH->BNTS")
    'attention_core'
    """
    words = reversed(scope.split("/"))
    return next((word for word in words if word in COMPONENTS), "")
