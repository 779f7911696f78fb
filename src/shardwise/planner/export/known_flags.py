"""Which program's file a text is, and which of its flags that program does not know.

The flags that each program takes are a snapshot of its own parser: `flags.json` in
`plans/data/software`, written by scripts/check_exports.py. A flag that it knows and that says
nothing of a plan is fine; one that it does not know is most often a slip of the pen, which nobody
would notice.
"""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import shardwise.plans.software
from shardwise.boundary import read_json
from shardwise.errors import BadRequest, shown
from shardwise.planner.export import maxtext_read, megatron_read, torchtitan_read
from shardwise.planner.export.script import launch_of

_FILE = Path(shardwise.plans.software.__file__).parents[1] / "data" / "software" / "flags.json"

_LAUNCHER = ("--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port")
"""Of torchrun, which stands before Megatron's own."""
_OURS = re.compile(r"^\s*[{]?\s*\"?(kind|model|model_hash|slice|mesh|batch|length)\"?\s*:", re.M)
_FEWEST = 2
"""Flags of a program that a text holds if it is for it."""


@cache
def known_flags() -> Mapping[str, Mapping[str, Any]]:
    """Of each program its version and date, and the `flags` that its parser takes."""
    return read_json(_FILE, "the flags of other programs")


def _of_maxtext(text: str) -> set[str]:
    return set(maxtext_read.own_flags(text))


def _of_megatron(text: str) -> set[str]:
    return set(megatron_read.parsed(text).given) - set(_LAUNCHER)


def _of_torchtitan(text: str) -> set[str]:
    return set(torchtitan_read.given_values(text))


_FLAGS: Mapping[str, Callable[[str], set[str]]] = {
    "maxtext": _of_maxtext,
    "megatron": _of_megatron,
    "torchtitan": _of_torchtitan,
}


def target_of(text: str) -> str | None:
    """The program that a text is for, by the flags of each that it holds; None for a plan of ours,
    and where it is for none."""
    if _OURS.search(text):
        return None
    counts = {target: len(_given(target, text) & _known(target)) for target in _FLAGS}
    best = max(counts, key=lambda target: counts[target])
    return best if counts[best] >= _FEWEST else None


def unread_notes(text: str, target: str) -> list[str]:
    """A line for each flag that the program does not know, with the nearest that it does, and for
    what was read as something near it."""
    if target not in _FLAGS:
        return []
    near = _of_torchtitan_near(text) if target == torchtitan_read.TARGET else []
    model = maxtext_read.unknown_model(text) if target == maxtext_read.TARGET else None
    other = [f"{model}; not read, the model is the one given"] if model else []
    return [*_unknown_flags(text, target), *other, *near, *_left_by_script(text)]


def _of_torchtitan_near(text: str) -> list[str]:
    """What is read as something near it, and known keys that are not read."""
    known = _known("torchtitan")
    said = torchtitan_read.read_nearly(text)
    for key, value in torchtitan_read.not_understood(text).items():
        if key in known or key.partition(".")[0] not in _sections(known):
            said.append(f"{key} = {shown(value)} is not understood, and was not read")
    return said


def _left_by_script(text: str) -> list[str]:
    """What a script leaves to its caller, and that it starts more than is read."""
    try:
        launch = launch_of(text)
    except BadRequest:
        return []
    if launch is None:
        return []
    names = ", ".join(f"${name}" for name in sorted(launch.unset))
    empty = [f"the script leaves {names} to its caller: read as empty"] if names else []
    if not launch.others:
        return empty
    many = f"{launch.others} more program{'s' if launch.others > 1 else ''}"
    return [*empty, f"the script starts {many}; read is {launch.program or 'the longest'}"]


def _unknown_flags(text: str, target: str) -> list[str]:
    known, said = _known(target), []
    for name in sorted(_given(target, text) - known):
        if target == "torchtitan" and name.partition(".")[0] not in _sections(known):
            continue  # a model's or the data's own, of which there is no list
        near = get_close_matches(name, known, n=1, cutoff=0.7)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        version = known_flags()[target]["version"]
        said.append(f"{target} {version} knows no {shown(name)}, which was not read{hint}")
    return said


def _given(target: str, text: str) -> set[str]:
    """The flags of a text, if it can be read as one of the program's."""
    try:
        return _FLAGS[target](text)
    except BadRequest:
        return set()


def _known(target: str) -> set[str]:
    return set(known_flags()[target]["flags"])


def _sections(flags: set[str]) -> set[str]:
    return {flag.partition(".")[0] for flag in flags}
