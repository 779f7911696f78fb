"""Searches of the training plans of a slice: structure in loops, degrees on arrays.

`request.py` is what is asked, `space.py` what is looked at, `legality.py` the rules that a plan
must keep, `plan_choices.py` the choices that a written plan cannot make. `columns.py` holds
candidates as arrays and finds the few rows that a part's seconds depend on; `leaves.py` prices the
parts on those rows with the functions of `planner/price`, `memory.py` adds up their bytes,
`loop.py` searches. Read `loop.py` first.
"""
