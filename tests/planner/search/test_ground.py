"""Searches on one ground price what they share once, and find what each finds alone."""

from dataclasses import replace

import numpy as np
import pytest
from tests.planner.search.test_train_search import MOE, request

from shardwise.planner.choosing import plan_for
from shardwise.planner.price.composition import Stored
from shardwise.planner.search.choices import Simplicity
from shardwise.planner.search.ground import places_of
from shardwise.planner.search.leaves import Chunk, StepParts
from shardwise.planner.search.loop import search, simplest
from shardwise.planner.search.request import Ground
from shardwise.planner.search.space import structures_of
from shardwise.planner.training import plan_train
from shardwise.plans.software import SOFTWARE

PROGRAMS = SOFTWARE["megatron"], None
LATER: Simplicity = (9, (9, 9), 999, 0.0, 1e9)
"""A plan than which every other one is simpler."""


def asked(**changes):
    return request(cfg=MOE, on="2*h100:8", sequences=32, **changes)


@pytest.fixture
def made(monkeypatch):
    """The parts of a step that are counted, each by its name and choices."""
    seen, count = [], StepParts._counted

    def counted(self, part, structure):
        seen.append((id(self), part.name, part.choices(structure)))
        return count(self, part, structure)

    monkeypatch.setattr(StepParts, "_counted", counted)
    return seen


def same(one, other):
    assert replace(one, seconds=0.0) == replace(other, seconds=0.0)


def test_a_search_finds_on_a_shared_ground_what_it_finds_alone():
    ground = Ground()
    for software in PROGRAMS:
        alone = search(asked(software=software), 4)
        same(search(asked(software=software, ground=ground), 4), alone)
        slow = alone.best[-1].seconds
        near = asked(software=software, better_than=slow)
        assert simplest(replace(near, ground=ground), 3, LATER) == simplest(near, 3, LATER)


def test_no_part_is_counted_twice(made):
    ground = Ground()
    for software in PROGRAMS:
        near = asked(software=software, ground=ground)
        best = search(near, 4).best
        simplest(replace(near, better_than=best[-1].seconds), 3, LATER)
    assert len(made) == len(set(made))
    assert len({parts for parts, *_ in made}) == 1


def test_no_floor_of_a_layer_and_its_storage_is_below_that_of_the_layer_alone():
    """The floor that is looked at first must not leave out what the later one keeps."""
    one = asked(pipeline_schedule=("1f1b", "dualpipe"))
    structures = structures_of(one)
    for place in places_of(one, one.piece.shape, structures[0])[1]:
        stages = place.columns.degrees["stage"] > 1
        for index in (np.flatnonzero(stages), np.flatnonzero(~stages)):
            steps = Chunk(place.parts, index).steps()
            for structure in structures:
                early = place.parts.layer_floor(structure, index, bool(stages[index[0]]))
                late = np.asarray(Stored(steps, structure).floor())
                assert np.all(early <= late)
                assert np.any(early > 0.5 * late)


def test_programs_of_different_software_do_not_share():
    one = asked(software=SOFTWARE["megatron"], ground=Ground())
    other = replace(one, structure=replace(one.structure, stack="fsdp"))
    first, second = (places_of(each, each.piece.shape, each.structure)[1] for each in (one, other))
    assert first[0].parts is not second[0].parts


def test_an_answer_keeps_no_ground():
    planning = plan_for([[asked(software=SOFTWARE["megatron"])]], plan_of, 3)
    assert planning.request.ground is None


def plan_of(request, top):
    assert request.ground is not None
    return plan_train(request, top=top)
