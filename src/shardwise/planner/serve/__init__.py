"""Serving: the smallest slice within targets, and the cheapest fleet under a load.

`count.py` counts a plan's steps and `step.py` any step of an engine; `memory.py` is what a server
holds. `search.py` looks through meshes and batches, `answer.py` finds the smallest slice and says
what it costs, `misses.py` why none serves. A fleet: `grid.py` prices servers as columns, `load.py`
makes latencies of them, `prefill.py` the pool for prompts, `fleet.py` the cheapest, `limits.py`
what binds it. `loop.py` is a closed loop of requests in closed form. `cost.py` and `replica.py` are
what the simulator reads. Read `answer.py` first.
"""
