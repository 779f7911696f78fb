"""No key of another program's file is lost: changed, it changes the plan, or a message names it."""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.planner.export.recipes import PLANS, recipe_text
from tests.tiers import spread

from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export import parse_export
from shardwise.planner.export.known_flags import target_of, unread_notes
from shardwise.planner.export.script import launch_of
from shardwise.planner.export.trainer.files import parts

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


def replaced(table: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A key at any depth, and the table with another value of it."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            for inner, changed in replaced(value):
                yield inner, {**table, key: changed}
        else:
            yield str(key), {**table, key: other(value)}


def of_yaml(text: str) -> Changed:
    main, held = parts(text)
    rest = text[len(main) :] if held else ""
    for key, changed in replaced(yaml.safe_load(main)):
        yield key, yaml.safe_dump(changed) + rest


def of_json(text: str) -> Changed:
    for key, changed in replaced(json.loads(text)):
        yield key, json.dumps(changed)


def of_toml(text: str, section: str = "", table: Mapping[str, Any] | None = None) -> Changed:
    for key, value in (tomllib.loads(text) if table is None else table).items():
        if isinstance(value, Mapping):
            yield from of_toml(text, f"{section}.{key}".removeprefix("."), value)
            continue
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
    assert silent((SCRIPTS / name).read_text(), on, None, changes) == []


KINDS = {".yaml": of_yaml, ".yml": of_yaml, ".json": of_json, ".toml": of_toml}
QUICK = ("axolotl_llama3_8b_lora.yaml", "accelerate_fsdp2.yaml", "zero2.json")


@pytest.mark.parametrize(
    "name", spread(PLANS, [[*PLANS].index(n) for n in QUICK], len(PLANS) - len(QUICK))
)
def test_so_it_is_in_recipes(name: str):
    asked = PLANS[name]
    assert silent(recipe_text(name), asked.on, asked.model, KINDS[Path(name).suffix]) == []


def silent(text: str, on: str, model: str | None, changes: Callable[[str], Changed]) -> list[str]:
    """Keys whose change nobody notices."""
    target, piece = target_of(text), parse_slice(on)
    assert target is not None
    named = None if model is None else (model, load_model(model))
    plan, said = parse_export(text, target, model=named, piece=piece), unread_notes(text, target)
    found = []
    for key, changed in changes(text):
        try:
            again = parse_export(changed, target, model=named, piece=piece)
        except BadRequest:
            continue
        lines = [*said, *unread_notes(changed, target)]
        told = any(k in line for line in lines for k in (key, key.replace("_", "-")))
        if again == plan and not told:
            found.append(key)
    return found
