"""One training step, counted on the busiest device: what each part of it computes and moves.

`shape.py` is what counting sees of a plan and of one layer of it. `layer.py` counts a layer,
`recurrence.py` a recurrent mixer in it, `parts.py` the parts of a step, a row each, `strategies/`
what each way of cutting adds to them; `work.py` puts them into a tree and lays that out as loops.
Nothing here knows a chip. Read `parts.py` first.
"""
