"""Documents packed into one sequence: a token attends to its own document only.

Attention over documents of l_1 + l_2 + ... = T tokens costs the sum of l_i^2, not T^2; everything
else counts tokens and does not change.
"""

from shardwise.models.flops import attention_flops_per_token
from shardwise.models.specs import Layer
from shardwise.work import Quantity


def attention_flops(
    layer: Layer, context: Quantity, documents: tuple[int, ...], causal: bool
) -> Quantity:
    """Forward attention FLOPs per token: the mean over tokens of what each document costs."""
    if not documents:
        return attention_flops_per_token(layer, context, causal=causal)
    costs = (n * attention_flops_per_token(layer, float(n), causal=causal) for n in documents)
    return sum(costs) / sum(documents)
