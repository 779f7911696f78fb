"""Serving simulated: traces of requests through the real scheduler, priced step by step.

`cost.py` says what the simulator needs to know of a replica (its times and its memory), `traces.py`
reads and makes arrivals, `replays.py` reads those of a benchmark with what was measured,
`replica.py` runs one scheduler against a cost, `run.py` a fleet of them, on `clock.py`, which
counts whole femtoseconds, and `plain.py` the same in counts where requests share nothing: its
`moments.py` are when requests came and were answered;
`metrics.py` sums up in `figures.py`, `steady.py` says whether a fleet holds a rate and `rates.py`
finds the largest, of loads that `demand.py` draws; `step_trace.py` writes a trace file; `growth.py`
counts servers that follow a load. Not here: decisions (`scheduling/`), and where the times come
from (the step model of `planner/`). Read `cost.py` first.
"""
