"""One training step, counted on the busiest device: what each part of it computes and moves.

`shape.py` is a step as numbers that may be arrays over candidate plans, `layer_shape.py` what one
device sees of a layer. `layer.py` counts a layer, `parts.py` layers, ends and the update of a step,
`strategies/` what each way of cutting adds to them, `work.py` puts them together in the tree of
`tree.py`; `ops.py` writes down one op. Nothing here knows a chip. Read `work.py` first.
"""
