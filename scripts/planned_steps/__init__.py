"""What plans predict beside what their compiled steps do, for small plans of every strategy.

`plans.py` has the plans, `steps.py` both sides of one: the planner's collectives and bytes, and
those of the step that a child process compiles (`job.py` is what runs in it, on
the programs of `lowered.py`); `changes.py` tries
how much of a difference the comparison notices. The rules that explain where the two differ are in
`profiler/collectives/` of the package, where `compare` reads them too. Read `steps.py` first.
"""
