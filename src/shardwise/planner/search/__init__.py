"""Searches of the training plans of a slice: structure in loops, degrees on arrays.

`request.py` is what is asked, `space.py` what is looked at, `legality.py` the rules that a plan
must keep. `columns.py` holds candidates as arrays and finds the few rows that a part depends on;
`leaves.py` prices the parts on those rows, with the functions that price a plan. `ground.py` is
what searches for several programs share, `rows.py` prices what floors leave of many structures,
`table.py` all of a part of the slice, for those who ask what lies near a plan.
`loop.py` searches, `found.py` is what it finds, `choices.py` remembers the best plan of every value
of a choice and says which plan is simpler, `misses.py` says why nothing was found. Read `loop.py`
first.
"""
