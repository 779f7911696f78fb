"""The planner predicts: it counts a step, searches plans, and prices them; it never runs anything.

`layer_work.py` counts one layer, `train_parts.py` the parts of a training step, `parallel/` what
each strategy adds to them, `train_work.py` and `train_memory.py` (with `memory/`) the whole step,
`train_search.py` searches on arrays, `training.py` joins them; `serving.py` does the same for
serving. Read `training.py` first.
"""
