"""Edits of other programs' files: a script or a recipe changed so that it says another plan, in its
own words and at the place where each stands.

`edited` asks what the exporter writes for the plan that the file says and for the other one: the
keys in which those differ are what changes. `script.py` edits launch scripts, `keys.py` YAML, TOML,
JSON and Python. An edit is an attempt until the reader finds in it what it should, and nothing else
changed; there is no other knowledge of a program here than its exporter and its reader.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import unified_diff
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

from shardwise.errors import BadRequest
from shardwise.planner.export.edit.keys import (
    left_out_of_call,
    left_out_of_python,
    left_out_of_toml,
    left_out_of_yaml,
    set_in_json,
    set_in_members,
    set_in_python,
    set_in_toml,
    set_in_yaml,
    set_keyword,
)
from shardwise.planner.export.edit.script import (
    in_environment,
    left_out_of_script,
    set_in_script,
)
from shardwise.planner.export.flags import arguments_of
from shardwise.planner.export.known_flags import values_in
from shardwise.planner.export.megatron_former import former_of
from shardwise.planner.export.megatron_yaml import OVERRIDDEN, is_override, recipe_keys
from shardwise.planner.export.script import launch_of
from shardwise.planner.export.torchtitan_keys import POLICIES, RENAMED
from shardwise.planner.export.trainer import TARGETS as TRAINERS
from shardwise.planner.export.trainer import given_of, taken_apart
from shardwise.planner.export.trainer.dialects import spellings
from shardwise.planner.export.trainer.files import parts
from shardwise.plans import TrainPlan

Values = Mapping[str, Any]
_ROUNDS = 3
"""A key that hangs on another one is written in a later round."""
_NEIGHBOURS = 12
"""Neighbours that a new flag is tried beside."""
_RIVALS = {
    "--num-virtual-stages-per-pipeline-rank": (
        "--num-layers-per-virtual-pipeline-stage",
        "--pipeline-model-parallel-layout",
    ),
    "--pipeline-model-parallel-layout": (
        *("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
        *("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"),
    ),
}
"""Keys that another one replaces."""


def edited(
    text: str,
    target: str,
    goal: TrainPlan,
    write: Callable[[TrainPlan], str],
    read: Callable[[str], TrainPlan],
    reached: Callable[[TrainPlan], bool],
) -> str | None:
    """The text, changed so that its plan is as good as the `goal` (`reached`); None where no edit
    comes to that. `write` is the program's exporter and `read` its reader."""
    wanted, changed, now = keys_in(write(goal), target), text, read(text)
    done: list[tuple[str, Any]] = []
    for _ in range(_ROUNDS):
        changes = _changes(keys_in(write(now), target), wanted, keys_in(changed, target))
        changes = {k: v for k, v in changes.items() if _has_word(changed, target, k, v)}
        for key, value in changes.items():
            following = _with_value(changed, target, key, value, list(wanted))
            if following is None:
                return None
            changed = following
        done += changes.items()
        try:
            now = read(changed)
        except BadRequest:
            return None
        if reached(now):
            fewest = _fewest(text, target, done, list(wanted), read, reached)
            whole = fewest or changed
            return in_environment(whole, target, read(text), now, len(_given(whole)))
    return None


def with_given(text: str, given: Mapping[str, str]) -> str:
    """The text below what a caller gives it: variables of a script, its arguments by number, keys
    of a YAML file. No edit changes those."""
    sign = ": " if _form(text) == "yaml" else "="
    numbers = [int(name) for name in given if name.isdigit() and len(name) < 3]
    words = [given.get(str(at), '""') for at in range(1, max(numbers, default=0) + 1)]
    placed = f"set -- {' '.join(words)}\n" if numbers else ""  # what the script is called with
    named = (f"{name}{sign}{value}\n" for name, value in given.items() if not name.isdigit())
    return placed + "".join(named) + _GIVEN + text


def has_use_for(text: str, name: str, given: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Whether what a caller gives for a name decides anything of what a script starts, with all
    that is `given`; of a text that is not a script always."""
    if _form(text) in ("yaml", "python"):
        return True
    if name.isdigit():
        return re.search(rf"\$(\{{?{name}\b|[@*])|\bshift\b", text) is not None
    try:
        others = {key: value for key, value in given.items() if key != name}
        ways = [launch_of(with_given(text, others | own)) for own in ({}, {name: _UNLIKELY})]
    except BadRequest:
        return True
    said = [(one.arguments, one.nodes, one.each) if one else None for one in ways]
    return said[0] != said[1]


_UNLIKELY = "7919"
"""A number that no script has of itself."""


def without_given(text: str) -> str:
    """The text alone."""
    return text[len(_given(text)) :]


def _given(text: str) -> str:
    return text[: text.find(_GIVEN) + len(_GIVEN)] if _GIVEN in text else ""


_GIVEN = "# above is what the caller gives\n"


def keys_in(text: str, target: str) -> Values:
    """What a file says by key; of transformers' Trainer each value as it is spelt, as its files say
    a number or a switch as text or not."""
    if target not in TRAINERS:
        return values_in(text, target)
    try:
        return {k: str(v).lower() for k, v in given_of(text, target).values.items()}
    except BadRequest:
        return {}


def diff_of(old: str, new: str, name: str, around: int = 1) -> str:
    """A unified diff of a file of that name and of those that it takes along, with so many lines
    around each change."""
    before, after = (taken_apart(without_given(text), name) for text in (old, new))
    lines = chain.from_iterable(
        unified_diff(
            before[file].splitlines(keepends=True),
            after[file].splitlines(keepends=True),
            f"a/{file}",
            f"b/{file}",
            n=around,
        )
        for file in before
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _changes(now: Values, goal: Values, said: Values) -> dict[str, Any]:
    """Keys whose value must become another one, None where the key must go; `said` is the file."""
    found = {k: v for k, v in goal.items() if now.get(k) != v and said.get(k) != v}
    found = {k: v for k, v in found.items() if not isinstance(v, list) or k in said}
    gone = {k: None for k in now if k not in goal and k in said}
    rivals = {r: None for k in found for r in _RIVALS.get(k, ()) if r in said}
    return {**gone, **rivals, **found}


def _has_word(text: str, target: str, key: str, value: Any) -> bool:
    """Whether the program has a key for what the Trainer calls so: one with keys of its own alone
    may work it out of others, as it does the rounds of a whole batch. How a model is cut beside
    FSDP, accelerate's own line or config says."""
    if target not in TRAINERS:
        return True
    given = given_of(text, target)
    cut = key.startswith("parallelism_config") and key not in given
    if cut and not (given.launch and given.launch.options) and "distributed_type" not in given:
        return given.dialect is not None and any(spellings(given.dialect, key, str(value)))
    if (row := given.dialect) is None or not row.closed or given.spelt.get(key) == key:
        return True
    return any(spellings(row, key, None if value is None else str(value)))


def _fewest(
    text: str,
    target: str,
    done: list[tuple[str, Any]],
    order: list[str],
    read: Callable[[str], TrainPlan],
    reached: Callable[[TrainPlan], bool],
) -> str | None:
    """The text with as few new values of what it says as come to the same: what says -1 for the
    rest, say, needs none. What is added or left out stays so: a program may need it, and no plan
    says that."""
    best, kept, said = None, list(done), keys_in(text, target)
    for one in [d for d in done[::-1] if d[0] in said and d[1] is not None]:
        fewer, changed = [d for d in kept if d is not one], text
        for key, value in fewer:
            following = _with_value(changed, target, key, value, order)
            changed = changed if following is None else following
        try:
            if reached(read(changed)):
                best, kept = changed, fewer
        except BadRequest:
            continue
    return best


def _with_value(text: str, target: str, key: str, value: Any, order: list[str]) -> str | None:
    """The text with a key's value changed, or the key left out (None), and no other's; None where
    no attempt does that."""
    before = keys_in(text, target)
    if before.get(key) == value:
        return text
    near = _neighbours(key, order, before)
    for attempt in _attempts(text, target, key, before.get(key), value, near[:_NEIGHBOURS]):
        after = keys_in(attempt, target)
        differ = {k for k in {*before, *after} if before.get(k) != after.get(k)}
        others = {k for k in differ if k != key and not k.startswith(f"{key}.")}
        kept = attempt.startswith(_given(text))
        if after.get(key) == value and not others and kept:
            return attempt
    return None


def _neighbours(key: str, order: list[str], said: Values) -> list[str]:
    """Keys of the file beside which a new one belongs: those with most words in common, of equals
    those that the exporter writes nearest before it."""
    at = order.index(key) if key in order else len(order)
    near = [other for other in chain(order[:at][::-1], order[at:]) if other in said]
    return sorted(near, key=lambda other: -len(_words(key) & _words(other)))


def _words(key: str) -> set[str]:
    return set(re.split(r"[-_.]", key)) - {"", "num", "per", "size", "use", "model"}


def _attempts(
    text: str, target: str, key: str, old: Any, new: Any, near: list[str]
) -> Iterator[str]:
    if target in TRAINERS:
        return _in_dialect(text, target, key, old, new, near)
    form = _form(text)
    if form == "toml":
        return _in_toml(text, key, new)
    if form == "python":
        return left_out_of_python(text, key) if new is None else _in_python(text, key, new, near)
    if form == "json":
        return set_in_json(text, key, new, out=new is None)
    if form == "yaml":
        return _in_yaml(text, target, key, new, near)
    if target == "megatron" and any(map(is_override, arguments_of(target, text))):
        return _in_overrides(text, key, new, near)
    dashed = target == "torchtitan"
    name, beside = (f"--{key}", [f"--{n}" for n in near]) if dashed else (key, near)
    was = None if old is None else str(old)
    former = former_of(key) if target == "megatron" else []
    return _in_script(text, name, was, None if new is None else str(new), beside, former)


def _in_script(
    text: str, name: str, old: str | None, new: str | None, beside: list[str], former: list[str]
) -> Iterator[str]:
    """A flag of a launch script, which may stand there in one of its former spellings."""
    if new is None:
        for spelling in (name, *former):
            yield from left_out_of_script(text, spelling, old or "")
            yield from left_out_of_script(text, spelling, "")
        return
    yield from set_in_script(text, name, old, new, beside)
    for spelling in former:
        for without in left_out_of_script(text, spelling, ""):
            yield from set_in_script(without, name, None, new, beside)


def _in_overrides(text: str, key: str, new: str | None, near: list[str]) -> Iterator[str]:
    """Among words like `model.tensor_model_parallel_size=2` of a launch line; a flag without a key
    of another name goes into the section that has it."""
    beside = [name for other in near for name, _ in recipe_keys(other, "")]
    for name, word in recipe_keys(key, new):
        said = rf"(?<![\w.])((?:\w+\.)+{re.escape(name)}=)[^\s\\]+"
        if re.search(said, text):
            yield re.sub(said, rf"\g<1>{word}", text)
            continue
        added = f"{OVERRIDDEN.get(name, 'model')}.{name}={word}"
        for other in beside if new is not None else ():
            for found in re.finditer(rf"(?m)^([ \t]*)\w+\.{re.escape(other)}=\S+[ \t]*\\$", text):
                yield f"{text[: found.end()]}\n{found[1]}{added} \\{text[found.end() :]}"


def _form(text: str) -> str:
    """The language of a file."""
    text = without_given(text)
    if text.startswith("#!"):
        return "script"
    if re.search(r"^\[[\w.]+\]\s*$", text, re.MULTILINE):
        return "toml"
    if re.search(r"^\s*(def|import|from)\s", text, re.MULTILINE):
        return "python"
    if text.lstrip().startswith("{"):
        return "json"
    return "yaml" if re.search(r"^[A-Za-z_]\w*:(\s|$)", text, re.MULTILINE) else "script"


def _in_dialect(
    text: str, target: str, key: str, old: str | None, new: str | None, near: list[str]
) -> Iterator[str]:
    """Under the keys that a program like the Trainer has for it, where it has some."""
    given = given_of(text, target)
    beside = [given.called(name) for name in near]
    if given.dialect is not None:
        own = given.spelt.get(key)
        for name, word in sorted(spellings(given.dialect, key, new), key=lambda s: s[0] != own):
            yield from _in_trainers(text, name, old if own in (None, name) else None, word, beside)
        if given.dialect.closed and own != key:
            return
    yield from _in_trainers(text, key, old, new, beside)


def _in_trainers(
    text: str, key: str, old: str | None, new: str | None, near: list[str]
) -> Iterator[str]:
    """In a launch line, a YAML or a JSON: a text may hold all of them."""
    last, beside = key.rpartition(".")[2], [name.rpartition(".")[2] for name in near]
    if _form(text) == "python":
        yield from (
            left_out_of_call(text, last) if new is None else set_keyword(text, last, new, beside)
        )
        return
    if new is None:
        yield from left_out_of_script(text, f"--{last}", old or "")
        yield from left_out_of_yaml(text, last)
        return
    yield from set_in_members(text, last, new)
    if _form(text) == "yaml" or "." in key or _holds_yaml(text):
        yield from set_in_yaml(text, last, new, beside)
    if _form(text) != "yaml":
        yield from set_in_script(text, f"--{last}", old, new, [f"--{name}" for name in beside])


def _holds_yaml(text: str) -> bool:
    """Whether a script holds a YAML file, whose keys it may have beside its own flags."""
    return any(name.endswith((".yaml", ".yml")) for name in parts(text)[1])


def _stands_in(text: str, key: str) -> bool:
    """Whether a TOML file has a key of a section."""
    section, _, name = key.rpartition(".")
    head = re.search(rf"(?m)^\[{re.escape(section)}\][^\n]*$(?P<inner>(?:\n(?!\[)[^\n]*)*)", text)
    return head is not None and bool(re.search(rf"(?m)^\s*{re.escape(name)}\s*=", head["inner"]))


def _in_toml(text: str, key: str, new: Any) -> Iterator[str]:
    """Under today's name, or the one of before that the file uses."""
    if key == "activation_checkpoint":
        word = next((mode for mode, policy in POLICIES.items() if policy == new), "none")
        yield from set_in_toml(text, "activation_checkpoint.mode", f'"{word}"')
        return
    before = [old for old, now in RENAMED.items() if now == key]
    if new is None:
        for name in (*before, key):
            yield from left_out_of_toml(text, name)
        return
    for name in [*filter(partial(_stands_in, text), before)] or [key]:
        word = str(new).lower() if isinstance(new, bool) else str(new)
        yield from set_in_toml(text, name, f'"{new}"' if isinstance(new, str) else word)


def _in_python(text: str, key: str, new: Any, near: list[str]) -> Iterator[str]:
    policy = key == "activation_checkpoint"
    word = (str(new) if new == "None" else f"{new}.Config()") if policy else repr(new)
    return set_in_python(text, key, word, near)


def _in_yaml(text: str, target: str, key: str, new: Any, near: list[str]) -> Iterator[str]:
    if target != "megatron":
        if new is None:
            yield from left_out_of_yaml(text, key)
        else:
            yield from set_in_yaml(text, key, _yaml_word(new), near)
        return
    beside = [name for other in near for name, _ in recipe_keys(other, "")]
    for name, word in recipe_keys(key, new):
        yield from set_in_yaml(text, name, word, beside)
    if new is None:
        for name, _ in recipe_keys(key, ""):
            yield from left_out_of_yaml(text, name)


def _yaml_word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
