"""Seconds and bytes of a counted training step, for one plan or for columns of them.

`plan.py` prices one plan. `figures.py` adds up the priced ops of each part of a step,
`composition.py` makes the step's seconds of those by the formulas of `seconds.py`, with what a
pipeline idles: in closed form (`pipeline.py`), or by the events of its own stages (`stages.py` on
`timeline.py`; `last_pass.py` tells only when the last pass ends; `trace.py` writes the events for
Perfetto). `memory/` has the bytes,
`usage.py` what an answer uses of its slice, `goodput.py` what a long run loses beside its steps.
Read `seconds.py` first.
"""
