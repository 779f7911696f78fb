"""Bytes per device of many candidates at once, from parts on the few rows that each depends on."""

from dataclasses import replace

import numpy as np

from shardwise.planner.price.memory.working import loss_bytes
from shardwise.planner.search.leaves import Chunk
from shardwise.plans.train import Structure
from shardwise.scheduling.pipeline import PLAIN


def least_memory(chunk: Chunk, structure: Structure) -> np.ndarray:
    """Bytes that no ZeRO stage and no schedule goes below: those with ZeRO-2, and with the plain
    schedule, which has the fewest microbatches in flight and both ends apart."""
    return memory_of(chunk, replace(structure, zero=2, pipeline_schedule=PLAIN, virtual_stages=1))


def memory_of(chunk: Chunk, structure: Structure) -> np.ndarray:
    """Bytes per device at the fullest point of the step (`price/memory/step.py`)."""
    parts = chunk.parts
    first, last, update, summed = chunk.at(parts.resident(structure))
    kept, in_transit, modules = chunk.at(parts.kept(structure))
    gathered, stays, *ends = chunk.at(parts.gathered(structure))
    layer, *logits = chunk.at(parts.working(structure))
    held, held_last, less = chunk.at(parts.in_flight(structure))
    # A rank holds the most activations when a backward pass begins. When it ends, those of one
    # microbatch are gone and the microbatch's own gradients (`summed`) are there.
    of_stage = kept * chunk.share
    alive = np.maximum(of_stage * held, of_stage * less + summed)
    backward = first + alive + gathered + layer
    loss = last + of_stage * held_last + modules + stays
    loss = loss + loss_bytes(ends, logits, parts.eager)
    return np.maximum(np.maximum(backward, loss) + in_transit, update)
