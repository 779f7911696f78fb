"""What each parallel strategy adds to a training step: its ops, its bytes, its parameters.

One file per strategy, each a few functions of the step's shape that broadcast over candidate plans.
Over mesh axes: `data.py`, `fsdp.py`, `tensor.py`, `context.py`, `expert.py`, `pipeline.py`, and
`stationary.py` (serving). In time and memory: `accumulation.py`, `remat.py`, `optimizer.py`. In
what is trained: `lora.py`, `mtp.py` and `packing.py`. How they make up a step is said in
`step/parts.py` and `step/work.py`; what the mesh cuts is said in `plans/layouts.py`; memory is
counted in `price/memory.py`. Nothing here knows a chip. Read `fsdp.py` first.
"""
