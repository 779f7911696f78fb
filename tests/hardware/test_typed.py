"""Every key of a chip's file is typed: any value is read, or refused in words."""

import json
import tomllib
from copy import deepcopy
from pathlib import Path

import pytest
from tests.tiers import spread

import shardwise.hardware
from fuzz.mutate import VALUES
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.hardware import load_chip

DATA = Path(shardwise.hardware.__file__).parent / "data"


def test_notes_that_are_no_text_are_refused(tmp_path):
    file = tmp_path / "lab.toml"
    file.write_text('id = "lab"\nbase = "h100"\nnotes = 1\n')
    with pytest.raises(BadRequest, match=r"'notes' of chip 'lab' is 1; it must be text, or a list"):
        load_chip("lab", hw_files=[file])


def places(value, at=()):
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    return [(*at, k) for k in keys] + [p for k in keys for p in places(value[k], (*at, k))]


@pytest.mark.parametrize("chip", spread(["v5e", "h100"], slow=1))
def test_any_value_in_any_place_is_answered(tmp_path, chip):
    """What stands beside it at the top is the base's, whether the file says it again or not."""
    good = tomllib.loads((DATA / f"{chip}.toml").read_text())
    good |= {"id": "lab", "aliases": ["labby"], "base": chip, "notes": ["a"]}
    file = tmp_path / "lab.json"
    every = places(good)
    for i, place in enumerate(every):
        for value in VALUES[i % 12 :: 12]:
            changed = deepcopy({key: good[key] for key in ("id", "base", place[0])})
            holder = changed
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = value
            file.write_text(json.dumps(changed))
            assert len(refusal(file)) < 2000, (place, value)


def refusal(file):
    try:
        load_chip("lab", hw_files=[file])
    except ShardwiseError as error:
        return str(error)
    return ""
