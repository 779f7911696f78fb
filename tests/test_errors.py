"""One exception tree, one exit code a class, and names that are nearly right."""

import pytest

from shardwise.errors import (
    BadRequest,
    MissingPart,
    NoFeasiblePlan,
    ShardwiseError,
    ThresholdMissed,
    unknown,
)


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (ShardwiseError, 1),
        (BadRequest, 2),
        (NoFeasiblePlan, 3),
        (ThresholdMissed, 4),
        (MissingPart, 5),
    ],
)
def test_exit_codes(cls, code):
    assert cls.exit_code == code
    assert issubclass(cls, ShardwiseError)


def test_a_near_name_is_offered():
    said = str(unknown("mesh axis", "tensro", ["data", "tensor"], "axes are named by their role"))
    assert said == (
        "unknown mesh axis 'tensro'; did you mean 'tensor'? (axes are named by their role)"
    )


def test_several_near_names_are_offered_nearest_first():
    said = str(unknown("chip", "v5q", ["h100", "v5p", "v5e"]))
    assert said == "unknown chip 'v5q'; did you mean 'v5p' or 'v5e'?"


def test_without_a_near_name_a_short_list_is_shown_whole():
    assert str(unknown("kind", "zzz", ["train", "serve"])) == (
        "unknown kind 'zzz'; known: train, serve"
    )


def test_without_a_near_name_a_long_list_is_not_shown():
    said = str(unknown("chip", "zzz", [f"chip{i}" for i in range(50)], "see `shardwise hw list`"))
    assert said == ("unknown chip 'zzz'; nothing known is spelt like it (see `shardwise hw list`)")


def test_it_is_returned_so_that_the_caller_raises_it():
    assert isinstance(unknown("chip", "", []), BadRequest)
