"""Limits that several programs have."""

from collections.abc import Mapping

import numpy as np

from shardwise.plans.software.candidates import Candidates
from shardwise.plans.software.limit import Limit, Words, always, of_choice
from shardwise.plans.train import MESH_AXES, STORAGE_AXES
from shardwise.units import dtype_bytes

OWN_KERNELS: Words = {
    "cuda_graph": {(): ""},
    "grouped_kernel": {"per_expert": ""},
    "dispatcher": {None: ""},
    "wide": {(): ""},
}
"""Choices of kernels that a program has no word for: the plain ones."""


def stores_all() -> Limit:
    """No axis that could store parameters in pieces replicates them."""
    return of_choice(
        "storage_axes",
        lambda c: all_stored(c),
        "it also shards parameters over expert and context",
        f"set storage_axes to [{', '.join(STORAGE_AXES)}]",
    )


def all_stored(c: Candidates) -> np.ndarray:
    """Where every axis that could store parameters in pieces does."""
    kept = np.asarray(True)
    for axis in STORAGE_AXES:
        if axis not in c.structure.storage_axes:
            kept = kept & (c.degree(axis) == 1)
    return kept


def stored(c: Candidates) -> str:
    """The dtype of the one copy that is stored: the master's, where there is one."""
    d = c.structure.dtypes
    return d.param if d.master == "none" else d.master


def dtype_of_store(words: Mapping[str, str]) -> tuple[Limit, ...]:
    """One copy of the weights is stored, whose dtype the moments have too."""

    def no_bits_lost(c: Candidates) -> bool:
        d = c.structure.dtypes
        return d.master == "none" or dtype_bytes(d.master) >= dtype_bytes(d.param)

    known = ", ".join(words)
    return (
        of_choice(
            "dtypes.master",
            no_bits_lost,
            "without a master copy it would lose bits of the parameters",
            "set dtypes.master to f32",
        ),
        of_choice(
            "dtypes.param",
            lambda c: stored(c) in words,
            f"it stores weights as {known}",
            "set dtypes.master to f32",
        ),
        of_choice(
            "dtypes.moments",
            lambda c: c.structure.dtypes.moments == stored(c),
            "moments have the dtype of the stored weights",
            lambda c: f"set dtypes.moments to {stored(c)}",
        ),
    )


def crosses_whole() -> Limit:
    """The outermost axes fill the slices one after the other."""
    return always(
        "mesh",
        fills_slices,
        "axes cross slices outermost first, each by a whole factor",
        "give the outermost axes degrees whose product is a multiple of the slices",
    )


def fills_slices(c: Candidates) -> np.ndarray:
    """Where the degrees, taken outermost first, hold the number of slices as a factor."""
    return left_after(c, *MESH_AXES) == 1


def left_after(c: Candidates, *axes: str) -> np.ndarray:
    """What is left of the number of slices when these axes, outermost first, crossed them."""
    left = np.asarray(c.slices)
    for axis in axes:
        left = left // np.gcd(left, np.asarray(c.degree(axis), np.int64))
    return left
