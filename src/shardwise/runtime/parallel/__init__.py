"""Strategies: a TrainPlan's choices executed, each in a file named as in `planner/step/strategies`.

`run.py` turns a plan into functions; `step.py` is the one program over the mesh; `setup.py` has the
specs that all share. `fsdp.py` gathers stored parameters, `tensor.py` lays out activations,
`partial_sums.py` scatters the sums of a layer's matmuls in the forms of `scattering.py`,
`context.py` runs attention over cut heads and tokens, `expert.py` sends tokens to experts,
`packing.py` tells documents apart, `data.py` has the pieces of ZeRO, `accumulation.py` loops over
microbatches, `pipeline.py` runs a schedule's table: `stages.py` says which layers lie where,
`chunks.py` and `passes.py` make the programs of the passes. `update.py` is the optimizer's half,
`abstract.py` the state as shapes. `refusals.py` names what is not run. Read `run.py`, then
`step.py`.
"""

from shardwise.runtime.parallel.refusals import check
from shardwise.runtime.parallel.run import (
    initialise,
    loss_and_grads,
    place,
    start,
    train_step,
    unpadded,
    whole,
)

__all__ = [
    "check",
    "initialise",
    "loss_and_grads",
    "place",
    "start",
    "train_step",
    "unpadded",
    "whole",
]
