"""The table of classes: how each spells its keys, what it assumes, how its layers are built.

One row per `architectures[0]` stands in `data/architectures.toml`, whose head explains its fields;
a config that names no architecture is looked up by `model_type`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shardwise.errors import BadRequest, unknown
from shardwise.models import blocks, families, patterns, towers
from shardwise.models.blocks import Switch, Traits
from shardwise.models.config import Tower
from shardwise.models.patterns import Rule
from shardwise.models.reader import Reader
from shardwise.models.rows import read_rows
from shardwise.models.specs import Layer, Mixer, Mlp, Moe

TowerRule = Callable[[Reader, Reader], Tower]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One class. `mixers` and `mlps` say which kind each layer is, `mixer` and `mlp` build one.

    `mixer_list`, `mlp_list` and `stack` replace them where layers differ in more than their kind.
    A default of None means that the value is derived, as K = N.
    """

    model_type: str
    source: str
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    traits: Traits | Callable[[Reader], Traits]
    mixers: Rule = patterns.all_full
    mlps: Rule = patterns.all_dense
    mixer: Callable[[Reader, str, Traits], Mixer] = blocks.softmax
    mlp: Callable[[Reader, Traits], Mlp] = blocks.dense
    mixer_list: Callable[[Reader, list[str], Traits], list[Mixer]] | None = None
    mlp_list: Callable[[Reader, list[str], Traits], list[Mlp | Moe]] | None = None
    stack: Callable[[Reader, int], list[Layer]] | None = None
    layers: Callable[[Reader], int] | None = None
    embedding_norm: bool = False
    final_norm: Switch = True
    head_bias: Switch = False
    position_key: str = ""
    position_offset: int = 0
    extra_embedding_rows: int = 0
    streams_key: str = ""
    towers: Mapping[str, TowerRule] = field(default_factory=dict)
    tower_defaults: Mapping[str, Any] = field(default_factory=dict)


_FUNCTIONS = ("mixers", "mlps", "mixer", "mlp", "mixer_list", "mlp_list", "stack", "layers")


@cache
def architectures() -> Mapping[str, Architecture]:
    """Every class known, by the name that `architectures[0]` gives it."""
    rows = read_rows(Path(__file__).parent / "data" / "architectures.toml")
    return MappingProxyType({n: _architecture(row) for n, row in rows.items() if n[0].isupper()})


def _architecture(row: dict[str, Any]) -> Architecture:
    traits = row.get("traits", {})
    if isinstance(traits, str):
        row["traits"] = _function(traits)
    else:
        row["traits"] = Traits(**{k: _frozen(v) for k, v in traits.items()})
    row["keys"] = {key: tuple(names) for key, names in row.get("keys", {}).items()}
    row["towers"] = {key: _function(name) for key, name in row.get("towers", {}).items()}
    return Architecture(**row | {key: _function(row[key]) for key in _FUNCTIONS if key in row})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _function(said: str | list[str]) -> Any:
    """The function of that name; [name, argument, ...] is the rule that one makes of arguments."""
    name, *arguments = [said] if isinstance(said, str) else said
    homes = (patterns, blocks, families, towers)
    found = next((getattr(home, name) for home in homes if hasattr(home, name)), None)
    assert found is not None, f"data/architectures.toml names the function '{name}', there is none"
    return found(*arguments) if arguments else found


ALIASES: Mapping[str, str] = {"PhiMoEForCausalLM": "PhimoeForCausalLM"}
"""Names of remote-code classes that became a class of the table."""

TYPE_ALIASES: Mapping[str, str] = {"phi-msft": "phi", "kimi_k2": "deepseek_v3"}
"""Model types that a class of the table also reads."""


def architecture_of(raw: Mapping[str, Any], file: str) -> tuple[str, Architecture]:
    """Name and row for a config: `architectures[0]`, else `model_type`; unknown names are refused.

    A name that is given but not in the table is refused even where its model_type is known: a
    class that says it is another may differ in any tensor.
    """
    table = architectures()
    known = f"known: {', '.join(table)}"
    names = raw.get("architectures")
    if names is not None and (
        not isinstance(names, list) or not names or not isinstance(names[0], str)
    ):
        rule = "it must be a list with the name of a class"
        raise BadRequest(f"{file}: architectures is {names!r}; {rule}; {known}")
    if names:
        name = ALIASES.get(names[0], names[0])
        if name not in table:
            raise unknown("architecture", names[0], table, f"{file}; {known}")
        return name, table[name]
    kind = raw.get("model_type")
    if not isinstance(kind, str):
        rule = "neither architectures nor model_type names a class"
        raise BadRequest(f"{file}: {rule}; add one to say what the model is; {known}")
    types = {row.model_type: name for name, row in table.items()}
    kind = TYPE_ALIASES.get(kind, kind)
    if kind not in types:
        raise unknown("model_type", kind, types, f"{file}; known: {', '.join(types)}")
    return types[kind], table[types[kind]]
