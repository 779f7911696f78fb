"""Documents packed into one sequence: a token attends to its own document only.

Attention over documents of l_1 + l_2 + ... = T tokens costs the sum of l_i^2, not T^2; everything
else counts tokens and does not change.
"""

from shardwise.models.flops import attention_flops_per_token
from shardwise.models.specs import Layer
from shardwise.planner.step.shape import LayerShape
from shardwise.work import Quantity


def packed_flops(layer: Layer, shape: LayerShape, causal: bool) -> Quantity:
    """Forward attention FLOPs per token: the mean over tokens of what each document costs."""
    lengths = shape.choices.packed_lengths
    costs = (n * attention_flops_per_token(layer, float(n), causal=causal) for n in lengths)
    return sum(costs) / sum(lengths)
