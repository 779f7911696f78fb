"""Records: what a document holds of them, and their JSON Schema."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from shardwise.boundary.record_schema import schema_of
from shardwise.boundary.records import Record, hidden, part, plain, values


@dataclass(frozen=True, kw_only=True)
class Leg(Record):
    """A part of a trip."""

    seconds: float
    """Seconds that it takes."""
    by: Literal["rail", "road"] = "rail"


@dataclass(frozen=True, kw_only=True)
class Trip(Leg):
    """A trip of several legs.

    What else there is to know of it is no part of the schema.
    """

    from_: str
    """Where it
    starts."""
    legs: Sequence[Leg]
    stops: tuple[int, ...]
    pair: tuple[str, int]
    prices: Mapping[str, float | None]
    more: Any
    late: Leg | None = part()
    """Only of trips that were late."""
    map: object = hidden(None)


TRIP = Trip(
    seconds=2.0,
    from_="here",
    legs=[Leg(seconds=np.float64(1.5)), Leg(seconds=0.5, by="road")],
    stops=(1, 2),
    pair=("a", 1),
    prices={"first": None, "second": 3.0},
    more=np.arange(2),
    map=object(),
)


def test_a_document_holds_what_is_not_hidden():
    assert plain(TRIP) == {
        "seconds": 2.0,
        "by": "rail",
        "from": "here",
        "legs": [{"seconds": 1.5, "by": "rail"}, {"seconds": 0.5, "by": "road"}],
        "stops": [1, 2],
        "pair": ["a", 1],
        "prices": {"first": None, "second": 3.0},
        "more": [0, 1],
    }


def test_a_part_stands_where_an_answer_has_it():
    late = Trip(**values(TRIP) | {"late": Leg(seconds=9.0)})
    assert plain(late)["late"] == {"seconds": 9.0, "by": "rail"}


def test_a_record_is_made_of_one_that_it_extends_and_the_reverse():
    leg = Leg(seconds=1.0, by="road")
    more = {n: v for n, v in values(TRIP).items() if n not in ("seconds", "by")}
    made = Trip.of(leg, **more)
    assert (made.seconds, made.by, made.from_) == (1.0, "road", "here")
    assert Leg.part_of(made) == leg


def test_a_schema_is_of_the_fields_with_what_is_said_of_them():
    schema = schema_of(Trip)
    assert schema["$ref"] == "#/$defs/Trip"
    trip, leg = schema["$defs"]["Trip"], schema["$defs"]["Leg"]
    assert trip["description"] == "A trip of several legs."
    assert trip["additionalProperties"] is False
    assert trip["required"] == [
        *("seconds", "by", "from", "legs", "stops", "pair", "prices", "more")
    ]
    assert trip["properties"] == {
        "seconds": {"type": "number", "description": "Seconds that it takes."},
        "by": {"enum": ["rail", "road"]},
        "from": {"type": "string", "description": "Where it starts."},
        "legs": {"type": "array", "items": {"$ref": "#/$defs/Leg"}},
        "stops": {"type": "array", "items": {"type": "integer"}},
        "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        "prices": {
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
        "more": {},
        "late": {"$ref": "#/$defs/Leg", "description": "Only of trips that were late."},
    }
    assert leg["required"] == ["seconds", "by"]


def test_a_field_of_a_type_that_json_has_not_is_our_own_mistake():
    @dataclass(frozen=True, kw_only=True)
    class Odd(Record):
        """Odd."""

        seen: set[int]

    with pytest.raises(TypeError, match="no JSON Schema"):
        schema_of(Odd)
