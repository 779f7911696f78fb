"""Serving planned: one request, answered with the smallest slice or with the cheapest fleet.

`request.py` is what is asked, and `planning.py` answers it. `shape.py` holds the numbers of a
replica, `count.py` counts a step of it (`attention.py` its mixers), `memory.py` what it holds;
`server.py` prices one mesh or columns of them by the same methods, and `answer.py` a plan. The
smallest slice: `search.py` looks through meshes and batches, `smallest.py` through slices,
`misses.py` says why none serves. The cheapest fleet: `grid.py` prices servers under a load,
`load.py` makes latencies of them, `prefill.py` has the pool for prompts, `fleet.py` chooses,
`limits.py` says what binds. `cost.py` and `replica.py` are what the simulator reads. Read
`server.py` first.
"""
