"""Serving planned: the cheapest servers for a load, priced in closed form, confirmed by simulation.

`request.py` is what is asked and `choices.py` what may be chosen. `shape.py` holds the numbers of a
replica, `count.py` counts a step of it (`attention.py` its mixers), `memory.py` what it holds
(`engine_memory.py` as engines count it);
`server.py` prices one mesh or columns of them by the same methods, and `answer.py` one plan.
`grid.py` prices servers under a load, `load.py` makes latencies of them, `prefill.py` has the pool
for prompts, `fleet.py` ranks the fleets, `planning.py` says why there is none. `served.py`
simulates the best and answers, `instead.py` has what else would serve, `limits.py` what binds.
`cost.py` and `replica.py` are what the simulator reads. Read `server.py` first, then `served.py`.
"""
