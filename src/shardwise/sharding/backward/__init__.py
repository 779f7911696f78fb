"""The backward pass, derived: from layouts of a forward computation to its numbered steps.

Given products of laid-out arrays and how parameters, gradients and optimizer state are stored, the
steps of forward, backward and update follow by one rule, and from their dependencies what is off
the critical path and what can be freed. No strategy has code of its own: it is its layouts.

`forward.py` is what is differentiated (`infer.py` makes it of an expression). `derive.py` writes
the steps: `product.py` has the rule for a product, `reshapes.py` for a reshape, and `moves.py` goes
from one layout to another. `analyse.py` says what waits for what, `boxes.py` prints the steps as
the book does. Read `derive.py` first, then `product.py`.
"""

from shardwise.sharding.backward.boxes import backward_boxes
from shardwise.sharding.backward.derive import derive

__all__ = ["backward_boxes", "derive"]
