"""The table of classes: how each spells its keys, what it assumes, how its layers are built.

One row per `architectures[0]` stands in `data/architectures.toml`, whose head explains its fields;
a config that names no architecture is looked up by `model_type`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shardwise.errors import BadRequest, shown, unknown
from shardwise.models import blocks, families, hybrids, latents, patterns, towers
from shardwise.models.blocks import Switch, Traits
from shardwise.models.config import Tower
from shardwise.models.patterns import Rule
from shardwise.models.reader import Reader
from shardwise.models.rows import read_rows
from shardwise.models.specs import Layer, Mixer, Mixing, Mlp, Moe

TowerRule = Callable[[Reader, Reader], Tower]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One class. `mixers` and `mlps` say which kind each layer is, `mixer` and `mlp` build one.

    `mixer_list`, `mlp_list` and `stack` replace them where layers differ in more than their kind.
    A default of None means that the value is derived, as K = N. `extras` are its own tensors and
    `sizes` their letters (`extras.py`).
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
    initial_state: bool = False
    final_norm: Switch = True
    head_bias: Switch = False
    capped_logits: bool = False
    position_key: str = ""
    position_offset: int = 0
    extra_embedding_rows: int = 0
    streams_key: str = ""
    streams_mixed: bool = True
    mixing: Mixing = "hyper"
    sizes: Mapping[str, str | int] = field(default_factory=dict)
    extras: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    towers: Mapping[str, TowerRule] = field(default_factory=dict)
    tower_defaults: Mapping[str, Any] = field(default_factory=dict)


_FUNCTIONS = ("mixers", "mlps", "mixer", "mlp", "mixer_list", "mlp_list", "stack", "layers")


@cache
def architectures() -> Mapping[str, Architecture]:
    """Every class known, by the name that `architectures[0]` gives it."""
    rows = read_rows(Path(__file__).parent / "data" / "architectures.toml")
    return MappingProxyType({n: _architecture(r) for n, r in rows.items() if "model_type" in r})


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
    homes = (patterns, blocks, families, hybrids, latents, towers)
    found = next((getattr(home, name) for home in homes if hasattr(home, name)), None)
    assert found is not None, f"data/architectures.toml names the unknown function '{name}'"
    return found(*arguments) if arguments else found


ALIASES: Mapping[str, str] = {"PhiMoEForCausalLM": "PhimoeForCausalLM"}
"""Names of remote-code classes that became a class of the table."""

TYPE_ALIASES: Mapping[str, str] = {"phi-msft": "phi", "kimi_k2": "deepseek_v3"}
"""Model types that a class of the table also reads."""


TEXT_SECTIONS = ("text_config", "language_config", "llm_config")
"""Where models of several modalities keep the config of their text model."""


FEW = 2
"""The most keys that a class may leave unread to be named for a config of a class not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relatives:
    """Classes that read a config of a class that is not known, the likest first, and the keys of it
    that the first leaves unread."""

    names: Sequence[str]
    unread: Sequence[str]


def architecture_of(
    raw: Mapping[str, Any], file: str, family: str, relatives: Callable[[], Relatives]
) -> tuple[str, Architecture]:
    """Name and row for a config: the `family` that the user names, else `architectures[0]`, else
    the class of its text section, else `model_type`.

    A name that is given but not in the table is refused even where its model_type is known: a
    class that says it is another may differ in any tensor. The message names `relatives`, the
    classes that read all of the config's keys.
    """
    table = architectures()
    if family:
        return _family(family, file)
    names = raw.get("architectures")
    if names is not None and (
        not isinstance(names, list) or not names or not isinstance(names[0], str)
    ):
        rule = "it must be a list with the name of a class, such as LlamaForCausalLM"
        raise BadRequest(f"{file}: architectures is {names!r}; {rule}")
    if names and ALIASES.get(names[0], names[0]) in table:
        name = ALIASES.get(names[0], names[0])
        return name, table[name]
    inner = _by_type(text_section(raw)) if names else _by_type(raw)
    if inner is not None:
        return inner, table[inner]
    if names:
        raise _not_known("architecture", names[0], list(table), file, relatives())
    kind = raw.get("model_type")
    if not isinstance(kind, str):
        rule = "neither architectures nor model_type names a class"
        raise BadRequest(f'{file}: {rule}; add one, such as "model_type": "llama"')
    raise _not_known("model_type", kind, list(_types()), file, relatives())


def text_section(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text model in a config of several; empty where there is none."""
    sections = (raw.get(key) for key in TEXT_SECTIONS)
    return next((section for section in sections if isinstance(section, Mapping)), {})


def _family(family: str, file: str) -> tuple[str, Architecture]:
    """The row of a class or of a model type, as `--as` names it."""
    table = architectures()
    name = ALIASES.get(family, _types().get(TYPE_ALIASES.get(family, family), family))
    if name not in table:
        raise unknown("family", family, [*table, *_types()], f"{file}; docs/models.md lists all")
    return name, table[name]


def _by_type(section: Mapping[str, Any]) -> str | None:
    names, kind = section.get("architectures"), section.get("model_type")
    if isinstance(names, list) and names and names[0] in architectures():
        return names[0]
    return _types().get(TYPE_ALIASES.get(kind, kind)) if isinstance(kind, str) else None


@cache
def _types() -> Mapping[str, str]:
    return MappingProxyType({row.model_type: name for name, row in architectures().items()})


def _not_known(
    kind: str, name: str, known: Sequence[str], file: str, relatives: Relatives
) -> BadRequest:
    """The error for a class that no row reads: first as what it can be read, then how it may have
    been meant to be spelt."""
    close = get_close_matches(name, known, n=1, cutoff=0.88)  # most end in ForCausalLM
    slip = f"; if the name is a typo, correct it to '{close[0]}'" if close else ""
    names, unread = relatives.names, relatives.unread
    if unread or not names:
        way = (
            f"no known class has all its keys{_all_but(names, unread)}: docs/models.md lists the "
            "known ones; if it has the shape of one of them, add --as CLASS; CONTRIBUTING.md "
            "shows how to add a class"
        )
        return BadRequest(f"{file}: unknown {kind} {shown(name)}; {way}{slip}")
    near = " or ".join(names[:3])
    other = ", or another of them" if names[1:] else ""
    return BadRequest(
        f"{file}: unknown {kind} {shown(name)}; its keys are those of {near}: if it is such a "
        f"model, add --as {names[0]}{other}{slip}"
    )


def _all_but(names: Sequence[str], unread: Sequence[str]) -> str:
    """Which class has all keys but a few; nothing where more are left."""
    if not names or len(unread) > FEW:
        return ""
    return f" ({names[0]} has all but {' and '.join(unread)})"
