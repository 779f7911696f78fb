"""No key of another program's file is lost: changed, it changes the plan, or a message names it."""

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.planner.export import parse_export
from shardwise.planner.export.known_flags import target_of, unread_notes
from shardwise.planner.export.script import launch_of

SCRIPTS = Path(__file__).parent / "scripts"
Changed = Iterator[tuple[str, str]]
"""A key, and the file with another value of it."""


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 if value > 0 else 2
    return [] if isinstance(value, list) else "other"


def of_flags(text: str) -> Changed:
    launch = launch_of(text)
    assert launch is not None
    words, head = list(launch.arguments), f"torchrun --nnodes {launch.nodes or 1} "
    head += f"--nproc-per-node {launch.each} {launch.program} "
    flags = [i for i, word in enumerate(words) if word.startswith("--")]
    for begin, end in zip(flags, [*flags[1:], len(words)], strict=True):
        number = re.fullmatch(r"[\d.e-]+", words[begin + 1]) if end - begin > 1 else None
        new = [words[begin], "7" if number else "other"] if end - begin > 1 else []
        rest = [*words[:begin], *new, *words[end:]]
        yield words[begin], head + " ".join(f"'{word}'" for word in rest)


def of_yaml(text: str) -> Changed:
    given = yaml.safe_load(text)
    for key, value in given.items():
        yield key, yaml.safe_dump({**given, key: other(value)})


def of_toml(text: str) -> Changed:
    for section, values in tomllib.loads(text).items():
        for key, value in values.items():
            new = str(other(value)).lower() if isinstance(value, bool) else repr(other(value))
            at = text.index(f"[{section}]")
            changed = re.sub(rf"(?m)^{key} = .*$", f"{key} = {new}", text[at:], count=1)
            yield key, text[:at] + changed


@pytest.mark.parametrize(
    ("name", "on", "changes"),
    [
        ("gpt3_175b.sh", "16*h100:8", of_flags),
        ("llama3_8b_fp8.sh", "h100:8", of_flags),
        ("mixtral_8x7b.sh", "4*h100:8", of_flags),
        ("maxtext.yml", "2*v5p:4x4x8", of_yaml),
        ("torchtitan.toml", "8*h100:8", of_toml),
    ],
)
def test_a_changed_key_changes_the_plan_or_is_named(
    name: str, on: str, changes: Callable[[str], Changed]
):
    text = (SCRIPTS / name).read_text()
    target, piece = target_of(text), parse_slice(on)
    assert target is not None
    plan, said = parse_export(text, target, piece=piece), unread_notes(text, target)
    silent = []
    for key, changed in changes(text):
        try:
            again = parse_export(changed, target, piece=piece)
        except BadRequest:
            continue
        named = any(key in line for line in (*said, *unread_notes(changed, target)))
        if again == plan and not named:
            silent.append(key)
    assert not silent
