"""The collectives of a plan beside those of its compiled program, line by line.

`lines.py` makes lines of (kind, axes, bytes, times per step) of both, `added.py` has the lines of
what our own trainer moves beside the plan's list, `served.py` says how our engine's steps differ
from it, and `rules.py` explains by general rules where the two differ. What a plan moves is counted
by the planner, not here. Read `lines.py` first.
"""
