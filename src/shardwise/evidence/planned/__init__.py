"""What plans predict beside what their compiled steps do, for small plans of every strategy.

`plans.py` has the plans and `job.py` what a child process runs to compile one step. The lists of
collectives and the rules between them are in `profiler/collectives/`, where `compare` reads them
too. Read `plans.py` first.
"""
