"""The planner predicts: it counts a step, searches plans, and prices them; it never runs anything.

`step/` counts a training step, `price/` says its seconds and bytes, `search/` looks through the
plans of a slice; `evaluate.py` prices one plan, `training.py` joins all three, `choosing.py` picks
the program that a plan is for, `features.py` says what kind of plan one is and `expected.py` the
range of its step by that, `beside.py` says what a reader may choose instead, `leaner.py` what makes
a plan fit, `nearby.py` prices plans near one that is given (`near_table.py` combines their
choices), `out_of_memory.py` reads what a run says that failed, of whose arrays `step_arrays.py` has
the sizes, and `checks.py` refuses what cannot be priced; `sensitivity.py` prices a plan with one
input changed, `left_out.py` finishes a plan that a person began, `kept_plans.py` keeps what was
searched before. `serve/` does the same for
serving, `simulate/` plays requests through a server, `export/` writes plans for other software.
Read `training.py` first.
"""
