"""All plans of one part of a slice with their seconds and bytes, for those who ask what lies near a
plan, and not which plan is best: no floor leaves one out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardwise.planner.search.columns import Columns
from shardwise.planner.search.ground import places_of
from shardwise.planner.search.request import TrainRequest
from shardwise.planner.search.rows import Left, PricedRows, priced_rows
from shardwise.planner.search.space import Allowed, alike, legal_for, structures_of, tree_of
from shardwise.plans.train import Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """Plans as columns under one structure: equally long arrays. Seconds are those of equal stages,
    bytes of a device."""

    structure: Structure
    columns: Columns
    seconds: np.ndarray
    memory: np.ndarray


def plan_tables(request: TrainRequest) -> Iterator[PlanTable]:
    """A table for every structure that the request searches, on the `part` that it names."""
    assert request.part is not None
    _, box = request.part
    structures = structures_of(request)
    tree = tree_of(structures)
    _, places = places_of(request, box, structures[0])
    for place in places:
        for some in alike(place.columns, np.flatnonzero(legal_for(request, place.columns, box))):
            allowed = Allowed(request, place.columns.take(some), box)
            rows = priced_rows(place.parts, some, [*_left(tree, allowed)], allowed, None)
            if rows is not None:
                yield from _by_structure(place.columns, rows)


def _left(tree: dict, allowed: Allowed) -> Iterator[Left]:
    """All candidates that the rules allow, under every structure."""
    for layer, storages in tree.items():
        for storage, zeros in storages.items():
            for zero, schedules in zeros.items():
                masks = [allowed(s, i) for i, s in enumerate((layer, storage, zero))]
                known = [mask for mask in masks if mask is not None]
                if len(known) == len(masks):
                    at = np.flatnonzero(np.logical_and.reduce(known))
                    yield Left(at, zero, schedules)


def _by_structure(columns: Columns, rows: PricedRows) -> Iterator[PlanTable]:
    for last, structures in enumerate(rows.structures):
        for number, structure in structures.items():
            at = np.flatnonzero((rows.which == number) & rows.legal[:, last])
            if len(at):
                yield PlanTable(
                    structure=structure,
                    columns=columns.take(rows.index[at]),
                    seconds=rows.seconds[at, last],
                    memory=rows.memory[at, last],
                )
