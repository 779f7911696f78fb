"""Microbenchmarks of the devices here: matmuls, memory, elementwise work, attention, collectives.

`job.py` runs inside a child, on all devices at once, so that what they share they share in every
figure; it gives rows of plain values, which `commands.run.calibration.machine` fits. `reference.py`
times one product beside other things. Read `job.py`.
"""
