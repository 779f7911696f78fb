"""Seconds and bytes of a counted training step, for one plan or for columns of them.

`plan.py` prices one plan. `figures.py` adds up the priced ops of each part of a step and rounds of
its bodies, `composition.py` makes the step's seconds of those, with what a pipeline idles
(`pipeline.py`: in closed form, or by a walk through its own stages; `timeline.py` lists the events,
`trace.py` writes them for Perfetto); `where.py` says where the seconds go. `memory.py` has the
bytes, and of those that come and go `working.py`; `goodput.py` what a long run loses beside its
steps. Read `composition.py` first.
"""
