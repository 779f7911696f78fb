"""Serving simulated: traces of requests through the real scheduler, priced step by step.

`cost.py` says what the simulator needs to know of a replica (its times and its memory), `traces.py`
reads and makes arrivals, `replica.py` runs one scheduler against a cost, `run.py` a fleet of them,
on `clock.py`, which counts whole femtoseconds; `metrics.py` sums up, `steady.py` finds the rate
that a fleet holds, `step_trace.py` writes a trace file. Not here: decisions (`scheduling/`), and
where the times come from (the step model of `planner/`). Read `cost.py` first.
"""
