"""The backward pass, derived: from layouts of a forward computation to its numbered steps.

Given products of laid-out arrays and how parameters, gradients and optimizer state are stored, the
steps of forward, backward and update follow by one rule, and from their dependencies what is off
the critical path and what can be freed. No strategy has code of its own: `strategies.py` is data.

`forward.py` is what is differentiated (`infer.py` makes it of an expression). `derive.py` writes
the steps: `product.py` has the rule for a product, `transpose.py` for a collective, `reshapes.py`
for a reshape, and `moves.py` goes from one layout to another. `analyse.py` says what waits for
what, `boxes.py` prints the steps as the book does. Read `derive.py` first, then `product.py`.
"""

from shardwise.sharding.backward.analyse import (
    analyse,
    moved_bytes,
    state_bytes,
)
from shardwise.sharding.backward.boxes import (
    backward_boxes,
    backward_lines,
    forward_lines,
)
from shardwise.sharding.backward.derive import derive, gradient_layout
from shardwise.sharding.backward.forward import Line, forward
from shardwise.sharding.backward.infer import forward_of
from shardwise.sharding.backward.strategies import STRATEGIES, strategy
from shardwise.sharding.backward.transpose import transpose

__all__ = [
    "STRATEGIES",
    "Line",
    "analyse",
    "backward_boxes",
    "backward_lines",
    "derive",
    "forward",
    "forward_lines",
    "forward_of",
    "gradient_layout",
    "moved_bytes",
    "state_bytes",
    "strategy",
    "transpose",
]
